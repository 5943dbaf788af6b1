"""compose: ops that only the host has a routine for, written in ops that every target has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pumice.core.dims import product
from pumice.ir.gradient import Backward, Val
from pumice.ir.gradients.attention import composed as attention_gradients
from pumice.ir.graph import Graph, GraphBuilder, Node
from pumice.ir.registry import Composed, get_op
from pumice.passes.rebuild import Rebuilder


def _attention_gradient(node: Node, operands: Sequence[Val | None]) -> Val:
    q, k, v, dy, *extras = operands
    assert q is not None and k is not None and v is not None and dy is not None
    needed = (True, True, True, *[False] * 7)
    # The rule has no use for attention's own result, only for its gradient.
    found = attention_gradients(Backward(dy, (q, k, v, *extras, None, None, None), dy, node.attr, needed))
    flat = [t.wide().reshape((product(t.shape),)) for t in found if t is not None]
    return flat[0].op("concat", *flat[1:], axis=0)


COMPOSED: dict[str, Callable[[Node, Sequence[Val | None]], Val]] = {"attention_gradient": _attention_gradient}


def compose(graph: Graph) -> Graph:
    """The graph without such ops."""

    def rule(n: Node) -> str | None:
        lowering = get_op(n.op).lowering
        return lowering.rule if isinstance(lowering, Composed) else None

    if not any(rule(n) for n in graph):
        return graph
    r, builder = Rebuilder(graph), GraphBuilder()
    builder.nodes = r.nodes  # both append to one list
    for n in graph:
        name = rule(n)
        if name is None:
            r.keep(n)
        else:
            operands = [None if i is None else Val(builder, r.ids[i], n.where) for i in n.inputs]
            r.ids[n.id] = COMPOSED[name](n, operands).id
    return r.finish()
