"""turn_matmuls: which matmuls compute their transpose, and that nothing else changes."""

from __future__ import annotations

import numpy as np

import pumice as pm
from pumice.core.caps import Caps
from pumice.passes import optimize
from pumice.passes.turn_matmuls import turn_matmuls
from pumice.plan.build import build_plan
from pumice.reference.interpreter import evaluate_graph


def _ops(graph: pm.Graph) -> list[str]:
    return [n.op for n in graph if n.op not in ("input", "param")]


def test_the_gradient_of_a_weight_is_computed_as_it_is_read() -> None:
    def loss(w: pm.Tensor, x: pm.Tensor) -> pm.Tensor:
        return pm.sum(pm.tanh(x @ pm.transpose(w)))

    graph = optimize(pm.trace(pm.grad(loss), w=pm.spec(3, 5), x=pm.spec(7, 5)))
    turned = optimize(turn_matmuls(graph))
    last = turned.nodes[turned.outputs[0][1]]
    assert last.op == "matmul" and turned.nodes[last.args[0]].op == "transpose" and turned.nodes[last.args[1]].op == "input"
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(3, 5)).astype("f4"), "x": rng.normal(size=(7, 5)).astype("f4")}
    np.testing.assert_allclose(*(evaluate_graph(g, arrays).outputs[0] for g in (graph, turned)), rtol=1e-6)


def test_a_matmul_with_another_reader_stays() -> None:
    def both(a: pm.Tensor, b: pm.Tensor) -> tuple[pm.Tensor, pm.Tensor]:
        y = a @ b
        return pm.transpose(y), y

    def read_twice(a: pm.Tensor, b: pm.Tensor) -> pm.Tensor:
        y = a @ b
        return pm.transpose(y) + pm.sum(y)

    for f in (both, read_twice):
        graph = optimize(pm.trace(f, a=pm.spec(3, 5), b=pm.spec(5, 4)))
        assert turn_matmuls(graph) is graph


def test_a_batch_of_matmuls_stays() -> None:
    graph = optimize(pm.trace(lambda a, b: pm.transpose(a @ b, (0, 2, 1)), a=pm.spec(2, 3, 5), b=pm.spec(2, 5, 4)))
    assert turn_matmuls(graph) is graph


def test_only_the_host_turns_them() -> None:
    graph = pm.trace(lambda a, b: pm.transpose(a @ b) + 1.0, a=pm.spec(3, 5), b=pm.spec(5, 4))
    found = {name: _ops(build_plan(graph, Caps.preset(name)).graph) for name in ("host", "browser-baseline")}
    assert found["host"].count("transpose") == 2 and found["browser-baseline"].count("transpose") == 1
