"""Loops over traced bodies: counts, conditions, nested carries, gradients, what is refused, and kernels that rounds share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.errors import PumiceError
from pumice.plan.build import build_plan

F32 = np.float32


def test_a_carry_may_be_nested() -> None:
    def fibonacci(x: Any) -> Any:
        return pm.fori_loop(10, lambda i, c: {"last": c["sum"], "sum": c["last"] + c["sum"], "all": [c["all"][0] + i]}, x)

    def run(a: Any, b: Any, n: Any) -> Any:
        return fibonacci({"last": a, "sum": b, "all": [n]})

    assert {k: np.asarray(v).tolist() for k, v in pm.interpret(run, 0, 1, 5).items()} == {"last": 55, "sum": 89, "all": [50]}


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_newtons_square_root_stops_when_it_is_found(target: str) -> None:
    def root(x: Any) -> Any:
        def step(c: Any) -> Any:
            guess, rounds = c
            return (guess + x / guess) / 2, rounds + 1

        return pm.while_loop(lambda c: pm.abs(c[0] * c[0] - x) > 1e-3 * x, step, (x, pm.asarray(0)), max=30)

    with pm.compile(root, x=pm.spec(), device=target) as exe:
        found, rounds = exe.run(x=F32(2))
        assert abs(found - 2**0.5) < 1e-3 and 2 <= rounds < 6
        assert exe.run(x=F32(1))[1] == 0


def test_a_loop_does_not_begin_again() -> None:
    # From 3 on the condition fails; of 5 it would hold again.
    assert pm.interpret(lambda x: pm.while_loop(lambda y: y != 3, lambda y: y + 1, x, max=9), 0) == 3


def test_a_count_that_the_graph_knows() -> None:
    exe = pm.compile(
        lambda x: pm.fori_loop(x.shape[0], lambda i, y: y * 2, x, max=5), x=pm.spec("N"), max={"N": 8}, device="host"
    )
    with exe:
        for n, factor in ((0, 1), (3, 8), (8, 32)):
            np.testing.assert_array_equal(exe.run(x=np.ones(n, F32)), np.full(n, factor, F32))


def test_gradients_go_through_the_rounds() -> None:
    np.testing.assert_allclose(pm.interpret(pm.grad(lambda x: pm.fori_loop(4, lambda i, y: y * x, x)), 2.0), 5 * 2**4)
    # Doubled until 100: x = 3 five times less than 128.
    halves = pm.grad(lambda x: pm.while_loop(lambda y: y < 100, lambda y: y * 2, x, max=10))
    assert pm.interpret(halves, 3.0) == 64


def test_rounds_share_their_kernels() -> None:
    g = pm.trace(lambda x, w: pm.fori_loop(20, lambda i, y: pm.softmax(y @ w), x), x=pm.spec(7, 64), w=pm.spec(64, 64))
    plan = build_plan(g, Caps.preset("h200"))
    assert len(plan.regimes[0].steps) >= 40 and len(plan.kernels) <= 6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: pm.fori_loop(x.sum(), lambda i, y: y, x), "needs max"),
        (lambda x: pm.fori_loop(x.sum(), lambda i, y: y, x, max=3), "must be an integer"),
        (lambda x: pm.fori_loop(-1, lambda i, y: y, x), "must be an int in"),
        (lambda x: pm.fori_loop(10**9, lambda i, y: y, x), "must be an int in"),
        (lambda x: pm.fori_loop(2, lambda i, y: (y, y), x), "another nesting"),
        (lambda x: pm.fori_loop(2, lambda i, y: y.sum(), x), "keeps its shapes"),
        (lambda x: pm.while_loop(lambda y: y < 1, lambda y: y, x, max=2), "must be a scalar"),
        (lambda x: pm.while_loop(lambda y: y.sum(), lambda y: y, x, max=2), "must be a bool"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(PumiceError, match=text) as error:
        pm.trace(call, x=pm.spec(3))
    assert error.value.hint
