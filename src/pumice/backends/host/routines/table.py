"""Host routines of the ops that are not elementwise: movement, indexing, reductions, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel, row_blocks
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.routines import op_tasks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.backends.host.routines.channel_norms import CHANNEL_NORMS
from pumice.backends.host.routines.conv import CONV
from pumice.backends.host.routines.grouped import GROUPED
from pumice.backends.host.routines.linear import LINEAR
from pumice.backends.host.routines.losses import LOSSES
from pumice.backends.host.routines.norm_gradients import NORM_GRADIENTS
from pumice.backends.host.routines.pooling import POOLING
from pumice.backends.host.routines.recurrences import RECURRENCES
from pumice.backends.host.routines.scans import SCANS
from pumice.backends.host.routines.splats import SPLATS
from pumice.core.blocks import codec_of
from pumice.ir.ops.sort import reversible, sorted_order
from pumice.ir.registry import Array

# Partial sums of this many rows keep a float32 sum over a long leading axis as accurate as NumPy's pairwise one over the last.
_SUM_ROWS = 128
# Up to so many rows are looked up one by one.
_FEW = 4


def bind_routine(call: NodeCall) -> HostRoutine:
    """How a node that is not elementwise runs; ops without a routine of their own run their reference."""
    # Empty operands have rules of their own, which the references follow; there is nothing to be fast at.
    if all(t is None or numel(t.static_shape) for t in call.ins):
        binder = _bind_view if call.spec.traits.view is not None else ROUTINES.get(call.spec.name)
        routine = None if binder is None else binder(call)
        if routine is not None:
            return routine
    result = call.out.dtype.compute_np
    if call.further:
        return HostRoutine(partial(_run_references, call), result)

    def run(operands: list[Any], out: None) -> Array:
        found = call.reference([o.packed() if isinstance(o, Tiles) else o for o in operands])
        return found if found.dtype == result else found.astype(result)

    return HostRoutine(run, result, writes=False)


def _run_references(call: NodeCall, operands: list[Any], outs: Sequence[Array | None]) -> None:
    """All results that are wanted, by the reference."""
    for found, out in zip(call.references(operands), outs, strict=True):
        if out is not None:
            np.copyto(out, found, casting="unsafe")


# --- movement ---


def _bind_view(call: NodeCall) -> HostRoutine:
    shape = call.out.static_shape

    def reshape(operands: list[Any], out: None) -> Array:
        found: Array = operands[0].reshape(shape)
        return found

    def run(operands: list[Any], out: None) -> Array:
        return call.reference(operands)

    is_reshape = call.spec.name == "reshape" and not call.out.dtype.is_quant
    return HostRoutine(reshape if is_reshape else run, call.dtype("x"), writes=False, raw=True, view=True)


def _bind_concat(call: NodeCall) -> HostRoutine:
    axis = call.attrs["axis"]
    same = all(d == call.dtype("x") for d in call.dtypes)
    result = call.dtype("x") if same else call.out.dtype.compute_np

    def run(operands: list[Any], out: Array) -> None:
        np.concatenate(operands, axis=axis, out=out)

    return HostRoutine(run, result, raw=same)


def _bind_pad(call: NodeCall) -> HostRoutine:
    inner = tuple(slice(lo, lo + d) for lo, d in zip(call.attrs["lo"], call.shape("x")))
    value = call.attrs["value"]

    def run(operands: list[Any], out: Array) -> None:
        out.fill(value)
        out[inner] = operands[0]

    return HostRoutine(run, call.dtype("x"), raw=True)


# --- indexing ---


def _positions(indices: Array, size: int) -> Array:
    """Indices as int64 with negative ones counted from the end; the result may be out of range."""
    wide = indices.astype(np.int64)
    np.add(wide, size, out=wide, where=wide < 0)
    return wide


def _few_positions(indices: Array, size: int) -> list[int]:
    """The positions of a few indices, those out of range at the nearest end: NumPy's functions would take longer to call."""
    return [min(max(i + size if i < 0 else i, 0), size - 1) for i in indices.reshape(-1).tolist()]


def _bind_gather(call: NodeCall) -> HostRoutine:
    axis, size = call.attrs["axis"], call.shape("x")[call.attrs["axis"]]
    before = (slice(None),) * axis

    def run_one(operands: list[Any], out: Array) -> None:
        x, indices = operands
        found = x[(*before, *_few_positions(indices, size))]
        np.copyto(out.reshape(found.shape), found)

    def run(operands: list[Any], out: Array) -> None:
        x, indices = operands
        np.take(x, _positions(indices, size), axis=axis, out=out, mode="clip")

    return HostRoutine(run_one if numel(call.shape("indices")) == 1 else run, call.dtype("x"), raw=True)


def _bind_embedding(call: NodeCall) -> HostRoutine:
    table = call.type("table")
    entries, width = table.static_shape
    if not table.dtype.is_quant:

        def run(operands: list[Any], out: Array) -> None:
            x, ids = operands
            np.take(x, _positions(ids, entries), axis=0, out=out, mode="clip")

        return HostRoutine(run, call.dtype("table"), raw=True)

    dtype, decode = table.dtype, codec_of(table.dtype).decode

    def run_few(operands: list[Any], out: Array) -> None:
        packed, ids = operands
        for row, target in zip(_few_positions(ids, entries), out.reshape(-1, width), strict=True):
            decode(packed.row(row).reshape(-1, dtype.block_bytes), target.reshape(-1, dtype.block))

    def run_packed(operands: list[Any], out: Array) -> None:
        packed, ids = operands
        wanted = _positions(ids, entries).reshape(-1)
        rows = out.reshape(-1, width)
        for part in row_blocks(len(wanted), width):
            found = packed.take(np.clip(wanted[part], 0, entries - 1))
            decode(found.reshape(-1, dtype.block_bytes), rows[part].reshape(-1, dtype.block))

    few = numel(call.shape("ids")) <= _FEW
    return HostRoutine(run_few if few else run_packed, call.out.dtype.compute_np)


def _bind_take_along_axis(call: NodeCall) -> HostRoutine:
    axis, size = call.attrs["axis"], call.shape("x")[call.attrs["axis"]]
    picked = call.shape("indices")

    def run_one_each(operands: list[Any], out: None) -> Array:
        """One element of each of a few rows."""
        x, indices = operands
        rows = x.reshape(-1, size)
        found = np.empty(picked, rows.dtype)
        for k, i in enumerate(_few_positions(indices, size)):
            found.flat[k] = rows[k, i]
        return found

    def run(operands: list[Any], out: None) -> Array:
        x, indices = operands
        where = _positions(indices, size)
        np.clip(where, 0, size - 1, out=where)
        found: Array = np.take_along_axis(x, where, axis=axis)
        return found

    one_each = axis == len(picked) - 1 and picked == (*call.shape("x")[:-1], 1) and numel(picked) <= _FEW
    return HostRoutine(run_one_each if one_each else run, call.dtype("x"), writes=False, raw=True)


def _bind_scatter(call: NodeCall) -> HostRoutine:
    axis, size = call.attrs["axis"], call.shape("x")[call.attrs["axis"]]
    in_place, adds = call.in_place, call.spec.name == "scatter_add"
    # Where the result is stored as f16 or bf16, touched rows are rounded as they are written; nothing else needs widening.
    result = call.target if call.target is not None else call.out.dtype.compute_np
    compute = call.out.dtype.compute_np

    def run(operands: list[Any], out: Array) -> None:
        x, indices, updates = operands
        if not in_place:
            np.copyto(out, x, casting="unsafe")
        where = _positions(indices, size)
        hit = (where >= 0) & (where < size)
        rows = np.moveaxis(out, axis, 0)
        values = np.moveaxis(updates, axis, 0)
        if not hit.all():
            where, values = where[hit], values[hit]
        if not len(where):
            return
        order = np.argsort(where, kind="stable")
        where = where[order]
        first = np.flatnonzero(np.diff(where, prepend=-1))
        touched = where[first]
        if adds:
            total = np.add.reduceat(values[order].astype(compute, copy=False), first, axis=0, dtype=compute)
            rows[touched] = rows[touched].astype(compute, copy=False) + total
        else:
            last = np.append(first[1:], len(where)) - 1
            rows[touched] = values[order[last]]

    return HostRoutine(run, result, raw=True, native=op_tasks.scatter(call))


# --- reductions ---


def _sum_first_axis(x: Array) -> Array:
    """Sum over axis 0 by partial sums of a few rows."""
    while len(x) > _SUM_ROWS:
        whole = len(x) // _SUM_ROWS * _SUM_ROWS
        parts = np.add.reduce(x[:whole].reshape(-1, _SUM_ROWS, *x.shape[1:]), axis=1)
        x = np.concatenate([parts, x[whole:]]) if whole < len(x) else parts
    found: Array = np.add.reduce(x, axis=0)
    return found


def _bind_sum(call: NodeCall) -> HostRoutine:
    axes: tuple[int, ...] = call.attrs["axes"]
    shape, keepdims = call.shape("x"), call.attrs["keepdims"]
    result, mean = call.out.dtype.compute_np, call.spec.name == "reduce_mean"
    count = numel(tuple(shape[a] for a in axes))
    # Leading axes of a dense tensor: NumPy would add row after row to one accumulator.
    leading = result.kind == "f" and axes == tuple(range(len(axes))) and len(axes) < len(shape) and count > _SUM_ROWS

    def run(operands: list[Any], out: Array) -> None:
        (x,) = operands
        if leading and x.flags.c_contiguous:
            np.copyto(out, _sum_first_axis(x.reshape(count, *shape[len(axes) :])).reshape(out.shape))
        else:
            np.add.reduce(x, axis=axes, dtype=result, out=out, keepdims=keepdims)
        if mean:
            np.divide(out, count, out)

    return HostRoutine(run, result, native=op_tasks.sums(call) if axes else None)


def _bind_reduce(ufunc: Any) -> Binder:
    def bind(call: NodeCall) -> HostRoutine:
        axes, keepdims, result = call.attrs["axes"], call.attrs["keepdims"], call.out.dtype.compute_np

        def run(operands: list[Any], out: Array) -> None:
            ufunc.reduce(operands[0], axis=axes, dtype=result, out=out, keepdims=keepdims)

        return HostRoutine(run, result)

    return bind


def _bind_arg(pick: Callable[..., Any]) -> Binder:
    def bind(call: NodeCall) -> HostRoutine:
        axis, keepdims = call.attrs["axis"], call.attrs["keepdims"]

        def run(operands: list[Any], out: Array) -> None:
            np.copyto(out, pick(operands[0], axis=axis, keepdims=keepdims), casting="unsafe")

        return HostRoutine(run, call.out.dtype.compute_np)

    return bind


def _bind_sort(call: NodeCall) -> HostRoutine:
    axis, descending = call.attrs["axis"], call.attrs["descending"]
    by_words = axis == len(call.shape("x")) - 1 and call.dtype("x") == np.float32

    def run(operands: list[Any], outs: Sequence[Array | None]) -> None:
        (x,), (values, indices) = operands, outs
        if not by_words and indices is None and values is not None:
            # Equal elements need not be the same, -0 and 0: even values alone are sorted stably.
            found = np.sort(reversible(x, descending), axis=axis, kind="stable")
            np.copyto(values, reversible(found, descending))
            return
        order = _word_order(x, descending) if by_words else sorted_order(x, axis, descending)
        if indices is not None:
            np.copyto(indices, order, casting="unsafe")
        if values is not None:
            np.copyto(values, np.take_along_axis(x, order, axis))

    return HostRoutine(run, call.out.dtype.compute_np)


def _word_order(x: Array, descending: bool, nan_first: bool = False) -> Array:
    """The order of float32 rows by one sort of words that hold key and position, faster than a stable sort of positions."""
    bits, sign = (x + np.float32(0)).view(np.uint32), np.uint32(1 << 31)  # one zero: -0 and 0 are equal
    # Floats order as integers once negative ones are flipped.
    keys = np.where(bits & sign, ~bits, bits | sign)
    if descending:
        np.invert(keys, out=keys)
    keys[np.isnan(x)] = 0 if nan_first else np.uint32(0xFFFFFFFF)
    words = keys.astype(np.uint64) << np.uint64(32) | np.arange(x.shape[-1], dtype=np.uint64)
    words.sort(axis=-1)
    return np.asarray((words & np.uint64(0xFFFFFFFF)).astype(np.intp))


def _bind_top_k(call: NodeCall) -> HostRoutine | None:
    shape, axis, k = call.shape("x"), call.attrs["axis"], call.attrs["k"]
    size = shape[axis]
    # Selecting first pays for few long rows; elsewhere the reference's sort is as good.
    if axis != len(shape) - 1 or size < 1024 or k == 0 or numel(shape) // size > 64:
        return None
    if k * 8 > size and call.dtype("x") != np.float32:
        return None

    def best(row: Array) -> Array:
        return _word_order(row, True, nan_first=True)[:k] if k * 8 > size else _select(k, row)

    def run(operands: list[Any], outs: Sequence[Array | None]) -> None:
        values, indices = (None if out is None else out.reshape(-1, k) for out in outs)
        for i, row in enumerate(operands[0].reshape(-1, size)):
            found = best(row)
            if indices is not None:
                indices[i] = found
            if values is not None:
                values[i] = row[found]

    return HostRoutine(run, call.out.dtype.compute_np)


def _select(k: int, row: Array) -> Array:
    """The places of the k greatest elements of a row."""
    least = np.partition(row, row.size - k)[row.size - k]
    # "Not less" keeps NaN, which counts as greatest, and all ties with the last place.
    candidates = np.flatnonzero(~(row < least))
    # Read backwards, a stable ascending order has the smaller index first among ties, and NaN in front.
    ascending = np.argsort(row[candidates][::-1], kind="stable")
    return np.asarray(candidates[len(candidates) - 1 - ascending[::-1][:k]])


# --- norms ---


def _rows(x: Array, columns: int) -> Array:
    return x.reshape(-1, columns)


def _bind_softmax(call: NodeCall) -> HostRoutine:
    shape, axis, logs = call.shape("x"), call.attrs["axis"], call.spec.name == "log_softmax"

    def block(x: Array, out: Array, axis: int) -> None:
        np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out)
        if logs:
            total = np.add.reduce(np.exp(out), axis=axis, keepdims=True)
            np.subtract(out, np.log(total, total), out)
        else:
            np.exp(out, out)
            np.divide(out, np.add.reduce(out, axis=axis, keepdims=True), out)

    def run(operands: list[Any], out: Array) -> None:
        (x,) = operands
        if axis != len(shape) - 1:
            block(x, out, axis)
            return
        source, target = _rows(x, shape[-1]), _rows(out, shape[-1])
        for part in row_blocks(len(source), shape[-1]):
            block(source[part], target[part], 1)

    return HostRoutine(run, call.out.dtype.compute_np)


def _bind_norm(call: NodeCall) -> HostRoutine:
    columns = numel(call.shape("x")[-call.attrs["axes"] :])
    eps, centre = np.float32(call.attrs["eps"]), call.spec.name == "layer_norm"

    def run(operands: list[Any], out: Array) -> None:
        of = call.named(operands)
        x = of["x"]
        weight, bias = (None if a is None else a.reshape(-1) for a in (of["weight"], of.get("bias")))
        source, target = _rows(x, columns), _rows(out, columns)
        for part in row_blocks(len(source), columns):
            rows, done = source[part], target[part]
            if centre:
                mean = np.add.reduce(rows, axis=1, keepdims=True)
                np.divide(mean, columns, mean)
                rows = np.subtract(rows, mean, done)
            scale = np.einsum("ij,ij->i", rows, rows)
            np.divide(scale, columns, scale)
            np.add(scale, eps, scale)
            np.sqrt(scale, scale)
            np.divide(rows, scale[:, None], done)
            if weight is not None:
                np.multiply(done, weight, done)
            if bias is not None:
                np.add(done, bias, done)

    return HostRoutine(run, call.out.dtype.compute_np, native=op_tasks.norm(call))


ROUTINES: dict[str, Binder] = {
    "concat": _bind_concat,
    "pad": _bind_pad,
    "gather": _bind_gather,
    "take_along_axis": _bind_take_along_axis,
    "embedding": _bind_embedding,
    "scatter_add": _bind_scatter,
    "scatter_set": _bind_scatter,
    "reduce_sum": _bind_sum,
    "reduce_mean": _bind_sum,
    "reduce_prod": _bind_reduce(np.multiply),
    "reduce_max": _bind_reduce(np.maximum),
    "reduce_min": _bind_reduce(np.minimum),
    "reduce_any": _bind_reduce(np.logical_or),
    "reduce_all": _bind_reduce(np.logical_and),
    "argmax": _bind_arg(np.argmax),
    "argmin": _bind_arg(np.argmin),
    "sort": _bind_sort,
    "top_k": _bind_top_k,
    "softmax": _bind_softmax,
    "log_softmax": _bind_softmax,
    "layer_norm": _bind_norm,
    "rms_norm": _bind_norm,
    **LINEAR,
    **GROUPED,
    **CONV,
    **LOSSES,
    **NORM_GRADIENTS,
    **CHANNEL_NORMS,
    **POOLING,
    **RECURRENCES,
    **SCANS,
    **SPLATS,
}
