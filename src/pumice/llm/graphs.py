"""The token step of a causal model: tokens in, the cache updated in place, the next token sampled on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pumice as pm
from pumice.core.dims import product
from pumice.ir.graph import Graph
from pumice.llm.sampling import Sampling, logprobs_of, next_token, penalise
from pumice.models.config import ModelArchConfig
from pumice.models.registry import CausalArchitecture
from pumice.tensor import Tensor

# Sampled tokens that the device keeps, so that the host may read them several token steps late.
RING = 64


@dataclass(frozen=True)
class CacheLayout:
    """The cache: `slots` sequences of up to `context` tokens each, in `dtype`: f32, f16 or q8.

    `joined` keeps the key and the value of a token side by side, so that one dispatch appends both. `states` begins the names of
    its states.
    """

    slots: int
    context: int
    dtype: str = "f32"
    joined: bool = False
    states: str = "cache"


def cached_attention(layout: CacheLayout, rows: Tensor, slot: Tensor, start: Tensor, end: Tensor | None) -> Callable[..., Tensor]:
    """An `attend` that appends keys and values to the cache and attends to the whole sequence of each batch row.

    `rows` says for every token of the batch which row of the cache it takes; rows beyond the cache are dropped, which is
    how padding is kept out. `end` is the length of the sequences with the new tokens; omit it when decoding one token: its
    position gives the length.
    """

    def append(name: str, new: Tensor, dtype: str) -> Tensor:
        """New vectors [B, T, …] into their rows of a state; the whole state as [slots, context, …]."""
        batch, width, *rest = new.shape
        size = product(rest)
        cache = pm.state(name, (layout.slots * layout.context, size), dtype)
        updated = pm.scatter_set(cache, rows, new.reshape(batch * width, size).astype(dtype))
        pm.set_state(cache, updated)
        return updated.reshape(layout.slots, layout.context, *rest)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        dtype = "i8" if layout.dtype == "q8" else layout.dtype
        if layout.dtype == "q8":
            # Eight bits and a scale per vector, so that one large entry costs only its own vector precision.
            k, k_top = _eight_bits(k)
            v, v_top = _eight_bits(v)
            options["k_scale"] = append(f"{layout.states}.{layer}.k_scale", k_top, "f32")
            options["v_scale"] = append(f"{layout.states}.{layer}.v_scale", v_top, "f32")
        if layout.joined and k.shape == v.shape:
            both = append(f"{layout.states}.{layer}.kv", pm.stack([k, v], axis=2), dtype)
            keys, values = both[:, :, 0], both[:, :, 1]
        else:
            keys, values = append(f"{layout.states}.{layer}.k", k, dtype), append(f"{layout.states}.{layer}.v", v, dtype)
        options["kv_index"] = slot if layout.slots > 1 else None
        return pm.attention(q, keys, values, layout="bshd", causal=True, offset=start, kv_len=end, **options)

    return attend


def _eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises each vector to integers from -127 to 127; gives these and the scales."""
    top = pm.maximum(pm.abs(x).max(axis=-1), 1e-30) / 127.0
    return pm.round(x / pm.expand_dims(top, -1)), top


def token_step(
    arch: CausalArchitecture, cfg: ModelArchConfig, layout: CacheLayout, sampling: Sampling, *, feed: bool
) -> Callable[..., Any]:
    """One token step for a batch of sequences: run the new tokens, append to the cache, sample each row's next token.

    Inputs, all by batch row: `slot` (which sequence of the cache), `start` (tokens in it so far), `total` (length of the
    sequence that this token step belongs to: some rotary scalings depend on it), `at` (where in the ring the sampled token goes),
    and, unless greedy, the sampling numbers. Prompts come with `tokens` and `length` (how many they are; the rest of the row
    is padding). With `feed` each row runs the token in the ring at `fed` instead, which never left the device, and
    it takes the `row` of the cache.
    """

    def run(params: Any, slot: Tensor, start: Tensor, total: Tensor, at: Tensor, **rest: Tensor) -> Any:
        ring = pm.state("ring", (RING * layout.slots,), "i32")
        tokens = pm.expand_dims(pm.take(ring, rest["fed"]), 1) if feed else rest["tokens"]
        batch, width = tokens.shape
        column = pm.expand_dims(pm.arange(width, dtype="i32"), 0)
        positions = pm.expand_dims(start, 1) + column
        used = end = None
        if feed:
            rows = rest["row"]
        else:
            used, end = column < pm.expand_dims(rest["length"], 1), start + rest["length"]
            rows = pm.where(used, pm.expand_dims(slot, 1) * layout.context + positions, layout.slots * layout.context)
        attend = cached_attention(layout, rows.reshape(batch * width), slot, start, end)
        hidden = arch.hidden(cfg, params, tokens, positions, attend, length=total)
        if not feed:
            # Only each row's last token has a successor to predict.
            ends = pm.arange(batch, dtype="i32") * width + rest["length"] - 1
            hidden = pm.take(hidden.reshape(batch * width, cfg.hidden), ends, axis=0)
        picked = logits = arch.logits(cfg, params, hidden).reshape(batch, cfg.vocab)
        if sampling.penalty:
            picked = penalise(logits, layout.slots, slot, tokens, used, rest["repeat_penalty"])
        token = next_token(picked, sampling, rest)
        new_ring = pm.scatter_set(ring, at, token)
        pm.set_state(ring, new_ring)
        out = {"token": token, "ring": new_ring}
        return {**out, **logprobs_of(logits, token)} if sampling.logprobs else out

    return run


def trace_token_step(
    arch: CausalArchitecture, cfg: ModelArchConfig, params: Any, layout: CacheLayout, sampling: Sampling, *, chunk: int | None
) -> Graph:
    """The graph of a token step: for prefill chunks of up to `chunk` tokens or, with None, for the token sampled last.

    `params` are specs, nested as the model has them.
    """
    feed = chunk is None
    many = feed and layout.slots > 1

    def each(dtype: str = "f32") -> pm.Spec:
        return pm.spec("B", dtype=dtype, max=layout.slots) if many else pm.spec(1, dtype=dtype)

    specs: dict[str, Any] = {n: each("i32") for n in ("slot", "start", "total", "at", *(("fed", "row") if feed else ("length",)))}
    if not feed:
        specs["tokens"] = pm.spec(1, "T", dtype="i32", max=chunk)
    if not sampling.greedy:
        specs |= {n: each() for n in ("temperature", "top_p", "min_p", "u")}
        specs["top_k"] = each("i32")
    if sampling.penalty:
        specs["repeat_penalty"] = each()
    return pm.trace(token_step(arch, cfg, layout, sampling, feed=feed), params=params, **specs)
