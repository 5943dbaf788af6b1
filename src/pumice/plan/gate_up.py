"""Gate/up matmuls: one kernel computes a row of each and stores the gated activation."""

from __future__ import annotations

from pumice.ir.graph import Node
from pumice.kernels.context import LowerContext
from pumice.kernels.routines import kernels_of


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
    kernels = kernels_of(node)
    joins = kernels is not None and kernels.reads_rows is not None and kernels.reads_rows(ctx, node)
    return (first.id, second.id) if joins else ()
