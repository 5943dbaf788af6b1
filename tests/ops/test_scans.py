"""Scans and recurrences against NumPy step by step, and the gradients of scans at ties, zeros and NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import PumiceError

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)
MONOIDS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
}


@pytest.mark.parametrize("monoid", MONOIDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_numpys_accumulate(monoid: str, reverse: bool) -> None:
    x = rng.standard_normal((3, 17)).astype(np.float32)
    order = slice(None, None, -1 if reverse else 1)
    expected = MONOIDS[monoid].accumulate(x[:, order].astype(np.float64), axis=1)[:, order]
    got = pm.interpret(lambda x: pm.scan(x, monoid, axis=1, reverse=reverse), x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("monoid", MONOIDS)
def test_an_exclusive_scan_combined_with_its_elements_is_the_inclusive_one(monoid: str) -> None:
    x = rng.standard_normal(40).astype(np.float32)
    before = pm.interpret(lambda x: pm.scan(x, monoid, exclusive=True), x)
    after = pm.interpret(lambda x: pm.scan(x, monoid), x)
    np.testing.assert_allclose(MONOIDS[monoid](before, x), after, rtol=1e-5)


def test_what_a_scan_refuses() -> None:
    for wrong in ("sum", "affine"):
        with pytest.raises(PumiceError) as error:
            pm.trace(lambda x, wrong=wrong: pm.scan(x, wrong), x=pm.spec(3))
        assert error.value.hint
    with pytest.raises(PumiceError, match="axis"):
        pm.trace(lambda x: pm.linear_scan(x, x, axis=2), x=pm.spec(3))


def gradient(fn: Callable[[Any], Any], x: Array) -> Array:
    found: Array = pm.interpret(pm.grad(lambda x: (fn(x) * np.arange(1, x.size + 1, dtype=np.float32)).sum()), x)
    return found


def test_the_gradient_of_a_product_with_zeros() -> None:
    # d/dx of x0 + 2 x0 x1 + 3 x0 x1 x2 at (2, 0, 3).
    np.testing.assert_allclose(gradient(pm.cumprod, np.array([2, 0, 3], np.float32)), [1, 2 * 2 + 3 * 2 * 3, 0])


def test_the_gradient_of_an_extreme_goes_to_the_latest_of_equals() -> None:
    np.testing.assert_array_equal(gradient(pm.cummax, np.array([1, 1, 0, 2], np.float32)), [1, 2 + 3, 0, 4])
    np.testing.assert_array_equal(gradient(pm.cummin, np.array([1, np.nan, 0, np.nan], np.float32)), [1, 2 + 3, 0, 4])


def test_the_gradient_of_a_log_sum_is_finite_where_nothing_was_summed() -> None:
    got = gradient(pm.logcumsumexp, np.array([-np.inf, 0, 0, -np.inf], np.float32))
    np.testing.assert_allclose(got, [1, 2 + 1.5 + 2, 1.5 + 2, 0], rtol=1e-6)


@pytest.mark.gpu
def test_long_rows_of_every_scan_on_a_gpu() -> None:
    """Rows of many chunks, and of parts for several workgroups, so that what is carried counts; symbolic, and 1 long."""
    exe = pm.compile(
        lambda a, b, h: (
            pm.linear_scan(a, b, 1, h),
            pm.linear_scan(a, b, 1, h, reverse=True, exclusive=True),
            pm.logcumsumexp(b, 1),
            pm.cumprod(a, 1),
            pm.cummax(b, 1, exclusive=True),
        ),
        a=pm.spec(2, "T"),
        b=pm.spec(2, "T"),
        h=pm.spec(2),
        max={"T": 6000},
        device="webgpu",
    )
    with exe:
        for size in (1, 2500, 6000):
            a = np.exp(0.05 * rng.standard_normal((2, size))).astype(np.float32)
            b, h = rng.standard_normal((2, size)).astype(np.float32), np.array([1, -2], np.float32)
            forward, backward, logs, products, most = exe.run(a=a, b=b, h=h)
            state, steps = h.astype(np.float64), []
            for t in range(size):
                state = a[:, t] * state + b[:, t]
                steps.append(state)
            np.testing.assert_allclose(forward, np.stack(steps, 1), rtol=1e-4, atol=1e-4)
            state, steps = h.astype(np.float64), []
            for t in reversed(range(size)):
                steps.append(state)
                state = a[:, t] * state + b[:, t]
            np.testing.assert_allclose(backward, np.stack(steps[::-1], 1), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(logs, np.logaddexp.accumulate(b.astype(np.float64), axis=1), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(products, np.cumprod(a.astype(np.float64), axis=1), rtol=1e-4)
            np.testing.assert_array_equal(most[:, 1:], np.maximum.accumulate(b, axis=1)[:, :-1])
