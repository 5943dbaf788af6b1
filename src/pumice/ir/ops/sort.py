"""Sorting: elements along an axis in order, and the indices where they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import ShapeError
from pumice.ir.gradients import index as gradients
from pumice.ir.ops.reduce import NUMBERS
from pumice.ir.ops.shape import canonical_axis, plain, sample, sample_array, static_size
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import require_kind
from pumice.ir.traits import Requirement, Shapes, Sizes, Traits
from pumice.ir.types import TensorType


def _infer_sort(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    (x,) = plain(types)
    require_kind(x, *NUMBERS)
    canonical_axis(attrs["axis"], x.rank)
    return x, TensorType(dtypes.i32, x.shape)


def reversible(x: Array, descending: bool) -> Array:
    """x such that ascending order is the order wanted; applied again, it gives x back.

    Both ways to reverse keep ties as ties: ~ has no overflow, and -NaN still sorts last.
    """
    return x if not descending else -x if x.dtype.kind == "f" else ~x


def sorted_order(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort an axis."""
    return np.argsort(reversible(x, descending), axis=axis, kind="stable")


def _sort(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, Array]:
    (x,) = arrays
    order = sorted_order(x, attrs["axis"], attrs["descending"])
    return np.take_along_axis(x, order, attrs["axis"]), order


def _sort_samples() -> Iterator[Sample]:
    for n in (1, 2, 100, 1500, 5000):
        yield sample(f"row of {n}", [sample_array((n,), seed=n)], axis=0, descending=False)
    yield sample("rows", [sample_array((7, 37))], axis=1, descending=False)
    yield sample("long rows, descending", [sample_array((2, 1500))], axis=1, descending=True)
    yield sample("many short rows", [sample_array((300, 3))], axis=1, descending=True)
    yield sample("first axis", [sample_array((37, 5))], axis=0, descending=False)
    yield sample("middle axis", [sample_array((3, 11, 7), dtypes.i32)], axis=1, descending=True)
    yield sample("f16", [sample_array((3, 70), dtypes.f16)], axis=1, descending=False)
    yield sample("bf16 with ties", [sample_array((2, 300), dtypes.bf16)], axis=1, descending=True)
    yield from _tie_samples(axis=1)
    for s in _tie_samples(axis=1):
        yield Sample(f"{s.label}, descending", s.inputs, {**s.attrs, "descending": True})
    yield sample("no rows", [sample_array((0, 5))], axis=1, descending=False)
    yield sample("empty axis", [sample_array((3, 0))], axis=1, descending=False)


def _tie_samples(**attrs: Any) -> Iterator[Sample]:
    nan, inf = np.nan, np.inf
    rows = np.array([[nan, 1, inf, nan, -inf, 1], [0.0, -0.0, 0.0, -1, -0.0, 1], [nan] * 6, [2] * 6], np.float32)
    yield sample("NaN, infinities, signed zeros", [rows], **attrs)
    yield sample("i8 ties", [sample_array((2, 700), dtypes.i8)], **attrs)
    yield sample("u8 ties", [sample_array((1, 130), dtypes.u8)], **attrs)
    yield sample("i32 ends", [np.array([[5, -(2**31), 2**31 - 1, 0, -(2**31)]], np.int32)], **attrs)
    yield sample("u32 upper half", [np.array([[5, 2**32 - 1, 0, 2**31, 2**31 - 1]], np.uint32)], **attrs)


def _infer_top_k(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    (x,) = plain(types)
    require_kind(x, *NUMBERS)
    axis, k = canonical_axis(attrs["axis"], x.rank), static_size(attrs["k"], "k")
    size = x.shape[axis]
    if isinstance(size, int) and k > size:
        raise ShapeError(f"k = {k} is more than the {size} elements of axis {axis}", k=k, axis=axis)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(dtypes.i32, shape)


def _top_k(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, Array]:
    (x,), axis, k = arrays, attrs["axis"], attrs["k"]
    size = x.shape[axis]
    if k > size:
        raise ShapeError(f"top_k: k = {k} is more than the {size} elements that axis {axis} turned out to have", k=k, axis=axis)
    # Read backwards, a stable ascending order has the smaller index first among ties, and NaN in front.
    ascending = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    order = size - 1 - np.take(np.flip(ascending, axis), np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis), order


def _top_k_samples() -> Iterator[Sample]:
    yield sample("best", [sample_array((5, 37))], k=1, axis=1)
    yield sample("five", [sample_array((5, 37))], k=5, axis=1)
    yield sample("all", [sample_array((3, 19))], k=19, axis=1)
    yield sample("one of one", [sample_array((4, 1))], k=1, axis=1)
    yield sample("first axis", [sample_array((37, 5))], k=3, axis=0)
    yield sample("middle axis", [sample_array((3, 11, 7), dtypes.i32)], k=2, axis=1)
    yield sample("long row", [sample_array((1031,))], k=40, axis=0)
    yield sample("longer row", [sample_array((1, 5000))], k=5, axis=1)
    yield sample("most of a long row", [sample_array((1500,), seed=1)], k=1400, axis=0)
    odd = np.array([np.nan, 1, np.inf, -np.inf, -0.0, 0.0, -1], np.float32)
    yield sample(
        "most of long rows with ties, NaN, infinities, signed zeros", [np.tile(odd, 300).reshape(2, 1050)], k=1000, axis=1
    )
    yield sample("many short rows", [sample_array((300, 3))], k=2, axis=1)
    yield sample("f16", [sample_array((3, 70), dtypes.f16)], k=5, axis=1)
    yield sample("bf16 with ties", [sample_array((2, 300), dtypes.bf16)], k=50, axis=1)
    yield from _tie_samples(axis=1, k=5)
    yield sample("k = 0", [sample_array((3, 4))], k=0, axis=1)
    yield sample("no rows", [sample_array((0, 5))], k=2, axis=1)


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    length = of["x"][attrs["axis"]]
    return f"{prod(of['x']) // max(1, length)} rows of {length}"


def _top_k_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    return [Requirement(attrs["k"], of["x"][attrs["axis"]], 1, f"top_k takes {attrs['k']} of axis {attrs['axis']}")]


register(
    OpSpec(
        "sort",
        "sort",
        "an axis in order, and the indices where its elements were",
        ("x",),
        _infer_sort,
        _sort,
        Routine("sort"),
        _sort_samples,
        {"axis": REQUIRED, "descending": False},
        cost="compute",
        rules="Stable in both directions: ties keep their order. NaN comes last in both directions. -0 ties with 0."
        " Values are copied bit by bit.",
        gradient=gradients.order,
        results=("values", "indices"),
        traits=Traits(sizes=_sizes),
    )
)
register(
    OpSpec(
        "top_k",
        "sort",
        "the k greatest elements along an axis, greatest first, and their indices",
        ("x",),
        _infer_top_k,
        _top_k,
        Routine("top_k"),
        _top_k_samples,
        {"k": REQUIRED, "axis": REQUIRED},
        cost="compute",
        rules="Ties: the smaller index first. NaN counts as greatest (PyTorch). -0 ties with 0."
        " k may not exceed the axis; the reference refuses a symbolic axis that turns out shorter.",
        gradient=gradients.order,
        results=("values", "indices"),
        traits=Traits(sizes=_sizes, requires=_top_k_requires),
    )
)
