"""Normalisations along rows: softmax over one axis, layer and RMS norm over trailing axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import InputError, ShapeError
from pumice.ir.gradient import Rule
from pumice.ir.gradients import norm as norm_gradients
from pumice.ir.gradients import reduce as gradients
from pumice.ir.ops.shape import canonical_axis, sample, sample_array
from pumice.ir.precision import ULP, ErrorModel, Evaluation, U, growth
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Row, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_dtype, same_shape
from pumice.ir.types import TensorType

# --- softmax, log_softmax ---


def _infer_softmax(types: Types, attrs: Attrs) -> TensorType:
    (x,) = given(types)
    require_kind(x, "float")
    canonical_axis(attrs["axis"], x.rank)
    return x


def _shifted(x: Array, axis: int) -> Array:
    """x less its greatest element, so that exp cannot overflow."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN by rule
        return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))


def _softmax(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    e = np.exp(_shifted(arrays[0], attrs["axis"]))
    return np.asarray(e / np.sum(e, axis=attrs["axis"], keepdims=True))


def _log_softmax(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    shifted = _shifted(arrays[0], attrs["axis"])
    total = np.sum(np.exp(shifted), axis=attrs["axis"], keepdims=True)
    with np.errstate(divide="ignore"):  # an empty row sums to 0
        return np.asarray(shifted - np.log(total))


def _softmax_errors(e: Evaluation) -> tuple[Array, Array]:
    """What each difference from the greatest and its exp lose, relative to that exp; and what their sum loses."""
    (x,), axis = e.arrays, e.attrs["axis"]
    shifted = _shifted(x, axis)
    p = np.exp(shifted)
    off = np.where(p > 0, ULP * (3 + 2.5 * np.abs(shifted)), 0.0)
    total = np.sum(p, axis=axis, keepdims=True)
    return off, np.sum(p * off, axis=axis, keepdims=True) / total + U * growth(x.shape[axis])


def _softmax_error(e: Evaluation) -> Array:
    own, of_sum = _softmax_errors(e)
    return np.asarray(np.abs(e.result) * (own + of_sum + 3 * ULP))


def _log_softmax_error(e: Evaluation) -> Array:
    shifted = _shifted(e.arrays[0], e.attrs["axis"])
    logarithm = np.abs(shifted - e.result)
    return np.asarray(_softmax_errors(e)[1] + U * np.abs(shifted) + ULP * (3 * logarithm + 4 * np.minimum(logarithm, 1)))


def _softmax_samples() -> Iterator[Sample]:
    yield sample("last axis", [sample_array((5, 37))], axis=1)
    yield sample("first axis", [sample_array((37, 5))], axis=0)
    yield sample("middle axis", [sample_array((3, 11, 7))], axis=1)
    yield sample("long row", [sample_array((1031,))], axis=0)
    yield sample("long rows", [sample_array((3, 1031), seed=1)], axis=1)
    yield sample("long strided rows", [sample_array((1031, 3), seed=2)], axis=0)
    yield sample("longer row", [sample_array((1, 5003))], axis=1)
    yield sample("many short rows", [sample_array((700, 3))], axis=1)
    yield sample("rows of one", [sample_array((9, 1))], axis=1)
    yield sample("f16", [sample_array((5, 131), dtypes.f16)], axis=1)
    yield sample("bf16", [sample_array((7, 65), dtypes.bf16)], axis=1)
    yield sample("large magnitudes", [np.float32(1e4) * sample_array((4, 67))], axis=1)
    yield sample("far from zero", [sample_array((4, 67)) + np.array([[1e4], [-1e4], [0], [500]], np.float32)], axis=1)
    masked = np.where(np.tri(9, dtype=np.bool_), sample_array((9, 9)), np.float32(-np.inf))
    yield sample("masked with -inf", [masked], axis=1)
    yield sample("no rows", [sample_array((0, 5))], axis=1)
    yield sample("empty axis", [sample_array((3, 0))], axis=1)


# --- layer_norm, rms_norm ---


def _infer_norm(types: Types, attrs: Attrs) -> TensorType:
    x = given(types)[0]
    require_kind(x, "float")
    same_dtype(types)
    axes = attrs["axes"]
    if not 1 <= axes <= x.rank:
        raise ShapeError(
            f"cannot normalise over the last {axes} of {x.rank} axes", hint="axes counts trailing axes, at least 1", axes=axes
        )
    if not attrs["eps"] >= 0:
        raise InputError(f"eps must not be negative, it is {attrs['eps']}")
    for name, t in zip(("weight", "bias"), types[1:], strict=False):
        if t is not None:
            same_shape(t.shape, x.shape[-axes:], f"{name} and the last {axes} dims of x")
    return x


def row_mean(x: Array, axes: int) -> Array:
    """The mean over the last axes, which stay as axes of 1."""
    row = tuple(range(-axes, 0))
    # A row of no elements has no mean, and none of its elements will ask for one.
    count = max(1, int(np.prod(x.shape[-axes:], dtype=np.int64)))
    return np.asarray(np.sum(x, axis=row, keepdims=True) / x.dtype.type(count))


def _layer_norm(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, weight, bias = arrays
    centred = x - row_mean(x, attrs["axes"])
    result = _over_rms(centred, attrs)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def _rms_norm(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, weight = arrays
    result = _over_rms(x, attrs)
    return result if weight is None else result * weight


def _over_rms(x: Array, attrs: Attrs) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):  # eps may be 0, and 0/0 is NaN
        return np.asarray(x / np.sqrt(row_mean(np.square(x), attrs["axes"]) + x.dtype.type(attrs["eps"])))


def normal_error(x: Array, attrs: Attrs, centred: bool) -> tuple[Array, Array, Array, Array]:
    """x normalised, its error, the factor that this took, and that one's relative error."""
    axes = attrs["axes"]
    terms = int(np.prod(x.shape[-axes:], dtype=np.int64))
    lost: Any = np.zeros_like(x)
    if centred:
        mean = row_mean(x, axes)
        lost = U * (np.abs(x) + np.abs(mean) + growth(terms) * row_mean(np.abs(x), axes))
        x = x - mean
    scale = 1 / np.sqrt(row_mean(np.square(x), axes) + attrs["eps"])
    normal = x * scale
    relative = U * growth(terms) + 3 * ULP + row_mean(np.abs(normal) * lost * scale, axes)
    return normal, lost * scale + np.abs(normal) * relative, scale, relative


def _norm_error(centred: bool) -> ErrorModel:
    def model(e: Evaluation) -> Array:
        weight = 1.0 if e.arrays[1] is None else e.arrays[1]
        normal, off, _, _ = normal_error(e.arrays[0], e.attrs, centred)
        return np.asarray((off + ULP * np.abs(normal)) * np.abs(weight))

    return model


def _norm_samples(affine: int) -> Iterator[Sample]:
    def case(label: str, x: Array, axes: int = 1, eps: float = 1e-5, have: Sequence[bool] = (True, True)) -> Sample:
        parts = [np.asarray(sample_array(x.shape[-axes:], dtypes.dtype(x.dtype), 7 + i)) for i in range(affine)]
        return sample(label, [x, *(p if h else None for p, h in zip(parts, have, strict=False))], axes=axes, eps=eps)

    yield case("last axis", sample_array((5, 37)))
    yield case("plain", sample_array((5, 37)), have=(False, False))
    yield case("weight only", sample_array((3, 65), seed=1), have=(True, False))
    yield case("two axes", sample_array((4, 3, 33)), axes=2)
    yield case("all axes", sample_array((3, 5, 7)), axes=3)
    yield case("long row", sample_array((1031,)))
    yield case("long rows", sample_array((3, 1031), seed=2))
    yield case("longer row", sample_array((1, 5003)), eps=1e-6)
    yield case("many short rows", sample_array((700, 3)))
    yield case("rows of one", sample_array((9, 1)), eps=0.5)
    yield case("f16", sample_array((5, 131), dtypes.f16))
    yield case("bf16", sample_array((7, 65), dtypes.bf16))
    yield case("far from zero", sample_array((4, 129)) + np.float32(300))
    yield case("large eps", np.float32(1e-3) * sample_array((4, 19)), eps=1.0)
    yield case("no rows", sample_array((0, 5)))
    yield case("empty rows", sample_array((3, 0)))
    if affine == 2:
        yield case("bias only", sample_array((3, 17)), have=(False, True))


def _norm_op(
    name: str,
    summary: str,
    operands: tuple[str, ...],
    infer: Callable[[Types, Attrs], TensorType],
    reference: Callable[[Sequence[Any], Attrs, TensorType], Array],
    samples: Callable[[], Iterator[Sample]],
    attrs: dict[str, Any],
    rules: str,
    gradient: Rule,
    error: ErrorModel,
) -> None:
    register(
        OpSpec(
            name,
            "norm",
            summary,
            operands,
            infer,
            reference,
            Row(name),
            samples,
            attrs,
            rules=rules,
            gradient=gradient,
            error=error,
        )
    )


_SOFTMAX_RULE = "The greatest element is subtracted first, so large values do not overflow. A row of -inf only gives NaN."
_NORM_RULE = " axes counts trailing axes; weight{} the shape of those. f16 and bf16 compute in f32."

_norm_op(
    "softmax",
    "exp(x) divided by its sum along an axis",
    ("x",),
    _infer_softmax,
    _softmax,
    _softmax_samples,
    {"axis": REQUIRED},
    _SOFTMAX_RULE,
    gradients.softmax,
    _softmax_error,
)
_norm_op(
    "log_softmax",
    "logarithm of softmax, without the rounding of taking it afterwards",
    ("x",),
    _infer_softmax,
    _log_softmax,
    _softmax_samples,
    {"axis": REQUIRED},
    _SOFTMAX_RULE,
    gradients.log_softmax,
    _log_softmax_error,
)
_norm_op(
    "layer_norm",
    "(x - mean) / sqrt(variance + eps) * weight + bias over trailing axes",
    ("x", "weight?", "bias?"),
    _infer_norm,
    _layer_norm,
    lambda: _norm_samples(2),
    {"axes": 1, "eps": 1e-5},
    "The variance divides by the number of elements." + _NORM_RULE.format(" and bias have"),
    norm_gradients.layer_norm,
    _norm_error(centred=True),
)
_norm_op(
    "rms_norm",
    "x / sqrt(mean(x^2) + eps) * weight over trailing axes",
    ("x", "weight?"),
    _infer_norm,
    _rms_norm,
    lambda: _norm_samples(1),
    {"axes": 1, "eps": 1e-5},
    "No mean is subtracted." + _NORM_RULE.format(" has"),
    norm_gradients.rms_norm,
    _norm_error(centred=False),
)
