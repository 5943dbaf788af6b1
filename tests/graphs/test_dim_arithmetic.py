"""Arithmetic of symbolic dims: with integers it gives dims, with anything else traced scalars, and never a cut value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.dims import Expr, sym
from pumice.errors import DTypeError, GraphError, PumiceError, ShapeError, SymbolError
from pumice.reference.interpreter import evaluate_graph
from pumice.tensor import Tensor

T = 5
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OTHERS: dict[str, Any] = {
    "int": 3,
    "float": 2.5,
    "np.int64": np.int64(3),
    "np.int32": np.int32(2),
    "np.uint8": np.uint8(3),
    "np.float64": np.float64(1.5),
    "np.float32": np.float32(0.5),
    "np.float16": np.float16(2.5),
    "bool": True,
    "ints": np.array([1, 2, 3], np.int32),
    "floats": np.array([[0.5], [2.0]], np.float32),
    "tensor": "x",
    "int tensor": "n",
    "dim": "dim",
}
DIMS = ("int", "np.int64", "np.int32", "np.uint8", "bool", "dim")
STAYS_A_DIM = ("+", "-", "*", "//", "%")


def _combinations() -> list[tuple[str, str, bool]]:
    return [(o, k, left) for o in OPERATORS for k in OTHERS for left in (True, False)]


def _apply(op: str, other: Any, dim: Any, left: bool) -> Any:
    return OPERATORS[op](dim, other) if left else OPERATORS[op](other, dim)


def _expected(op: str, kind: str, left: bool, x: Any, n: Any) -> Any:
    given = {"x": x.astype(np.float64), "n": n.astype(np.int64), "dim": 2 * T + 1}
    other = OTHERS[kind]
    other = given[other] if isinstance(other, str) else other
    wide = np.asarray(other).astype(np.float64) if np.asarray(other).dtype.kind == "f" else other
    return _apply(op, wide, T, left) if kind not in DIMS else _apply(op, int(other), T, left)


def _program(x: Tensor, n: Tensor) -> dict[str, Any]:
    dim = x.shape[0]
    values = {"x": x, "n": n, "dim": dim * 2 + 1}
    found = {}
    for op, kind, left in _combinations():
        other = OTHERS[kind]
        other = values[other] if isinstance(other, str) else other
        result = _apply(op, other, dim, left)
        if op in STAYS_A_DIM and kind in DIMS:
            assert isinstance(result, int | Expr), (op, kind, left)
        found[f"{op} {kind} {left}"] = result
    return found


X, N = np.linspace(0.5, 4.0, T).astype(np.float32), np.array([1, 2, 3, 4, 7], np.int32)


def _check(found: dict[str, Any]) -> None:
    for (op, kind, left), got in zip(_combinations(), found.values(), strict=True):
        want = np.asarray(_expected(op, kind, left, X, N))
        # f16 scalars keep their dtype, as everywhere.
        tolerance = 2e-3 if kind == "np.float16" else 1e-6
        assert np.shape(got) == want.shape, (op, kind, left)
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, err_msg=f"{op} {kind} {left}")


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_every_operator_on_either_side(device: str) -> None:
    with pm.compile(_program, x=pm.spec("T", max=8), n=pm.spec("T", dtype="i32"), device=device) as exe:
        _check(exe.run(x=X, n=N))


def test_every_operator_by_the_reference() -> None:
    graph = pm.trace(_program, x=pm.spec("T", max=8), n=pm.spec("T", dtype="i32"))
    results = evaluate_graph(graph, {"x": X, "n": N}).outputs
    _check({name: r for (name, _), r in zip(graph.outputs, results, strict=True)})


def _ask(fn: Callable[[Any, Tensor], Any]) -> Callable[[], Any]:
    return lambda: pm.trace(lambda x: fn(x.shape[0], x), x=pm.spec("T"))


# Each asks for a number, or for a shape that is no whole number: what is raised, and what the hint must name.
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], type[PumiceError], str]] = {
    "float()": (lambda t, x: float(t), SymbolError, "pm.asarray"),
    "int()": (lambda t, x: int(t), SymbolError, "pm.asarray"),
    "range": (lambda t, x: range(t), SymbolError, "pm.arange"),
    "list": (lambda t, x: [0] * t, SymbolError, "pm.arange"),
    "math.sqrt": (lambda t, x: math.sqrt(t), SymbolError, "pm.asarray"),
    "np.zeros": (lambda t, x: np.zeros(t), SymbolError, "pm."),
    "np.asarray": (lambda t, x: np.asarray(t), SymbolError, "pm.asarray"),
    "NumPy index": (lambda t, x: np.arange(9)[:t], SymbolError, "pm.arange"),
    "if": (lambda t, x: 1 if t else 2, SymbolError, "pm.where"),
    "if less": (lambda t, x: 1 if t < 3 else 2, GraphError, "pm.where"),
    "max()": (lambda t, x: max(t, 3), GraphError, "pm.where"),
    "// 0": (lambda t, x: t // 0, SymbolError, ""),
    "% 0": (lambda t, x: t % 0, SymbolError, ""),
    "zeros of a float": (lambda t, x: pm.zeros((t * 1.5,)), ShapeError, "//"),
    "zeros of a quotient": (lambda t, x: pm.zeros((t / 2,)), ShapeError, "//"),
    "reshape": (lambda t, x: x.reshape(t / 2, 2), ShapeError, "//"),
    "slice": (lambda t, x: x[: t * 0.5], ShapeError, "//"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_asking_for_a_number_says_what_to_do(what: str) -> None:
    fn, error, hint = REFUSED[what]
    with pytest.raises(error) as e:
        _ask(fn)()
    assert hint in e.value.hint


def test_without_a_trace_there_is_no_scalar() -> None:
    with pytest.raises(GraphError, match="no trace in progress"):
        _ = sym("T") * 0.5


def test_powers_of_dims_are_dims() -> None:
    t = sym("T")
    assert t**2 == t * t
    assert t**0 == 1
    assert +t is t
    assert divmod(t * 4 + 2, 2) == (t * 2 + 1, 0)


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_powers_that_integers_cannot_hold_are_floats(device: str) -> None:
    def fn(x: Tensor) -> Any:
        t = x.shape[0]
        return t**-1, 2**-t, 2**t, t**9, t ** np.int64(-2)

    with pm.compile(fn, x=pm.spec("T", max=64), device=device) as exe:
        for t in (1, 5, 40):
            np.testing.assert_allclose(exe.run(x=np.zeros(t)), [t**-1, 2.0**-t, 2**t, t**9, t**-2], rtol=2e-6)


NEGATIVE = {
    "zeros": (lambda x: pm.zeros((x.shape[0] - 7,)), "expand makes axis 0 of size T-7, which is negative"),
    "sum of ones": (lambda x: pm.ones((2, x.shape[0] - 7)).sum(), "expand makes axis 1"),
    "pad before": (lambda x: pm.pad(x, ((x.shape[0] - 7, 0),)), "pad adds before axis 0"),
    "pad after": (lambda x: pm.pad(x, ((0, 4 * x.shape[0] - 28),)), "pad adds after axis 0"),
}


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("what", NEGATIVE)
def test_negative_sizes_are_refused_when_it_runs(what: str, device: str) -> None:
    fn, why = NEGATIVE[what]
    with pm.compile(fn, x=pm.spec("T", max=9), device=device) as exe:
        for t in (7, 9):
            np.testing.assert_array_equal(exe.run(x=np.zeros(t)), pm.interpret(fn, np.zeros(t)))
        with pytest.raises(SymbolError, match=why):
            exe.run(x=np.zeros(5))


def test_floats_equal_to_ints_do_not_meet_them_in_a_cache() -> None:
    def fn(x: Tensor) -> Any:
        t = x.shape[0]
        assert isinstance(t + 2, Expr)
        assert isinstance(t + 2.0, Tensor)
        assert isinstance(t * True, Expr)
        return t * 3.0, t * 3

    with pm.compile(fn, x=pm.spec("T", max=8), device="host") as exe:
        assert [r.dtype.name for r in exe.run(x=np.zeros(4))] == ["float32", "int32"]


def test_asarray_is_a_dims_value() -> None:
    def fn(x: Tensor) -> Any:
        return pm.asarray(x.shape[0]), pm.asarray(x.shape[0], "f16"), pm.asarray(x), pm.asarray([1, 2])

    with pm.compile(fn, x=pm.spec("T", max=8), device="host") as exe:
        found = exe.run(x=np.ones(3))
    assert [(a.dtype.name, a.tolist()) for a in found] == [
        ("int32", 3),
        ("float16", 3.0),
        ("float32", [1.0, 1.0, 1.0]),
        ("int32", [1, 2]),
    ]


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_values_beyond_32_bits_are_refused_when_it_runs(device: str) -> None:
    def fn(x: Tensor) -> Any:
        t = x.shape[0]
        return x + t * 2**30, pm.arange(t * -(2**30), t * -(2**30) + t)

    with pm.compile(fn, x=pm.spec("T", max=8), device=device) as exe:
        total, counted = exe.run(x=np.zeros(1))
        assert total == [2.0**30] and counted == [-(2**30)]
        with pytest.raises(SymbolError, match=r"i32.*out of range"):
            exe.run(x=np.zeros(3))


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["i8", "u8", "u32"])
def test_a_dim_takes_the_dtype_of_an_integer_tensor_or_is_refused(dtype: str, device: str) -> None:
    def fn(x: Tensor) -> Any:
        return x + (x.shape[0] - 2) * 100

    with pm.compile(fn, x=pm.spec("T", dtype=dtype, max=8), device=device) as exe:
        kind = exe.graph.nodes[0].type.dtype.np
        assert exe.run(x=np.ones(3, kind)).tolist() == [101] * 3
        refused = 1 if dtype == "u32" else 5
        with pytest.raises(SymbolError, match=f"a value of {dtype}, which is out of range"):
            exe.run(x=np.ones(refused, kind))


def test_a_range_beyond_its_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match="256 does not fit u8"):
        pm.trace(lambda x: x + pm.arange(250, 257, dtype="u8"), x=pm.spec(7, dtype="u8"))
