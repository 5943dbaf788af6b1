"""Index ops: reading and writing by index tensors, and ops that make indices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, ceildiv, shape_text
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import index as gradients
from pumice.ir.ops.matmul import ALIKE, unpacked_error
from pumice.ir.ops.shape import PLAIN_KINDS, canonical_axis, plain, sample, sample_array, span, static_size, without_axis
from pumice.ir.precision import Evaluation
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Packed, Pull, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng
from pumice.ir.traits import Requirement, Selects, Shapes, Traits, dim_bounds
from pumice.ir.types import TensorType

_READ_RULE = (
    "Negative indices count from the end; indices still out of range clamp to the nearest end."
    " An empty axis is refused where it is static and reads as 0 where a symbol turns out 0."
)


def from_end(indices: Array, size: int) -> Array:
    """Indices as int64 (narrow types could not hold the sum) with negative ones counted from the end."""
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + size, wide)


def clamped(indices: Array, size: int) -> Array:
    """Indices into an axis: negative ones count from the end, those still out of range become the nearest end.

    >>> clamped(np.array([-1, 7, -9]), 4).tolist()
    [3, 3, 0]
    """
    return np.clip(from_end(indices, size), 0, size - 1)


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


def id_array(*values: Any, dtype: DType = dtypes.i32) -> Array:
    return np.array(values, dtype.np)


def _gather_samples() -> Iterator[Sample]:
    yield sample("rows", [sample_array((7, 5)), id_array(3, 0, 6, 3)], axis=0)
    yield sample("columns", [sample_array((4, 9), dtypes.f16), id_array(8, 1, 1)], axis=1)
    yield sample("middle, matrix of indices", [sample_array((2, 5, 3), dtypes.i32), id_array([0, 4], [2, 2], [1, 3])], axis=1)
    yield sample("negative", [sample_array((5, 3)), id_array(-1, -5, 4, -2)], axis=0)
    yield sample("out of range", [sample_array((5, 3)), id_array(5, 100, -6, -100, 2)], axis=0)
    yield sample("u32, far out of range", [sample_array((5, 3)), id_array(1, 4_000_000_000, dtype=dtypes.u32)], axis=0)
    yield sample("i8 over a long axis", [sample_array((300,)), id_array(-128, -1, 127, dtype=dtypes.i8)], axis=0)
    yield sample("bf16 by u8", [sample_array((200, 3), dtypes.bf16), id_array(199, 7, 255, dtype=dtypes.u8)], axis=0)
    yield sample("scalar index", [sample_array((4, 3), dtypes.u8), np.array(2, np.int32)], axis=0)
    yield sample("bools", [sample_array((9, 3), dtypes.bool_), id_array(8, 0, 3)], axis=0)
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


def sample_ids(shape: Sequence[int], low: int, high: int, dtype: DType = dtypes.i32) -> Array:
    return rng(3).integers(low, high, shape).astype(dtype.np)


def _take_along_axis_samples() -> Iterator[Sample]:
    yield sample("last axis", [sample_array((5, 9)), sample_ids((5, 4), 0, 9)], axis=1)
    yield sample("first axis", [sample_array((6, 5), dtypes.f16), sample_ids((8, 5), 0, 6)], axis=0)
    yield sample("middle", [sample_array((2, 7, 3), dtypes.i32), sample_ids((2, 4, 3), -7, 7)], axis=1)
    yield sample("negative and out of range", [sample_array((3, 5)), sample_ids((3, 40), -20, 20)], axis=1)
    yield sample("bf16 by u32", [sample_array((11,), dtypes.bf16), sample_ids((5,), 0, 30, dtypes.u32)], axis=0)
    yield sample("bytes by i8", [sample_array((3, 7), dtypes.i8), sample_ids((3, 3), -9, 9, dtypes.i8)], axis=1)
    yield sample("size one", [sample_array((4, 1), dtypes.bool_), sample_ids((4, 1), 0, 1)], axis=1)
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


def _packed(dtype: DType, *shape: int) -> Packed:
    from pumice.core.blocks import quantize_rows

    return Packed(dtype, shape, quantize_rows(dtype, sample_array(shape)))


def _embedding_samples() -> Iterator[Sample]:
    ids = id_array([3, 0, 10], [10, 3, 7])
    yield sample("f32", [sample_array((11, 5)), ids])
    yield sample("f16", [sample_array((11, 7), dtypes.f16), ids])
    yield sample("bf16, width 1", [sample_array((11, 1), dtypes.bf16), ids])
    yield sample("one id", [sample_array((4, 129)), np.array(2, np.int32)])
    yield sample("negative and out of range", [sample_array((5, 3)), id_array(-1, -5, -6, 5, 1000)])
    yield sample("u8 ids", [sample_array((5, 3)), id_array(4, 0, 200, dtype=dtypes.u8)])
    yield sample("no ids", [sample_array((5, 3)), np.zeros((2, 0), np.int32)])
    for dtype in dtypes.QUANT:
        yield sample(f"{dtype} table", [_packed(dtype, 11, 3 * dtype.block), ids])
        if dtype not in ALIKE:
            yield sample(f"{dtype} one block, out of range", [_packed(dtype, 3, dtype.block), id_array(-1, 2, 5, -7)])


def _infer_one_hot(types: Types, attrs: Attrs) -> TensorType:
    (ids,) = plain(types)
    require_kind(ids, "int", "uint")
    out = TensorType(dtypes.dtype(attrs["dtype"]), (*ids.shape, static_size(attrs["depth"], "depth")))
    require_kind(out, *PLAIN_KINDS)
    return out


def _one_hot(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    depth: int = attrs["depth"]
    return np.equal(from_end(arrays[0], depth)[..., None], np.arange(depth))


def _one_hot_samples() -> Iterator[Sample]:
    yield sample("vector", [id_array(0, 3, 6, 3)], depth=7)
    yield sample("matrix, f16", [id_array([1, 0], [2, 1], [0, 0])], depth=3, dtype="f16")
    yield sample("negative and out of range", [id_array(-1, -4, -5, 4, 100)], depth=4)
    yield sample("i32 from u8", [id_array(0, 255, 2, dtype=dtypes.u8)], depth=5, dtype="i32")
    yield sample("bools from i8", [id_array(-3, 1, -1, dtype=dtypes.i8)], depth=3, dtype="bool")
    yield sample("bf16 scalar", [np.array(1, np.int32)], depth=65, dtype="bf16")
    yield sample("bytes from u32", [id_array(2, 4_000_000_000, dtype=dtypes.u32)], depth=3, dtype="u8")
    yield sample("no ids", [np.zeros(0, np.int32)], depth=3)
    yield sample("depth 0", [id_array(0, 1)], depth=0)


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


def _arange_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    """Both ends inside the dtype, where the symbols' maxima leave a doubt; a dim's value as a scalar is such a range too."""
    if not out.dtype.is_integer:
        return []
    info, (count,) = np.iinfo(out.dtype.np), out.shape
    low, high = int(info.min), int(info.max)
    found = []
    for value in (attrs["start"], attrs["start"] + (count - 1) * attrs["step"]):
        least, greatest = dim_bounds(value, maxima)
        text = f"{value} is a value of {out.dtype}"
        if least < low:
            found.append(Requirement(low, value, count, text))
        if greatest > high:
            found.append(Requirement(value, high, count, text))
    return list(dict.fromkeys(found))


def _arange_value(attrs: Attrs, out: TensorType) -> Dim | None:
    return attrs["start"] if out.shape == (1,) else None


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
        traits=Traits(selects=Selects("x", "indices")),
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
        traits=Traits(selects=Selects("x", "indices")),
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
        traits=Traits(selects=Selects("table", "ids", axis=0)),
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
        traits=Traits(cheap=True, requires=_arange_requires, dim_value=_arange_value),
    )
)
