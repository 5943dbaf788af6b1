"""What fits: how many tokens of keys and values a device holds beside a model's weights."""

from __future__ import annotations

from collections.abc import Iterator

from pumice.core.caps import Caps
from pumice.llm.memory import PAGE, pages_for
from pumice.llm.requests import check_sizes
from pumice.models.config import ModelArchConfig
from pumice.models.memory import KeysValues
from pumice.models.registry import CausalArchitecture, get_architecture

# Bytes of an entry of a key or value, and of the scale that each vector has beside its entries.
_BYTES = {"f32": (4, 0), "f16": (2, 0), "q8": (1, 4)}

# Contexts that a pool holds by default, if there are as many slots: what is cached of answers takes memory, too.
_POOL_CONTEXTS = 2


def cache_bytes_per_token(cfg: ModelArchConfig, dtype: str = "f32") -> int:
    """Bytes of cache that a token takes in all layers, with `cache_dtype` f32, f16 or q8.

    Layers with a window count too: their pool is as large as the others'.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> [cache_bytes_per_token(cfg, dtype) for dtype in ("f32", "f16", "q8")]
    [96, 48, 48]
    """
    return sum(key + value for key, value in _layer_bytes(cfg, dtype))


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
        limits.append(max(0, memory - weights) // sum(key + value for key, value in layers))
    if layers and caps.dispatches:
        states = (key + value if caps.joined_cache else max(key, value) for key, value in layers)
        limits.append(caps.max_binding_bytes // max(states))
    return min(limits, default=None)


def _layer_bytes(cfg: ModelArchConfig, dtype: str) -> Iterator[tuple[int, int]]:
    """Bytes of a token's keys and of its values, for each layer that has some."""
    arch = get_architecture(cfg.model_type)
    entry, scale = _BYTES[dtype]
    for specs in arch.memories(cfg) if isinstance(arch, CausalArchitecture) else ():
        for spec in specs:
            if isinstance(spec, KeysValues):
                yield spec.kv_heads * (spec.key_dim * entry + scale), spec.kv_heads * (spec.value_dim * entry + scale)


def pool_pages(caps: Caps, cfg: ModelArchConfig, context: int, slots: int, memory: int | None) -> int:
    """Pages of an engine's pool: for `memory` tokens, by default for a few contexts if there are as many slots.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=3, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,) * 3)
    >>> [pool_pages(Caps.preset("host"), cfg, 64, slots, memory) for slots, memory in ((1, None), (16, None), (16, 100))]
    [2, 4, 4]
    """
    if memory is not None:
        check_sizes(memory=memory)
        return pages_for(memory)
    each = pages_for(context)
    # The keys and values of a layer are one binding.
    most = caps.max_binding_bytes // (8 * PAGE * cfg.kv_heads * cfg.head_dim)
    return max(each, min(slots * each, _POOL_CONTEXTS * each, most - 1))
