"""What fits: how many tokens of keys and values a device holds beside a model's weights."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from pumice.core.byte_counts import bytes_of
from pumice.core.caps import Caps
from pumice.core.dtypes import dtype as dtype_of
from pumice.core.precisions import Precision
from pumice.core.records import dataclass
from pumice.errors import InputError
from pumice.llm.memory import PAGE, page_groups, pages_for
from pumice.llm.pages import pages_in_window
from pumice.llm.requests import check_sizes
from pumice.models.config import ModelArchConfig
from pumice.models.memory import KeysValues
from pumice.models.registry import CausalArchitecture, get_architecture

# Bytes of an entry of a key or value, and of the scale that each vector has beside its entries.
_BYTES = {"f32": (4, 0), "f16": (2, 0), "q8": (1, 4)}

# Contexts that a pool holds by default, if there are as many slots: what is cached of answers takes memory, too.
_POOL_CONTEXTS = 2
# What the tables of an engine are made for, beyond all devices: they take memory of their own before a device could refuse.
_MOST_SLOTS, _MOST_PAGES = 1 << 16, 1 << 24
_BYTES_HINT = 'give a number of tokens, or bytes as a text, for instance "2GiB" or "500MB"'

# Tokens of a prompt that are run at once, the most of them, and the bytes that the widest activations of so many may take: those
# of gate and up, in f32.
_CHUNK, _LONGEST_CHUNK, _CHUNK_BYTES, _WIDEST = 512, 2048, 1 << 28, 8
# Snapshots for each slot and once more; they may take so many bytes, or there are as few as for one slot alone.
_SNAPSHOTS, _SNAPSHOT_BYTES = 8, 1 << 28


def cache_bytes_per_token(cfg: ModelArchConfig, dtype: str = "f32") -> int:
    """Bytes of cache that a token takes in all layers, with `cache_dtype` f32, f16 or q8.

    Layers with a window count too, as if they kept all tokens.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> [cache_bytes_per_token(cfg, dtype) for dtype in ("f32", "f16", "q8")]
    [96, 48, 48]
    """
    return sum(key + value for _, key, value in _layer_bytes(cfg, dtype))


def fitting_tokens(cfg: ModelArchConfig, dtype: str, caps: Caps, weights: int, memory: int | None) -> int | None:
    """How many tokens of cache fit a device of `memory` bytes, `weights` of which are taken; None if nothing limits them.

    `memory` is None where it is not known, as WebGPU does not say it. There each layer's cache must fit a binding.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> host, gpu = Caps.preset("host"), Caps.preset("browser-baseline")
    >>> fitting_tokens(cfg, "f32", host, 1000, 10_600), fitting_tokens(cfg, "f32", gpu, 1000, None)
    (100, 4194304)
    """
    layers = list(_layer_bytes(cfg, dtype))
    limits = []
    if layers and memory is not None:
        limits.append(max(0, memory - weights) // sum(key + value for _, key, value in layers))
    if layers and caps.dispatches:
        states = (key + value if caps.joined_cache else max(key, value) for _, key, value in layers)
        limits.append(caps.max_binding_bytes // max(states))
    return min(limits, default=None)


def _layer_bytes(cfg: ModelArchConfig, dtype: str) -> Iterator[tuple[int | None, int, int]]:
    """The window, and the bytes of a token's keys and of its values, for each layer that has some."""
    arch = get_architecture(cfg.model_type)
    entry, scale = _BYTES[dtype]
    for specs in arch.memories(cfg) if isinstance(arch, CausalArchitecture) else ():
        for spec in specs:
            if isinstance(spec, KeysValues):
                key, value = (spec.kv_heads * (size * entry + scale) for size in (spec.key_dim, spec.value_dim))
                yield spec.window, key, value


@dataclass(frozen=True)
class CacheSizes:
    """What the size of an engine's pools depends on."""

    context: int
    slots: int
    chunk: int = 512
    dtype: str = "f32"


def usual_chunk(cfg: ModelArchConfig, caps: Caps, precision: Precision) -> int:
    """Tokens of a prompt that an engine runs at once: more of them where matrix units would else wait for weights.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> caps = Caps.preset("h200").with_(matrix_f16=True)
    >>> usual_chunk(cfg, caps, "exact"), usual_chunk(cfg, caps, "f16")
    (512, 2048)
    """
    chunk = _CHUNK
    if (precision == "f16" and caps.matrix_f16) or (precision == "bf16" and caps.matrix_bf16):
        while chunk < _LONGEST_CHUNK and 2 * chunk * _WIDEST * cfg.intermediate <= _CHUNK_BYTES:
            chunk *= 2
    return chunk


def snapshot_count(cfg: ModelArchConfig, slots: int) -> int:
    """How many snapshots an engine keeps of what layers remember beside pages; 0 where all is in pages.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> snapshot_count(cfg, slots=4)
    0
    """
    size = state_bytes(cfg)
    return max(_SNAPSHOTS, min(_SNAPSHOTS * (slots + 1), _SNAPSHOT_BYTES // size)) if size else 0


def state_bytes(cfg: ModelArchConfig) -> int:
    """Bytes of what all layers of a sequence remember beside keys and values."""
    arch = get_architecture(cfg.model_type)
    layers = arch.memories(cfg) if isinstance(arch, CausalArchitecture) else ()
    states = [state for specs in layers for spec in specs if not isinstance(spec, KeysValues) for state in spec.states]
    return sum(math.prod(state.shape) * dtype_of(state.dtype).itemsize for state in states)


def check_memory(memory: Any) -> None:
    """Refuses what is no number of tokens, and no number of bytes as a text.

    >>> check_memory("2 GiB"), check_memory(4096), check_memory(None)
    (None, None, None)
    >>> check_memory("much")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] memory is 'much'
      hint: give a number of tokens, or bytes as a text, for instance "2GiB" or "500MB"
    """
    if isinstance(memory, str):
        bytes_of(memory, "memory", _BYTES_HINT)
    elif memory is not None:
        check_sizes(memory=memory)


def pool_pages(caps: Caps, cfg: ModelArchConfig, sizes: CacheSizes, memory: int | str | None) -> tuple[int, ...]:
    """Pages of an engine's pools: for `memory` tokens or bytes, by default for a few contexts if there are as many slots.

    Where layers see only a window, their pool has what all slots can see at once, and some more that is cached. Bytes include
    what layers keep of each slot beside pages, and snapshots of it.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None, 32, None))
    >>> def pages(slots, memory, context=64):
    ...     return pool_pages(Caps.preset("host"), cfg, CacheSizes(context, slots, chunk=32), memory)
    >>> pages(1, None), pages(16, None), pages(16, 100), pages(1, None, 4096), pages(1, "1MB", 4096)
    ((2, 2), (4, 4), (4, 4), (128, 9), (482, 9))
    """
    groups = page_groups(cfg.windows, sizes.context)
    if sizes.slots > _MOST_SLOTS:
        raise InputError(f"slots is {sizes.slots}", hint=f"it must be at most {_MOST_SLOTS}", name="slots", value=sizes.slots)

    def pools(pages: int) -> tuple[int, ...]:
        if pages > _MOST_PAGES:
            hint = f"give it at most {_MOST_PAGES * PAGE} tokens, and no more than the device has"
            raise InputError(f"memory is {memory!r}, which is {pages * PAGE} tokens", hint=hint, name="memory")
        seen = [None if w is None else pages_in_window(w, sizes.chunk, PAGE) for w in groups]
        return tuple(pages if n is None else min(pages, (sizes.slots + _POOL_CONTEXTS) * n) for n in seen)

    each = pages_for(sizes.context)
    # The keys and values of a layer are one binding.
    most = caps.max_binding_bytes // (8 * PAGE * cfg.kv_heads * cfg.head_dim) - 1
    check_memory(memory)
    if memory is None:
        return pools(max(each, min(sizes.slots * each, _POOL_CONTEXTS * each, most)))
    if not isinstance(memory, str):
        return pools(pages_for(memory))
    taken, given = _page_bytes(cfg, sizes, groups), bytes_of(memory, "memory", _BYTES_HINT)
    states = state_bytes(cfg) * (sizes.slots + snapshot_count(cfg, sizes.slots))
    budget = given - states
    # One page of each group is there beside those that can be allocated.
    fitting = bisect_right(
        range(1, min(max(most, 1), _MOST_PAGES) + 1), budget, key=lambda n: _total(pools(n), taken) + sum(taken)
    )
    if not fitting:
        least = _total(pools(1), taken) + sum(taken) + states
        with_states = f" with the states of {sizes.slots} slots" if states else ""
        hint = f"give it at least {least} bytes" + (", or fewer slots" if states else "")
        raise InputError(f"memory is {memory!r}, a page alone takes {least} bytes{with_states}", hint=hint, name="memory")
    return pools(fitting)


def _total(pages: Sequence[int], taken: Sequence[int]) -> int:
    return sum(n * size for n, size in zip(pages, taken, strict=True))


def _page_bytes(cfg: ModelArchConfig, sizes: CacheSizes, groups: Sequence[int | None]) -> list[int]:
    """Bytes of a page of each page group, in all its layers together."""
    found = [0] * len(groups)
    for window, key, value in _layer_bytes(cfg, sizes.dtype):
        found[groups.index(window) if window in groups else 0] += (key + value) * PAGE
    return found
