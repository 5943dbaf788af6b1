"""with_precision: the precision of all matmuls of a graph."""

from __future__ import annotations

from pumice.core.precisions import Precision, check_precision
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op
from pumice.passes.rebuild import Rebuilder


def with_precision(graph: Graph, precision: Precision) -> Graph:
    """The graph with every op that can be computed in that precision in it, others exact; the same graph if they are.

    >>> import pumice as pm
    >>> g = pm.trace(pm.qmatmul, x=pm.spec(1, 64), w=pm.spec(8, 64, dtype="q4_0"))
    >>> with_precision(g, "fast").nodes[-1].attr, with_precision(g, "exact") is g
    ({'precision': 'fast'}, True)
    """
    check_precision(precision)

    def wanted(n: Node) -> Precision:
        return precision if precision in get_op(n.op).traits.precisions else "exact"

    if all(n.attr["precision"] == wanted(n) for n in graph if "precision" in n.attr):
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if "precision" in n.attr:
            inputs = [None if i is None else r.ids[i] for i in n.inputs]
            r.ids[n.id] = r.add(n.op, inputs, {**n.attr, "precision": wanted(n)}, n.where)
        else:
            r.keep(n)
    return r.finish()
