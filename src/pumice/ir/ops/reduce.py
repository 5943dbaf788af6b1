"""Reductions: one value per row, over any set of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Shape
from pumice.core.dtypes import DType
from pumice.errors import ShapeError
from pumice.ir.gradient import Rule
from pumice.ir.gradients import reduce as gradients
from pumice.ir.ops.shape import canonical_axes, canonical_axis, plain, sample, sample_array
from pumice.ir.precision import ErrorModel, U, growth, row_length, summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Row, Sample, Types, register
from pumice.ir.rules import require_kind, rng
from pumice.ir.types import TensorType

NUMBERS = ("float", "int", "uint")
Reference = Callable[[Sequence[Any], Attrs, TensorType], Array]
_WIDENED = {dtypes.i8: dtypes.i32, dtypes.bool_: dtypes.i32, dtypes.u8: dtypes.u32}


def _reduced(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _refuse_empty(x: TensorType, axes: tuple[int, ...]) -> None:
    for axis in axes:
        if x.shape[axis] == 0:
            raise ShapeError(f"axis {axis} is empty and nothing has no extreme", hint="sum, prod, any and all do take empty axes")


def _infer(kinds: tuple[str, ...], *, widen: bool = False, nonempty: bool = False) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        (x,) = plain(types)
        require_kind(x, *kinds)
        axes = canonical_axes(attrs["axes"], x.rank)
        if nonempty:
            _refuse_empty(x, axes)
        return TensorType(_WIDENED.get(x.dtype, x.dtype) if widen else x.dtype, _reduced(x.shape, axes, attrs["keepdims"]))

    return infer


def _infer_arg(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    require_kind(x, *NUMBERS)
    axes = (canonical_axis(attrs["axis"], x.rank),)
    _refuse_empty(x, axes)
    return TensorType(dtypes.i32, _reduced(x.shape, axes, attrs["keepdims"]))


def accumulator(x: Array, out: DType) -> np.dtype[Any]:
    """The NumPy dtype to add and multiply in: the array's own for floats, the result's for integers, so that those wrap.

    >>> accumulator(np.zeros(2, np.int8), dtypes.i32), accumulator(np.zeros(2), dtypes.f32)
    (dtype('int32'), dtype('float64'))
    """
    return x.dtype if out.is_float else out.np


def least(dtype: np.dtype[Any], *, greatest: bool = False) -> Any:
    """The least (or greatest) value of a NumPy dtype, infinities included: what max and min start from.

    >>> least(np.dtype("f4")), int(least(np.dtype("i1"), greatest=True))
    (-inf, 127)
    """
    if dtype.kind == "f":
        return np.inf if greatest else -np.inf
    info = np.iinfo(dtype)
    return info.max if greatest else info.min


def _how(attrs: Attrs) -> dict[str, Any]:
    return {"axis": attrs["axes"], "keepdims": attrs["keepdims"]}


def _sum(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    return np.asarray(np.sum(x, dtype=accumulator(x, out.dtype), **_how(attrs)))


def _prod(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    return np.asarray(np.prod(x, dtype=accumulator(x, out.dtype), **_how(attrs)))


def _mean(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    count = int(np.prod([x.shape[a] for a in attrs["axes"]], dtype=np.int64))
    with np.errstate(invalid="ignore"):  # the mean of nothing is NaN by rule
        return np.asarray(np.sum(x, **_how(attrs)) / x.dtype.type(count))


def _max(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    return np.asarray(np.max(x, initial=least(x.dtype), **_how(attrs)))


def _min(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    return np.asarray(np.min(x, initial=least(x.dtype, greatest=True), **_how(attrs)))


def _any(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.asarray(np.any(arrays[0], **_how(attrs)))


def _all(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.asarray(np.all(arrays[0], **_how(attrs)))


def _arg(pick: Callable[..., Any]) -> Reference:
    def reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
        (x,) = arrays
        if x.shape[attrs["axis"]] == 0:
            return np.zeros(out.static_shape, np.int32)
        return np.asarray(pick(x, axis=attrs["axis"], keepdims=attrs["keepdims"]))

    return reference


# --- samples ---

_LAYOUTS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], bool], ...] = (
    ("last axis", (5, 37), (1,), False),
    ("first axis", (37, 5), (0,), False),
    ("middle axis", (3, 11, 7), (1,), True),
    ("outer axes", (3, 11, 7), (0, 2), False),
    ("inner axes", (4, 3, 65), (1, 2), True),
    ("all axes", (3, 5, 7), (0, 1, 2), False),
    ("all axes kept", (3, 5), (0, 1), True),
    ("long row", (1031,), (0,), False),
    ("long rows", (3, 1031), (1,), False),
    ("longer row", (1, 5003), (1,), True),
    ("many short rows", (700, 3), (1,), False),
    ("rows of one", (9, 1), (1,), False),
    ("scalar", (), (), False),
    ("no axes", (2, 3), (), False),
    ("no rows", (0, 5), (1,), False),
)


def _near_one(shape: Sequence[int], dtype: DType, seed: int) -> Array:
    """Factors whose long products neither vanish nor overflow."""
    if dtype.is_float:
        return np.exp(0.05 * rng(seed).standard_normal(shape)).astype(dtype.np)
    if dtype.kind == "bool":
        return np.ones(shape, np.bool_)
    return rng(seed).integers(1 if dtype.kind == "uint" else -2, 3, shape).astype(dtype.np)


def _sparse(shape: Sequence[int], dtype: DType, seed: int) -> Array:
    """Mostly one value, so that both outcomes of any and all occur."""
    return rng(seed).random(shape) < (0.02, 0.98)[seed % 2]


def _samples(
    dtype_list: Sequence[DType], *, make: Callable[[Sequence[int], DType, int], Array] = sample_array, empty: bool = True
) -> Iterator[Sample]:
    first, *others = dtype_list
    for seed, (label, shape, axes, keepdims) in enumerate(_LAYOUTS):
        yield sample(label, [make(shape, first, seed)], axes=axes, keepdims=keepdims)
    for seed, dtype in enumerate(others):
        yield sample(f"{dtype}", [make((5, 131), dtype, seed)], axes=(1,), keepdims=False)
        yield sample(f"{dtype} first axis", [make((13, 7), dtype, seed)], axes=(0,), keepdims=True)
    if empty:
        yield sample("empty axis", [make((3, 0), first, 0)], axes=(1,), keepdims=False)


def _wrap_samples() -> Iterator[Sample]:
    yield sample("i32 wraps", [np.full((2, 5), 2_000_000_000, np.int32)], axes=(1,), keepdims=False)
    yield sample("u32 wraps", [np.full((2, 5), 4_000_000_000, np.uint32)], axes=(1,), keepdims=False)


def _extreme_samples() -> Iterator[Sample]:
    nan, inf = np.nan, np.inf
    rows = np.array([[1, nan, 3], [nan, -inf, inf], [-inf, -inf, -inf], [inf, inf, inf], [-0.0, -5, 2]], np.float32)
    yield sample("NaN and infinities", [rows], axes=(1,), keepdims=False)
    yield sample("NaN in a long row", [np.where(np.arange(1031) == 777, nan, 1).astype(np.float32)], axes=(0,), keepdims=False)
    yield sample("i32 ends", [np.array([[-(2**31), -1], [2**31 - 1, 0]], np.int32)], axes=(1,), keepdims=False)
    yield sample("u32 upper half", [np.array([[2**32 - 1, 0], [2**31, 1]], np.uint32)], axes=(1,), keepdims=False)


def _max_samples() -> Iterator[Sample]:
    yield from _samples(_NUMERIC, empty=False)
    yield from _extreme_samples()


def _arg_samples() -> Iterator[Sample]:
    def flags(s: Sample) -> Sample:
        return Sample(s.label, s.inputs, {"axis": s.attrs["axes"][0], "keepdims": s.attrs["keepdims"]})

    yield from (flags(s) for s in _max_samples() if len(s.attrs["axes"]) == 1)
    yield sample("ties", [np.array([[2, 7, 7, 1, 1], [3, 3, 3, 3, 3]], np.float32)], axis=1, keepdims=False)
    yield sample("ties in a long row", [sample_array((2, 1500), dtypes.i8)], axis=1, keepdims=True)
    yield sample("several NaN", [np.array([5, np.nan, -np.inf, np.nan, 9], np.float32)], axis=0, keepdims=False)
    yield sample("all NaN", [np.full((2, 3), np.nan, np.float32)], axis=1, keepdims=False)
    yield sample("signed zeros", [np.array([0.0, -0.0, 0.0], np.float32)], axis=0, keepdims=False)


_FLOATS = (dtypes.f32, dtypes.f16, dtypes.bf16)
_NUMERIC = (*_FLOATS, dtypes.i32, dtypes.u32, dtypes.i8, dtypes.u8)
_SUMMABLE = (*_NUMERIC, dtypes.bool_)


def _sum_samples() -> Iterator[Sample]:
    yield from _samples(_SUMMABLE)
    yield from _wrap_samples()


def _prod_samples() -> Iterator[Sample]:
    yield from _samples(_SUMMABLE, make=_near_one)
    yield from _wrap_samples()
    yield sample("bool with False", [np.array([[True, False], [True, True]])], axes=(1,), keepdims=False)


_ERRORS: dict[str, ErrorModel] = {
    "reduce_sum": summed(row_length),
    "reduce_mean": summed(row_length),
    "reduce_prod": lambda e: growth(row_length(e)) * U * np.abs(e.result),
}


def _reduce_op(
    name: str,
    summary: str,
    infer: Callable[[Types, Attrs], TensorType],
    reference: Reference,
    samples: Callable[[], Iterator[Sample]],
    rules: str,
    *,
    axis: str = "axes",
    gradient: Rule | None = None,
    why: str = "",
) -> None:
    register(
        OpSpec(
            name,
            "reduce",
            summary,
            ("x",),
            infer,
            reference,
            Row(name),
            samples,
            {axis: REQUIRED, "keepdims": False},
            rules=rules,
            gradient=gradient,
            no_gradient=why,
            differentiable=gradient is not None,
            error=_ERRORS.get(name),
        )
    )


_ADDING = " f16 and bf16 accumulate in f32. i8 and bool give i32, u8 gives u32; i32 and u32 wrap."
_EXTREME = (
    " NaN if any element is NaN. A static empty axis is refused; a symbolic one that turns out empty gives {0} for floats and"
    " the dtype's {1} value for integers."
)
_ARG = (
    " The first one on ties; the first NaN if there is one (NumPy). A static empty axis is refused; a symbolic one that turns"
    " out empty gives 0."
)

_reduce_op(
    "reduce_sum",
    "sum over axes",
    _infer(("float", "int", "uint", "bool"), widen=True),
    _sum,
    _sum_samples,
    "The sum of nothing is 0." + _ADDING,
    gradient=gradients.sum_,
)
_reduce_op(
    "reduce_prod",
    "product over axes",
    _infer(("float", "int", "uint", "bool"), widen=True),
    _prod,
    _prod_samples,
    "The product of nothing is 1." + _ADDING,
    gradient=gradients.prod,
)
_reduce_op(
    "reduce_mean",
    "mean over axes",
    _infer(("float",)),
    _mean,
    lambda: _samples(_FLOATS),
    "Floats only. The mean of nothing is NaN.",
    gradient=gradients.mean,
)
_reduce_op(
    "reduce_max",
    "greatest element over axes",
    _infer(NUMBERS, nonempty=True),
    _max,
    _max_samples,
    "Floats and integers." + _EXTREME.format("-inf", "least"),
    gradient=gradients.extreme,
)
_reduce_op(
    "reduce_min",
    "least element over axes",
    _infer(NUMBERS, nonempty=True),
    _min,
    _max_samples,
    "Floats and integers." + _EXTREME.format("+inf", "greatest"),
    gradient=gradients.extreme,
)
_reduce_op(
    "reduce_any",
    "whether any element over axes is True",
    _infer(("bool",)),
    _any,
    lambda: _samples((dtypes.bool_,), make=_sparse),
    "Takes bool: compare others with 0 first. False for nothing.",
    why="its result is a bool",
)
_reduce_op(
    "reduce_all",
    "whether all elements over axes are True",
    _infer(("bool",)),
    _all,
    lambda: _samples((dtypes.bool_,), make=_sparse),
    "Takes bool: compare others with 0 first. True for nothing.",
    why="its result is a bool",
)
_reduce_op(
    "argmax",
    "index of the greatest element along an axis",
    _infer_arg,
    _arg(np.argmax),
    _arg_samples,
    "Gives i32." + _ARG,
    axis="axis",
    why="its result is an index",
)
_reduce_op(
    "argmin",
    "index of the least element along an axis",
    _infer_arg,
    _arg(np.argmin),
    _arg_samples,
    "Gives i32." + _ARG,
    axis="axis",
    why="its result is an index",
)
