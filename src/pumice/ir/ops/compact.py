"""Compaction: the rows that are kept, packed to the front; how many they are is data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import index as gradients
from pumice.ir.ops.shape import plain, sample, sample_array
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import rng
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, keep = plain(types)
    if keep.dtype != dtypes.bool_:
        raise DTypeError(
            f"keep must be bool, not {keep.dtype}", hint="compare, or cast with .astype('bool')", dtype=keep.dtype.name
        )
    if x.rank < 1 or keep.rank != 1 or x.shape[0] != keep.shape[0]:
        raise ShapeError(
            f"takes x [M, ...] and keep [M], the shapes are {shape_text(x.shape)} and {shape_text(keep.shape)}",
            hint="one flag for each row along the first axis",
            x=x.shape,
            keep=keep.shape,
        )
    return x, TensorType(dtypes.i32, (1,))


def _compact(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    x, keep = arrays
    count = np.count_nonzero(keep)
    values = np.zeros_like(x)
    values[:count] = x[keep]
    return values, np.array([count], np.int32)


def _samples() -> Iterator[Sample]:
    def flags(n: int, share: float) -> Array:
        return rng(n).random(n) < share

    yield sample("half of the rows", [sample_array((37, 5)), flags(37, 0.5)])
    yield sample("no row", [sample_array((9, 4)), flags(9, 0.0)])
    yield sample("all rows", [sample_array((9, 4)), flags(9, 2.0)])
    yield sample("the last row alone", [sample_array((70, 3)), np.arange(70) == 69])
    yield sample("one row", [sample_array((1, 6)), flags(1, 2.0)])
    yield sample("numbers", [sample_array((130,)), flags(130, 0.3)])
    yield sample("matrices", [sample_array((11, 3, 4)), flags(11, 0.6)])
    yield sample("more than a workgroup takes", [sample_array((1500, 2)), flags(1500, 0.4)])
    yield sample("several workgroups", [sample_array((6000,)), flags(6000, 0.7)])
    yield sample("several workgroups, few rows", [sample_array((5000,), dtypes.i32), flags(5000, 0.001)])
    for dtype in (dtypes.f16, dtypes.bf16, dtypes.i8, dtypes.u8, dtypes.u32, dtypes.bool_):
        yield sample(f"{dtype}", [sample_array((21, 3), dtype), flags(21, 0.5)])
    odd = np.array([[np.nan, 1], [np.inf, -0.0], [-np.inf, 2], [0.0, np.nan]], np.float32)
    yield sample("NaN, infinities, signed zeros", [odd, np.array([True, True, False, True])])
    yield sample("no rows at all", [sample_array((0, 3)), flags(0, 1.0)])
    yield sample("rows of nothing", [sample_array((5, 0)), flags(5, 0.5)])


register(
    OpSpec(
        "compact",
        "index",
        "the rows that are kept, packed to the front, and how many they are",
        ("x", "keep"),
        _infer,
        _compact,
        Routine("compact"),
        _samples,
        gradient=gradients.compact,
        results=("values", "count"),
        rules="x [M, ...] and keep [M] (bool) give values [M, ...] and count [1] (i32). Kept rows stay in their order; rows of"
        " values from count on are zeros. count can be the sizes of a grouped_matmul, which then works on those rows alone.",
    )
)
