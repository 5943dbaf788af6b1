"""Nodes with several results, in all that handles graphs without a device; the op is one of this file's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.ad import backward
from pumice.ad.graphs import gradient_graph
from pumice.core import dtypes
from pumice.errors import FormatError, GraphError
from pumice.ir import registry
from pumice.ir.gradient import Backward, Gradients
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.precision import Evaluation
from pumice.ir.registry import OpSpec, Routine
from pumice.ir.text import parse_graph, print_graph
from pumice.ir.types import TensorType
from pumice.ir.verify import verify
from pumice.passes import optimize
from pumice.passes.compose import compose
from pumice.reference.bounds import bound_graph
from pumice.reference.interpreter import evaluate_graph
from pumice.tensor import Tensor

X = np.array([[0.25, -1.5, 3.0], [1.0, 0.0, 2.0]], np.float32)


def _infer(types: Any, attrs: Any) -> tuple[TensorType, ...]:
    (x,) = types
    return x, x, TensorType(dtypes.i32, x.shape)


def _reference(arrays: Any, attrs: Any, out: Any) -> tuple[Any, ...]:
    (x,) = arrays
    assert len(out) == 3
    return np.sin(x), np.cos(x) * attrs["factor"], np.sign(x).astype(np.int32)


def _gradient(c: Backward) -> Gradients:
    x = c.operands["x"]
    of_sine, of_cosine, of_sign = c.dys
    assert of_sign is None
    found = None
    if of_sine is not None:
        found = of_sine * x.op("cos")
    if of_cosine is not None:
        # By its own first result: the rule may use what the node computed.
        term = -(of_cosine * c.out) * c.attrs["factor"]
        found = term if found is None else found + term
    return {"x": found}


def _error(e: Evaluation) -> tuple[Any, ...]:
    return tuple(1e-6 * np.abs(r) for r in e.results)


SPEC = OpSpec(
    "sine_cosine_sign",
    "test",
    "three results",
    ("x",),
    _infer,
    _reference,
    Routine("none"),
    lambda: (),
    {"factor": 1.0},
    gradient=_gradient,
    error=_error,
    results=("sine", "cosine", "sign"),
)


@pytest.fixture(autouse=True)
def op(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry.all_ops()
    monkeypatch.setitem(registry._REGISTRY, SPEC.name, SPEC)
    yield


def example() -> Graph:
    """Uses the first and second result, and the second twice."""
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
    sine, cosine, _ = b.add_all(SPEC.name, [x], {"factor": 2.0})
    return b.build([("sum", b.add("add", [sine, b.add("mul", [cosine, cosine])])), ("cosine", cosine)])


def test_a_node_stands_for_its_first_result_and_results_for_the_others() -> None:
    g = example()
    node = next(n for n in g if n.op == SPEC.name)
    assert node.type == node.results[0] and [str(t) for t in node.results] == ["f32[2,3]", "f32[2,3]", "i32[2,3]"]
    assert [n.attr["index"] for n in g if n.op == "result"] == [1, 2]
    total, cosine = evaluate_graph(g, {"x": X}).outputs
    np.testing.assert_allclose(total, np.sin(X) + 4 * np.cos(X) ** 2, rtol=1e-6)
    np.testing.assert_allclose(cosine, 2 * np.cos(X), rtol=1e-6)


def test_text_names_all_types_and_parses_back() -> None:
    g = verify(example())
    text = print_graph(g)
    assert "%1 : f32[2,3], f32[2,3], i32[2,3] = sine_cosine_sign(%0) {factor=2.0}" in text
    assert "%2 : f32[2,3] = result(%1) {index=1}" in text
    assert parse_graph(text) == g and parse_graph(text).hash == g.hash
    with pytest.raises(FormatError, match="more than 32 results"):
        parse_graph(text.replace("f32[2,3], f32[2,3], i32", "f32[1], " * 40 + "i32"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{index=1}", "{index=3}", "has 3 results, there is no further result 3"),
        ("{index=1}", "{index=0}", "there is no further result 0"),
        ("{index=1}", "{index=True}", "no further result True"),
        ("result(%1) {index=1}", "result(%0) {index=1}", "input has 1 results"),
        ("f32[2,3], f32[2,3], i32[2,3]", "f32[2,3], f32[2,3]", "by the op's rule it is f32[2,3], f32[2,3], i32[2,3]"),
        ("%2 : f32[2,3] = result", "%2 : i32[2,3] = result", "its type is recorded as i32[2,3], by the op's rule it is f32[2,3]"),
        ('%0 : f32[2,3] = input "x"', '%0 : f32[2,3], f32[2,3] = input "x"', "a source has no operands and one result"),
    ],
)
def test_the_verifier_refuses_results_that_are_not_there(old: str, new: str, message: str) -> None:
    text = print_graph(example())
    assert old in text
    with pytest.raises(GraphError) as e:
        verify(parse_graph(text.replace(old, new, 1)))
    assert message in str(e.value)


def test_the_builder_refuses_a_result_that_is_not_there() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2,)))
    with pytest.raises(GraphError, match="input has 1 results, there is no further result 1"):
        b.result(x, 1)


def test_passes_merge_equal_nodes_and_drop_unused_results() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
    one, two = (b.add_all(SPEC.name, [x]) for _ in range(2))
    g = b.build([("y", b.add("add", [one[1], two[1]])), ("z", b.add("add", [one[0], two[0]]))])
    found = verify(optimize(g, check=True))
    assert [n.op for n in found] == ["input", SPEC.name, "result", "add", "add"]
    alone = optimize(b.build([("y", one[2])]))
    assert [n.op for n in alone] == ["input", SPEC.name, "result"]


def test_constant_operands_fold_into_constants_of_all_results() -> None:
    b = GraphBuilder()
    b.source("input", "unused", TensorType(dtypes.f32, (1,)))
    c = b.constant(X, dtypes.f32)
    results = b.add_all(SPEC.name, [c])
    g = optimize(b.build([(str(k), i) for k, i in enumerate(results)]), check=True)
    assert {n.op for n in g} == {"input", "constant"}
    sine, cosine, sign = evaluate_graph(g, {"unused": [0.0]}).outputs
    np.testing.assert_allclose(sine, np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(cosine, np.cos(X), rtol=1e-6)
    np.testing.assert_array_equal(sign, np.sign(X))


def test_an_op_without_a_kernel_is_composed_result_by_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def composed(attrs: Any, operands: Any) -> tuple[Any, ...]:
        x = operands["x"]
        return x.op("sin"), x.op("cos") * attrs["factor"], x.op("sign").cast(dtypes.i32)

    monkeypatch.setitem(registry._REGISTRY, SPEC.name, replace(SPEC, composed=composed, gradient=None))
    g = compose(example(), lambda n: n.op != SPEC.name)
    assert not any(n.op in (SPEC.name, "result") for n in verify(g))
    for got, expected in zip(evaluate_graph(g, {"x": X}).outputs, evaluate_graph(example(), {"x": X}).outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    check_gradient()  # by what it is composed of


def test_bounds_hold_for_each_result() -> None:
    bounds = bound_graph(example(), {"x": X})
    cosine = bounds.outputs[1]
    np.testing.assert_allclose(cosine.high - cosine.value, 2e-6 * np.abs(np.cos(X)), rtol=0.2, atol=1e-7)
    total = bounds.outputs[0]  # moved by the errors of both results
    assert (total.high > total.value).all() and (total.low < total.value).all()


def check_gradient() -> None:
    _, dx = evaluate_graph(gradient_graph(with_loss(), wrt=["x"]), {"x": X}).outputs
    wide = X.astype(np.float64)
    # d/dx of sum(sin + (2 cos)²)
    np.testing.assert_allclose(dx, np.cos(wide) - 8 * np.cos(wide) * np.sin(wide), rtol=1e-5)


def with_loss() -> Graph:
    g = example()
    b = GraphBuilder.of(g)
    return b.build([("loss", b.add("reduce_sum", [g.outputs[0][1]], {"axes": (0, 1)}))])


def test_a_rule_gets_the_gradients_of_all_results() -> None:
    check_gradient()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_gradients_come_for_one_result_alone(index: int) -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
    y = b.add("cast", [b.add_all(SPEC.name, [x])[index]], {"dtype": "f32"})
    loss = b.add("reduce_sum", [y], {"axes": (0, 1)})
    (dx,) = backward(b, loss, [x])
    expected = {0: np.cos(X), 1: -np.sin(X), 2: np.zeros_like(X)}[index]
    np.testing.assert_allclose(evaluate_graph(b.build([("dx", dx)]), {"x": X}).outputs[0], expected, rtol=1e-5, atol=1e-7)


def test_a_gradient_can_be_taken_by_a_further_result() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
    _, cosine, _ = b.add_all(SPEC.name, [x])
    loss = b.add("reduce_sum", [b.add("square", [cosine])], {"axes": (0, 1)})
    d_cosine, dx = backward(b, loss, [cosine, x])
    got = evaluate_graph(b.build([("c", d_cosine), ("x", dx)]), {"x": X}).outputs
    np.testing.assert_allclose(got[0], 2 * np.cos(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], -2 * np.cos(X) * np.sin(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("save", ["nothing", "compute"])
def test_checkpoints_replay_nodes_with_several_results(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._REGISTRY, SPEC.name, replace(SPEC, cost="compute"))

    def results(t: Tensor) -> list[Tensor]:
        return [Tensor(t.tracer, i) for i in t.tracer.builder.add_all(SPEC.name, [t.id])]

    def loss(x: Tensor) -> Tensor:
        outer = x.tracer.builder.add(SPEC.name, [x.id])

        def region(inner: Tensor) -> Tensor:
            sine, cosine, _ = results(inner)
            # Of a node before the region, a result that only the region uses.
            return sine * cosine + Tensor(x.tracer, x.tracer.builder.result(outer, 1))

        return pm.checkpoint(region, save=save)(x * 1.0).sum()

    dx = pm.interpret(pm.grad(loss), X)
    np.testing.assert_allclose(dx, np.cos(2 * X) - np.sin(X), rtol=1e-4, atol=1e-5)
