"""Initialisers: how parameters start, as functions of a shape and a random generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.core.records import dataclass
from pumice.errors import InputError, ShapeError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
# In quotes: numpy imports its generators when they are first named, and a model from a file needs none.
Initialiser = Callable[[Shape, "np.random.Generator"], Array]


@dataclass(frozen=True, eq=False)
class literal:
    """`value` itself; passing the array for an initialiser does the same.

    >>> literal([1.0, 2.0])((2,), np.random.default_rng(0))
    array([1., 2.])
    """

    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", np.asarray(self.value))

    def __call__(self, shape: Shape, rng: np.random.Generator) -> Array:
        found: Array = self.value
        return found


def constant(value: float) -> Initialiser:
    """`value` everywhere.

    >>> constant(2.0)((2,), np.random.default_rng(0))
    array([2., 2.])
    """
    return lambda shape, rng: np.full(shape, value)


def zeros() -> Initialiser:
    """Zeros."""
    return constant(0.0)


def ones() -> Initialiser:
    """Ones."""
    return constant(1.0)


def normal(std: float = 1.0, mean: float = 0.0) -> Initialiser:
    """The normal distribution with the standard deviation `std` and a `mean`."""
    return lambda shape, rng: rng.normal(mean, std, shape)


def uniform(low: float = -1.0, high: float = 1.0) -> Initialiser:
    """Even between `low` and `high`."""
    return lambda shape, rng: rng.uniform(low, high, shape)


def truncated_normal(std: float = 1.0, mean: float = 0.0, cut: float = 2.0) -> Initialiser:
    """The normal distribution (`std`, `mean`) within `cut` standard deviations; what is outside is drawn again.

    >>> float(abs(truncated_normal(cut=1.5)((1000,), np.random.default_rng(0))).max()) <= 1.5
    True
    """
    if cut <= 0:
        raise InputError(f"a normal distribution is cut beyond 0 deviations, not {cut}")

    def draw(shape: Shape, rng: np.random.Generator) -> Array:
        found = rng.standard_normal(shape)
        outside = np.abs(found) > cut
        while outside.any():
            found[outside] = rng.standard_normal(int(outside.sum()))
            outside = np.abs(found) > cut
        return mean + std * found

    return draw


def fans(shape: Shape) -> tuple[int, int]:
    """How many numbers flow into and out of each element of weights [out, in, window…].

    >>> fans((8, 4)), fans((8, 4, 3, 3)), fans((5,))
    ((4, 8), (36, 72), (5, 5))
    """
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _spread(std: Callable[[int, int], float], even: bool) -> Initialiser:
    def draw(shape: Shape, rng: np.random.Generator) -> Array:
        deviation = std(*(max(1, f) for f in fans(shape)))
        return rng.uniform(-1, 1, shape) * (deviation * math.sqrt(3)) if even else rng.normal(0, deviation, shape)

    return draw


def xavier_uniform(gain: float = 1.0) -> Initialiser:
    """Glorot's: even, variance `gain`² · 2 / (fan in + fan out)."""
    return _spread(lambda i, o: gain * math.sqrt(2 / (i + o)), True)


def xavier_normal(gain: float = 1.0) -> Initialiser:
    """Glorot's with the normal distribution: variance `gain`² · 2 / (fan in + fan out)."""
    return _spread(lambda i, o: gain * math.sqrt(2 / (i + o)), False)


def kaiming_uniform(gain: float = math.sqrt(2)) -> Initialiser:
    """He's: even, variance `gain`² / fan in.

    >>> bound = 1 / math.sqrt(4)
    >>> float(abs(kaiming_uniform(math.sqrt(1 / 3))((100, 4), np.random.default_rng(0))).max()) <= bound
    True
    """
    return _spread(lambda i, o: gain / math.sqrt(i), True)


def linear() -> Initialiser:
    """What linear layers and convolutions start from, here and in PyTorch: even within ±1/√(fan in)."""
    return kaiming_uniform(math.sqrt(1 / 3))


def kaiming_normal(gain: float = math.sqrt(2)) -> Initialiser:
    """He's with the normal distribution: variance `gain`² / fan in."""
    return _spread(lambda i, o: gain / math.sqrt(i), False)


def orthogonal(gain: float = 1.0) -> Initialiser:
    """Rows (or columns, where there are fewer of them) that are orthogonal to each other, each of the length `gain`.

    >>> q = orthogonal()((3, 5), np.random.default_rng(0))
    >>> bool(np.allclose(q @ q.T, np.eye(3)))
    True
    """

    def draw(shape: Shape, rng: np.random.Generator) -> Array:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal weights have two axes or more, not the shape {shape}")
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        # Without the signs the decomposition would prefer some rotations to others.
        q = q * np.sign(np.diag(r))
        return gain * (q.T if rows < columns else q).reshape(shape)

    return draw
