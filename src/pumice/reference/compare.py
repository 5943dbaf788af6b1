"""Comparing a backend's result with the oracle: normalised mean squared error, and equal NaNs and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core.dtypes import DType

Array = np.ndarray[Any, Any]
_EPS_NMSE = {"f32": 1e-7, "f16": 1e-6, "bf16": 1e-5}  # bf16 keeps 8 bits: rounding alone gives about 1e-6


def nmse(got: Array, expected: Array) -> float:
    """Σ(got-expected)² / Σ expected² over the finite elements; the plain sum where everything expected is 0.

    >>> nmse(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    0.0
    """
    finite = np.isfinite(expected)
    e, g = expected[finite], got[finite]
    scale = float(np.sum(e * e)) if e.size else 0.0
    error = float(np.sum((g - e) ** 2)) if e.size else 0.0
    return error / scale if scale > 1e-30 else error


def mismatch(got: Array, expected: Array, dtype: DType, *, tolerance: float | None = None, chain: bool = False) -> str:
    """What is wrong with `got`, or "" if it agrees with the oracle's float64 `expected`.

    Shape and dtype must be exact, integers and booleans equal, NaN and infinities in the same places, floats within the
    op's tolerance or the dtype's, whichever is larger; `chain` allows ten times that for whole graphs.

    >>> from pumice.core import dtypes
    >>> mismatch(np.float32([1.0]), np.array([1.0]), dtypes.f32)
    ''
    """
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
    limit = max(tolerance or 0.0, _EPS_NMSE[dtype.name]) * (10 if chain else 1)
    error = nmse(wide, np.where(np.isfinite(reachable), expected, reachable))
    if error <= limit:
        return ""
    worst = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(reachable), np.abs(wide - expected), 0))), got.shape)
    return f"NMSE {error:.3g} over {limit:.3g}; worst at {worst}: {wide[worst]} for {expected[worst]}"
