"""The compiled kernels of channel_norm and its gradient against what the ops mean, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.host.native import jit
from pumice.backends.host.routines.calls import NodeCall
from pumice.backends.host.routines.channel_norms import CHANNEL_NORMS
from pumice.core import dtypes
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

KERNELS = jit.kernels()
needs_kernels = pytest.mark.skipif(KERNELS is None, reason="the kernels need numba: pip install 'pumice[cpu]'")


def _check(name: str, operands: list[Any]) -> None:
    spec, attrs = get_op(name), {"eps": 1e-3}
    types = tuple(None if a is None else TensorType(dtypes.f32, a.shape) for a in operands)
    result, *further = spec.result_types(types, attrs)
    taken = tuple(None if a is None else a.dtype for a in operands)
    call = NodeCall(spec, attrs, types, result, taken, further=tuple(further), wanted=(True,) * 3)
    routine = CHANNEL_NORMS[name](call)
    assert routine is not None and routine.native is not None and KERNELS is not None
    outs = tuple(np.full(t.static_shape, np.nan, np.float32) for t in (result, *further))
    tasks = routine.native(operands, outs)
    assert tasks is not None
    KERNELS.run(tasks)
    wide = [None if a is None else a.astype(np.float64) for a in operands]
    for out, exact in zip(outs, spec.evaluate(wide, attrs, (result, *further)), strict=True):
        np.testing.assert_allclose(out, exact, rtol=2e-5, atol=2e-5 * np.abs(exact).max())


@needs_kernels
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 3, 70, 70), (50, 4), (6, 2, 2, 2), (1, 1, 33)], ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["weight and bias", "plain"])
def test_kernels_do_what_the_ops_mean(shape: tuple[int, ...], affine: bool) -> None:
    rng = np.random.default_rng(0)
    dy, x = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    x += 30
    weight, bias = (rng.normal(size=shape[1]).astype(np.float32) if affine else None for _ in range(2))
    _check("channel_norm", [x, weight, bias])
    axes = (0, *range(2, x.ndim))
    _check("channel_norm_gradient", [dy, x, x.mean(axes, dtype="f8").astype("f4"), x.var(axes, dtype="f8").astype("f4"), weight])


def _loss(x: pm.Tensor, weight: pm.Tensor, bias: pm.Tensor) -> pm.Tensor:
    """Of all three results, so that gradients come from each of them."""
    y, mean, variance = pm.batch_norm(x, [0.0] * 3, [1.0] * 3, weight, bias, training=True)
    return pm.sum(y * y * x) + pm.sum(mean * 3.0) + pm.sum(variance * variance)


def test_gradients_also_come_from_the_statistics() -> None:
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.normal(size=s) for s in ((4, 3, 5), (3,), (3,)))
    found = pm.interpret(pm.grad(_loss, argnums=(0, 1, 2)), *(a.astype(np.float32) for a in (x, weight, bias)))
    for place, gradient in enumerate(found):
        for index in np.ndindex(gradient.shape):
            if sum(index) % 3:
                continue
            values = []
            for step in (1e-3, -1e-3):
                moved = [a.copy() for a in (x, weight, bias)]
                moved[place][index] += step
                values.append(_exact(*moved))
            assert gradient[index] == pytest.approx((values[0] - values[1]) / 2e-3, rel=1e-3, abs=1e-3)


def _exact(x: Any, weight: Any, bias: Any) -> float:
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    column = (1, 3, 1)
    y = (x - mean.reshape(column)) / np.sqrt(variance.reshape(column) + 1e-5) * weight.reshape(column) + bias.reshape(column)
    count = x.size // 3
    new_mean, new_variance = 0.1 * mean, 0.9 + 0.1 * variance * count / (count - 1)
    return float((y * y * x).sum() + 3 * new_mean.sum() + (new_variance**2).sum())


def test_second_derivatives_go_through_what_the_gradient_is_composed_of() -> None:
    def slope(x: pm.Tensor) -> pm.Tensor:
        y, _, _ = pm.batch_norm(x, [0.0], [1.0], training=True, eps=0.1)
        return pm.sum(y * y * y)

    def length(x: pm.Tensor) -> pm.Tensor:
        g = pm.grad(slope)(x)
        return pm.sum(g * g)

    x = np.array([[[0.3, -1.0, 0.7, 2.0]]], np.float32)
    found = pm.interpret(pm.grad(length), x)
    for i in range(4):
        moved = [x.copy(), x.copy()]
        moved[0][0, 0, i] += 1e-2
        moved[1][0, 0, i] -= 1e-2
        high, low = (float(pm.interpret(length, m)) for m in moved)
        assert found[0, 0, i] == pytest.approx((high - low) / 2e-2, rel=2e-2, abs=2e-2)
