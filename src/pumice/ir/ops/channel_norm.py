"""Normalisation of each channel by its own mean and variance over a batch, as batch norm does in training, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.errors import InputError, ShapeError
from pumice.ir.gradients import norm as gradients
from pumice.ir.ops.norm import normal_error
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.precision import ULP, Evaluation, U, growth
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_shape
from pumice.ir.types import TensorType

_Shape = tuple[int, ...]


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType, TensorType]:
    x = _checked(types, attrs, 0)
    channel = TensorType(dtypes.f32, x.shape[1:2])
    return x, channel, channel


def _infer_gradient(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType, TensorType]:
    x = _checked(types, attrs, 1)
    dy = given(types)[0]
    same_shape(dy.shape, x.shape, "dy and x")
    channel = TensorType(dtypes.f32, x.shape[1:2])
    return x, channel, channel


def _checked(types: Types, attrs: Attrs, place: int) -> TensorType:
    (x,) = given(types[place : place + 1])
    if x.rank < 2:
        raise ShapeError(f"x must be [N, C, …], not {x.describe()}")
    if not attrs["eps"] >= 0:
        raise InputError(f"eps must not be negative, it is {attrs['eps']}")
    for t in given(types):
        require_kind(t, "float")
    for other in types[place + 1 :]:
        if other is not None:
            same_shape(other.shape, x.shape[1:2], "an operand per channel and the channels of x")
    return TensorType(dtypes.f32, x.shape)


# --- references: channels as rows ---


def _rows(x: Array) -> Array:
    """[N, C, …] as [C, N …]."""
    return np.ascontiguousarray(np.moveaxis(x, 1, 0)).reshape(x.shape[1], -1)


def _images(rows: Array, shape: _Shape) -> Array:
    """Back."""
    return np.moveaxis(rows.reshape(shape[1], shape[0], *shape[2:]), 0, 1)


def _column(a: Array | None, other: float) -> Any:
    return other if a is None else a[:, None]


def _reference(arrays: Sequence[Any], attrs: Attrs, outs: object) -> tuple[Array, ...]:
    x, weight, bias = arrays
    rows = _rows(x)
    count = x.dtype.type(rows.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):  # no elements have no mean
        mean = rows.sum(axis=1, keepdims=True) / count
        variance = np.square(rows - mean).sum(axis=1, keepdims=True) / count
        normal = (rows - mean) / np.sqrt(variance + x.dtype.type(attrs["eps"]))
    y = normal * _column(weight, x.dtype.type(1)) + _column(bias, x.dtype.type(0))
    return _images(y, x.shape), mean[:, 0], variance[:, 0]


def _gradient_reference(arrays: Sequence[Any], attrs: Attrs, outs: object) -> tuple[Array, ...]:
    dy, x, mean, variance, weight = arrays
    of_result, rows = _rows(dy), _rows(x)
    scale = 1 / np.sqrt(variance + x.dtype.type(attrs["eps"]))[:, None]
    normal = (rows - mean[:, None]) * scale
    along, total = (of_result * normal).sum(axis=1), of_result.sum(axis=1)
    count = x.dtype.type(max(1, rows.shape[1]))
    dx = scale * _column(weight, x.dtype.type(1)) * (of_result - (total / count)[:, None] - normal * (along / count)[:, None])
    return _images(dx, x.shape), along, total


# --- error models ---


def _error(e: Evaluation) -> tuple[Array, ...]:
    x, weight, bias = e.arrays
    rows, y = _rows(x), e.results[0]
    grown = U * (growth(rows.shape[1]) + 2)
    normal, off, _, relative = normal_error(rows, {"axes": 1, "eps": e.attrs["eps"]}, True)
    scale = np.abs(_column(weight, 1.0))
    of_y = (off + 2 * ULP * np.abs(normal)) * scale + U * np.abs(_column(bias, 0.0))
    of_mean = grown * np.abs(rows).mean(axis=1)
    of_variance = (2 * relative[:, 0] + grown) * (e.results[2] + e.attrs["eps"])
    return _images(of_y, x.shape) + U * np.abs(y), of_mean, of_variance


def _gradient_error(e: Evaluation) -> tuple[Array, ...]:
    dy, x, mean, variance, weight = e.arrays
    of_result, rows = _rows(dy), _rows(x)
    count = rows.shape[1]
    scale = 1 / np.sqrt(variance + e.attrs["eps"])[:, None]
    normal = (rows - mean[:, None]) * scale
    # x less its mean loses what both are off, which the scale makes larger.
    off = U * (np.abs(rows) + np.abs(mean)[:, None]) * scale + 4 * ULP * np.abs(normal)
    size, grown = np.abs(of_result), U * (growth(count) + 1)
    of_along = (size * off).sum(axis=1) + grown * (size * np.abs(normal)).sum(axis=1)
    of_total = grown * size.sum(axis=1)
    along = np.abs(e.results[1])[:, None] / count
    lost = of_total[:, None] / count + off * along + np.abs(normal) * of_along[:, None] / count
    terms = size + np.abs(e.results[2])[:, None] / count + np.abs(normal) * along
    of_dx = (lost + 5 * ULP * terms) * scale * np.abs(_column(weight, 1.0))
    return _images(of_dx, x.shape), of_along, of_total


# --- samples ---

_CASES: tuple[tuple[str, _Shape, bool, bool], ...] = (
    ("images", (3, 5, 7, 6), True, True),
    ("plain", (2, 3, 9), False, False),
    ("weight only", (4, 3, 33), True, False),
    ("bias only", (4, 3, 5), False, True),
    ("no spatial axes", (37, 6), True, True),
    ("three spatial axes", (2, 3, 2, 5, 4), True, True),
    ("long channels", (3, 2, 40, 40), True, True),
    ("many channels", (2, 70, 3), True, True),
    ("one channel", (3, 1, 64), True, True),
)


def _operands(shape: _Shape, weight: bool, bias: bool, dtype: DType = dtypes.f32) -> list[Array | None]:
    channel = shape[1:2]
    return [
        sample_array(shape, dtype, 1),
        sample_array(channel, dtype, 2) if weight else None,
        sample_array(channel, dtype, 3) if bias else None,
    ]


def _samples() -> Iterator[Sample]:
    for label, shape, weight, bias in _CASES:
        yield sample(label, _operands(shape, weight, bias), eps=1e-5)
    for dtype in (dtypes.f16, dtypes.bf16):
        yield sample(dtype.name, _operands((3, 4, 21), True, True, dtype), eps=1e-5)
    x, weight_, bias_ = _operands((3, 4, 50), True, True)
    assert x is not None
    yield sample("far from zero", [x + np.float32(300), weight_, bias_], eps=1e-5)
    yield sample("large eps", [np.float32(1e-3) * x, weight_, None], eps=1.0)


def _gradient_samples() -> Iterator[Sample]:
    narrow = [(dtype.name, (3, 4, 21), True, dtype) for dtype in (dtypes.f16, dtypes.bf16)]
    for label, shape, weight, dtype in [
        *((label, shape, weight, dtypes.f32) for label, shape, weight, _ in _CASES),
        *narrow,
    ]:
        x, w, _ = _operands(shape, weight, False, dtype)
        assert x is not None
        rows = _rows(x).astype(np.float32)
        yield sample(label, [sample_array(shape, dtype, 4), x, rows.mean(axis=1), rows.var(axis=1), w], eps=1e-5)


_RULES = "Results are f32; weight and bias have one element for each channel."

register(
    OpSpec(
        name="channel_norm",
        family="norm",
        summary="x [N, C, …] less the mean of its channel, over the channel's standard deviation, times weight, plus bias",
        operands=("x", "weight?", "bias?"),
        infer=_infer,
        reference=_reference,
        lowering=Routine("channel_norm"),
        samples=_samples,
        attrs={"eps": 1e-5},
        rules=_RULES + " eps is added to the variance. Also gives mean and variance, divided by the number of elements, [C].",
        gradient=gradients.channel_norm,
        composed=gradients.composed_channel_norm,
        error=_error,
        results=("y", "mean", "variance"),
    )
)

register(
    OpSpec(
        name="channel_norm_gradient",
        family="norm",
        summary="the gradients of channel_norm's y by x, weight and bias",
        operands=("dy", "x", "mean", "variance", "weight?"),
        infer=_infer_gradient,
        reference=_gradient_reference,
        lowering=Routine("channel_norm_gradient"),
        samples=_gradient_samples,
        attrs={"eps": 1e-5},
        rules=_RULES + " mean and variance are those of x, as channel_norm gives them.",
        composed=gradients.channel_norm_gradient,
        error=_gradient_error,
        results=("dx", "dweight", "dbias"),
    )
)
