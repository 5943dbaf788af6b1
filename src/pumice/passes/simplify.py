"""Algebraic clean-up: identities and chains of views that trace code leaves behind."""

from __future__ import annotations

from typing import Any

from pumice.core.dims import Dim
from pumice.ir.graph import Graph, Node
from pumice.passes.rebuild import Rebuilder


def simplify(graph: Graph) -> Graph:
    """The graph without neutral arithmetic, identity views and repeated views."""
    r = Rebuilder(graph)
    for n in graph:
        same = _same_as(n, r)
        if same is not None:
            r.ids[n.id] = same
        elif not _merge_with_producer(n, r):
            r.keep(n)
    return r.finish()


def _scalar(r: Rebuilder, new: int) -> Any:
    n = r.nodes[new]
    if n.op != "constant" or n.type.numel != 1:
        return None
    return n.attr["data"].array(n.type.dtype.np, ()).item()


def _same_as(n: Node, r: Rebuilder) -> int | None:
    """The new id of an operand that already is this node's value."""
    traits = n.spec.traits
    for name, neutral in traits.neutral.items():
        (other,) = (r.ids[i] for operand, i in n.operands.items() if operand != name)
        if r.nodes[other].type == n.type and _scalar(r, r.ids[n.operands[name]]) == neutral:
            return other
    if not n.args:
        return None
    source = r.ids[n.args[0]]
    if n.op == "slice" and r.nodes[source].op == "concat":
        return _part_of(n, r.nodes[source], r)
    same = traits.unchanged is not None and r.nodes[source].type == n.type and traits.unchanged(n.attr)
    return source if same else None


def _part_of(n: Node, concat: Node, r: Rebuilder) -> int | None:
    """The operand of a concat that a slice takes as a whole."""
    axis = concat.attr["axis"]
    start: Dim = 0
    for part in concat.args:
        t = r.nodes[part].type
        if n.attr["starts"][axis] == start and t == n.type and all(k == 1 for k in n.attr["steps"]):
            return part
        start = start + t.shape[axis]
    return None


def _merge_with_producer(n: Node, r: Rebuilder) -> bool:
    """Two reshapes, transposes or expands in a row are one, or none."""
    traits = n.spec.traits
    if traits.merged is None:
        return False
    producer = r.nodes[r.ids[n.args[0]]]
    if producer.op != n.op:
        return False
    attrs = traits.merged(producer.attr, n.attr)
    if traits.unchanged is not None and r.nodes[producer.args[0]].type == n.type and traits.unchanged(attrs):
        r.ids[n.id] = producer.args[0]
    else:
        r.ids[n.id] = r.add(n.op, producer.inputs, attrs, n.where)
    return True
