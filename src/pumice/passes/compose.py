"""compose: ops that a target has no kernel for, written in ops that every target has."""

from __future__ import annotations

from collections.abc import Callable

from pumice.ir.gradient import Val
from pumice.ir.graph import Graph, GraphBuilder, Node
from pumice.ir.registry import get_op
from pumice.passes.rebuild import Rebuilder


def compose(graph: Graph, has_kernel: Callable[[Node], bool]) -> Graph:
    """The graph without ops that say what they are composed of, but for those with a kernel."""
    replaced = {n.id for n in graph if get_op(n.op).composed is not None and not has_kernel(n)}
    if not replaced:
        return graph
    r, builder = Rebuilder(graph), GraphBuilder()
    builder.nodes = r.nodes  # both append to one list
    for n in graph:
        made = get_op(n.op).composed
        if n.id not in replaced or made is None:
            r.keep(n)
        else:
            operands = [None if i is None else Val(builder, r.ids[i], n.where) for i in n.inputs]
            r.ids[n.id] = made(n.attr, operands).id
    return r.finish()
