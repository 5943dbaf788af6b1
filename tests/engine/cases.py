"""What the tests of known defects share: the targets, and compiling and running in one go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.base import Device

from harness import TARGETS, device

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
# Against defects that hang: every wait of these tests ends.
WAIT = 120

_TARGETS = [pytest.param(t, marks=() if t == "host" else pytest.mark.gpu) for t in TARGETS]
on_all = pytest.mark.parametrize("target", _TARGETS)
# Where a browser's limits change nothing but the time it takes.
on_both = pytest.mark.parametrize("target", _TARGETS[:2])


def floats(*shape: int) -> Array:
    """Normal numbers."""
    return RNG.normal(size=shape).astype(np.float32)


def spec_of(a: Array) -> Any:
    """The spec of an array."""
    return pm.spec(*a.shape, dtype=str(a.dtype))


def once(target: str | Device, f: Callable[..., Any], params: Any = None, **arrays: Array) -> Any:
    """What a function gives on a target for arrays of static shape."""
    specs = {name: spec_of(a) for name, a in arrays.items()}
    dev = device(target) if isinstance(target, str) else target
    with pm.compile(f, **({} if params is None else {"params": params}), **specs, device=dev) as exe:
        return exe.submit(arrays).result(WAIT)


def close(got: Any, want: Any, *, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """Asserts that numbers agree to what single precision allows."""
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol)
