"""Dead code elimination: drops what no output, capture or state update needs."""

from __future__ import annotations

from pumice.ir.graph import Graph
from pumice.passes.rebuild import Rebuilder


def dce(graph: Graph) -> Graph:
    """The graph without unused nodes; inputs, params and states stay, they are its signature."""
    live = set(graph.roots) | {n.id for n in graph if n.op in ("input", "param", "state")}
    for n in reversed(graph.nodes):
        if n.id in live:
            live.update(n.args)
    if len(live) == len(graph):
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if n.id in live:
            r.keep(n)
    return r.finish()
