"""Slices, rolls and resizes of symbolic axes that turn out short or empty give what NumPy gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.dims import dim_min, sym
from pumice.errors import ShapeError, SymbolError
from pumice.reference.interpreter import evaluate_graph
from pumice.tensor import Tensor

LENGTHS = (0, 1, 2, 3, 4, 5, 8)
BOUNDS = (None, 0, 2, 3, 5, -2, -3, -5)
SLICES = [slice(a, b, c) for a in BOUNDS for b in BOUNDS for c in (None, 2, -1, -3)]
# A kernel each: devices take fewer of them.
FEWER = [s for s in SLICES if s.start in (None, 2, -3) and s.stop in (None, 2, -3)]
DEVICES = ["host", pytest.param("webgpu", marks=pytest.mark.gpu)]


def _run_at(fn: Callable[[Tensor], Any], device: str, lengths: tuple[int, ...]) -> dict[int, Any]:
    with pm.compile(fn, x=pm.spec("T", 2, max=8), device=device) as exe:
        return {n: exe.run(x=_rows(n)) for n in lengths}


def _rows(n: int) -> Any:
    return np.arange(1, 2 * n + 1, dtype=np.float32).reshape(n, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_slices_clamp_as_in_numpy(device: str) -> None:
    # Sums of squares beside sizes: small results, in which a wrong element or a missing one shows.
    def fn(x: Tensor) -> Any:
        return [((x[s] * x[s]).sum(), pm.asarray(x[s].shape[0])) for s in FEWER]

    for n, found in _run_at(fn, device, LENGTHS).items():
        x = _rows(n)
        for s, (total, size) in zip(FEWER, found, strict=True):
            assert (float(total), int(size)) == (float(np.square(x[s]).sum()), len(x[s])), (n, s)


def test_slices_clamp_in_the_reference_and_keep_their_order() -> None:
    graph = pm.trace(lambda x: [x[s] for s in SLICES], x=pm.spec("T", 2, max=8))
    for n in LENGTHS:
        x = _rows(n)
        for s, got in zip(SLICES, evaluate_graph(graph, {"x": x}).outputs, strict=True):
            np.testing.assert_array_equal(got, x[s], err_msg=f"{n} {s}")


def test_slices_from_either_end_have_equal_sizes() -> None:
    t = sym("T")
    graph = pm.trace(lambda x: (x[-3:], x[:3], x[-3:] + x[:3], x[-1:], x[t - 3 :]), x=pm.spec("T"))
    sizes = [graph.nodes[i].type.shape[0] for _, i in graph.outputs]
    assert sizes == [dim_min(t, 3)] * 3 + [1, 3]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fn", [lambda x: x[-1:], lambda x: x[x.shape[0] - 1 :], lambda x: x[-1]])
def test_the_last_element_of_nothing_is_refused(device: str, fn: Any) -> None:
    with pm.compile(fn, x=pm.spec("T", 2, max=8), device=device) as exe:
        assert exe.run(x=_rows(2)).ravel().tolist() == [3.0, 4.0]
        with pytest.raises(SymbolError, match="out of range"):
            exe.run(x=_rows(0))


SHIFTS = (0, 1, -1, 3, -7, 20)


@pytest.mark.parametrize("device", DEVICES)
def test_roll_of_symbolic_axes(device: str) -> None:
    def fn(x: Tensor) -> Any:
        rolled = [pm.roll(x, k, axis) for k in SHIFTS for axis in (0, 1, None)]
        assert all(r.shape == x.shape for r in rolled)
        # By the dim itself and half of it, beside what it was: shapes are the same expression, so they add.
        return [*rolled, pm.roll(x, x.shape[0] // 2, 0) + x]

    for n, found in _run_at(fn, device, LENGTHS).items():
        x = _rows(n)
        want = [np.roll(x, k, axis) for k in SHIFTS for axis in (0, 1, None)] + [np.roll(x, n // 2, 0) + x]
        for got, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_roll_of_empty_axes(shape: tuple[int, ...]) -> None:
    for axis in (*range(len(shape)), None):
        assert pm.interpret(lambda x, a=axis: pm.roll(x, 2, a), np.zeros(shape, np.float32)).shape == shape


def test_the_gradient_of_a_roll_of_a_symbolic_axis_rolls_back() -> None:
    weights = np.arange(4, dtype=np.float32)
    gradient = pm.grad(lambda x, w: (pm.roll(x, 1) * w).sum())
    with pm.compile(gradient, x=pm.spec("T", max=8), w=pm.spec("T"), device="host") as exe:
        np.testing.assert_array_equal(exe.run(x=weights, w=weights), np.roll(weights, -1))


MODES = [{"mode": "nearest"}, {"mode": "linear"}, {"mode": "linear", "align_corners": True}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", MODES)
def test_upsample_of_an_empty_axis(device: str, options: dict[str, Any]) -> None:
    def both(x: Tensor) -> Any:
        def total(x: Tensor) -> Any:
            y = pm.upsample(x, scale_factor=2, **options)
            return (y * y).sum(), y

        (_, y), gradient = pm.value_and_grad(total, has_aux=True)(x)
        return y, gradient

    with pm.compile(both, x=pm.spec(1, 2, "T", max=4), device=device) as exe:
        assert [a.shape for a in exe.run(x=np.zeros((1, 2, 0)))] == [(1, 2, 0), (1, 2, 0)]
        assert [a.shape for a in exe.run(x=np.zeros((1, 2, 3)))] == [(1, 2, 6), (1, 2, 3)]
    with pm.compile(both, x=pm.spec(1, 2, 0), device=device) as exe:
        assert [a.shape for a in exe.run(x=np.zeros((1, 2, 0)))] == [(1, 2, 0), (1, 2, 0)]


def test_upsample_needs_an_element_to_take_from() -> None:
    with pytest.raises(ShapeError, match=r"\(0,\) does not resize to \(3,\)"):
        pm.trace(lambda x: pm.upsample(x, size=3), x=pm.spec(1, 2, 0))
    with pytest.raises(ShapeError, match=r"\(3,\) does not resize to \(0,\)"):
        pm.trace(lambda x: pm.upsample(x, size=0), x=pm.spec(1, 2, 3))
    exe = pm.compile(lambda x: pm.upsample(x, size=3), x=pm.spec(1, 2, "T", max=4), device="host")
    with exe, pytest.raises(SymbolError, match="upsample takes from axis 2"):
        exe.run(x=np.zeros((1, 2, 0)))
