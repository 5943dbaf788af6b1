"""Matmuls, quantised matmuls, attention and rotary embedding over BLAS, with scratch of bounded size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import as_f32, is_half, numel, row_blocks, widen
from pumice.backends.host.memory.scratch import scratch
from pumice.backends.host.native import dense, jit, kernel_tasks
from pumice.backends.host.routines import blas, op_tasks
from pumice.backends.host.routines.attention import bind_attention_gradient, native_many_queries, run_tasks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.core import dtypes
from pumice.ir.ops.attention_math import pages_of
from pumice.ir.ops.eight_bits import round_to_eight_bits
from pumice.ir.ops.index import clamped
from pumice.ir.registry import Array, Attrs

# Elements of a tile of weights unpacked to float32 (4 MiB) and of a block of attention scores (8 MiB).
_TILE = 1 << 20
_SCORES = 1 << 21
# Queries of one block under a causal mask: hidden scores are not computed beyond this granularity.
_CAUSAL_QUERIES = 256
# Rows from which on a matmul of float32 is better done as one of many.
_SEVERAL_ROWS = 6

# --- matmul ---


def _for_blas(x: Array) -> Array:
    """x itself if BLAS can read it through strides (one of the last two axes dense), else a dense copy."""
    if x.ndim < 2 or x.flags.c_contiguous:
        return x if x.ndim > 1 or x.strides[0] == x.itemsize else np.ascontiguousarray(x)
    (rows, columns), (down, right), item = x.shape[-2:], x.strides[-2:], x.itemsize
    by_rows = right == item and (rows == 1 or down >= columns * item)
    by_columns = down == item and (columns == 1 or right >= rows * item)
    return x if by_rows or by_columns else np.ascontiguousarray(x)


def _bind_matmul(call: NodeCall) -> HostRoutine:
    a_shape, b_shape = call.shape("a"), call.shape("b")
    result = call.out.dtype.compute_np
    if not call.out.dtype.is_float:
        return HostRoutine(lambda operands, out: np.matmul(operands[0], operands[1], out=out), result)
    # [..., M, K] by [K, N] is one matmul of all rows rather than one per batch entry.
    one_matmul = len(b_shape) == 2
    widened = is_half(call.dtype("a")) or is_half(call.dtype("b"))
    # With f32 operands a small matmul alone is not worth loading the kernels.
    work = numel(call.out.static_shape) * a_shape[-1]
    heavy = widened or dense.is_worth_loading(work)

    def run(operands: list[Any], out: Array) -> None:
        x, y = operands
        kernels = jit.kernels() if heavy else None
        tasks = _dense_tasks(operands, out) if kernels is not None else None
        if kernels is not None and tasks is not None:
            kernels.run(tasks)
            return
        if one_matmul and (x.ndim <= 2 or x.flags.c_contiguous):
            x, out = x.reshape(-1, a_shape[-1]), out.reshape(-1, b_shape[-1])
        if not widened:
            float_matmul(x, y, out)
            return
        # Vectors become matrices of one row or column: tiles are cut out of the last two axes.
        if x.ndim == 1:
            x, out = x[None], out[..., None, :] if y.ndim > 1 else out[..., None]
        if y.ndim == 1:
            y, out = y[:, None], out[..., None]
        float_matmul(x, y, out)

    return HostRoutine(run, result, raw=True, native=_dense_tasks, heavy=heavy, keeping=_dense_tasks, work=work)


def float_matmul(x: Array, y: Array, out: Array) -> None:
    """x @ y in f32 over BLAS, of matrices and batches of them in any float dtypes."""
    if is_half(x.dtype) or is_half(y.dtype):
        _half_matmul(x, y, out)
    else:
        blas.matmul(_for_blas(x), _for_blas(y), out)


def _dense_tasks(operands: Sequence[Any], out: Array, copies: dense.Copies | None = None) -> list[kernel_tasks.Task] | None:
    """By the kernels for few rows, or for many."""
    x, y = operands
    if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous and out.flags.c_contiguous:
        x, out = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
    kernels = jit.kernels()
    if kernels is None or not kernels.is_wide:
        return _row_tasks(x, y, out)
    several = x.ndim == 2 and len(x) >= (_SEVERAL_ROWS if copies is None else 2) and y.dtype == np.float32
    few, many = partial(_row_tasks, x, y, out), partial(dense.matmul, x, y, out, copies)
    return (many() or few()) if several else (few() or many())


def _row_tasks(x: Array, y: Array, out: Array) -> list[kernel_tasks.Task] | None:
    """Few rows times a weight that is stored by output, [N, K]: bound by reading it."""
    if y.ndim != 2 or x.ndim == 0 or x.dtype != np.float32 or out.dtype != np.float32:
        return None
    if not all(a.flags.c_contiguous for a in (x, y.T, out)):
        return None
    x, out = x.reshape(-1, y.shape[0]), out.reshape(-1, y.shape[1])
    if len(x) > kernel_tasks.FEW_ROWS:
        return None
    return kernel_tasks.row_matmul(dtypes.dtype(y.dtype).name, x, y.T, out)


def _half_matmul(x: Array, y: Array, out: Array) -> None:
    """x @ y where either or both are f16 or bf16: no more than a tile of a large one is widened at a time."""
    sizes = [v.size if is_half(v.dtype) else 0 for v in (x, y)]
    if out.ndim > 2 and sum(sizes) > _TILE and out.shape[0] > 1:
        for part in row_blocks(out.shape[0], sum(sizes) // out.shape[0], _TILE):
            _half_matmul(_entries(x, out.ndim, part), _entries(y, out.ndim, part), out[part])
    elif out.ndim > 2 and sum(sizes) > _TILE:
        _half_matmul(x[0] if x.ndim == out.ndim else x, y[0] if y.ndim == out.ndim else y, out[0])
    elif out.ndim == 2 and sizes[1] and sizes[1] >= sizes[0]:
        _by_columns(_for_blas(as_f32(x)), y, out)
    elif out.ndim == 2:
        # The transpose of the whole matmul has the f16 or bf16 operand on the right.
        _by_columns(_for_blas(as_f32(y)).T, x.T, out.T)
    else:
        blas.matmul(_for_blas(as_f32(x)), _for_blas(as_f32(y)), out)


def _entries(x: Array, rank: int, part: slice) -> Array:
    """Entries of the first of `rank` axes, along which x may be repeated."""
    return x[part] if x.ndim == rank and len(x) > 1 else x


def _by_columns(x: Array, y: Array, out: Array) -> None:
    """x @ y for an f16 or bf16 matrix y."""
    inner, columns = y.shape
    rows, name = y.T, dtypes.dtype(y.dtype).name
    kernels = jit.kernels() if rows.flags.c_contiguous else None
    if kernels is not None and len(x) <= kernel_tasks.FEW_ROWS and out.flags.c_contiguous:
        kernels.run(kernel_tasks.row_matmul(name, np.ascontiguousarray(x), rows, out))
        return
    by_rows = abs(y.strides[0]) < abs(y.strides[1])
    for part in row_blocks(columns, inner, _TILE):
        count = part.stop - part.start
        tile = scratch("tile", count * inner).reshape((count, inner) if by_rows else (inner, count))
        if kernels is not None:
            kernels.run(kernel_tasks.widen(name, rows[part], tile))
        else:
            widen(rows[part] if by_rows else y[:, part], tile)
        blas.matmul(x, tile.T if by_rows else tile, out=out[:, part])


# --- quantised weights ---


def _bind_qmatmul(call: NodeCall) -> HostRoutine:
    n, k = call.shape("w")
    rows = numel(call.shape("x")) // k
    fast = call.attrs["precision"] == "fast"

    def run(operands: list[Any], out: Array) -> None:
        x, w = operands
        x = np.ascontiguousarray(x).reshape(rows, k)
        out = out.reshape(rows, n)
        kernels = jit.kernels()
        if kernels is not None:
            kernels.run(kernel_tasks.packed_matmul(x, w, out, kernels.is_wide, fast))
            return
        if fast:
            x = round_to_eight_bits(x)
        for part in w.blocks(_TILE):
            tile = scratch("tile", (part.stop - part.start) * k).reshape(-1, k)
            w.unpack(part, tile)
            blas.matmul(x, tile.T, out=out[:, part])

    def tasks(operands: Sequence[Any], out: Array) -> list[kernel_tasks.Task] | None:
        x, w = operands
        if not x.flags.c_contiguous or not out.flags.c_contiguous or out.dtype != np.float32:
            return None
        kernels = jit.kernels()
        wide = kernels is not None and kernels.is_wide
        return kernel_tasks.packed_matmul(x.reshape(rows, k), w, out.reshape(rows, n), wide, fast)

    return HostRoutine(run, call.out.dtype.compute_np, native=tasks, heavy=True)


def _bind_dequantize(call: NodeCall) -> HostRoutine:
    columns = call.shape("w")[-1]

    def run(operands: list[Any], out: Array) -> None:
        packed, rows = operands[0], out.reshape(-1, columns)
        # Grouped dtypes have no kernel for it, since a bias would be added without the rounding in between.
        kernels = jit.kernels() if dtypes.group_layout(packed.dtype) is None else None
        if kernels is not None:
            kernels.run(kernel_tasks.unpack(packed, rows))
            return
        for part in packed.blocks(_TILE):
            packed.unpack(part, rows[part])

    return HostRoutine(run, call.out.dtype.compute_np)


# --- rope ---


def _bind_rope(call: NodeCall) -> HostRoutine:
    rotary: int = call.attrs["rotary_dim"]
    half = rotary // 2
    if call.attrs["interleaved"]:
        first, second = (..., slice(0, rotary, 2)), (..., slice(1, rotary, 2))
    else:
        first, second = (..., slice(0, half)), (..., slice(half, rotary))
    rest = (..., slice(rotary, None))

    def run(operands: list[Any], out: Array) -> None:
        x, cos, sin = operands
        a, b, left, right = x[first], x[second], out[first], out[second]
        np.multiply(a, cos, out=left)
        np.subtract(left, b * sin, out=left)
        np.multiply(b, cos, out=right)
        np.add(right, a * sin, out=right)
        out[rest] = x[rest]

    return HostRoutine(run, call.out.dtype.compute_np, native=op_tasks.rope(call))


# --- attention ---


class _Attention:
    """Attention in blocks of heads and queries, so that scores stay in bounded scratch and unseen keys are never read."""

    def __init__(self, attrs: Attrs, q: tuple[int, ...], k: tuple[int, ...], pages: int = 1) -> None:
        self.swap = attrs["layout"] == "bshd"
        if self.swap:
            q, k = (q[0], q[2], q[1], q[3]), (k[0], k[2], k[1], k[3])
        self.batch, self.heads, self.sq, self.depth = q
        _, self.kv_heads, page, _ = k
        self.sk = page * pages
        self.group = self.heads // self.kv_heads
        self.causal, self.window, self.softcap = attrs["causal"], attrs["window"], attrs["softcap"]
        self.scale = np.float32(1 / math.sqrt(self.depth) if attrs["scale"] is None else attrs["scale"])
        self.full = (self.batch, self.heads, self.sq, self.sk)

    def run(self, operands: list[Any], out: Array) -> None:
        q, k, v, mask, bias, offset, kv_len, kv_index, k_scale, v_scale, sinks = operands
        if self.swap:
            q, k, v, out = (a.swapaxes(1, 2) for a in (q, k, v, out))
            k_scale, v_scale = (None if s is None else s.swapaxes(1, 2) for s in (k_scale, v_scale))
        entries = np.arange(self.batch) if kv_index is None else clamped(kv_index, len(k))
        starts = np.broadcast_to(self.sk - self.sq if offset is None else offset, (self.batch,)).tolist()
        lengths = np.broadcast_to(self.sk if kv_len is None else kv_len, (self.batch,)).tolist()
        mask = None if mask is None else np.broadcast_to(mask, self.full)
        bias = None if bias is None else np.broadcast_to(as_f32(bias), self.full)
        for b, entry in enumerate(entries.reshape(self.batch, -1).tolist()):
            start = starts[b]
            length = max(0, min(self.sk, lengths[b]))
            if self.causal:
                length = max(0, min(length, start + self.sq))
            first = 0 if self.window is None else min(length, max(0, start - self.window + 1))
            seen = slice(first, length)
            extras = (*(None if a is None else a[b, :, :, seen] for a in (mask, bias)), sinks)
            keys, values = (_scaled(a, s, entry, seen) for a, s in ((k, k_scale), (v, v_scale)))
            self._entry(q[b], keys, values, extras, start - first, out[b])

    def _entry(self, q: Array, k: Array, v: Array, extras: Sequence[Array | None], start: int, out: Array) -> None:
        """One batch entry: q [H, Sq, D], k and v [Hkv, length, …]; `start` is the place of query 0 among these keys."""
        length, group = k.shape[1], self.group
        if length == 0:
            out.fill(0)
            return
        grouped = q.reshape(self.kv_heads, group, self.sq, self.depth)
        results = _split(out, self.kv_heads, group)
        queries, heads = self._blocks(length)
        for h in range(0, self.kv_heads, heads):
            part = slice(h, min(self.kv_heads, h + heads))
            keys, values = as_f32(k[part]), as_f32(v[part])
            for first in range(0, self.sq, queries):
                last = min(self.sq, first + queries)
                self._block(grouped[part, :, first:last], keys, values, extras, h * group, (first, last), start, results[part])

    def _blocks(self, length: int) -> tuple[int, int]:
        """Queries and key heads per block."""
        per_query = self.group * length
        queries = min(self.sq, max(1, _SCORES // per_query))
        if self.causal:
            queries = min(queries, _CAUSAL_QUERIES)
        return queries, max(1, min(self.kv_heads, _SCORES // (per_query * queries)))

    def _block(
        self,
        q: Array,
        keys: Array,
        values: Array,
        extras: Sequence[Array | None],
        head: int,
        span: tuple[int, int],
        start: int,
        out: Array,
    ) -> None:
        first, last = span
        low, high = 0, keys.shape[1]
        if self.causal:
            high = min(high, max(0, start + last))
        if self.window is not None:
            low = min(high, max(0, start + first - self.window + 1))
        target = out[:, :, first:last]
        if low == high:
            target.fill(0)
            return
        heads, group, count = q.shape[:3]
        rows, seen = group * count, high - low
        scaled = np.empty((heads, group, count, self.depth), np.float32)
        np.multiply(as_f32(q), self.scale, out=scaled)
        scores = scratch("scores", heads * rows * seen).reshape(heads, rows, seen)
        blas.matmul(scaled.reshape(heads, rows, self.depth), keys[:, low:high].swapaxes(1, 2), out=scores)
        if self.softcap is not None:
            np.divide(scores, self.softcap, out=scores)
            np.tanh(scores, out=scores)
            np.multiply(scores, self.softcap, out=scores)
        grid = scores.reshape(heads, group, count, seen)
        where = (slice(head, head + heads * group), slice(first, last), slice(low, high))
        mask, bias, sinks = extras
        if bias is not None:
            np.add(grid, bias[where].reshape(grid.shape), out=grid)
        if mask is not None:
            np.copyto(grid, -np.inf, where=~mask[where].reshape(grid.shape))
        hidden = self._hidden(start + first, start + last, low, high)
        if hidden is not None:
            np.copyto(grid, -np.inf, where=hidden)
        top = np.maximum.reduce(scores, axis=2, keepdims=True)
        # A row with nothing to attend has the maximum -inf; 0 instead leaves its weights at exp(-inf) = 0.
        np.copyto(top, 0, where=top == -np.inf)
        np.subtract(scores, top, out=scores)
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=2, keepdims=True)
        np.copyto(total, 1, where=total == 0)
        if sinks is not None:
            own = as_f32(sinks)[head : head + heads * group].reshape(heads, group, 1)
            with np.errstate(over="ignore"):
                total += np.exp(np.broadcast_to(own, (heads, group, count)).reshape(top.shape) - top)
        found = blas.matmul(scores, values[:, low:high])
        np.divide(found, total, out=found)
        target[...] = found.reshape(target.shape)

    def _hidden(self, first: int, last: int, low: int, high: int) -> Array | None:
        """Which of the keys low…high-1 the queries at positions first…last-1 may not see by position; None for none."""
        late = self.causal and high - 1 > first
        early = self.window is not None and low <= last - 1 - self.window
        if not late and not early:
            return None
        key, query = np.arange(low, high), np.arange(first, last)[:, None]
        hidden = np.zeros((last - first, high - low), np.bool_)
        if late:
            hidden |= key > query
        if early:
            hidden |= key <= query - self.window
        return hidden


def _scaled(x: Array, scale: Array | None, pages: Sequence[int], seen: slice) -> Array:
    """The keys or values that one batch entry sees in its pages; those of an eight-bit cache times their factors."""
    part = _joined(x, pages, seen)
    return part if scale is None else part * _joined(scale, pages, seen)[..., None]


def _joined(x: Array, pages: Sequence[int], seen: slice) -> Array:
    """Positions of [pages, Hkv, page, …] in the order of some pages, as [Hkv, positions, …]; a copy if they are several."""
    size = x.shape[2]
    first, last = seen.start // max(1, size), -(-seen.stop // max(1, size))
    if last - first <= 1:
        found: Array = x[pages[first] if pages else 0, :, seen.start - first * size : seen.stop - first * size]
        return found
    whole = x[list(pages[first:last])].swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:])
    return whole[:, seen.start - first * size : seen.stop - first * size]


def _split(out: Array, kv_heads: int, group: int) -> Array:
    """[H, Sq, Dv] as [Hkv, group, Sq, Dv]; a view whatever the strides, since only the head axis is split."""
    _, count, depth = out.shape
    return out.reshape(kv_heads, group, count, depth)


def _bind_attention(call: NodeCall) -> HostRoutine:
    pages = pages_of(call.shape("kv_index")) if call.has("kv_index") else 1
    by_blas, many = _Attention(call.attrs, call.shape("q"), call.shape("k"), pages), native_many_queries(call, pages)
    make, heavy = many or (op_tasks.attention(call), False)

    def run(operands: list[Any], out: Array) -> None:
        if not heavy or not run_tasks(make(operands, out)):
            by_blas.run(operands, out)

    return HostRoutine(run, call.out.dtype.compute_np, raw=True, native=make, heavy=heavy)


LINEAR: dict[str, Binder] = {
    "matmul": _bind_matmul,
    "qmatmul": _bind_qmatmul,
    "dequantize": _bind_dequantize,
    "rope": _bind_rope,
    "attention": _bind_attention,
    "attention_gradient": bind_attention_gradient,
}
