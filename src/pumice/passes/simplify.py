"""Algebraic clean-up: identities and chains of views that trace code leaves behind."""

from __future__ import annotations

from typing import Any

from pumice.core.dims import Dim
from pumice.ir.graph import Graph, Node
from pumice.passes.rebuild import Rebuilder

# op → (position of the operand that may be neutral, neutral value)
_NEUTRAL = {
    "add": ((0, 0.0), (1, 0.0)),
    "sub": ((1, 0.0),),
    "mul": ((0, 1.0), (1, 1.0)),
    "div": ((1, 1.0),),
    "pow": ((1, 1.0),),
}


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
    if n.op in _NEUTRAL:
        for position, neutral in _NEUTRAL[n.op]:
            other = r.ids[n.args[1 - position]]
            if r.nodes[other].type == n.type and _scalar(r, r.ids[n.args[position]]) == neutral:
                return other
        return None
    if not n.args:
        return None
    source = r.ids[n.args[0]]
    if n.op == "slice" and r.nodes[source].op == "concat":
        return _part_of(n, r.nodes[source], r)
    if r.nodes[source].type != n.type:
        return None
    if n.op in ("reshape", "expand", "cast", "stop_gradient", "mark"):
        return source
    if n.op == "transpose" and n.attr["perm"] == tuple(range(n.type.rank)):
        return source
    if n.op == "slice" and all(s == 0 for s in n.attr["starts"]) and all(k == 1 for k in n.attr["steps"]):
        return source
    if n.op == "flip" and not n.attr["axes"]:
        return source
    if n.op == "pad" and not any(n.attr["lo"]) and not any(n.attr["hi"]):
        return source
    return None


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
    """Two reshapes, transposes or expands in a row are one."""
    if n.op not in ("reshape", "transpose", "expand"):
        return False
    producer = r.nodes[r.ids[n.args[0]]]
    if producer.op != n.op:
        return False
    attrs = dict(n.attr)
    if n.op == "transpose":
        attrs["perm"] = tuple(producer.attr["perm"][p] for p in n.attr["perm"])
        if attrs["perm"] == tuple(range(n.type.rank)):
            r.ids[n.id] = producer.args[0]
            return True
    if n.op == "reshape" and r.nodes[producer.args[0]].type == n.type:
        r.ids[n.id] = producer.args[0]
        return True
    r.ids[n.id] = r.add(n.op, producer.inputs, attrs, n.where)
    return True
