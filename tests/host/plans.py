"""Plans by hand: what to run and where, without the planner, so that the host backend is tested on its own."""

from __future__ import annotations

from dataclasses import replace

from pumice.core.caps import Caps
from pumice.ir.graph import Graph
from pumice.plan.plan import Binding, BufferKind, Part, Plan, PlanBuffer, Regime, Step, Value


def plan_of(graph: Graph, steps: list[tuple[int, ...]], aliases: dict[int, int] | None = None) -> Plan:
    """Each step computes its nodes and stores the last, or all results where that is one of several.

    Values have buffers of their own unless they alias another.
    """
    kinds: dict[str, BufferKind] = {"input": "input", "param": "param", "constant": "constant", "state": "state"}
    buffers: list[PlanBuffer] = []
    values: dict[int, Value] = {}
    for v in (
        [n.id for n in graph.nodes if n.op in kinds] + [v for nodes in steps for v in stored(graph, nodes)] + list(aliases or ())
    ):
        n = graph.nodes[v]
        if aliases and v in aliases:
            values[v] = replace(values[aliases[v]], id=v, type=n.type)
            continue
        size = max(16, n.type.max_nbytes(graph.maxima))
        buffers.append(PlanBuffer(kinds.get(n.op, "arena"), size, n.name or f"%{v}"))
        values[v] = Value(v, n.type, (Part(len(buffers) - 1, 0, size),))
    made = tuple(_step(graph, nodes, stored(graph, nodes)) for nodes in steps)
    copies = tuple((s, v) for s, v in graph.updates if (aliases or {}).get(v) != s)
    return Plan(graph, Caps.preset("host"), tuple(buffers), (), (Regime(made, values, copies),), graph.maxima)


def stored(graph: Graph, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """The values that a step of these nodes stores."""
    last = graph.nodes[nodes[-1]]
    return tuple(n for n in nodes if n >= last.args[0]) if last.op == "result" else nodes[-1:]


def _step(graph: Graph, nodes: tuple[int, ...], values: tuple[int, ...]) -> Step:
    writes = tuple(Binding(v, 0, "write") for v in values) if len(values) > 1 else ()
    return Step(graph.nodes[values[0]].op, nodes, values[0], writes, anchor=values[0])
