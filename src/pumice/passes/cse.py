"""Common subexpression elimination: equal ops on equal operands are computed once."""

from __future__ import annotations

from typing import Any

from pumice.ir.graph import Graph
from pumice.passes.rebuild import Rebuilder


def cse(graph: Graph) -> Graph:
    """The graph with duplicates merged; inputs, params and states are never merged."""
    r = Rebuilder(graph)
    seen: dict[Any, int] = {}
    for n in graph:
        if n.op in ("input", "param", "state"):
            r.keep(n)
            continue
        key = (n.op, tuple(None if i is None else r.ids[i] for i in n.inputs), n.exact_attrs, n.type)
        if key in seen:
            r.ids[n.id] = seen[key]
        else:
            seen[key] = r.keep(n)
    return r.finish()
