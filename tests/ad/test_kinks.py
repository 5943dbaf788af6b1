"""Gradients at kinks, ties, ends of domains and NaN are PyTorch's: a table of its results, which autograd of 2.13 gave."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import pumice as pm

third = 1 / 3
# The function, its arguments, and the gradient of its sum with respect to each of them.
KINKS: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "relu": (
        pm.relu,
        [[0, -0, nan, -1, 1, inf, -inf]],
        [[0, 0, 1, 0, 1, 1, 0]],
    ),
    "abs": (
        pm.abs,
        [[0, -0, nan, -1, 1, inf, -inf]],
        [[0, 0, 0, -1, 1, 1, -1]],
    ),
    "sqrt": (
        pm.sqrt,
        [[0, nan, -1, 4, inf]],
        [[inf, nan, nan, 0.25, 0]],
    ),
    "rsqrt": (
        pm.rsqrt,
        [[0, nan, -1, 4, inf]],
        [[-inf, nan, nan, -0.0625, -0]],
    ),
    "reciprocal": (
        pm.reciprocal,
        [[0, nan, 2, inf, -inf]],
        [[-inf, nan, -0.25, -0, -0]],
    ),
    "log": (
        pm.log,
        [[0, nan, -1, 2, inf]],
        [[inf, nan, -1, 0.5, 0]],
    ),
    "log1p": (
        pm.log1p,
        [[-1, nan, -2, 0, inf]],
        [[inf, nan, -1, 1, 0]],
    ),
    "log2": (
        pm.log2,
        [[0, nan, -1, 2, inf]],
        [[inf, nan, -1.442695, 0.7213475, 0]],
    ),
    "exp": (
        pm.exp,
        [[0, nan, -inf, inf]],
        [[1, nan, 0, inf]],
    ),
    "tanh": (
        pm.tanh,
        [[0, nan, -inf, inf, 20]],
        [[1, nan, 0, 0, 0]],
    ),
    "sigmoid": (
        pm.sigmoid,
        [[0, nan, -inf, inf, -100, 100]],
        [[0.25, nan, 0, 0, 0, 0]],
    ),
    "silu": (
        pm.silu,
        [[0, nan, inf, -100, 100, 1e30, -1e30]],
        [[0.5, nan, nan, -0, 1, 1, -0]],
    ),
    "gelu": (
        pm.gelu,
        [[0, nan, -100, 100]],
        [[0.5, nan, 0, 1]],
    ),
    "erf": (
        pm.erf,
        [[0, nan, -inf, inf, 1e30]],
        [[1.128379, nan, 0, 0, 0]],
    ),
    "arcsin": (
        pm.arcsin,
        [[1, -1, 0, nan, 2]],
        [[inf, inf, 1, nan, nan]],
    ),
    "arccos": (
        pm.arccos,
        [[1, -1, 0, nan, 2]],
        [[-inf, -inf, -1, nan, nan]],
    ),
    "arctan": (
        pm.arctan,
        [[0, nan, inf, -inf, 1e30]],
        [[1, nan, 0, 0, 0]],
    ),
    "square": (
        pm.square,
        [[0, nan, inf]],
        [[0, nan, inf]],
    ),
    "sign": (
        pm.sign,
        [[0, nan, 2]],
        [[0, 0, 0]],
    ),
    "round": (
        pm.round,
        [[0.5, nan, 2]],
        [[0, 0, 0]],
    ),
    "floor": (
        pm.floor,
        [[0.5, nan, 2]],
        [[0, 0, 0]],
    ),
    "maximum": (
        pm.maximum,
        [[1, 2, 3, nan, 1, nan, inf, 0], [1, 3, 2, 1, nan, nan, inf, -0]],
        [[0.5, 0, 1, 1, 1, 1, 0.5, 0.5], [0.5, 1, 0, 1, 1, 1, 0.5, 0.5]],
    ),
    "minimum": (
        pm.minimum,
        [[1, 2, 3, nan, 1, nan, -inf, 0], [1, 3, 2, 1, nan, nan, -inf, -0]],
        [[0.5, 1, 0, 1, 1, 1, 0.5, 0.5], [0.5, 0, 1, 1, 1, 1, 0.5, 0.5]],
    ),
    "arctan2": (
        pm.arctan2,
        [[0, 0, 1, 0, nan, 0, -0], [0, 1, 0, -1, 1, nan, -0]],
        [[0, 1, 0, -1, nan, nan, -0], [-0, -0, -1, -0, nan, nan, 0]],
    ),
    "divide": (
        pm.divide,
        [[0, 1, 0, nan, inf], [1, 0, 0, 1, inf]],
        [[1, inf, inf, 1, 0], [-0, -inf, nan, nan, nan]],
    ),
    "mod": (
        pm.mod,
        [[7, -7, 6, nan, 1], [3, 3, 3, 1, nan]],
        [[1, 1, 1, 1, 1], [-2, 3, -2, nan, nan]],
    ),
    "power": (
        pm.power,
        [[0, 0, 0, 0, 0, -2, -2, 2, nan, 2, 1, nan, 0], [0, 1, 2, 0.5, -1, 2, 3, 0, 2, nan, nan, 0, nan]],
        [[0, 1, 0, inf, -inf, -4, 12, 0, nan, nan, nan, 0, nan], [0, 0, 0, 0, -inf, nan, nan, 0.6931472, nan, nan, 0, nan, nan]],
    ),
    "clip": (
        lambda x: pm.clip(x, -1.0, 1.0),
        [[-2, -1, 0, 1, 2, nan, inf]],
        [[0, 1, 1, 1, 0, 0, 0]],
    ),
    "clip low": (
        lambda x: pm.clip(x, -1.0),
        [[-2, -1, 0, nan]],
        [[0, 1, 1, 0]],
    ),
    "clip high": (
        lambda x: pm.clip(x, None, 1.0),
        [[2, 1, 0, nan]],
        [[0, 1, 1, 0]],
    ),
    "where": (
        lambda x, y: pm.where(x > 0.0, x, y),
        [[1, -1, nan, 0], [2, nan, 3, 4]],
        [[1, 0, 0, 0], [0, 1, 1, 1]],
    ),
    "std": (
        lambda x: pm.std(x, -1),
        [[[1, 2, 4], [3, 3, 3], [0, 0, 0], [nan, 1, 2], [inf, 1, 2]]],
        [[[-0.3563483, -0.08908707, 0.4454355], [0, 0, 0], [0, 0, 0], [nan, nan, nan], [nan, nan, nan]]],
    ),
    "std ddof": (
        lambda x: pm.std(x, -1, ddof=1),
        [[[1, 2, 4], [3, 3, 3], [nan, 1, 2]]],
        [[[-0.4364358, -0.1091089, 0.5455447], [0, 0, 0], [nan, nan, nan]]],
    ),
    "var": (
        lambda x: pm.var(x, -1),
        [[[1, 2, 4], [3, 3, 3], [nan, 1, 2]]],
        [[[-0.8888888, -0.2222222, 1.111111], [0, 0, 0], [nan, nan, nan]]],
    ),
    "mean": (
        lambda x: pm.mean(x, -1),
        [[[1, 2, 4], [nan, 1, 2]]],
        [[[0.3333333, 0.3333333, 0.3333333], [0.3333333, 0.3333333, 0.3333333]]],
    ),
    "norm": (
        lambda x: pm.sqrt(pm.sum(pm.square(x), -1)),
        [[[3, 4], [0, 0]]],
        [[[0.6, 0.8], [nan, nan]]],
    ),
    "sort": (
        lambda x: pm.sort(x)[:, 0],
        [[[2, 2, 1], [3, 1, 1]]],
        [[[0, 0, 1], [0, 1, 0]]],
    ),
    "softmax": (
        lambda x: pm.softmax(x)[:, 0],
        [[[0, -inf, 1], [nan, 0, 1], [1000, 0, -1000]]],
        [[[0.1966119, -0, -0.1966119], [nan, nan, nan], [0, -0, -0]]],
    ),
    "log_softmax": (
        lambda x: pm.log_softmax(x)[:, 0],
        [[[0, -5, 1], [nan, 0, 1], [1000, 0, -1000]]],
        [[[0.7315451, -0.001808835, -0.7297362], [nan, nan, nan], [0, 0, 0]]],
    ),
    "max_pool": (
        lambda x: pm.max_pool1d(x, 2, 2),
        [[[[1, 1, 2, 2, nan, 1]]]],
        [[[[1, 0, 1, 0, 1, 0]]]],
    ),
    "sinh": (
        pm.sinh,
        [[0, nan, inf]],
        [[1, nan, inf]],
    ),
    "cosh": (
        pm.cosh,
        [[0, nan, inf]],
        [[0, nan, inf]],
    ),
    "expm1": (
        pm.expm1,
        [[0, nan, inf, -inf]],
        [[1, nan, inf, 0]],
    ),
    "exp2": (
        pm.exp2,
        [[0, nan, inf, -inf]],
        [[0.6931472, nan, inf, 0]],
    ),
    "tan": (
        pm.tan,
        [[0, nan]],
        [[1, nan]],
    ),
    # torch.max and torch.min of all elements, for each row.
    "max": (
        lambda x: pm.max(x, -1),
        [[[1, 3, 3], [2, 2, 2], [nan, 1, 2], [nan, nan, 1], [inf, inf, 0], [-inf, -inf, -inf]]],
        [[[0, 0.5, 0.5], [third, third, third], [1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0], [third, third, third]]],
    ),
    "min": (
        lambda x: pm.min(x, -1),
        [[[1, 3, 1], [nan, 1, 2], [nan, nan, 1], [-inf, -inf, 0]]],
        [[[0.5, 0, 0.5], [1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]]],
    ),
    "max of all": (pm.max, [[nan, 3, nan]], [[0.5, 0, 0.5]]),
}


def _gradient(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    return pm.grad(lambda *args: pm.sum(fn(*args)), argnums=tuple(range(count)))


def _compare(found: Any, want: list[Any]) -> None:
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, np.array(expected, np.float32), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("what", KINKS)
def test_kinks_by_the_reference(what: str) -> None:
    fn, given, want = KINKS[what]
    with np.errstate(all="ignore"):
        _compare(pm.interpret(_gradient(fn, len(given)), *(np.array(a, np.float32) for a in given)), want)


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("what", KINKS)
def test_kinks(what: str, device: str) -> None:
    fn, given, want = KINKS[what]
    arrays = [np.array(a, np.float32) for a in given]
    # Positional arguments by names of their own.
    names = [f"x{i}" for i in range(len(arrays))]
    gradient = _gradient(fn, len(given))
    specs = {name: pm.spec(*a.shape) for name, a in zip(names, arrays, strict=True)}
    with pm.compile(lambda **t: gradient(*t.values()), device=device, **specs) as exe:
        _compare(exe.run(dict(zip(names, arrays, strict=True))), want)
