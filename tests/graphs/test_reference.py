"""The reference interpreter: precision, state, captures, quantised params, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dims import sym
from pumice.errors import DTypeError, MissingName, ShapeError, SymbolError, UnknownName
from pumice.ir.graph import ConstData, Graph, GraphBuilder
from pumice.ir.types import TensorType
from pumice.reference import evaluate_graph

T = sym("T")


def unary(op: str, dtype: dtypes.DType, *shape: int) -> Graph:
    b = GraphBuilder()
    return b.build([("y", b.add(op, [b.source("input", "x", TensorType(dtype, shape))]))])


def test_f32_nodes_keep_float64() -> None:
    x = np.float32([0.1, 2.5])
    (y,) = evaluate_graph(unary("exp", dtypes.f32, 2), {"x": x}).outputs
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=1e-15)


def test_inputs_are_rounded_to_their_dtype_first() -> None:
    (y,) = evaluate_graph(unary("neg", dtypes.f32, 1), {"x": np.float64([0.1])}).outputs
    assert y[0] == -float(np.float32(0.1))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
def test_half_floats_round_at_every_node(dtype: dtypes.DType) -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtype, (3,)))
    y = b.add("mul", [b.add("mul", [x, x]), x])
    a = np.float32([1.1, 3.3, -0.7]).astype(dtype.np)
    (got,) = evaluate_graph(b.build([("y", y)]), {"x": a}).outputs
    wide = a.astype(np.float64)
    expected = ((wide * wide).astype(dtype.np).astype(np.float64) * wide).astype(dtype.np).astype(np.float64)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, expected)


def test_overflow_is_a_result_and_warns_not() -> None:
    (y,) = evaluate_graph(unary("square", dtypes.f16, 2), {"x": np.float16([60000, np.nan])}).outputs
    np.testing.assert_array_equal(y, [np.inf, np.nan])


def test_integers_stay_in_their_dtype() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.u8, (2,)))
    (y,) = evaluate_graph(b.build([("y", b.add("add", [x, x]))]), {"x": np.uint8([200, 1])}).outputs
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(y, [144, 2])


def test_symbols_come_from_shapes_or_are_given() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (T, 2)))
    g = b.build([("y", b.add("reshape", [x], {"shape": (2 * T,)}))])
    for n in (0, 1, 5):
        a = np.arange(2.0 * n).reshape(n, 2)
        np.testing.assert_array_equal(evaluate_graph(g, {"x": a}).outputs[0], a.ravel())
        np.testing.assert_array_equal(evaluate_graph(g, {"x": a}, env={"T": n}).outputs[0], a.ravel())
    with pytest.raises(ShapeError, match="'x' must have shape"):
        evaluate_graph(g, {"x": np.zeros((3, 2))}, env={"T": 4})
    with pytest.raises(SymbolError, match="over its maximum"):
        evaluate_graph(Graph(g.nodes, g.outputs, symbols=(("T", 2),)), {"x": np.zeros((3, 2))})


def test_state_reads_before_and_updates_after() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2,)))
    s = b.source("state", "sum", TensorType(dtypes.f32, (2,)))
    other = b.source("state", "other", TensorType(dtypes.i32, (1,)))
    total = b.add("add", [s, x])
    g = b.build([("before", s), ("total", total)], updates=[(s, total)], captures=[("x again", x), ("other", other)])
    first = evaluate_graph(g, {"x": [1, 2]})
    assert [o.tolist() for o in first.outputs] == [[0, 0], [1, 2]]
    assert first.captures["x again"].tolist() == [1, 2]
    second = evaluate_graph(g, {"x": [10, 10]}, state=first.state)
    assert second.outputs[0].tolist() == [1, 2]
    assert second.state["sum"].tolist() == [11, 12]
    assert second.state["other"].tolist() == [0]


def test_state_starts_with_its_initial_value() -> None:
    b = GraphBuilder()
    init = ConstData.of(np.float16([1.5, -2]))
    s = b.source("state", "s", TensorType(dtypes.f16, (2,)), attrs={"init": init})
    g = b.build([("s", s)], updates=[(s, b.add("neg", [s]))])
    first = evaluate_graph(g, {})
    assert first.outputs[0].tolist() == [1.5, -2]
    assert evaluate_graph(g, {}, state=first.state).outputs[0].tolist() == [-1.5, 2]


@pytest.mark.parametrize("dtype", dtypes.QUANT)
def test_quantised_params_are_block_bytes(dtype: dtypes.DType) -> None:
    k = 2 * dtype.block
    w = np.random.default_rng(0).standard_normal((4, k)).astype(np.float32)
    packed = quantize_rows(dtype, w)
    b = GraphBuilder()
    p = b.source("param", "w", TensorType(dtype, (4, k)))
    x = b.source("input", "x", TensorType(dtypes.f32, (k,)))
    c = b.constant(np.float32(2), dtypes.f32)
    y = b.add("mul", [b.add("qmatmul", [x, p]), c])
    g = b.build([("y", y), ("w", p)])
    a = np.linspace(-1, 1, k, dtype=np.float32)
    result = evaluate_graph(g, {"x": a}, {"w": packed})
    expected = 2 * dequantize_rows(dtype, packed, k).astype(np.float64) @ a.astype(np.float64)
    np.testing.assert_allclose(result.outputs[0], expected, rtol=1e-12)
    np.testing.assert_array_equal(result.outputs[1], packed)
    np.testing.assert_array_equal(evaluate_graph(g, {"x": a}, {"w": packed.ravel()}).outputs[0], result.outputs[0])
    with pytest.raises(DTypeError, match="block bytes as uint8"):
        evaluate_graph(g, {"x": a}, {"w": w})
    with pytest.raises(ShapeError, match="takes the bytes"):
        evaluate_graph(g, {"x": a}, {"w": packed[:2]})


def test_values_on_request() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2,)))
    unused = b.add("exp", [x])
    y = b.add("neg", [b.add("neg", [x])])
    g = b.build([("y", y)])
    assert evaluate_graph(g, {"x": [1, 2]}).values is None
    values = evaluate_graph(g, {"x": [1, 2]}, keep_values=True).values
    assert values is not None
    assert len(values) == len(g)
    np.testing.assert_allclose(values[unused], np.exp([1, 2]))


def test_names_are_checked() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2,)))
    w = b.source("param", "w", TensorType(dtypes.f32, (2,)))
    g = b.build([("y", b.add("add", [x, w]))])
    a = np.zeros(2, np.float32)
    with pytest.raises(MissingName, match="input 'x' was not given"):
        evaluate_graph(g, {}, {"w": a})
    with pytest.raises(MissingName, match="param 'w' was not given"):
        evaluate_graph(g, {"x": a})
    with pytest.raises(UnknownName, match="no input 'z'"):
        evaluate_graph(g, {"x": a, "z": a}, {"w": a})
    with pytest.raises(UnknownName, match="no state 's'"):
        evaluate_graph(g, {"x": a}, {"w": a}, {"s": a})
    with pytest.raises(ShapeError, match="param 'w' must have shape"):
        evaluate_graph(g, {"x": a}, {"w": np.zeros(3)})
