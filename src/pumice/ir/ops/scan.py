"""Scans: running sums along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import DTypeError
from pumice.ir.gradients.reduce import cumsum
from pumice.ir.ops.reduce import NUMBERS, accumulator
from pumice.ir.ops.shape import canonical_axis, plain, sample, sample_array
from pumice.ir.precision import summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Row, Sample, Types, register
from pumice.ir.rules import require_kind
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    require_kind(x, *NUMBERS)
    if x.dtype.is_integer and x.dtype.itemsize < 4:
        raise DTypeError(f"{x.dtype} would wrap within a few elements", hint="cast to i32 or u32 first", dtype=x.dtype.name)
    canonical_axis(attrs["axis"], x.rank)
    return x


def _cumsum(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,), axis = arrays, attrs["axis"]
    ordered = np.moveaxis(x, axis, 0)[:: -1 if attrs["reverse"] else 1]
    total = np.cumsum(ordered, axis=0, dtype=accumulator(x, out.dtype))
    if attrs["exclusive"]:
        # Shifted, not total - x: that would turn an infinite element into NaN.
        total = np.concatenate([np.zeros_like(total[:1]), total[:-1]])
    return np.moveaxis(total[:: -1 if attrs["reverse"] else 1], 0, axis)


def _samples() -> Iterator[Sample]:
    for exclusive in (False, True):
        for reverse in (False, True):
            flags = {"exclusive": exclusive, "reverse": reverse}
            mode = ("exclusive" if exclusive else "inclusive") + (" reverse" if reverse else "")
            yield sample(f"last axis, {mode}", [sample_array((5, 37))], axis=1, **flags)
            yield sample(f"first axis, {mode}", [sample_array((37, 5), dtypes.i32)], axis=0, **flags)
            yield sample(f"long rows, {mode}", [sample_array((2, 1031))], axis=1, **flags)
    yield sample("middle axis", [sample_array((3, 11, 7))], axis=1)
    yield sample("long strided rows", [sample_array((1031, 3))], axis=0)
    yield sample("longer row", [sample_array((5003,))], axis=0)
    yield sample("many short rows", [sample_array((700, 3))], axis=1)
    yield sample("rows of one, exclusive", [sample_array((9, 1))], axis=1, exclusive=True)
    yield sample("f16", [sample_array((5, 131), dtypes.f16)], axis=1)
    yield sample("bf16", [sample_array((3, 65), dtypes.bf16)], axis=1, reverse=True)
    yield sample("u32", [sample_array((4, 67), dtypes.u32)], axis=1)
    yield sample("i32 wraps", [np.full((2, 9), 1_500_000_000, np.int32)], axis=1)
    yield sample("u32 wraps", [np.full(9, 4_000_000_000, np.uint32)], axis=0)
    yield sample("infinity, exclusive", [np.array([1, 2, np.inf, 3], np.float32)], axis=0, exclusive=True)
    yield sample("no rows", [sample_array((0, 5))], axis=1)
    yield sample("empty axis, exclusive", [sample_array((3, 0))], axis=1, exclusive=True)


register(
    OpSpec(
        "cumsum",
        "scan",
        "running sum along an axis",
        ("x",),
        _infer,
        _cumsum,
        Row("cumsum"),
        _samples,
        {"axis": REQUIRED, "exclusive": False, "reverse": False},
        rules="exclusive leaves out the element itself, so the first sum is 0; reverse sums from the end."
        " i32 and u32 wrap; other integers and bool must be cast first. f16 and bf16 accumulate in f32.",
        gradient=cumsum,
        error=summed(lambda e: e.arrays[0].shape[e.attrs["axis"]]),
    )
)
