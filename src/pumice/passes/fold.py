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
    for n in graph:
        value = _fold_node(n, known, r)
        if value is None:
            new = r.keep(n)
            if n.op == "constant" and not n.type.dtype.is_quant:
                known[new] = n.attr["data"].array(n.type.dtype.np, n.type.static_shape)
        else:
            r.ids[n.id] = r.constant(value, n.type, n.where)
            known[r.ids[n.id]] = value
    return r.finish()


def _fold_node(n: Node, known: dict[int, Array], r: Rebuilder) -> Array | None:
    if not n.args or None in n.inputs or not n.type.is_static or get_op(n.op).family == "random":
        return None
    arrays = [known.get(r.ids[i]) for i in n.args]
    if any(a is None for a in arrays):
        return None
    size = int(np.prod(n.type.static_shape, dtype=np.int64))
    if size > max(_SMALL, sum(a.size for a in arrays if a is not None)):
        return None
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays if a is not None]
    with np.errstate(all="ignore"):
        return evaluate_node(n, wide, {}).astype(n.type.dtype.np)
