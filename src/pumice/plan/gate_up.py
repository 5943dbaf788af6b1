"""Gate/up matmuls: one kernel computes a row of each and stores the gated activation."""

from __future__ import annotations

from pumice.ir.graph import Node
from pumice.kernels.context import LowerContext, below_views, find_view
from pumice.kernels.routines import matmul, qmatmul


def find_gate_up(ctx: LowerContext, node: Node) -> tuple[int, ...]:
    """The slices for gate and up, each half of the last axis of a matmul with few vectors, if nothing else reads it.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> def gated(x, w):
    ...     y = x @ w.T
    ...     return pm.silu(y[:, :64]) * y[:, 64:]
    >>> g = pm.trace(gated, x=pm.spec(1, 32), w=pm.spec(128, 32))
    >>> ctx = LowerContext(g, Caps.preset("h200"), {})
    >>> [g.nodes[i].attr["starts"] for i in find_gate_up(ctx, next(n for n in g.nodes if n.op == "matmul"))]
    [(0, 0), (0, 64)]
    """
    graph = ctx.graph
    readers = [graph.nodes[i] for i in sorted(set(graph.users[node.id]))]
    size = node.type.shape[-1] if node.type.shape else 0
    if len(readers) != 2 or node.id in graph.roots or not isinstance(size, int) or size % 2:
        return ()
    shape, none = (*node.type.shape[:-1], size // 2), (0,) * (node.type.rank - 1)
    for n in readers:
        if n.op != "slice" or n.type.shape != shape or any(k != 1 for k in n.attr["steps"]):
            return ()
    first, second = sorted(readers, key=lambda n: n.attr["starts"])
    if (first.attr["starts"], second.attr["starts"]) != ((*none, 0), (*none, size // 2)):
        return ()
    return (first.id, second.id) if _reads_rows(ctx, node) else ()


def _reads_rows(ctx: LowerContext, node: Node) -> bool:
    """Whether the matmul's kernel reads whole rows of the weight for few vectors."""
    if node.op == "qmatmul":
        return qmatmul.pulls_left(ctx, node)
    if node.op != "matmul" or not matmul.pulls_left(ctx, node):
        return False
    view = find_view(ctx.graph, node.args[1], {below_views(ctx.graph, node.args[1])})
    return view is not None and view.strides[0] == 1
