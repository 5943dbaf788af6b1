"""The gradients of layer_norm and rms_norm: of what is normalised, and of weight and bias, which all rows share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.ir.gradients import norm as gradients
from pumice.ir.ops.norm import normal_error, row_mean
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.precision import ErrorModel, Evaluation, U, growth
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Row, Sample, Types, get_op, register
from pumice.ir.rules import given, require_kind, same_shape
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> TensorType:
    dy, x, *weight = types
    of_result, of_x = given([dy, x])
    for t in given(types):
        require_kind(t, "float")
    same_shape(of_result.shape, of_x.shape, "dy and x")
    wide = [None if t is None else TensorType(dtypes.f32, t.shape) for t in (x, *(weight or [None]))]
    return get_op("rms_norm").result_types(wide, {"axes": attrs["axes"], "eps": attrs["eps"]})[0]


def _infer_parameters(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    x = _infer(types, attrs)
    row = TensorType(x.dtype, x.shape[x.rank - attrs["axes"] :])
    return row, row


def _normal(x: Array, attrs: Attrs) -> tuple[Array, Array]:
    """x normalised, and the factor that this took."""
    centred = x - row_mean(x, attrs["axes"]) if attrs["centred"] else x
    scale = 1 / np.sqrt(row_mean(np.square(centred), attrs["axes"]) + x.dtype.type(attrs["eps"]))
    return centred * scale, scale


def _of_input(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    dy, x, weight = arrays
    normal, scale = _normal(x, attrs)
    dn = dy if weight is None else dy * weight
    rest = dn - normal * row_mean(dn * normal, attrs["axes"])
    return np.asarray(scale * (rest - row_mean(dn, attrs["axes"]) if attrs["centred"] else rest))


def _of_parameters(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, Array]:
    dy, x = arrays
    return _over_rows(dy * _normal(x, attrs)[0], attrs["axes"]), _over_rows(dy, attrs["axes"])


def _over_rows(a: Array, axes: int) -> Array:
    """Sums over the rows, along the last axis of memory: there NumPy adds pairwise, elsewhere float32 sums of many rows drift."""
    lead, row = a.shape[: a.ndim - axes], a.shape[a.ndim - axes :]
    flat = a.reshape(int(np.prod(lead, dtype=np.int64)), int(np.prod(row, dtype=np.int64)))
    return np.asarray(np.ascontiguousarray(flat.T).sum(axis=1)).reshape(row)


def _of_input_error(e: Evaluation) -> Array:
    dy, x, weight = e.arrays
    axes = e.attrs["axes"]
    normal, off, scale, relative = normal_error(x, e.attrs, e.attrs["centred"])
    dn = np.abs(dy if weight is None else dy * weight)
    grown = U * (growth(int(np.prod(x.shape[-axes:], dtype=np.int64))) + 1)
    along = np.abs(row_mean((dy if weight is None else dy * weight) * normal, axes))
    along_off = row_mean(dn * off, axes) + grown * row_mean(dn * np.abs(normal), axes)
    lost = 2 * U * (dn + np.abs(normal) * along) + off * along + np.abs(normal) * along_off
    if e.attrs["centred"]:
        lost = lost + grown * row_mean(dn, axes)
    return np.asarray(scale * lost + (relative + U) * np.abs(e.result))


def _of_parameters_error(e: Evaluation) -> tuple[Array, Array]:
    dy, x = (np.abs(a) for a in e.arrays)
    normal, off, _, _ = normal_error(e.arrays[1], e.attrs, e.attrs["centred"])
    rows = tuple(range(x.ndim - e.attrs["axes"]))
    grown = U * growth(int(np.prod(x.shape[: len(rows)], dtype=np.int64)))
    return np.sum(dy * (off + (U + grown) * np.abs(normal)), axis=rows), grown * np.sum(dy, axis=rows)


_CASES: tuple[tuple[str, tuple[int, ...], int, bool], ...] = (
    ("rows", (5, 37), 1, True),
    ("not centred", (7, 65), 1, False),
    ("batch of rows", (2, 3, 33), 1, True),
    ("two axes", (4, 3, 21), 2, True),
    ("one row", (131,), 1, True),
    ("long rows", (3, 1031), 1, False),
    ("longer row", (1, 5003), 1, True),
    ("many short rows", (700, 3), 1, True),
    ("many rows", (520, 24), 1, False),
    ("rows of one", (9, 1), 1, False),
    ("no rows", (0, 5), 1, True),
)


def _operands(shape: tuple[int, ...], axes: int, dtype: DType = dtypes.f32) -> tuple[Array, Array, Array]:
    return sample_array(shape, dtype, 1), sample_array(shape, dtype, 2), sample_array(shape[len(shape) - axes :], dtype, 3)


def _samples() -> Iterator[Sample]:
    for k, (label, shape, axes, centred) in enumerate(_CASES):
        dy, x, weight = _operands(shape, axes)
        # Of one element, a row's gradient is what eps leaves of it.
        eps = 0.5 if x.shape[-1] == 1 else 1e-5
        yield sample(label, [dy, x, None if k == 2 else weight], axes=axes, eps=eps, centred=centred)
    for dtype in (dtypes.f16, dtypes.bf16):
        yield sample(dtype.name, _operands((5, 131), 1, dtype), axes=1, eps=1e-5, centred=True)
    dy, x, weight = _operands((4, 129), 1)
    yield sample("far from zero", [dy, x + np.float32(300), weight], axes=1, eps=1e-5, centred=True)


def _parameter_samples() -> Iterator[Sample]:
    for label, shape, axes, centred in _CASES:
        yield sample(label, _operands(shape, axes)[:2], axes=axes, eps=1e-5, centred=centred)
    for dtype in (dtypes.f16, dtypes.bf16):
        yield sample(dtype.name, _operands((5, 131), 1, dtype)[:2], axes=1, eps=1e-5, centred=True)


_ATTRS = {"axes": 1, "eps": 1e-5, "centred": True}
_RULE = (
    "axes and eps as for the norm; centred says whether it subtracts the mean, as layer_norm does and rms_norm does not. {} f32."
)


def _register(
    name: str,
    summary: str,
    operands: tuple[str, ...],
    infer: Callable[[Types, Attrs], Any],
    reference: Callable[[Sequence[Any], Attrs, Any], Any],
    lowering: Row | Routine,
    samples: Callable[[], Iterator[Sample]],
    rules: str,
    composed: Callable[..., Any],
    error: ErrorModel,
    results: tuple[str, ...] = ("result",),
) -> None:
    register(
        OpSpec(
            name,
            "norm",
            summary,
            operands,
            infer,
            reference,
            lowering,
            samples,
            _ATTRS,
            rules=rules,
            composed=composed,
            error=error,
            results=results,
        )
    )


_register(
    "norm_gradient",
    "the gradient of layer_norm or rms_norm by what is normalised",
    ("dy", "x", "weight?"),
    _infer,
    _of_input,
    Row("norm_gradient"),
    _samples,
    _RULE.format("The result is"),
    gradients.norm_gradient,
    _of_input_error,
)
_register(
    "norm_parameter_gradient",
    "the gradients of layer_norm or rms_norm by weight and bias",
    ("dy", "x"),
    _infer_parameters,
    _of_parameters,
    Routine("norm_parameter_gradient"),
    _parameter_samples,
    _RULE.format("The results are"),
    gradients.norm_parameter_gradient,
    _of_parameters_error,
    ("dweight", "dbias"),
)
