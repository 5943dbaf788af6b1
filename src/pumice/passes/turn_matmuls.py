"""turn_matmuls: a matmul that is only read transposed computes its transpose, from transposed operands."""

from __future__ import annotations

from pumice.ir.graph import Graph, Node
from pumice.passes.rebuild import Rebuilder

_TURNED = (1, 0)


def turn_matmuls(graph: Graph) -> Graph:
    """The graph in which (a b)ᵀ is bᵀ aᵀ.

    The gradient of a weight that a layer reads transposed is such a matmul. Its operands are views, which a target that reads
    them through strides has for nothing, while each of its readers would have to walk across the rows of the result.
    """
    readers: dict[int, set[int]] = {}
    for n in graph:
        for a in n.args:
            readers.setdefault(a, set()).add(n.id)
    kept = {i for _, i in (*graph.outputs, *graph.updates, *graph.captures)}
    turned = {n.id for n in graph if _is_turn(n) and _is_own(graph.nodes[n.args[0]], readers, kept)}
    if not turned:
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if n.id not in turned:
            r.keep(n)
            continue
        matmul = r.nodes[r.ids[n.args[0]]]
        left, right = (r.add("transpose", [a], {"perm": _TURNED}, n.where) for a in reversed(matmul.args))
        r.ids[n.id] = r.add("matmul", [left, right], matmul.attr, matmul.where)
    return r.finish()


def _is_turn(n: Node) -> bool:
    return n.op == "transpose" and tuple(n.attr["perm"]) == _TURNED


def _is_own(n: Node, readers: dict[int, set[int]], kept: set[int]) -> bool:
    """Whether a node is a matmul of two matrices that has one reader."""
    return n.op == "matmul" and n.type.rank == 2 and len(readers[n.id]) == 1 and n.id not in kept
