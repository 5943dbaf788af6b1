"""Scans along an axis: what an associative operation makes of all elements up to each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import DTypeError
from pumice.ir.gradient import Rule
from pumice.ir.gradients import scan as gradients
from pumice.ir.gradients.reduce import cumsum
from pumice.ir.ops.reduce import NUMBERS, accumulator, least
from pumice.ir.ops.shape import canonical_axis, plain, sample, sample_array
from pumice.ir.precision import ULP, ErrorModel, Evaluation, U, growth, summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Row, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_dtype, same_shape
from pumice.ir.types import TensorType

_ATTRS = {"axis": REQUIRED, "exclusive": False, "reverse": False}
_MODES = [(exclusive, reverse) for exclusive in (False, True) for reverse in (False, True)]


def _infer_sums(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    if x.dtype.is_integer and x.dtype.itemsize < 4:
        raise DTypeError(f"{x.dtype} would wrap within a few elements", hint="cast to i32 or u32 first", dtype=x.dtype.name)
    return _infer(*NUMBERS)(types, attrs)


def _infer(*kinds: str) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        (x,) = plain(types)
        require_kind(x, *kinds)
        canonical_axis(attrs["axis"], x.rank)
        return x

    return infer


def in_order(x: Array, attrs: Attrs) -> Array:
    """A view of x with the axis first and in the order of the scan; the same of that view's place gives x's order back."""
    return np.moveaxis(x, attrs["axis"], 0)[:: -1 if attrs["reverse"] else 1]


def _back(found: Array, attrs: Attrs) -> Array:
    return np.moveaxis(found[:: -1 if attrs["reverse"] else 1], 0, attrs["axis"])


def _accumulate(ufunc: Any, first: Callable[[np.dtype[Any]], Any]) -> Callable[[Sequence[Any], Attrs, TensorType], Array]:
    """The reference of a scan by a ufunc; `first` is what an exclusive one begins with."""

    def reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
        (x,) = arrays
        with np.errstate(all="ignore"):
            total = ufunc.accumulate(in_order(x, attrs), axis=0, dtype=accumulator(x, out.dtype))
        if attrs["exclusive"]:
            # Shifted, not total - x: that would turn an infinite element into NaN.
            total = np.concatenate([np.full_like(total[:1], first(total.dtype)), total[:-1]])
        return _back(total, attrs)

    return reference


def _samples() -> Iterator[Sample]:
    for exclusive, reverse in _MODES:
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


def _few_samples(
    make: Callable[..., Array], *more: Sample, drawn: Sequence[Callable[[], Iterator[Sample]]] = ()
) -> Callable[[], Iterator[Sample]]:
    """Samples of `make(shape, dtype)`: fewer than of cumsum, whose kernel is the same. `drawn` makes random ones when asked."""

    def samples() -> Iterator[Sample]:
        for exclusive, reverse in _MODES:
            label = f"{'exclusive' if exclusive else 'inclusive'}{' reverse' if reverse else ''}"
            yield sample(f"rows, {label}", [make((3, 37))], axis=1, exclusive=exclusive, reverse=reverse)
            yield sample(f"long rows, {label}", [make((2, 531))], axis=1, exclusive=exclusive, reverse=reverse)
        yield sample("middle axis", [make((3, 11, 7))], axis=1)
        yield sample("f16", [make((3, 131), dtypes.f16)], axis=1)
        yield sample("bf16", [make((2, 65), dtypes.bf16)], axis=1, reverse=True)
        yield sample("one", [make((1,))], axis=0, exclusive=True)
        yield sample("empty axis", [make((3, 0))], axis=1)
        for draw in drawn:
            yield from draw()
        yield from more

    return samples


def _factors(shape: tuple[int, ...], dtype: dtypes.DType = dtypes.f32) -> Array:
    """Factors of either sign near 1, so that long products stay numbers."""
    x = sample_array(shape)
    return np.asarray((np.sign(x) * np.exp(0.1 * x)).astype(dtype.np))


def _integers() -> Iterator[Sample]:
    yield sample("i32", [sample_array((4, 67), dtypes.i32)], axis=1)
    yield sample("u32 reverse", [sample_array((4, 67), dtypes.u32)], axis=1, reverse=True)


def _narrow() -> Iterator[Sample]:
    yield sample("i8", [sample_array((4, 67), dtypes.i8)], axis=1)
    yield sample("u8, exclusive", [sample_array((5, 3), dtypes.u8)], axis=0, exclusive=True)


_SPECIAL = np.array([[1, 3, np.nan, 4, np.inf, -1], [-np.inf, -np.inf, 0, -2, 5, 5]], np.float32)


def _length(e: Evaluation) -> int:
    return int(e.arrays[0].shape[e.attrs["axis"]])


def _product_error(e: Evaluation) -> Array:
    """Each factor rounds once, in whatever order they are multiplied."""
    return np.asarray((_length(e) + 1) * U * np.abs(e.result))


def _log_sum_error(e: Evaluation) -> Array:
    """Each step is off by a few ulps of its value, or of 1 near 0; shares of at most 1 of that remain."""
    sizes = in_order(np.abs(np.nan_to_num(e.result, nan=0.0, posinf=0.0, neginf=0.0)), e.attrs)
    largest = _back(np.maximum.accumulate(sizes, axis=0), e.attrs) if sizes.size else np.abs(e.result)
    return np.asarray(4 * ULP * growth(_length(e)) * (1 + largest))


def _register(
    name: str,
    summary: str,
    infer: Callable[[Types, Attrs], TensorType],
    reference: Callable[[Sequence[Any], Attrs, TensorType], Array],
    samples: Callable[[], Iterator[Sample]],
    rules: str,
    gradient: Rule,
    error: ErrorModel | None,
) -> None:
    begin = "exclusive leaves out the element itself, so the first one is "
    register(
        OpSpec(
            name,
            "scan",
            summary,
            ("x",),
            infer,
            reference,
            Row(name),
            samples,
            _ATTRS,
            rules=begin + rules,
            gradient=gradient,
            error=error,
        )
    )


_register(
    "cumsum",
    "running sum along an axis",
    _infer_sums,
    _accumulate(np.add, lambda dtype: 0),
    _samples,
    "0; reverse sums from the end. i32 and u32 wrap; other integers and bool must be cast first. f16 and bf16 accumulate in f32.",
    cumsum,
    summed(lambda e: e.arrays[0].shape[e.attrs["axis"]]),
)
_register(
    "cumprod",
    "running product along an axis",
    _infer_sums,
    _accumulate(np.multiply, lambda dtype: 1),
    _few_samples(_factors, sample("a zero", [np.array([2, 0, 3, 4], np.float32)], axis=0), drawn=(_integers,)),
    "1; reverse multiplies from the end. i32 and u32 wrap; other integers and bool must be cast first. f16 and bf16 accumulate in"
    " f32. Long rows are multiplied in parts: where a part overflows, a 0 before it gives NaN instead of 0.",
    gradients.product,
    _product_error,
)
_register(
    "cummax",
    "greatest element so far along an axis",
    _infer(*NUMBERS),
    _accumulate(np.maximum, least),
    _few_samples(sample_array, sample("NaN and infinities", [_SPECIAL], axis=1), drawn=(_integers, _narrow)),
    "the least number of the dtype, -inf for floats; reverse goes from the end. From a NaN on all are NaN."
    " The gradient goes to the latest of equal elements (PyTorch).",
    gradients.extreme("cummax"),
    None,
)
_register(
    "cummin",
    "least element so far along an axis",
    _infer(*NUMBERS),
    _accumulate(np.minimum, lambda dtype: least(dtype, greatest=True)),
    _few_samples(sample_array, sample("NaN and infinities", [_SPECIAL], axis=1), drawn=(_integers, _narrow)),
    "the greatest number of the dtype, inf for floats; reverse goes from the end. From a NaN on all are NaN."
    " The gradient goes to the latest of equal elements (PyTorch).",
    gradients.extreme("cummin"),
    None,
)
_register(
    "logcumsumexp",
    "logarithm of the running sum of exponentials along an axis",
    _infer("float"),
    _accumulate(np.logaddexp, lambda dtype: -np.inf),
    _few_samples(
        sample_array,
        sample("NaN and infinities", [_SPECIAL], axis=1),
        sample("far apart", [np.array([-500, 300, 88, 300], np.float32)], axis=0),
    ),
    "-inf; reverse goes from the end. Nothing overflows: sums are kept as logarithms.",
    gradients.log_sum_exp,
    _log_sum_error,
)


# --- linear recurrences ---


def _infer_linear(types: Types, attrs: Attrs) -> TensorType:
    a, b = plain(types[:2])
    for t in given(types):
        require_kind(t, "float")
    same_dtype(types)
    axis = canonical_axis(attrs["axis"], b.rank)
    same_shape(a.shape, b.shape, "a and b")
    initial = types[2]
    if initial is not None:
        same_shape(initial.shape, (*b.shape[:axis], *b.shape[axis + 1 :]), "initial, and b without the axis")
    return b


def linear_steps(a: Array, b: Array, initial: Array | None, out: Array, *, exclusive: bool) -> None:
    """h = a · h + b over the first axis, into `out`, one step after the other."""
    h = np.zeros(b.shape[1:], b.dtype) if initial is None else np.array(initial, b.dtype)
    for t in range(len(b)):
        if exclusive:
            out[t] = h
        np.multiply(a[t], h, h)
        np.add(h, b[t], h)
        if not exclusive:
            out[t] = h


def _linear(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    a, b, initial = arrays
    found = np.empty(in_order(b, attrs).shape, b.dtype)
    linear_steps(in_order(a, attrs), in_order(b, attrs), initial, found, exclusive=attrs["exclusive"])
    return _back(found, attrs)


def _linear_samples() -> Iterator[Sample]:
    for exclusive, reverse in _MODES:
        flags = {"exclusive": exclusive, "reverse": reverse}
        label = f"{'exclusive' if exclusive else 'inclusive'}{' reverse' if reverse else ''}"
        a, b, h = (sample_array((3, 37), seed=1), sample_array((3, 37), seed=2), sample_array((3,), seed=3))
        yield sample(f"rows, {label}", [a, b, h], axis=1, **flags)
        yield sample(f"long rows, {label}", [_factors((2, 531)), sample_array((2, 531)), None], axis=1, **flags)
    yield sample("middle axis", [_factors((3, 11, 7)), sample_array((3, 11, 7)), sample_array((3, 7), seed=1)], axis=1)
    yield sample("f16", [sample_array((3, 65), dtypes.f16, 1), sample_array((3, 65), dtypes.f16), None], axis=1)
    yield sample("bf16", [sample_array((2, 9), dtypes.bf16, 1), sample_array((2, 9), dtypes.bf16), None], axis=1)
    yield sample("forgets", [np.array([1, 0, 2, 0.5], np.float32), np.arange(4, dtype=np.float32), None], axis=0)
    yield sample("empty axis", [sample_array((3, 0)), sample_array((3, 0)), sample_array((3,))], axis=1)


def _linear_error(e: Evaluation) -> Array:
    """A step multiplies and adds; relative to the same with absolute values."""
    sizes = e.again([None if x is None else np.abs(x) for x in e.arrays])
    return np.asarray(2 * growth(_length(e)) * U * sizes)


register(
    OpSpec(
        "linear_scan",
        "scan",
        "first-order linear recurrence h = a · h + b along an axis",
        ("a", "b", "initial?"),
        _infer_linear,
        _linear,
        Row("linear_scan"),
        _linear_samples,
        _ATTRS,
        rules="The scan of the pairs (a, b) under composition. exclusive gives h before each element, so the first is initial,"
        " 0 where there is none; reverse goes from the end. f16 and bf16 accumulate in f32. Long rows are composed in parts:"
        " where the product of a part's factors overflows, a 0 gives NaN instead of 0.",
        gradient=gradients.linear,
        error=_linear_error,
    )
)
