"""The compiled kernels of convolution against the op's own meaning in float64, at shapes that reach each of their paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.host.native import convolution, jit
from pumice.backends.host.native.conv_shapes import ConvShape, Finish
from pumice.backends.host.native.conv_sizes import conv_sizes
from pumice.ir.ops.conv import conv_counts
from pumice.ir.registry import get_op

# x, w, strides, padding, dilation, groups
CASES: dict[str, tuple[Any, ...]] = {
    "borders": ((2, 3, 9, 8), (5, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "whole tiles": ((3, 20, 16, 16), (24, 20, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "stride": ((2, 4, 11, 9), (6, 4, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1),
    "one axis, stride, dilation, uneven padding": ((2, 3, 23), (4, 3, 3), (3,), ((3, 0),), (2,), 1),
    "three axes": ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), (1, 2, 1), ((0, 1), (1, 1), (1, 0)), (1, 1, 1), 1),
    "dilation": ((1, 3, 13, 12), (4, 3, 3, 2), (1, 1), ((2, 3), (0, 1)), (3, 2), 1),
    "odd channels in groups": ((2, 9, 7, 6), (15, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3),
    "stride beyond the kernel": ((1, 2, 11, 11), (3, 2, 2, 2), (4, 3), ((0, 0), (0, 0)), (1, 1), 1),
    "padding beyond the kernel": ((2, 3, 5, 5), (4, 3, 2, 2), (1, 1), ((4, 4), (3, 5)), (1, 1), 1),
    "few positions, many weights": ((16, 64, 2, 2), (70, 64, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "1x1": ((2, 33, 8, 8), (17, 33, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "7x7 positions": ((1, 30, 7, 7), (19, 30, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "1x1, 7x7 positions": ((2, 400, 7, 7), (46, 200, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
    "1x1, many positions": ((1, 16, 37, 41), (24, 16, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "stride, long rows": ((1, 3, 40, 64), (16, 3, 7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1), 1),
    "1x1, stride": ((2, 16, 9, 9), (8, 16, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    "depthwise": ((2, 19, 9, 7), (19, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 19),
    "depthwise, 3x3, long rows": ((2, 3, 9, 50), (3, 1, 3, 3), (1, 1), ((1, 1), (2, 0)), (1, 1), 3),
    "depthwise, 3x3, few rows": ((1, 3, 2, 7), (3, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3),
    "depthwise, 3x3, stride, few rows": ((1, 3, 3, 40), (3, 1, 3, 3), (2, 2), ((0, 0), (1, 1)), (1, 1), 3),
    "depthwise, two outputs, stride": ((2, 5, 9, 9), (10, 1, 3, 3), (2, 2), ((0, 1), (1, 1)), (1, 1), 5),
    "depthwise, three axes, dilation": ((1, 3, 5, 8, 40), (3, 1, 2, 3, 3), (1, 2, 3), ((1, 0), (2, 2), (1, 3)), (2, 2, 1), 3),
    "depthwise, one axis": ((2, 4, 50), (4, 1, 7), (1,), ((3, 3),), (1,), 4),
    "depthwise, long rows": ((1, 5, 20, 45), (5, 1, 5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1), 5),
    "depthwise, long rows, stride": ((2, 6, 33, 71), (6, 1, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 6),
    "depthwise, one stride, even padding": ((1, 4, 12, 70), (4, 1, 3, 2), (1, 2), ((0, 0), (2, 0)), (1, 1), 4),
    "depthwise, padding beyond the kernel": ((1, 2, 4, 4), (2, 1, 2, 2), (1, 1), ((5, 3), (4, 6)), (1, 1), 2),
    "pieces of positions": ((5, 2, 40, 40), (3, 2, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
}


class _Case:
    def __init__(self, name: str) -> None:
        x, w, strides, padding, dilation, groups = CASES[name]
        self.attrs: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        counts = conv_counts(x[2:], w[2:], self.attrs)
        low = tuple(lo for lo, _ in padding)
        self.shape = ConvShape(x[2:], w[2:], counts, strides, dilation, low, x[0], groups, w[1], w[0] // groups)
        generator = np.random.default_rng(3)
        self.x, self.w, self.grad = (generator.standard_normal(s).astype("f4") for s in (x, w, (x[0], w[0], *counts)))
        self.bias = generator.standard_normal(w[0]).astype("f4")

    def check(self, found: Any, op: str, arrays: list[Any], **attrs: Any) -> None:
        """Within what a sum of float32 in any order may be off."""
        wide = [None if a is None else a.astype("f8") for a in arrays]
        spec = get_op(op)
        expected, size = (
            spec.reference([None if a is None else f(a) for a in wide], {**self.attrs, **attrs}, _Out(found.shape))
            for f in (lambda a: a, np.abs)
        )
        assert np.all(np.abs(found - expected) <= 1e-6 * size + 1e-12)


class _Out:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.static_shape = shape


@pytest.fixture(scope="module")
def kernels() -> jit.Kernels:
    found = jit.kernels()
    if found is None:
        pytest.skip("numba is not installed: pip install 'pumice[cpu]'")
    return found


@pytest.mark.parametrize("name", CASES)
def test_forward_and_both_gradients(kernels: jit.Kernels, name: str) -> None:
    case, sizes = _Case(name), conv_sizes(kernels.is_wide)
    out, dx, dw = (np.full(a.shape, np.nan, "f4") for a in (case.grad, case.x, case.w))
    kernels.run(convolution.forward(case.shape, sizes, case.x, case.w, Finish(shift=case.bias), out))
    kernels.run(convolution.by_input(case.shape, sizes, case.grad, case.w, dx))
    kernels.run(convolution.by_weight(case.shape, sizes, case.x, case.grad, dw))
    case.check(out, "conv", [case.x, case.w, case.bias])
    case.check(dx, "conv_grad_input", [case.grad, case.w], size=case.x.shape[2:])
    case.check(dw, "conv_grad_weight", [case.x, case.grad], kernel=case.w.shape[2:])


FINISHED = [
    "borders",
    "whole tiles",
    "depthwise",
    "depthwise, long rows",
    "depthwise, 3x3, long rows",
    "depthwise, long rows, stride",
    "1x1",
    "7x7 positions",
]


@pytest.mark.parametrize("name", [*FINISHED, "1x1, 7x7 positions", "odd channels in groups"])
def test_results_are_finished_as_they_are_stored(kernels: jit.Kernels, name: str) -> None:
    case, sizes = _Case(name), conv_sizes(kernels.is_wide)
    plain, out = (np.empty(case.grad.shape, "f4") for _ in range(2))
    scale = np.linspace(0.5, 2, len(case.bias), dtype="f4")
    kernels.run(convolution.forward(case.shape, sizes, case.x, case.w, Finish(), plain))
    finish = Finish(scale, case.bias, case.grad, 0.0, 6.0)
    kernels.run(convolution.forward(case.shape, sizes, case.x, case.w, finish, out))
    channel = (-1, *(1,) * (plain.ndim - 2))
    wanted = np.clip(plain * scale.reshape(channel) + case.bias.reshape(channel) + case.grad, 0, 6)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def test_a_class_of_positions_that_no_tap_reaches_is_zero(kernels: jit.Kernels) -> None:
    case = _Case("1x1, stride")
    dx = np.full(case.x.shape, np.nan, "f4")
    kernels.run(convolution.by_input(case.shape, conv_sizes(kernels.is_wide), case.grad, case.w, dx))
    assert not dx[:, :, 1::2].any() and not dx[:, :, :, 1::2].any() and dx[:, :, ::2, ::2].any()


def test_packed_weights_of_an_inference_follow_the_params(kernels: jit.Kernels) -> None:
    rng = np.random.default_rng(5)
    x, first, second = (rng.standard_normal(s).astype("f4") for s in ((1, 16, 40, 40), (24, 16, 3, 3), (24, 16, 3, 3)))

    def conv(w: pm.Tensor, x: pm.Tensor) -> pm.Tensor:
        # What is convolved is not the input: those are read where the caller has them, by calls of their own.
        return pm.relu(pm.conv2d(pm.relu(x), w, padding=1))

    def run(params: dict[str, pm.Tensor], x: pm.Tensor) -> pm.Tensor:
        return conv(params["w"], x)

    compiled = pm.compile(run, params={"w": first}, x=pm.spec(*x.shape), device="host")
    for w in (first, second):
        compiled.set_params({"w": w})
        for _ in range(2):
            np.testing.assert_allclose(compiled(x=x), pm.interpret(conv, w, x), rtol=1e-4, atol=1e-4)
