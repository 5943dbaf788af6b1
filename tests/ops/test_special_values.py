"""Every unary function at infinities, NaN, huge, tiny and signed-zero arguments: the same on every path of every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.ir.registry import all_ops, get_op
from pumice.ir.types import TensorType
from pumice.tensor import Tensor

UNARY = sorted(o.name for o in all_ops() if o.family == "unary" and o.name != "cast")
VALUES = np.array(
    [np.inf, -np.inf, np.nan, 1e38, -1e38, 3.4e38, -3.4e38, 1e20, -1e20, 1e-30, -1e-30, 1.2e-38, -1.2e-38, 1e-40, -1e-40,
     1e-45, -1e-45, 0.0, -0.0, 88.5, -88.5, 89.0, -89.0, -90.0, -100.0, -104.0, -106.0, 128.0, -126.0, -150.0,
     1.0, -1.0, 0.5, -0.5, 4.0, -4.0, 10.0, -10.0, 13.0, -13.0, -20.0],
    np.float32,
)  # fmt: skip
# The tails of exponentials: an error of the argument's last place is as many as it has units.
TOLERANCE = {
    "gelu": 1e-5,
    "gelu_tanh": 3e-5,
    "sinh": 1e-5,
    "cosh": 1e-5,
    "exp": 1e-5,
    "exp2": 2e-5,
    "silu": 1e-5,
    "sigmoid": 1e-5,
}
# The largest argument that each target promises for these: beyond, docs/ops.md says that they are as good as the driver's.
TRIGONOMETRIC = ("sin", "cos", "tan")
SMALLEST = np.finfo(np.float32).smallest_normal


def _reference(op: str, x: Any) -> Any:
    with np.errstate(all="ignore"):
        out = get_op(op).reference([x.astype(np.float64)], {}, TensorType(dtypes.f32, x.shape))
        return np.asarray(out).astype(np.float32).astype(np.float64)


def _agree(got: Any, want: Any, tolerance: float, lost: Any = SMALLEST) -> Any:
    """Denormal results may be flushed to zero; zeros may have either sign. `lost` is what a flushed factor takes along."""
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= np.maximum(np.abs(want) * tolerance, lost)
    return (np.isnan(got) & np.isnan(want)) | (got == want) | (np.isfinite(got) & np.isfinite(want) & near)


def _wrong(op: str, got: Any, *, flushes: bool, reduces: bool) -> list[tuple[str, float, float, float]]:
    """(op, argument, result, expected) of all results that are wrong."""
    got = got.astype(np.float64)
    tolerance = TOLERANCE.get(op, 2e-6)
    right = _agree(got, _reference(op, VALUES), tolerance)
    if flushes:  # a GPU may also read denormal arguments as zeros
        flushed = np.where(np.abs(VALUES) < SMALLEST, np.copysign(np.float32(0), VALUES), VALUES)
        right |= _agree(got, _reference(op, flushed), tolerance)
    if op == "silu":
        factor = np.where(np.abs(VALUES) < 110, np.abs(VALUES), 1)
        right |= _agree(got, _reference(op, VALUES), tolerance, SMALLEST * factor)
    if not reduces and op in TRIGONOMETRIC:
        right |= np.isfinite(VALUES) & (np.abs(VALUES) > 131072)
    return [(op, float(VALUES[i]), float(got[i]), float(_reference(op, VALUES)[i])) for i in np.flatnonzero(~right)]


def _apply(op: str, x: Tensor) -> Tensor:
    from pumice.functions.build import emit

    return emit(op, [x])


def _alone(x: Tensor) -> dict[str, Tensor]:
    return {op: _apply(op, x) for op in UNARY}


def _fused(x: Tensor) -> dict[str, Any]:
    # Around each op something that changes no value and is computed with it.
    return {op: pm.where(x >= x, _apply(op, pm.negative(-x)).astype("f32"), _apply(op, x).astype("f32")) for op in UNARY}


@pytest.mark.parametrize("size", [len(VALUES), 50_000])
@pytest.mark.parametrize("fn", [_alone, _fused])
@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_special_values(device: str, fn: Any, size: int) -> None:
    x = np.resize(VALUES, size)
    with pm.compile(fn, x=pm.spec(size), device=device) as exe:
        found = exe.run(x=x)
    wrong = []
    for op in UNARY:
        parts = found[op][: size // len(VALUES) * len(VALUES)].reshape(-1, len(VALUES))
        same = np.all((parts == parts[0]) | (np.isnan(parts) & np.isnan(parts[0])), axis=0)
        assert np.all(same), (op, VALUES[~same])
        wrong += _wrong(op, parts[0], flushes=device == "webgpu", reduces=device == "host")
    assert not wrong


@pytest.mark.parametrize("op", ["silu", "gelu_tanh"])
def test_special_values_in_compiled_maps(op: str) -> None:
    from pumice.backends.host.native import jit
    from pumice.backends.host.native.kernel_tasks import elementwise

    kernels = jit.kernels()
    if kernels is None:
        pytest.skip("needs numba, which the extra [cpu] installs")
    x = np.resize(VALUES, 40 * len(VALUES))
    out = np.empty_like(x)
    tasks = elementwise(op)([x], out)
    assert tasks is not None
    kernels.run(tasks)
    assert not _wrong(op, out[-len(VALUES) :], flushes=False, reduces=True)
