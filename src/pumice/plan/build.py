"""build_plan: graph + caps → verified plan; needs no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pumice.core.caps import Caps
from pumice.errors import SymbolError
from pumice.ir.graph import Graph
from pumice.ir.verify import verify
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.lower import has_kernel
from pumice.kernels.map import lower_updates
from pumice.kernels.repeats import Repeats
from pumice.passes import optimize
from pumice.passes.compose import compose
from pumice.passes.merge_matmuls import Packs, merge_matmuls
from pumice.passes.shape_for_target import shape_for_target
from pumice.plan.fusion import partition
from pumice.plan.memory import MemoryPlanner
from pumice.plan.plan import DEFAULT_OPTIONS, Binding, Kernel, Plan, PlanOptions, Regime, Step
from pumice.plan.updates import Chain, gather_updates
from pumice.plan.verify import verify_plan


def build_plan(
    graph: Graph,
    caps: Caps,
    options: PlanOptions = DEFAULT_OPTIONS,
    *,
    max: Mapping[str, int] | None = None,
    packs: Packs | None = None,
) -> Plan:
    """Plan a graph for a target: a pure function, which reads no switch, file or clock.

    `max` sets maxima of symbols; others come from the graph, else from the options. `packs` says of params that have memory
    already which lie together: their matmuls are merged like that or not at all.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: pm.relu(x + 1.0), x=pm.spec("B", 4))
    >>> plan = build_plan(g, Caps.preset("browser-baseline"), max={"B": 8})
    >>> [s.label for s in plan.steps], plan.memory["arena"]
    (['add+relu'], 128)
    """
    verify(graph)
    maxima = symbol_maxima(graph, max or {}, options.default_max)
    graph = replace(graph, symbols=tuple((s, maxima[s]) for s, _ in graph.symbols))
    graph = optimize(compose(graph, partial(has_kernel, caps, graph)), check=options.check)
    if caps.merges_matmuls and options.fuse:
        graph = merge_matmuls(graph, caps, packs)
    graph = shape_for_target(graph, caps)
    ctx = LowerContext(graph, caps, maxima)
    groups = partition(graph, caps, maxima, fuse=options.fuse, ctx=ctx)
    kernels: dict[tuple[str, str], int] = {}
    table: list[Kernel] = []
    steps: list[Step] = []
    repeats = Repeats(ctx)
    if not caps.dispatches:
        steps = [_host_step(ctx.label(g), g) for g in groups]
    for work in () if not caps.dispatches else gather_updates(ctx, groups) if options.fuse else groups:
        for lowered in repeats.lower(work) if isinstance(work, Group) else [lower_updates(ctx, work)]:
            key = (lowered.wgsl, lowered.label)
            if key not in kernels:
                kernels[key] = len(table)
                table.append(lowered.kernel())
            steps.append(_device_step(work, lowered, kernels[key]))
    aliases = {g.root: g.inplace for g in groups if g.inplace is not None}
    memory = MemoryPlanner(ctx, arena=options.arena, guard=options.guard)
    buffers, values = memory.plan(steps, aliases)
    copies = tuple((s, v) for s, v in graph.updates if aliases.get(v) != s)
    regime = Regime(tuple(steps), values, copies, reason="for all sizes")
    plan = Plan(graph, caps, buffers, tuple(table), (regime,), maxima, options)
    verify_plan(plan)
    return plan


def symbol_maxima(graph: Graph, given: Mapping[str, int], default: int) -> dict[str, int]:
    """The maximum of every symbol of a graph: as given, else the graph's own, else the default."""
    known = dict(graph.symbols)
    for name, value in given.items():
        if name not in known:
            raise SymbolError(f"the graph has no symbol {name!r}", hint="it has " + (" ".join(known) or "none"), symbol=name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SymbolError(f"the maximum of {name} must be an int, not {value!r}", symbol=name)
        if value < 0:
            raise SymbolError(f"the maximum of {name} is negative: {value}", symbol=name)
    return {name: given.get(name, default if own is None else own) for name, own in known.items()}


def _host_step(label: str, g: Group) -> Step:
    reads = [Binding(v, 0, "read") for v in g.leaves if v != g.inplace]
    write = Binding(g.root, 0, "write") if g.inplace is None else Binding(g.inplace, 0, "update")
    return Step(label, g.nodes, g.root, (*reads, write), anchor=g.anchor)


def _device_step(work: Group | Sequence[Chain], lowered: Lowered, kernel: int) -> Step:
    groups = [work] if isinstance(work, Group) else [g for chain in work for g in chain]
    return Step(
        lowered.label,
        tuple(sorted({i for g in groups for i in g.nodes})),
        groups[-1].root,
        lowered.bindings,
        kernel,
        lowered.uniforms,
        lowered.groups,
        groups[-1].anchor,
        lowered.variant,
    )
