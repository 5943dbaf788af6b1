"""Host routines of recurrences: exponentials of many steps at once, and matmuls within chunks of steps where decays allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.ops.recurrence import state_steps
from pumice.ir.registry import Array

# Numbers of states that are computed together: few enough to stay in cache.
_TOGETHER = 1 << 17
# Steps of a chunk of linear attention; from so many on chunks are faster than steps.
_CHUNK, _FEW = 32, 4


def _bind_selective(call: NodeCall) -> HostRoutine:
    batch, steps, channels = call.shape("x")
    size = call.shape("a")[1]
    together = min(steps, max(1, _TOGETHER // max(1, batch * channels * size)))

    def run(operands: list[Any], outs: Sequence[Array | None]) -> None:
        of = call.named(operands)
        y, last = outs
        a = np.ascontiguousarray(of["a"])
        h = np.zeros((batch, channels, size), np.float32)
        if of["state"] is not None:
            np.copyto(h, of["state"], casting="unsafe")
        states = np.empty((together, batch, channels, size), np.float32)
        decays = np.empty_like(states)
        with np.errstate(all="ignore"):
            for begin in range(0, steps, together):
                count = min(together, steps - begin)
                at = slice(begin, begin + count)
                delta, x, b, c = (np.swapaxes(of[name][:, at], 0, 1) for name in ("delta", "x", "b", "c"))
                decay, state = decays[:count], states[:count]
                np.exp(np.multiply(delta[..., None], a, out=decay), out=decay)
                np.multiply((delta * x)[..., None], b[:, :, None], out=state)
                for t in range(count):
                    if of["starts"] is not None and (first := of["starts"][:, begin + t]).any():
                        h = np.where(first[:, None, None], np.float32(0), h)  # not in place: it is the step before's
                    np.multiply(decay[t], h, out=decay[t])
                    h = np.add(state[t], decay[t], out=state[t])
                if y is not None:
                    np.copyto(y[:, at], np.matmul(state, c[..., None])[..., 0].swapaxes(0, 1), casting="unsafe")
                h = h.copy()  # the next round writes where it is
        if last is not None:
            np.copyto(last, h)

    return HostRoutine(run, call.out.dtype.compute_np)


def _bind_attention(call: NodeCall) -> HostRoutine:
    batch, steps, heads, values = call.shape("v")
    keys = call.shape("q")[3]
    chunked = steps > _FEW and (not call.has("decay") or call.shape("decay")[3] == 1)

    def by_head(x: Array, at: slice) -> Array:
        """Some steps as [batch, heads, steps, size], each head repeated for those that share it."""
        return np.ascontiguousarray(np.repeat(x[:, at], heads // x.shape[2], axis=2).swapaxes(1, 2), np.float32)

    def run_chunks(operands: list[Any], outs: Sequence[Array | None]) -> None:
        of = call.named(operands)
        y, last = outs
        state = np.zeros((batch, heads, keys, values), np.float32)
        if of["state"] is not None:
            np.copyto(state, of["state"])
        for begin in range(0, steps, _CHUNK):
            at = slice(begin, min(begin + _CHUNK, steps))
            count = at.stop - begin
            q, k, v = (by_head(of[name], at) for name in "qkv")
            decay = np.ones((1, 1, count, 1), np.float32) if of["decay"] is None else by_head(of["decay"], at)
            later = np.tri(count, dtype=np.bool_)
            # What is left at each step of what another added, by products, since a decay may be 0.
            between = np.where(np.tri(count, k=-1, dtype=np.bool_), decay, np.float32(1))
            between = np.where(later, np.multiply.accumulate(between, axis=2), np.float32(0))
            since = np.multiply.accumulate(decay, axis=2)
            terms = [(k, v)]
            if "a" in of:
                a, b = (by_head(of[name], at) for name in "ab")
                terms.append((a, _corrections(a, b, k, v, between, since, state)))
            found = np.matmul(q * since, state)
            after = state * since[:, :, -1:]
            for left, right in terms:
                found += np.matmul(np.matmul(q, left.swapaxes(2, 3)) * between, right)
                after += np.matmul((left * between[:, :, -1, :, None]).swapaxes(2, 3), right)
            if not (np.isfinite(found).all() and np.isfinite(after).all()):
                # A matmul takes what is no number to all steps of the chunk, those before it too.
                steps_of = {name: x if x is None else x[:, at] for name, x in of.items() if name != "state"}
                each, after = state_steps({**steps_of, "state": state})
                found = each.swapaxes(1, 2)
            if y is not None:
                np.copyto(y[:, at], found.swapaxes(1, 2), casting="unsafe")
            state = after
        if last is not None:
            np.copyto(last, state)

    def run(operands: list[Any], outs: Sequence[Array | None]) -> None:
        for found, out in zip(state_steps(call.named(operands)), outs, strict=True):
            if out is not None:
                np.copyto(out, found, casting="unsafe")

    return HostRoutine(run_chunks if chunked and numel((batch, heads)) else run, call.out.dtype.compute_np)


def _corrections(a: Array, b: Array, k: Array, v: Array, between: Array, since: Array, state: Array) -> Array:
    """What b reads at each step of a chunk: it depends on what was read at those before, by a triangular system."""
    # What is left before each step, not after it.
    until = np.zeros_like(between)
    until[:, :, 1:] = between[:, :, :-1]
    whole = np.ones_like(since)
    whole[:, :, 1:] = since[:, :, :-1]
    read = np.matmul(b * whole, state) + np.matmul(np.matmul(b, k.swapaxes(2, 3)) * until, v)
    among = np.matmul(b, a.swapaxes(2, 3)) * until
    for t in range(1, b.shape[2]):
        read[:, :, t] += np.matmul(among[:, :, t, None, :t], read[:, :, :t])[:, :, 0]
    return np.asarray(read)


RECURRENCES: dict[str, Binder] = {
    "selective_scan": _bind_selective,
    "linear_attention": _bind_attention,
    "delta_rule": _bind_attention,
}
