"""The verifier: each rule of the IR refuses a graph that breaks it, by node, op, shapes, rule and source line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.dims import sym
from pumice.errors import GraphError
from pumice.ir.graph import ConstData, Graph, GraphBuilder, Node
from pumice.ir.types import TensorType
from pumice.ir.verify import verify

T = sym("T")
F = TensorType(dtypes.f32, (2, 3))


def good() -> Graph:
    b = GraphBuilder()
    x = b.source("input", "x", F, where="model.py:1")
    s = b.source("state", "s", F)
    c = b.constant(np.ones((3,), np.float32), dtypes.f32)
    y = b.add("add", [x, c], where="model.py:2")
    z = b.add("transpose", [y], {"perm": (1, 0)}, where="model.py:3")
    return b.build([("z", z)], updates=[(s, y)], captures=[("y", y)], tree="0")


def with_node(i: int, **changes: Any) -> Graph:
    g = good()
    return replace(g, nodes=(*g.nodes[:i], replace(g.nodes[i], **changes), *g.nodes[i + 1 :]))


def test_a_good_graph_passes() -> None:
    g = good()
    assert verify(g) is g
    assert verify(Graph((), ())) == Graph((), ())


def test_symbols_pass_where_the_table_has_them() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (T, 4)))
    g = b.build([("y", b.add("reshape", [x], {"shape": (4 * T,)}))])
    verify(g)
    with pytest.raises(GraphError, match=r"node %0, input 'x': the symbol T is not in the graph's table"):
        verify(replace(g, symbols=()))


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (with_node(3, id=7), "node %7 .* position 3"),
        (with_node(3, inputs=(0, 4)), "reads %4"),
        (with_node(3, inputs=(0, 3)), "reads %3"),
        (with_node(3, inputs=(0, -1)), "reads %-1"),
        (with_node(3, inputs=(0,)), "add of .*takes a, b; 1 were given"),
        (with_node(3, inputs=(0, None)), "operand b is missing"),
        (with_node(3, op="addd"), "no op 'addd'"),
        (with_node(3, type=TensorType(dtypes.f32, (2, 4))), r"recorded as f32\[2,4\], by the op's rule it is f32\[2,3\]"),
        (with_node(3, type=TensorType(dtypes.f16, (2, 3))), r"recorded as f16"),
        (with_node(3, attrs=(("axis", 1),)), "no attribute 'axis'"),
        (with_node(4, attrs=()), "needs the attribute 'perm'"),
        (with_node(4, attrs=(("perm", (1, 0)), ("perm", (1, 0)))), "each once"),
        (with_node(4, attrs=(("perm", "no"),)), "node %4, transpose"),
        (with_node(4, attrs=(("perm", (1, 1)),)), "node %4, transpose"),
        (with_node(0, type=TensorType(dtypes.f32, (-1,))), "-1 in its shape is no size"),
        (with_node(0, type=TensorType(dtypes.f32, (True,))), "True in its shape is no size"),
        (with_node(0, type=TensorType(dtypes.q8_0, (2, 33))), "static multiple of 32"),
        (with_node(0, type=TensorType(dtypes.q8_0, (T,))), "static multiple of 32"),
        (with_node(0, name=""), "needs a name"),
        (with_node(1, name="x"), "taken by the input %0"),
        (with_node(1, inputs=(0,)), "a source has no operands"),
        (with_node(1, attrs=(("a", 1),)), "attributes are a, it takes init"),
        (with_node(0, attrs=(("init", ConstData(b"")),)), "attributes are init, it takes none"),
        (with_node(1, attrs=(("init", ConstData(b"1234")),)), "takes 24 bytes, the attribute init has 4"),
        (with_node(1, attrs=(("init", 0.0),)), "must hold its bytes"),
        (with_node(1, type=TensorType(dtypes.f32, (T,))), "the symbol T is not in the graph's table"),
        (replace(with_node(1, type=TensorType(dtypes.f32, (T,))), symbols=(("T", 4),)), "shape of a state is static"),
        (with_node(1, attrs=(("a", [1]),)), "cannot hold"),
        (with_node(1, attrs=(("a", ((1 << 70),)),)), "over 64 bits"),
        (with_node(1, attrs=(("a", (T,)),)), "T is not in the graph's table"),
        (with_node(2, attrs=()), "must hold its bytes"),
        (with_node(2, attrs=(("data", ConstData(b"123")),)), "takes 12 bytes, the attribute data has 3"),
        (replace(good(), outputs=(("z", 9),)), "output 'z' is %9"),
        (replace(good(), outputs=(("z", -1),)), "output 'z' is %-1"),
        (replace(good(), outputs=(("z", 3), ("z", 4))), "two outputs are named 'z'"),
        (replace(good(), captures=(("c", 5),)), "capture 'c' is %5"),
        (replace(good(), updates=((0, 3),)), "only a state, or a param"),
        (replace(good(), updates=((1, 4),)), r"it is f32\[2,3\], the value %4 for its update is f32\[3,2\]"),
        (replace(good(), updates=((1, 3), (1, 0))), "at most once"),
        (replace(good(), updates=((1, 30),)), "names no node"),
        (replace(good(), symbols=(("T", 1), ("T", 2))), "T is in the table twice"),
        (replace(good(), symbols=(("T", -1),)), "-1 of the symbol T"),
        (replace(good(), tree="{"), "no JSON"),
        (replace(good(), tree="[" * 100_000), "no JSON"),
    ],
)
def test_bad_graphs(graph: Graph, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        verify(graph)


def test_a_refusal_names_everything() -> None:
    with pytest.raises(GraphError) as caught:
        verify(with_node(3, inputs=(0, 1), type=TensorType(dtypes.i32, (2, 3))))
    e = caught.value
    assert e.where == "model.py:2"
    assert e.fields["node"] == 3
    assert e.fields["op"] == "add"
    assert e.fields["shapes"] == ["(2, 3) f32", "(2, 3) f32"]
    assert "i32[2,3]" in e.fields["rule"]
    assert "model.py:2" in str(e)


def test_a_node_that_cannot_broadcast_states_the_rule() -> None:
    nodes = (
        Node(0, "input", (), (), TensorType(dtypes.f32, (2,)), "a"),
        Node(1, "input", (), (), TensorType(dtypes.f32, (3,)), "b"),
        Node(2, "add", (0, 1), (), TensorType(dtypes.f32, (3,)), where="m.py:9"),
    )
    with pytest.raises(GraphError, match=r"add of \(2,\) f32, \(3,\) f32: .*do not broadcast"):
        verify(Graph(nodes, (("y", 2),)))
