"""Index ops: reading and writing by index tensors, and the tensors that indices are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, ceildiv, shape_text
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import index as gradients
from pumice.ir.ops.matmul import unpacked_error
from pumice.ir.ops.shape import PLAIN_KINDS, canonical_axis, plain, sample, sample_array, span, static_size, without_axis
from pumice.ir.precision import Evaluation, U, growth, is_float
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Packed, Pull, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng, same_dtype, same_shape
from pumice.ir.traits import Traits
from pumice.ir.types import TensorType

_READ_RULE = (
    "Negative indices count from the end; indices still out of range clamp to the nearest end."
    " An empty axis is refused where it is static and reads as 0 where a symbol turns out 0."
)
_WRITE_RULE = "Negative indices count from the end; updates whose index is still out of range are dropped."


def _from_end(indices: Array, size: int) -> Array:
    """Indices as int64 (narrow types could not hold the sum) with negative ones counted from the end."""
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + size, wide)


def clamped(indices: Array, size: int) -> Array:
    """Indices into an axis: negative ones count from the end, those still out of range become the nearest end.

    >>> clamped(np.array([-1, 7, -9]), 4).tolist()
    [3, 3, 0]
    """
    return np.clip(_from_end(indices, size), 0, size - 1)


def _require_filled(size: Dim, indices: TensorType, what: str) -> None:
    if size == 0 and indices.numel != 0:
        raise ShapeError(f"{what} is empty, there is nothing to select from")


# --- gather, take_along_axis ---


def _infer_gather(types: Types, attrs: Attrs) -> TensorType:
    x, indices = plain(types)
    require_kind(indices, "int", "uint")
    axis = canonical_axis(attrs["axis"], x.rank)
    _require_filled(x.shape[axis], indices, f"axis {axis}")
    return TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _gather(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, indices = arrays
    axis: int = attrs["axis"]
    if x.shape[axis] == 0:
        return np.zeros(out.static_shape, x.dtype)
    return np.take(x, clamped(indices, x.shape[axis]), axis=axis)


def _ids(*values: Any, dtype: DType = dtypes.i32) -> Array:
    return np.array(values, dtype.np)


def _gather_samples() -> Iterator[Sample]:
    yield sample("rows", [sample_array((7, 5)), _ids(3, 0, 6, 3)], axis=0)
    yield sample("columns", [sample_array((4, 9), dtypes.f16), _ids(8, 1, 1)], axis=1)
    yield sample("middle, matrix of indices", [sample_array((2, 5, 3), dtypes.i32), _ids([0, 4], [2, 2], [1, 3])], axis=1)
    yield sample("negative", [sample_array((5, 3)), _ids(-1, -5, 4, -2)], axis=0)
    yield sample("out of range", [sample_array((5, 3)), _ids(5, 100, -6, -100, 2)], axis=0)
    yield sample("u32, far out of range", [sample_array((5, 3)), _ids(1, 4_000_000_000, dtype=dtypes.u32)], axis=0)
    yield sample("i8 over a long axis", [sample_array((300,)), _ids(-128, -1, 127, dtype=dtypes.i8)], axis=0)
    yield sample("bf16 by u8", [sample_array((200, 3), dtypes.bf16), _ids(199, 7, 255, dtype=dtypes.u8)], axis=0)
    yield sample("scalar index", [sample_array((4, 3), dtypes.u8), np.array(2, np.int32)], axis=0)
    yield sample("bools", [sample_array((9, 3), dtypes.bool_), _ids(8, 0, 3)], axis=0)
    yield sample("no indices", [sample_array((4, 3)), np.zeros((0, 2), np.int32)], axis=0)
    yield sample("nothing from nothing", [sample_array((0, 3)), np.zeros(0, np.int32)], axis=0)


def _infer_take_along_axis(types: Types, attrs: Attrs) -> TensorType:
    x, indices = plain(types)
    require_kind(indices, "int", "uint")
    axis = canonical_axis(attrs["axis"], x.rank)
    if indices.rank != x.rank or without_axis(indices.shape, axis) != without_axis(x.shape, axis):
        raise ShapeError(
            f"indices {shape_text(indices.shape)} do not match x {shape_text(x.shape)} along axis {axis}",
            hint="ranks are equal and so are all dims but that of the axis; expand them first",
        )
    _require_filled(x.shape[axis], indices, f"axis {axis}")
    return TensorType(x.dtype, indices.shape)


def _take_along_axis(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, indices = arrays
    axis: int = attrs["axis"]
    if x.shape[axis] == 0:
        return np.zeros(out.static_shape, x.dtype)
    return np.take_along_axis(x, clamped(indices, x.shape[axis]), axis=axis)


def _sample_ids(shape: Sequence[int], low: int, high: int, dtype: DType = dtypes.i32) -> Array:
    return rng(3).integers(low, high, shape).astype(dtype.np)


def _take_along_axis_samples() -> Iterator[Sample]:
    yield sample("last axis", [sample_array((5, 9)), _sample_ids((5, 4), 0, 9)], axis=1)
    yield sample("first axis", [sample_array((6, 5), dtypes.f16), _sample_ids((8, 5), 0, 6)], axis=0)
    yield sample("middle", [sample_array((2, 7, 3), dtypes.i32), _sample_ids((2, 4, 3), -7, 7)], axis=1)
    yield sample("negative and out of range", [sample_array((3, 5)), _sample_ids((3, 40), -20, 20)], axis=1)
    yield sample("bf16 by u32", [sample_array((11,), dtypes.bf16), _sample_ids((5,), 0, 30, dtypes.u32)], axis=0)
    yield sample("bytes by i8", [sample_array((3, 7), dtypes.i8), _sample_ids((3, 3), -9, 9, dtypes.i8)], axis=1)
    yield sample("size one", [sample_array((4, 1), dtypes.bool_), _sample_ids((4, 1), 0, 1)], axis=1)
    yield sample("no indices", [sample_array((4, 3)), np.zeros((4, 0), np.int32)], axis=1)


# --- embedding, one_hot, arange ---


def _infer_embedding(types: Types, attrs: Attrs) -> TensorType:
    table, ids = given(types)
    require_kind(table, "float", "quant")
    require_kind(ids, "int", "uint")
    if table.rank != 2:
        raise ShapeError(f"the table must be [entries, width], it is {shape_text(table.shape)}")
    width = table.shape[1]
    if table.dtype.is_quant and (not isinstance(width, int) or width % table.dtype.block):
        raise ShapeError(f"rows of {width} are no whole number of {table.dtype} blocks of {table.dtype.block}")
    _require_filled(table.shape[0], ids, "the table")
    return TensorType(dtypes.f32 if table.dtype.is_quant else table.dtype, (*ids.shape, width))


def _embedding(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    table, ids = arrays
    if table.shape[0] == 0:
        return np.zeros(out.static_shape, np.float32)
    rows = (table.data if isinstance(table, Packed) else table)[clamped(ids, table.shape[0])]
    if not isinstance(table, Packed):
        return np.asarray(rows)
    from pumice.core.blocks import dequantize_rows

    return dequantize_rows(table.dtype, rows, table.shape[1])


def _embedding_error(e: Evaluation) -> Any:
    table, ids = e.arrays
    if not isinstance(table, Packed) or not table.shape[0]:
        return 0.0
    rows = table.data[clamped(ids, table.shape[0])]
    return unpacked_error(replace(e, arrays=[Packed(table.dtype, (*ids.shape, table.shape[1]), rows)]))


def _scatter_error(e: Evaluation) -> Any:
    """Sums of as many terms as meet in each element, which the same op over ones counts."""
    x, indices, updates = e.arrays
    if not is_float(x):
        return 0.0
    terms = e.again([np.ones_like(x), indices, np.ones_like(updates)])
    return growth(terms) * U * e.again([np.abs(x), indices, np.abs(updates)])


def _packed(dtype: DType, *shape: int) -> Packed:
    from pumice.core.blocks import quantize_rows

    return Packed(dtype, shape, quantize_rows(dtype, sample_array(shape)))


def _embedding_samples() -> Iterator[Sample]:
    ids = _ids([3, 0, 10], [10, 3, 7])
    yield sample("f32", [sample_array((11, 5)), ids])
    yield sample("f16", [sample_array((11, 7), dtypes.f16), ids])
    yield sample("bf16, width 1", [sample_array((11, 1), dtypes.bf16), ids])
    yield sample("one id", [sample_array((4, 129)), np.array(2, np.int32)])
    yield sample("negative and out of range", [sample_array((5, 3)), _ids(-1, -5, -6, 5, 1000)])
    yield sample("u8 ids", [sample_array((5, 3)), _ids(4, 0, 200, dtype=dtypes.u8)])
    yield sample("no ids", [sample_array((5, 3)), np.zeros((2, 0), np.int32)])
    for dtype in dtypes.QUANT:
        yield sample(f"{dtype} table", [_packed(dtype, 11, 3 * dtype.block), ids])
        yield sample(f"{dtype} one block, out of range", [_packed(dtype, 3, dtype.block), _ids(-1, 2, 5, -7)])


def _infer_one_hot(types: Types, attrs: Attrs) -> TensorType:
    (ids,) = plain(types)
    require_kind(ids, "int", "uint")
    out = TensorType(dtypes.dtype(attrs["dtype"]), (*ids.shape, static_size(attrs["depth"], "depth")))
    require_kind(out, *PLAIN_KINDS)
    return out


def _one_hot(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    depth: int = attrs["depth"]
    return np.equal(_from_end(arrays[0], depth)[..., None], np.arange(depth))


def _one_hot_samples() -> Iterator[Sample]:
    yield sample("vector", [_ids(0, 3, 6, 3)], depth=7)
    yield sample("matrix, f16", [_ids([1, 0], [2, 1], [0, 0])], depth=3, dtype="f16")
    yield sample("negative and out of range", [_ids(-1, -4, -5, 4, 100)], depth=4)
    yield sample("i32 from u8", [_ids(0, 255, 2, dtype=dtypes.u8)], depth=5, dtype="i32")
    yield sample("bools from i8", [_ids(-3, 1, -1, dtype=dtypes.i8)], depth=3, dtype="bool")
    yield sample("bf16 scalar", [np.array(1, np.int32)], depth=65, dtype="bf16")
    yield sample("bytes from u32", [_ids(2, 4_000_000_000, dtype=dtypes.u32)], depth=3, dtype="u8")
    yield sample("no ids", [np.zeros(0, np.int32)], depth=3)
    yield sample("depth 0", [_ids(0, 1)], depth=0)


def _infer_arange(types: Types, attrs: Attrs) -> TensorType:
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    dtype = dtypes.dtype(attrs["dtype"])
    if not dtype.is_float and not dtype.is_integer:
        raise DTypeError(f"counts in floats or integers, not in {dtype}", dtype=dtype.name)
    if step == 0 or isinstance(step, Expr):
        raise ShapeError(f"the step must be a number other than 0, not {step}")
    length = _arange_length(start, stop, step, dtype)
    if dtype.is_integer and isinstance(length, int) and length:
        info = np.iinfo(dtype.np)
        for value in (start, start + (length - 1) * step):
            if isinstance(value, int) and not info.min <= value <= info.max:
                raise DTypeError(f"{value} does not fit {dtype}", hint="count in a wider dtype", value=value, dtype=dtype.name)
    return TensorType(dtype, (length,))


def _arange_length(start: Any, stop: Any, step: Any, dtype: DType) -> Dim:
    if all(isinstance(v, int | Expr) for v in (start, stop, step)):
        count: Dim = ceildiv(span(start, stop) if step > 0 else span(stop, start), abs(step))
        return count
    if dtype.is_integer or isinstance(start, Expr) or isinstance(stop, Expr):
        raise DTypeError(
            f"{start}…{stop} by {step}: fractions need a float dtype and static ends",
            hint="use integers, or scale an integer range afterwards",
        )
    steps: float = (stop - start) / step
    if not math.isfinite(steps):
        raise ShapeError(f"{start}…{stop} by {step} has no number of elements", hint="the ends must be finite")
    return max(0, math.ceil(steps))


def _arange(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    # Integers stay integers until the caller casts: i32 and u32 reach values that a float would round.
    return np.asarray(attrs["start"] + np.arange(out.static_shape[0], dtype=np.int64) * attrs["step"])


def _arange_samples() -> Iterator[Sample]:
    yield sample("count", [], stop=67)
    yield sample("from, by", [], start=-5, stop=20, step=3)
    yield sample("down", [], start=10, stop=-1, step=-2)
    yield sample("f32", [], stop=9, dtype="f32")
    yield sample("fractions", [], start=0.25, stop=2.0, step=0.5, dtype="f32")
    yield sample("f16", [], start=1, stop=6, dtype="f16")
    yield sample("bf16", [], stop=5, step=2, dtype="bf16")
    yield sample("bytes", [], start=250, stop=256, dtype="u8")
    yield sample("i8", [], start=-128, stop=-120, dtype="i8")
    yield sample("large u32", [], start=4_294_967_290, stop=4_294_967_296, dtype="u32")
    yield sample("nothing", [], start=3, stop=3)
    yield sample("reversed takes nothing", [], start=5, stop=1)


# --- scatter_add, scatter_set ---


def _infer_scatter(types: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = plain(types)
    same_dtype([x, updates])
    require_kind(indices, "int", "uint")
    axis = canonical_axis(attrs["axis"], x.rank)
    if indices.rank != 1:
        raise ShapeError(f"indices must be 1-D, they are {shape_text(indices.shape)}")
    same_shape(updates.shape, x.shape[:axis] + indices.shape + x.shape[axis + 1 :], f"updates and x with axis {axis} indexed")
    return x


def _infer_scatter_add(types: Types, attrs: Attrs) -> TensorType:
    x = _infer_scatter(types, attrs)
    require_kind(x, "float", "int", "uint")
    return x


def _scatter_operands(arrays: Sequence[Any], axis: int) -> tuple[Array, Array, Array, Array]:
    """A copy of x, that copy with the axis in front, the indices that hit, and their updates with the axis in front."""
    x, indices, updates = arrays
    result = np.array(x)
    index = _from_end(indices, x.shape[axis])
    hit = (index >= 0) & (index < x.shape[axis])
    return result, np.moveaxis(result, axis, 0), index[hit], np.moveaxis(updates, axis, 0)[hit]


def _scatter_add(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    result, view, index, updates = _scatter_operands(arrays, attrs["axis"])
    np.add.at(view, index, updates)
    return result


def _scatter_set(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    result, view, index, updates = _scatter_operands(arrays, attrs["axis"])
    # NumPy leaves the order of repeated assignments open, so only the last of each index is kept.
    unique, from_back = np.unique(index[::-1], return_index=True)
    view[unique] = updates[::-1][from_back]
    return result


def _infer_scatter_along(types: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = plain(types)
    same_dtype([x, updates])
    require_kind(x, "float", "int", "uint")
    require_kind(indices, "int", "uint")
    axis = canonical_axis(attrs["axis"], x.rank)
    same_shape(indices.shape, updates.shape, "indices and updates")
    if indices.rank != x.rank or without_axis(indices.shape, axis) != without_axis(x.shape, axis):
        raise ShapeError(
            f"indices {shape_text(indices.shape)} do not match x {shape_text(x.shape)} along axis {axis}",
            hint="ranks are equal and so are all dims but that of the axis",
        )
    return x


def _scatter_along(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, indices, updates = (np.moveaxis(a, attrs["axis"], -1) for a in arrays)
    size = x.shape[-1]
    index = _from_end(indices, size)
    hit = (index >= 0) & (index < size)
    # All rows as one: the place of each update among all elements.
    rows = np.arange(int(np.prod(x.shape[:-1], dtype=np.int64))).reshape(*x.shape[:-1], 1)
    result = np.array(x).reshape(-1)
    np.add.at(result, (rows * size + index)[hit], updates[hit])
    return np.moveaxis(result.reshape(x.shape), -1, attrs["axis"])


def _scatter_along_samples() -> Iterator[Sample]:
    def case(label: str, shape: tuple[int, ...], count: int, axis: int, dtype: DType = dtypes.f32, **ids: Any) -> Sample:
        places = (*shape[:axis], count, *shape[axis + 1 :])
        low, high = ids.get("low", 0), ids.get("high", shape[axis])
        indices = _sample_ids(places, low, high, ids.get("ids", dtypes.i32))
        return sample(label, [sample_array(shape, dtype), indices, sample_array(places, dtype, 1)], axis=axis)

    yield case("last axis", (5, 9), 4, 1)
    yield case("first axis", (6, 13), 8, 0)
    yield case("middle", (2, 7, 3), 4, 1, dtypes.i32, low=-7)
    yield case("many duplicates", (3, 5), 257, 1)
    yield case("negative and out of range", (3, 5), 40, 1, low=-20, high=20)
    yield case("vector by u32", (11,), 5, 0, ids=dtypes.u32, high=30)
    yield case("f16", (3, 7), 5, 1, dtypes.f16)
    yield case("bf16, odd width", (3, 5), 4, 0, dtypes.bf16)
    yield case("bytes by i8", (3, 7), 9, 1, dtypes.i8, low=-9, high=9, ids=dtypes.i8)
    yield case("size one", (4, 1), 3, 1, dtypes.u8)
    yield case("no updates", (4, 3), 0, 1)
    yield case("into nothing", (4, 0), 2, 1, high=1)


def _scatter_samples(extra: DType) -> Iterator[Sample]:
    def case(label: str, shape: tuple[int, ...], indices: Array, axis: int, dtype: DType = dtypes.f32) -> Sample:
        updates = sample_array((*shape[:axis], len(indices), *shape[axis + 1 :]), dtype, 1)
        return sample(label, [sample_array(shape, dtype), indices, updates], axis=axis)

    yield case("rows", (7, 5), _ids(3, 0, 6), 0)
    yield case("columns", (4, 9), _ids(8, 1, 5), 1)
    yield case("middle", (2, 5, 3), _ids(4, 2), 1, dtypes.i32)
    yield case("duplicates", (4, 3), _ids(1, 3, 1, 1, 3, 0, 1), 0)
    yield case("many duplicates", (3, 5), _sample_ids((257,), 0, 3), 0)
    yield case("negative and out of range", (4, 3), _ids(-1, -4, -5, 4, 1000, 0), 0)
    yield case("vector, u32 indices", (11,), _ids(10, 2, 2, 4_000_000_000, dtype=dtypes.u32), 0)
    yield case("f16", (5, 3), _ids(4, 1, 1), 0, dtypes.f16)
    yield case("bf16, odd width", (3, 5), _ids(0, 4, 4), 1, dtypes.bf16)
    yield case(f"{extra}, i8 indices", (3, 7), _ids(2, -3, 0, dtype=dtypes.i8), 0, extra)
    yield case("u8 columns", (2, 9), _ids(1, 2, 2, 5), 1, dtypes.u8)
    yield case("size one", (1,), _ids(0), 0, dtypes.u32)
    yield case("no updates", (4, 3), np.zeros(0, np.int32), 0)
    yield case("into nothing", (0, 3), _ids(0, -1), 0)


register(
    OpSpec(
        "gather",
        "index",
        "the entries of x along an axis that an index tensor names; the index's shape takes the axis's place",
        ("x", "indices"),
        _infer_gather,
        _gather,
        Pull("gather"),
        _gather_samples,
        {"axis": REQUIRED},
        rules=_READ_RULE,
        gradient=gradients.gather,
    )
)
register(
    OpSpec(
        "take_along_axis",
        "index",
        "one element of x per index, matched along all other axes",
        ("x", "indices"),
        _infer_take_along_axis,
        _take_along_axis,
        Pull("take_along_axis"),
        _take_along_axis_samples,
        {"axis": REQUIRED},
        rules=_READ_RULE + " The other dims are equal, they do not broadcast.",
        gradient=gradients.take_along_axis,
    )
)
register(
    OpSpec(
        "embedding",
        "index",
        "rows of a table [entries, width] by id; quantised rows come out as f32",
        ("table", "ids"),
        _infer_embedding,
        _embedding,
        Pull("embedding"),
        _embedding_samples,
        error=_embedding_error,
        rules=_READ_RULE + " A quantised table has no gradient.",
        gradient=gradients.embedding,
    )
)
register(
    OpSpec(
        "one_hot",
        "index",
        "1 where the position along a new last axis equals the id, else 0",
        ("ids",),
        _infer_one_hot,
        _one_hot,
        Pull("one_hot"),
        _one_hot_samples,
        {"depth": REQUIRED, "dtype": "f32"},
        rules="Negative ids count from the end of the depth; ids still out of range give zeros only.",
        no_gradient="it takes integers",
        differentiable=False,
        traits=Traits(cheap=True),
    )
)
register(
    OpSpec(
        "arange",
        "index",
        "start, start+step, … below stop (above it for a negative step)",
        (),
        _infer_arange,
        _arange,
        Pull("arange"),
        _arange_samples,
        {"start": 0, "stop": REQUIRED, "step": 1, "dtype": "i32"},
        rules="The length is the rounded-up quotient of range and step, never below 0. Values past an integer dtype are refused,"
        " those that depend on symbols when the graph runs."
        " Symbolic ends need integers throughout; fractions need a float dtype.",
        no_gradient="it takes no operands",
        differentiable=False,
        traits=Traits(cheap=True),
    )
)
register(
    OpSpec(
        "scatter_add",
        "index",
        "x with each slice of updates added at its index along an axis",
        ("x", "indices", "updates"),
        _infer_scatter_add,
        _scatter_add,
        Routine("scatter_add"),
        lambda: _scatter_samples(dtypes.i8),
        {"axis": REQUIRED},
        error=_scatter_error,
        rules=_WRITE_RULE + " Updates of the same index accumulate; integers wrap.",
        gradient=gradients.scatter_add,
    )
)
register(
    OpSpec(
        "scatter_set",
        "index",
        "x with each slice of updates put in place at its index along an axis",
        ("x", "indices", "updates"),
        _infer_scatter,
        _scatter_set,
        Routine("scatter_set"),
        lambda: _scatter_samples(dtypes.bool_),
        {"axis": REQUIRED},
        rules=_WRITE_RULE + " Of several updates of one index the last one wins.",
        gradient=gradients.scatter_set,
    )
)
register(
    OpSpec(
        "scatter_along_axis_add",
        "index",
        "x with each update added at the place its own index names along an axis, matched along all other axes",
        ("x", "indices", "updates"),
        _infer_scatter_along,
        _scatter_along,
        Routine("scatter_along_axis_add"),
        _scatter_along_samples,
        {"axis": REQUIRED},
        error=_scatter_error,
        rules=_WRITE_RULE + " Updates of the same place accumulate; integers wrap. What take_along_axis reads, this writes back.",
        gradient=gradients.scatter_along_axis_add,
    )
)
