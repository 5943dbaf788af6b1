"""Gradients of random graphs, with symbolic batches among them, on every target against the oracle."""

from __future__ import annotations

import pytest

from pumice.ad import backward
from pumice.ir.graph import GraphBuilder

from fuzz.random_graphs import Generator
from harness import Case, check


def gradient_of(seed: int) -> Case | None:
    """The gradients of the sum of a random graph's outputs with respect to its inputs."""
    case = Generator(seed).case()
    b = GraphBuilder.of(case.graph)
    terms = []
    for _, i in case.graph.outputs:
        wide = i if b.type(i).dtype.name == "f32" else b.add("cast", [i], {"dtype": "f32"})
        bounded = b.add("tanh", [wide])
        terms.append(b.add("reduce_sum", [bounded], {"axes": tuple(range(b.type(i).rank))}))
    loss = terms[0]
    for t in terms[1:]:
        loss = b.add("add", [loss, t])
    wrt = [n for n in (*case.graph.sources("input"), *case.graph.sources("param")) if n.type.dtype.is_float]
    if not wrt:
        return None
    found = backward(b, loss, [n.id for n in wrt])
    outputs = [(n.name, i) for n, i in zip(wrt, found, strict=True)]
    return Case(b.build(outputs, maxima=case.graph.maxima), case.inputs, case.params)


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_gradients_of_random_graphs(target: str) -> None:
    failures, checked = [], 0
    for seed in range(60 if target == "host" else 12):
        case = gradient_of(seed)
        if case is not None:
            checked += 1
            problem = check(case, target, arena=True, guard=0)
            failures += [f"seed {seed}: {problem}"] if problem else []
    assert checked >= 10
    assert not failures, "\n".join(failures)
