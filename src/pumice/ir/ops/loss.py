"""Losses over many classes that never build a table of one-hot rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.core.dtypes import DType
from pumice.errors import ShapeError
from pumice.ir.gradients import loss as gradients
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.precision import ULP, Evaluation, U, growth
from pumice.ir.registry import Array, Attrs, OpSpec, Pull, Row, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng, same_shape
from pumice.ir.types import TensorType


def _check(x: TensorType, targets: TensorType) -> None:
    require_kind(x, "float")
    require_kind(targets, "int", "uint")
    if x.rank < 1 or x.shape[-1] == 0:
        raise ShapeError(f"logits are [..., classes] with at least one class, not {shape_text(x.shape)}")
    same_shape(targets.shape, x.shape[:-1], "targets and the rows of the logits")


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x, targets = given(types)
    _check(x, targets)
    return TensorType(dtypes.f32, targets.shape)


def _named(x: Array, targets: Array) -> tuple[Array, Array]:
    """Which rows have a target, and the target as an index; 0 where there is none."""
    wide = targets.astype(np.int64)
    valid = (wide >= 0) & (wide < x.shape[-1])
    return valid, np.where(valid, wide, 0)


def _cross_entropy(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, targets = arrays
    valid, index = _named(x, targets)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN by rule
        top = np.max(x, axis=-1, keepdims=True)
        total = np.log(np.sum(np.exp(x - top), axis=-1, keepdims=True))
        # The sum's logarithm is small: added to a large logit, it would lose its digits.
        loss = total + (top - np.take_along_axis(x, index[..., None], -1))
    return np.where(valid, loss[..., 0], 0)


def _cross_entropy_error(e: Evaluation) -> Array:
    x, targets = e.arrays
    _, index = _named(x, targets)
    top = np.max(x, axis=-1, keepdims=True)
    p = np.exp(x - top)
    total = np.sum(p, axis=-1)
    lost = np.sum(np.where(p > 0, p * ULP * (3 + 2.5 * np.abs(x - top)), 0), axis=-1) / total
    gap = (top - np.take_along_axis(x, index[..., None], -1))[..., 0]
    logarithm = np.log(total)
    return np.asarray(lost + U * (growth(x.shape[-1]) + gap) + ULP * (3 * logarithm + 4 * np.minimum(logarithm, 1)))


def _gradient_error(e: Evaluation) -> Array:
    """Of a probability, what two differences and exp lose; where it is near 1 at the target, little is left of it."""
    x, targets, picked, loss, dy = e.arrays
    valid, _ = _named(x, targets)
    apart = x - picked[..., None]
    log_p = apart - loss[..., None]
    p = np.exp(log_p)
    off = np.where(p > 0, p * (U * (np.abs(apart) + np.abs(log_p)) + ULP * (3 + 2 * np.abs(log_p))), 0)
    return np.asarray(np.where(valid[..., None], off * np.abs(dy)[..., None], 0) + U * np.abs(e.result))


def _infer_gradient(types: Types, attrs: Attrs) -> TensorType:
    x, targets, picked, loss, dy = given(types)
    _check(x, targets)
    for t, name in ((picked, "picked"), (loss, "loss"), (dy, "dy")):
        require_kind(t, "float")
        same_shape(t.shape, targets.shape, f"{name} and targets")
    return x


def _gradient(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, targets, picked, loss, dy = arrays
    valid, index = _named(x, targets)
    with np.errstate(invalid="ignore", over="ignore"):
        result = np.exp((x - picked[..., None]) - loss[..., None])
    places = index[..., None]
    np.put_along_axis(result, places, np.take_along_axis(result, places, -1) - 1, -1)
    return np.where(valid[..., None], result * dy[..., None], 0)


def _operands(label: str, shape: tuple[int, ...], dtype: DType = dtypes.f32, ids: DType = dtypes.i32) -> tuple[Array, Array]:
    targets = np.asarray(rng(len(label)).integers(0, shape[-1], shape[:-1]).astype(ids.np))
    return sample_array(shape, dtype, len(label)), targets


_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("rows", (7, 13)),
    ("one row", (37,)),
    ("batch of rows", (2, 3, 33)),
    ("long rows", (3, 1031)),
    ("longer row", (1, 5003)),
    ("many short rows", (300, 3)),
    ("one class", (5, 1)),
    ("no rows", (0, 5)),
)


def _samples() -> Iterator[Sample]:
    for label, shape in _SHAPES:
        yield sample(label, _operands(label, shape))
    yield sample("f16", _operands("f16", (5, 67), dtypes.f16))
    yield sample("bf16, u8 targets", _operands("bf16", (5, 67), dtypes.bf16, dtypes.u8))
    x, targets = _operands("far", (6, 67))
    yield sample("large magnitudes", [x * np.float32(1e4), targets])
    yield sample("far from zero", [x + np.float32(1e3), targets])
    yield sample("targets out of range", [x, np.array([-1, 67, -100, 3, 66, 2**31 - 1], np.int32)])
    yield sample("u32 targets out of range", [x, np.array([4_000_000_000, 67, 0, 3, 66, 1], np.uint32)])


def _gradient_samples() -> Iterator[Sample]:
    for s in _samples():
        if s.label == "large magnitudes":
            continue  # a loss of 10,000 is rounded to a thousandth, and so are probabilities computed from it
        x, targets = s.inputs
        wide = np.asarray(x).astype(np.float32)
        _, index = _named(wide, np.asarray(targets))
        picked = np.take_along_axis(wide, index[..., None], -1)[..., 0]
        loss = _cross_entropy([wide, index], {}, TensorType(dtypes.f32, picked.shape)).astype(np.float32)
        yield sample(s.label, [x, targets, picked, loss, sample_array(picked.shape, seed=9)])


_TARGETS = " A row whose target is outside 0…classes-1 has none: its {} 0, which is how rows are ignored."

register(
    OpSpec(
        name="cross_entropy",
        family="loss",
        summary="for each row of logits, the negative log-probability of its target",
        operands=("logits", "targets"),
        infer=_infer,
        reference=_cross_entropy,
        lowering=Row("cross_entropy"),
        samples=_samples,
        error=_cross_entropy_error,
        gradient=gradients.cross_entropy,
        rules="log(sum(exp(row - top))) + (top - row[target]) with top the greatest element, in f32: large logits cost no digits."
        + _TARGETS.format("loss is"),
    )
)
register(
    OpSpec(
        name="cross_entropy_gradient",
        family="loss",
        summary="the gradient of cross_entropy: dy times softmax less 1 at the target",
        operands=("logits", "targets", "picked", "loss", "dy"),
        infer=_infer_gradient,
        reference=_gradient,
        lowering=Pull("cross_entropy_gradient"),
        samples=_gradient_samples,
        error=_gradient_error,
        gradient=gradients.cross_entropy_gradient,
        rules="picked is row[target] and loss the row's loss, so each element follows from one logit: its probability is"
        " exp((logit - picked) - loss)." + _TARGETS.format("gradient is"),
    )
)
