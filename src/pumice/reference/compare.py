"""Comparing a backend's result with the oracle: every element within its bounds, equal NaNs and infinities."""

from __future__ import annotations

import numpy as np

from pumice.core.dtypes import DType
from pumice.ir.registry import Array
from pumice.reference.bounds import Bounds


def mismatch(got: Array, bounds: Bounds, dtype: DType) -> str:
    """What is wrong with `got`, or "" if it agrees with the oracle.

    Shape and dtype must be exact, integers and booleans equal, NaN and infinities in the same places, and every float within
    the bounds of its element (see reference/bounds.py).

    >>> from pumice.core import dtypes
    >>> near_one = Bounds(np.array([1.0]), np.array([0.9]), np.array([1.1]))
    >>> mismatch(np.float32([1.05]), near_one, dtypes.f32)
    ''
    >>> mismatch(np.float32([1.2]), near_one, dtypes.f32)
    '1 of 1 beyond their bounds, worst at (0,): 1.2000000476837158 for 1.0, between 0.9 and 1.1'
    """
    expected = bounds.value
    if got.shape != expected.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if got.dtype != dtype.np:
        return f"dtype {got.dtype}, expected {dtype.np}"
    if not dtype.is_float:
        wrong = np.argwhere(got != expected)
        return f"{len(wrong)} of {got.size} differ, first at {tuple(int(i) for i in wrong[0])}" if len(wrong) else ""
    wide = got.astype(np.float64)
    # Values beyond the dtype's range are infinite there and may be finite in the oracle.
    with np.errstate(over="ignore"):
        reachable = expected.astype(dtype.np).astype(np.float64)
    for name, test in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        if not np.array_equal(test(wide), test(reachable)):
            at = np.argwhere(test(wide) != test(reachable))[0]
            return f"{name} in other places, first at {tuple(int(i) for i in at)}"
    count = int(np.count_nonzero(np.isfinite(reachable) & ((wide < bounds.low) | (wide > bounds.high))))
    if not count:
        return ""
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(error_ratio(got, bounds))), got.shape))
    low, high = float(bounds.low[worst]), float(bounds.high[worst])
    return (
        f"{count} of {got.size} beyond their bounds, worst at {worst}: {float(wide[worst])} for {float(expected[worst])}, "
        f"between {low} and {high}"
    )


def error_ratio(got: Array, bounds: Bounds) -> Array:
    """Each element's error over the error that its bounds allow: at most 1 where `mismatch` finds nothing.

    >>> error_ratio(np.float32([1.0, 1.5]), Bounds(np.ones(2), np.array([1.0, 0.0]), np.array([1.0, 2.0]))).tolist()
    [0.0, 0.5]
    """
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        value = bounds.value.astype(got.dtype).astype(np.float64)
        error = np.where(np.isfinite(value), np.abs(wide - value), 0.0)
        allowed = np.where(wide > value, bounds.high - value, value - bounds.low)
        return np.where(error == 0, 0.0, error / np.maximum(allowed, 0))
