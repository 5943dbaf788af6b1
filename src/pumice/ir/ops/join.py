"""Shape ops that join: their results have elements from several places, so that they are no views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, shape_text
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import shape as gradients
from pumice.ir.ops.shape import canonical_axis, plain, sample, sample_array, shape_op, without_axis
from pumice.ir.registry import REQUIRED, Array, Attrs, Sample, Types
from pumice.ir.rules import same_dtype
from pumice.ir.traits import Requirement, Shapes, Traits, not_negative
from pumice.ir.types import TensorType


def _infer_concat(types: Types, attrs: Attrs) -> TensorType:
    found = plain(types)
    dtype = same_dtype(found)
    first = found[0]
    axis = canonical_axis(attrs["axis"], first.rank)
    total: Dim = 0
    for position, t in enumerate(found):
        if t.rank != first.rank or without_axis(t.shape, axis) != without_axis(first.shape, axis):
            raise ShapeError(
                f"operand {position} {shape_text(t.shape)} does not join {shape_text(first.shape)} along axis {axis}",
                hint="all dims but that of the axis must be equal",
                operand=position,
            )
        total = total + t.shape[axis]
    return TensorType(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.concatenate(arrays, axis=attrs["axis"])


def _concat_samples() -> Iterator[Sample]:
    yield sample("rows", [sample_array((3, 5)), sample_array((4, 5), seed=1)], axis=0)
    yield sample("columns", [sample_array((3, n), dtypes.f16, n) for n in (5, 1, 7)], axis=1)
    yield sample("middle", [sample_array((2, n, 3), dtypes.i32, n) for n in (4, 2)], axis=1)
    yield sample("one operand", [sample_array((6,), dtypes.bf16)], axis=0)
    yield sample("odd bytes", [sample_array((n,), dtypes.u8, n) for n in (1, 2, 3, 5)], axis=0)
    yield sample("bools", [sample_array((3, n), dtypes.bool_, n) for n in (2, 3)], axis=1)
    yield sample("more operands than bindings", [sample_array((2, 3), seed=n) for n in range(11)], axis=0)
    yield sample("empty piece", [sample_array((2, n), seed=n) for n in (3, 0, 4)], axis=1)
    yield sample("all empty", [sample_array((0, 2)), sample_array((0, 2))], axis=0)


def _infer_pad(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    lo, hi = attrs["lo"], attrs["hi"]
    if not len(lo) == len(hi) == x.rank:
        raise ShapeError(f"needs lo and hi for each of {x.rank} axes; {len(lo)} and {len(hi)} were given")
    for d in (*lo, *hi):
        if isinstance(d, int) and d < 0:
            raise ShapeError(f"padding by {d} would remove elements", hint="use slice for that")
    _check_value(attrs["value"], x.dtype)
    return TensorType(x.dtype, tuple(a + d + b for a, d, b in zip(lo, x.shape, hi, strict=True)))


def _check_value(value: float, dtype: DType) -> None:
    if dtype.is_float:
        return
    info = None if dtype.kind == "bool" else np.iinfo(dtype.np)
    low, high = (0, 1) if info is None else (int(info.min), int(info.max))
    if not math.isfinite(value) or value != int(value) or not low <= value <= high:
        raise DTypeError(f"{value} is no value of {dtype}", hint=f"an integer in {low}…{high}", value=value, dtype=dtype.name)


def _pad(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x = arrays[0]
    result = np.full(out.static_shape, attrs["value"], x.dtype)
    result[tuple(slice(a, a + n) for a, n in zip(attrs["lo"], x.shape, strict=True))] = x
    return result


def _pad_samples() -> Iterator[Sample]:
    yield sample("both sides", [sample_array((3, 5))], lo=(1, 2), hi=(2, 0), value=0.0)
    yield sample("value", [sample_array((7,), dtypes.i32)], lo=(3,), hi=(4,), value=-5.0)
    yield sample("minus infinity", [sample_array((2, 3, 4))], lo=(0, 1, 0), hi=(0, 1, 3), value=-math.inf)
    yield sample("f16", [sample_array((4, 3), dtypes.f16)], lo=(0, 1), hi=(1, 1), value=1.5)
    yield sample("bf16", [sample_array((5,), dtypes.bf16)], lo=(2,), hi=(0,), value=-0.5)
    yield sample("bytes", [sample_array((3, 3), dtypes.u8)], lo=(0, 1), hi=(0, 1), value=255.0)
    yield sample("bools", [sample_array((5,), dtypes.bool_)], lo=(1,), hi=(1,), value=1.0)
    yield sample("nothing to add", [sample_array((2, 2))], lo=(0, 0), hi=(0, 0), value=9.0)
    yield sample("of empty", [sample_array((0, 3))], lo=(2, 0), hi=(0, 1), value=4.0)
    yield sample("scalar", [sample_array(())], lo=(), hi=(), value=0.0)


def _pad_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    before = not_negative("pad adds before axis", attrs["lo"], maxima)
    return before + not_negative("pad adds after axis", attrs["hi"], maxima)


shape_op(
    "concat",
    "join tensors along an axis",
    _infer_concat,
    _concat,
    _concat_samples,
    {"axis": REQUIRED},
    "All dims but that of the axis are equal; operands of size 0 add nothing.",
    gradients.concat,
    Traits(places=True),
    operands=("x*",),
    cost="memory",
)
shape_op(
    "pad",
    "surround x with a constant value",
    _infer_pad,
    _pad,
    _pad_samples,
    {"lo": REQUIRED, "hi": REQUIRED, "value": 0.0},
    "lo and hi count elements before and after, per axis, and are not negative. Integer tensors take only values of their dtype.",
    gradients.pad,
    Traits(places=True, unchanged=lambda attrs: not any(attrs["lo"]) and not any(attrs["hi"]), requires=_pad_requires),
    cost="memory",
)
