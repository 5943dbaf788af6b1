"""The last pass before planning: fits the graph to the target's limits and to the order of state updates."""

from __future__ import annotations

from pumice.core.caps import Caps
from pumice.ir.graph import Graph
from pumice.ir.tables import with_tables
from pumice.passes.rebuild import Rebuilder


def shape_for_target(graph: Graph, caps: Caps) -> Graph:
    """Drops barriers, splits concats that bind too many buffers, copies states read late, adds tables that kernels read."""
    shaped = _copy_late_state_reads(_split_wide_concats(_drop_barriers(graph), max(2, caps.max_storage_buffers - 2)))
    return with_tables(shaped) if caps.generates_kernels else shaped


def _drop_barriers(graph: Graph) -> Graph:
    """No pass after this one merges equal values, so what the barriers held apart stays apart."""
    if not any(n.op == "barrier" for n in graph):
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if n.op == "barrier":
            r.ids[n.id] = r.ids[n.args[0]]
        else:
            r.keep(n)
    return r.finish()


def _split_wide_concats(graph: Graph, limit: int) -> Graph:
    if not any(n.op == "concat" and len(n.args) > limit for n in graph):
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if n.op != "concat" or len(n.args) <= limit:
            r.keep(n)
            continue
        parts = [r.ids[i] for i in n.args]
        while len(parts) > limit:
            parts = [
                parts[k] if len(parts[k : k + limit]) == 1 else r.add("concat", parts[k : k + limit], n.attr, n.where)
                for k in range(0, len(parts), limit)
            ]
        r.ids[n.id] = r.add("concat", parts, n.attr, n.where)
    return r.finish()


def _copy_late_state_reads(graph: Graph) -> Graph:
    """Outputs are read, and states copied, after the run: a state that changes must be copied out before it does."""
    changing = {s for s, _ in graph.updates}
    late = [i for _, i in (*graph.outputs, *graph.captures)] + [v for _, v in graph.updates]
    exposed = changing & set(late)
    if not exposed:
        return graph
    r = Rebuilder(graph)
    for n in graph:
        r.keep(n)
    copies = {i: r.add("reshape", [r.ids[i]], {"shape": graph.nodes[i].type.shape}) for i in sorted(exposed)}

    def late_id(i: int) -> int:
        return copies.get(i, r.ids[i])

    return Graph(
        tuple(r.nodes),
        tuple((name, late_id(i)) for name, i in graph.outputs),
        tuple((r.ids[s], late_id(v)) for s, v in graph.updates if s != v),
        tuple((name, late_id(i)) for name, i in graph.captures),
        graph.symbols,
        graph.tree,
    )
