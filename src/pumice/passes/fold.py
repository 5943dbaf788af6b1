"""Constant folding: ops on constants become constants, where that does not make them larger."""

from __future__ import annotations

import numpy as np

from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Array, get_op
from pumice.passes.rebuild import Rebuilder
from pumice.reference.interpreter import evaluate_node

_SMALL = 64  # elements; above it a fold must not enlarge what it replaces


def fold(graph: Graph) -> Graph:
    """The graph with constant subgraphs evaluated by the reference."""
    r = Rebuilder(graph)
    known: dict[int, Array] = {}
    folded: dict[int, tuple[Array, ...]] = {}  # of nodes with several results, by old id
    for n in graph:
        if n.op == "result" and n.args[0] in folded:
            value: Array | None = folded[n.args[0]][n.attr["index"]]
        else:
            results = _fold_node(n, known, r)
            value = None if results is None else results[0]
            if results is not None and n.further:
                folded[n.id] = results
        if value is None:
            new = r.keep(n)
            if n.op == "constant" and not n.type.dtype.is_quant:
                known[new] = n.attr["data"].array(n.type.dtype.np, n.type.static_shape)
        else:
            r.ids[n.id] = r.constant(value, n.type, n.where)
            known[r.ids[n.id]] = value
    return r.finish()


def _fold_node(n: Node, known: dict[int, Array], r: Rebuilder) -> tuple[Array, ...] | None:
    if not n.inputs:
        return None
    arrays: list[Array] = []
    for i in n.inputs:
        array = None if i is None else known.get(r.ids[i])
        if array is None:
            return None
        arrays.append(array)
    if n.op == "result" or get_op(n.op).family == "random" or not all(t.is_static for t in n.results):
        return None
    size = sum(int(np.prod(t.static_shape, dtype=np.int64)) for t in n.results)
    if size > max(_SMALL, sum(a.size for a in arrays)):
        return None
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays]
    with np.errstate(all="ignore"):
        found = evaluate_node(n, wide, {})
    return tuple(a.astype(t.dtype.np) for a, t in zip(found, n.results, strict=True))
