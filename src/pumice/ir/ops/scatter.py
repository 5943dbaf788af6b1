"""Scatter ops: writing by index tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.core.dtypes import DType
from pumice.errors import ShapeError
from pumice.ir.gradients import index as gradients
from pumice.ir.ops.index import from_end, id_array, sample_ids
from pumice.ir.ops.shape import canonical_axis, plain, sample, sample_array, without_axis
from pumice.ir.precision import Evaluation, U, growth, is_float
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import require_kind, same_dtype, same_shape
from pumice.ir.traits import InPlace, Sizes, Traits
from pumice.ir.types import TensorType

WRITE_RULE = "Negative indices count from the end; updates whose index is still out of range are dropped."


def _scatter_error(e: Evaluation) -> Any:
    """Sums of as many terms as each element receives, counted by the same op over ones."""
    x, indices, updates = e.arrays
    if not is_float(x):
        return 0.0
    terms = e.again([np.ones_like(x), indices, np.ones_like(updates)])
    return growth(terms) * U * e.again([np.abs(x), indices, np.abs(updates)])


def infer_scatter(types: Types, attrs: Attrs) -> TensorType:
    """The type of x, into an axis of which updates are written at indices."""
    x, indices, updates = plain(types)
    same_dtype([x, updates])
    require_kind(indices, "int", "uint")
    axis = canonical_axis(attrs["axis"], x.rank)
    if indices.rank != 1:
        raise ShapeError(f"indices must be 1-D, they are {shape_text(indices.shape)}")
    same_shape(updates.shape, x.shape[:axis] + indices.shape + x.shape[axis + 1 :], f"updates and x with axis {axis} indexed")
    return x


def _infer_scatter_add(types: Types, attrs: Attrs) -> TensorType:
    x = infer_scatter(types, attrs)
    require_kind(x, "float", "int", "uint")
    return x


def _scatter_operands(arrays: Sequence[Any], axis: int) -> tuple[Array, Array, Array, Array]:
    """A copy of x, that copy with the axis in front, the indices that hit, and their updates with the axis in front."""
    x, indices, updates = arrays
    result = np.array(x)
    index = from_end(indices, x.shape[axis])
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
    index = from_end(indices, size)
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
        indices = sample_ids(places, low, high, ids.get("ids", dtypes.i32))
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

    yield case("rows", (7, 5), id_array(3, 0, 6), 0)
    yield case("columns", (4, 9), id_array(8, 1, 5), 1)
    yield case("middle", (2, 5, 3), id_array(4, 2), 1, dtypes.i32)
    yield case("duplicates", (4, 3), id_array(1, 3, 1, 1, 3, 0, 1), 0)
    yield case("many duplicates", (3, 5), sample_ids((257,), 0, 3), 0)
    yield case("negative and out of range", (4, 3), id_array(-1, -4, -5, 4, 1000, 0), 0)
    yield case("vector, u32 indices", (11,), id_array(10, 2, 2, 4_000_000_000, dtype=dtypes.u32), 0)
    yield case("f16", (5, 3), id_array(4, 1, 1), 0, dtypes.f16)
    yield case("bf16, odd width", (3, 5), id_array(0, 4, 4), 1, dtypes.bf16)
    yield case(f"{extra}, i8 indices", (3, 7), id_array(2, -3, 0, dtype=dtypes.i8), 0, extra)
    yield case("u8 columns", (2, 9), id_array(1, 2, 2, 5), 1, dtypes.u8)
    yield case("size one", (1,), id_array(0), 0, dtypes.u32)
    yield case("integers into more rows than a workgroup counts", (5000,), sample_ids((70,), -5100, 5100), 0, dtypes.i32)
    yield case("bytes into many columns", (3, 1500), sample_ids((257,), 0, 1500), 1, dtypes.u8)
    yield case("no updates", (4, 3), np.zeros(0, np.int32), 0)
    yield case("into nothing", (0, 3), id_array(0, -1), 0)


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    return f"{prod(of['indices'])} updates of {of['x'][attrs['axis']]} rows"


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
        rules=WRITE_RULE + " Updates of the same index accumulate; integers wrap.",
        gradient=gradients.scatter_add,
        traits=Traits(in_place=InPlace("x", "updates", reads=True), sizes=_sizes),
    )
)
register(
    OpSpec(
        "scatter_set",
        "index",
        "x with each slice of updates put in place at its index along an axis",
        ("x", "indices", "updates"),
        infer_scatter,
        _scatter_set,
        Routine("scatter_set"),
        lambda: _scatter_samples(dtypes.bool_),
        {"axis": REQUIRED},
        rules=WRITE_RULE + " Of several updates of one index the last one wins.",
        gradient=gradients.scatter_set,
        traits=Traits(in_place=InPlace("x", "updates"), sizes=_sizes, pulls=("updates",)),
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
        rules=WRITE_RULE + " Updates of the same place accumulate; integers wrap. What take_along_axis reads, this writes back.",
        gradient=gradients.scatter_along_axis_add,
        traits=Traits(sizes=_sizes),
    )
)
