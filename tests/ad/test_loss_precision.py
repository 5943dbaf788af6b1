"""cross_entropy and its gradient keep their digits however large the logits are; class weights may be negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import nn
from pumice.reference.interpreter import evaluate_graph
from pumice.tensor import Tensor

# Rows whose differences are exact in float32 at every offset; long ones take several passes of a kernel.
OFFSETS = (0.0, -1e4, 1e4, 1e6, -3e6)
DEVICES = ["host", pytest.param("webgpu", marks=pytest.mark.gpu)]


def _rows(classes: int, offset: float) -> tuple[Any, Any]:
    r = np.random.default_rng(classes)
    x = r.integers(-32, 33, (3, classes)) / 4 + offset
    return x.astype(np.float32), np.array([0, classes // 2, classes - 1], np.int32)


def _exact(x: Any, targets: Any) -> tuple[Any, Any]:
    shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    rows = np.arange(len(x))
    slopes = np.exp(logs)
    slopes[rows, targets] -= 1
    return -logs[rows, targets], slopes


def _both(x: Tensor, targets: Tensor) -> Any:
    def total(x: Tensor) -> Any:
        losses = pm.cross_entropy(x, targets)
        return losses.sum(), losses

    (_, losses), gradient = pm.value_and_grad(total, has_aux=True)(x)
    return losses, gradient


@pytest.mark.parametrize("classes", [5, 1031, 9001])
@pytest.mark.parametrize("device", DEVICES)
def test_large_logits_cost_no_digits(device: str, classes: int) -> None:
    with pm.compile(_both, x=pm.spec(3, classes), targets=pm.spec(3, dtype="i32"), device=device) as exe:
        for offset in OFFSETS:
            x, targets = _rows(classes, offset)
            losses, gradient = exe.run(x=x, targets=targets)
            want, slopes = _exact(x, targets)
            np.testing.assert_allclose(losses, want, rtol=2e-6, err_msg=str(offset))
            np.testing.assert_allclose(gradient, slopes, rtol=2e-5, atol=1e-9, err_msg=str(offset))


def test_logits_far_apart_have_the_gradient_of_the_greatest() -> None:
    x = np.array([[3e6, -3e6, 2.9e6], [1e30, -1e30, 0.0]], np.float32)
    with pm.compile(_both, x=pm.spec(2, 3), targets=pm.spec(2, dtype="i32"), device="host") as exe:
        losses, gradient = exe.run(x=x, targets=np.array([1, 1], np.int32))
    np.testing.assert_allclose(losses, [6e6, 2e30], rtol=1e-6)
    np.testing.assert_array_equal(gradient, [[1, -1, 0], [1, -1, 0]])


def test_the_reference_in_float32_keeps_them_too() -> None:
    x, targets = _rows(5, 1e6)
    graph = pm.trace(pm.cross_entropy, logits=pm.spec(3, 5), targets=pm.spec(3, dtype="i32"))
    (found,) = evaluate_graph(graph, {"logits": x, "targets": targets}).outputs
    np.testing.assert_allclose(found, _exact(x, targets)[0], rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_class_weights_with_a_negative_sum_divide_by_it(device: str) -> None:
    # PyTorch's: cross_entropy(x, [1, 0], weight=[1, -3, 0.5]) and the gradient of x.
    x = np.array([[1, 2, 3], [0, 0, 1]], np.float32)
    want = [[0.13504587, -1.13290727, 0.99786150], [0.39402923, -0.10597077, -0.28805846]]

    def loss(x: Tensor) -> Tensor:
        return nn.cross_entropy(x, np.array([1, 0]), weight=np.array([1, -3, 0.5], np.float32))

    with pm.compile(pm.value_and_grad(loss), x=pm.spec(2, 3), device=device) as exe:
        value, gradient = exe.run(x=x)
    np.testing.assert_allclose(value, 1.33568633, rtol=1e-6)
    np.testing.assert_allclose(gradient, want, rtol=1e-5)
