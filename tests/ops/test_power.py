"""power is within a few units in the last place everywhere: also near base 1, where the exponent multiplies every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm

R = np.random.default_rng(0)
N = 20_000
CASES: dict[str, tuple[Any, Any]] = {
    "near 1": (np.abs(1 + R.standard_normal(N) * 10 ** R.uniform(-7, -1, N)), R.standard_normal(N) * 10 ** R.uniform(0, 8, N)),
    "all bases": (np.exp(R.uniform(-87, 88, N)), R.uniform(-3, 3, N)),
    "whole exponents": (np.exp(R.uniform(-3, 3, N)), R.integers(-70, 70, N)),
    "whole numbers": (R.integers(-30, 30, N), R.integers(-30, 30, N)),
    "fractions of 10": (R.uniform(0, 10, N), R.uniform(-10, 10, N)),
    "ends": tuple(
        a.ravel()
        for a in np.meshgrid(
            [0.999, 1.001, 1 - 2**-24, 1 + 2**-23, 3e38, 1.2e-38, 2.0, 0.5, 10.0, -3.0],
            [50000.0, -50000.0, 1e9, -1e9, 3e38, -3e38, 0.5, -1.5, 20.0, -20.0, 1e-30, 127.0, 128.0, -126.0, -149.0],
        )
    ),  # type: ignore[dict-item]
}
SMALLEST = np.finfo(np.float32).smallest_normal


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_power(device: str, case: str) -> None:
    a, b = (np.asarray(v).astype(np.float32) for v in CASES[case])
    with pm.compile(pm.power, x1=pm.spec(len(a)), x2=pm.spec(len(a)), device=device) as exe:
        got = exe.run(x1=a, x2=b)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
        want = exact.astype(np.float32)
        error = np.abs(got - exact) / np.spacing(np.abs(want))
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | ((np.abs(got) <= SMALLEST) & (np.abs(want) <= SMALLEST))
    worst = int(np.argmax(np.where(same, 0, error)))
    assert np.all(same | (error <= 4)), (a[worst], b[worst], got[worst], exact[worst])


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_whole_powers_of_whole_numbers_are_exact(device: str) -> None:
    pairs = [(a, n) for a in range(-20, 21) for n in range(25) if abs(a) ** n <= 2**24]
    a, b = (np.array(v, np.float32) for v in zip(*pairs, strict=True))
    with pm.compile(pm.power, x1=pm.spec(len(a)), x2=pm.spec(len(a)), device=device) as exe:
        assert exe.run(x1=a, x2=b).tolist() == [float(x**n) for x, n in pairs]
