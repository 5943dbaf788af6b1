"""compose: ops that a target has no kernel for, written in ops that every target has."""

from __future__ import annotations

from collections.abc import Callable

from pumice.ir.gradient import Val, compose_op
from pumice.ir.graph import Graph, GraphBuilder, Node
from pumice.passes.rebuild import Rebuilder


def compose(graph: Graph, has_kernel: Callable[[Node], bool]) -> Graph:
    """The graph with composed ops expanded, except those with a kernel."""
    replaced = {n.id for n in graph if n.spec.composed is not None and not has_kernel(n)}
    if not replaced:
        return graph
    r, builder = Rebuilder(graph), GraphBuilder()
    builder.nodes = r.nodes  # both append to one list
    results: dict[int, tuple[Val, ...]] = {}
    for n in graph:
        if n.id in replaced:
            operands = {name: Val(builder, r.ids[i], n.where) for name, i in n.operands.items()}
            results[n.id] = compose_op(n, operands)
            r.ids[n.id] = results[n.id][0].id
        elif n.op == "result" and n.args[0] in replaced:
            r.ids[n.id] = results[n.args[0]][n.attr["index"]].id
        else:
            r.keep(n)
    return r.finish()
