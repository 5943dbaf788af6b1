"""with_precision: the precision of all matmuls with quantised weights of a graph."""

from __future__ import annotations

from pumice.core.precisions import Precision, check_precision
from pumice.ir.graph import Graph
from pumice.passes.rebuild import Rebuilder


def with_precision(graph: Graph, precision: Precision) -> Graph:
    """The graph with every matmul of quantised weights in that precision; the same graph if they have it.

    >>> import pumice as pm
    >>> g = pm.trace(pm.qmatmul, x=pm.spec(1, 64), w=pm.spec(8, 64, dtype="q4_0"))
    >>> with_precision(g, "fast").nodes[-1].attr, with_precision(g, "exact") is g
    ({'precision': 'fast'}, True)
    """
    check_precision(precision)
    if all(n.attr.get("precision", precision) == precision for n in graph):
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if "precision" in n.attr:
            r.ids[n.id] = r.add(n.op, [r.ids[i] for i in n.args], {**n.attr, "precision": precision}, n.where)
        else:
            r.keep(n)
    return r.finish()
