"""Shared by the elementwise families: dtypes from the WGSL table, references without warnings, sample data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core.dtypes import PLAIN, DType
from pumice.ir.registry import Array, Attrs
from pumice.ir.rules import rng
from pumice.ir.types import TensorType

Domain = tuple[float, float]

# Why ops have no gradient.
STEPS = "it is constant between its jumps"
BOOLS = "its result is a bool"

_KIND = {"f": "float", "i": "int", "u": "uint", "b": "bool"}
NAN, INF = float("nan"), float("inf")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0)


def kinds_of(wgsl: Mapping[str, str]) -> tuple[str, ...]:
    """The dtype kinds that have a WGSL expression: these are the ones an op takes."""
    return tuple(kind for key, kind in _KIND.items() if key in wgsl or "*" in wgsl)


def dtypes_of(wgsl: Mapping[str, str]) -> tuple[DType, ...]:
    """The dtypes that have a WGSL expression."""
    kinds = kinds_of(wgsl)
    return tuple(d for d in PLAIN if d.kind in kinds)


def reference_of(fn: Callable[..., Any]) -> Callable[[Sequence[Any], Attrs, TensorType], Array]:
    """A function of arrays as an op's reference. Infinities and NaN are valid results: no warnings."""

    def reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*arrays))

    return reference


def draw(dtype: DType, shape: tuple[int, ...], domain: Domain = (-4.0, 4.0), seed: int = 0) -> Array:
    """Sample data: floats uniform in the domain, small integers within it, booleans half and half."""
    gen = rng(seed)
    if dtype.kind == "bool":
        return gen.random(shape) < 0.5
    if dtype.is_float:
        return gen.uniform(*domain, shape).astype(dtype.np)
    lo, hi = (0, 20) if dtype.kind == "uint" else (-10, 11)
    return gen.integers(max(lo, int(domain[0])) if domain[0] > 0 else lo, hi, shape).astype(dtype.np)


def extremes(dtype: DType) -> Array:
    """The integers where arithmetic wraps, and their neighbours."""
    info = np.iinfo(dtype.np)
    near = [v for v in (-2, -1, 0, 1, 2, 3, 7, 100) if v >= info.min]
    return np.array([info.min, info.min + 1, *near, info.max - 1, info.max], dtype.np)
