"""Attention of many queries by a compiled kernel, and its gradient, also by BLAS for a few batch entries at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel, row_blocks
from pumice.backends.host.memory.scratch import scratch
from pumice.backends.host.native import jit, kernel_tasks
from pumice.backends.host.routines import blas
from pumice.backends.host.routines.calls import HostRoutine, NodeCall
from pumice.ir.ops.attention_math import hidden, probabilities, scale_of
from pumice.ir.registry import Array

# Scores that exist at a time: few enough to stay in cache between one matmul and the next.
_SCORES = 1 << 18
# Below so many the kernels are not worth loading.
_LEAST_SCORES = 1 << 17


class ManyQueries:
    """Attention by blocks of scores [entries, key heads, group, queries, keys]."""

    def __init__(self, call: NodeCall, pages: int = 1) -> None:
        q, k, v = (call.shape(name) for name in "qkv")
        self.attrs, self.swap = call.attrs, call.attrs["layout"] == "bshd"
        if self.swap:
            q, k, v = ((a, c, b, d) for a, b, c, d in (q, k, v))
        self.batch, self.heads, self.sq, self.depth = q
        _, self.kv_heads, page, _ = k
        self.sk = page * pages
        self.group, self.value_depth = self.heads // self.kv_heads, v[3]
        self.scale = scale_of(call.attrs, self.depth)
        self.softcap: float | None = call.attrs["softcap"]
        self.scores = self.batch * self.heads * self.sq * self.sk
        self._fixed: Array | None = None

    def heads_first(self, x: Array) -> Array:
        return x.swapaxes(1, 2) if self.swap else x

    def grouped(self, x: Array) -> Array:
        """[B, H, S, D] with heads that share keys on an axis of their own; a view, as only one axis is split."""
        batch, _, count, depth = x.shape
        return x.reshape(batch, self.kv_heads, self.group, count, depth)

    def limits(self, offset: Array | None, kv_len: Array | None) -> Array:
        """The first key that each query of each entry sees and one past the last, int32 [B, Sq, 2]."""
        if offset is None and kv_len is None and self._fixed is not None:
            return self._fixed
        found = np.zeros((self.batch, self.sq, 2), np.int64)
        start = np.broadcast_to(self.sk - self.sq if offset is None else offset.astype(np.int64), (self.batch,))
        at = start[:, None] + np.arange(self.sq)
        found[..., 1] = self.sk
        if kv_len is not None:
            found[..., 1] = np.minimum(self.sk, np.broadcast_to(kv_len, (self.batch,))[:, None])
        if self.attrs["causal"]:
            found[..., 1] = np.minimum(found[..., 1], at + 1)
        if self.attrs["window"] is not None:
            found[..., 0] = np.maximum(0, at - self.attrs["window"] + 1)
        np.maximum(found[..., 1], 0, out=found[..., 1])
        np.minimum(found[..., 0], found[..., 1], out=found[..., 0])
        made = found.astype(np.int32)
        if offset is None and kv_len is None:
            self._fixed = made
        return made

    def tasks(self, arrays: Sequence[Array | None], of: Mapping[str, Any]) -> list[kernel_tasks.Task] | None:
        """By a compiled kernel, for arrays with heads first; None where these need another way."""
        seen = kernel_tasks.Seen(of["offset"], of["kv_len"], of.get("kv_index"), self.attrs["causal"], self.attrs["window"] or 0)
        return None if jit.kernels() is None else kernel_tasks.many_queries(arrays, seen, self.scale)

    def blocks(self) -> list[tuple[slice, slice, slice]]:
        """Entries, key heads and queries of each block; only one of a single entry is cut further."""
        per_head = self.group * self.sq * self.sk
        if self.kv_heads * per_head <= _SCORES:
            return [(b, slice(None), slice(None)) for b in row_blocks(self.batch, self.kv_heads * per_head, _SCORES)]
        heads = list(row_blocks(self.kv_heads, per_head, _SCORES))
        queries = list(row_blocks(self.sq, self.group * self.sk, _SCORES)) if per_head > _SCORES else [slice(None)]
        return [(slice(b, b + 1), h, s) for b in range(self.batch) for h in heads for s in queries]

    def weights(self, q: Array, k: Array, limits: Array) -> Array:
        """Probabilities of queries [n, Hkv, G, Sq, D] for keys [n, Hkv, 1, Sk, D], without mask, bias or cap."""
        scores = scratch("scores", numel((*q.shape[:-1], self.sk))).reshape(*q.shape[:-1], self.sk)
        blas.matmul(q, k.swapaxes(-1, -2), out=scores)
        key, (first, last) = np.arange(self.sk), (limits[:, None, None, :, i, None] for i in (0, 1))
        return probabilities(scores, self.scale, None, None, (key < first) | (key >= last))


def _kernel(call: NodeCall, pages: int) -> tuple[ManyQueries, kernel_tasks.Native] | None:
    """Attention as a task, unless it has a mask, bias or cap, or few queries."""
    many = ManyQueries(call, pages)
    extra = any(call.has(name) for name in ("mask", "bias", "sinks"))
    if extra or many.softcap is not None or many.sq <= kernel_tasks.FEW_QUERIES:
        return None

    def make(operands: Sequence[Any], out: Array) -> list[kernel_tasks.Task] | None:
        of = call.named(operands)
        q, k, v, *scales = (None if of[n] is None else many.heads_first(of[n]) for n in ("q", "k", "v", "k_scale", "v_scale"))
        return many.tasks((q, k, v, None, many.heads_first(out), None, None, *scales), of)

    return many, make


def run_tasks(tasks: list[kernel_tasks.Task] | None) -> bool:
    """Runs tasks if there are any; whether there were."""
    kernels = None if tasks is None else jit.kernels()
    if kernels is not None and tasks is not None:
        kernels.run(tasks)
    return kernels is not None


def native_many_queries(call: NodeCall, pages: int) -> tuple[kernel_tasks.Native, bool] | None:
    """The task for attention of many queries, where it has one, and whether it is worth loading the kernels."""
    found = _kernel(call, pages)
    return None if found is None else (found[1], found[0].scores >= _LEAST_SCORES)


def bind_attention_gradient(call: NodeCall) -> HostRoutine:
    """dq, dk and dv in one pass."""
    many = ManyQueries(call)
    plain = not call.has("mask") and not call.has("bias") and many.softcap is None

    heavy = plain and many.scores >= _LEAST_SCORES

    def views(of: Mapping[str, Any], outs: Sequence[Array]) -> list[Array]:
        """q, k, v and dy, then their gradients but the last one's."""
        return [many.heads_first(a) for a in (of["q"], of["k"], of["v"], of["dy"], *outs)]

    def make(operands: Sequence[Any], outs: Any) -> list[kernel_tasks.Task] | None:
        of = call.named(operands)
        return many.tasks((*views(of, outs), None, None), of)

    def run(operands: list[Any], outs: Sequence[Array]) -> None:
        if heavy and run_tasks(make(operands, outs)):
            return
        of = call.named(operands)
        q, k, v, dy, dq, dk, dv = views(of, outs)
        q, dy, dq = many.grouped(q), many.grouped(dy), many.grouped(dq)
        k, v, dk, dv = k[:, :, None], v[:, :, None], dk[:, :, None], dv[:, :, None]
        limits = many.limits(of["offset"], of["kv_len"]) if plain else None
        unseen = None if plain else _unseen(many, of)
        bias = None if of["bias"] is None else np.broadcast_to(of["bias"], (many.batch, many.heads, many.sq, many.sk))
        for b, h, s in many.blocks():
            queries, keys, grads = q[b, h, :, s], k[b, h], dy[b, h, :, s]
            factor: Array | None = None
            if limits is not None:
                p = many.weights(queries, keys, limits[b, s])
            else:
                extra = [None if a is None else many.grouped(a)[b, h, :, s] for a in (bias, unseen)]
                p, factor = _general(many, queries, keys, extra[0], extra[1])
            inner = scratch("gradients", p.size).reshape(p.shape)
            blas.matmul(grads, v[b, h].swapaxes(-1, -2), out=inner)
            _weigh(p, inner, many.scale, factor)
            blas.matmul(inner, keys, out=dq[b, h, :, s])
            # Blocks of queries of the same keys add up.
            again = s.start is not None and s.start > 0
            _add_matmul(inner, queries, dk[b, h], again)
            _add_matmul(p, grads, dv[b, h], again)

    return HostRoutine(run, call.out.dtype.compute_np, native=make if plain else None, heavy=heavy, needs_all=True)


def _unseen(many: ManyQueries, of: Mapping[str, Any]) -> Array:
    full = (many.batch, many.heads, many.sq, many.sk)
    found = hidden(many.attrs, many.batch, many.sq, many.sk, of["mask"], of["offset"], of["kv_len"])
    return np.broadcast_to(found, full)


def _general(many: ManyQueries, q: Array, k: Array, bias: Array | None, unseen: Array | None) -> tuple[Array, Array | None]:
    """Probabilities with whatever there is, and the derivative of the cap."""
    scores = scratch("scores", numel((*q.shape[:-1], many.sk))).reshape(*q.shape[:-1], many.sk)
    blas.matmul(q, k.swapaxes(-1, -2), out=scores)
    factor = None if many.softcap is None else 1 - np.square(np.tanh(scores * np.float32(many.scale / many.softcap)))
    with np.errstate(invalid="ignore", over="ignore"):
        return probabilities(scores, many.scale, many.softcap, bias, unseen), factor


def _weigh(p: Array, inner: Array, scale: float, factor: Array | None) -> None:
    """What probabilities gain becomes what the matmuls of queries and keys gain."""
    total = np.einsum("...k,...k->...", p, inner)
    np.subtract(inner, total[..., None], out=inner)
    np.multiply(inner, p, out=inner)
    np.multiply(inner, np.float32(scale), out=inner)
    if factor is not None:
        np.multiply(inner, factor, out=inner)


def _add_matmul(a: Array, b: Array, out: Array, again: bool) -> None:
    """out [n, Hkv, 1, Sk, D] = the sum over the group of aᵀ b, added to what is there if `again`."""
    turned = a.swapaxes(-1, -2)
    if a.shape[2] == 1 and not again:
        blas.matmul(turned, b, out=out)
        return
    found = blas.matmul(turned, b).sum(axis=2, keepdims=True)
    if again:
        np.add(out, found, out=out)
    else:
        np.copyto(out, found)
