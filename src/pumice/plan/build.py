"""build_plan: graph + caps → verified plan; needs no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pumice.core.caps import Caps
from pumice.core.collection import without_collection
from pumice.core.domain import Limit
from pumice.errors import SymbolError
from pumice.ir.graph import Graph
from pumice.ir.verify import verify
from pumice.kernels.builder import Lowered, kernel_of_pieces
from pumice.kernels.context import Asked, Group, LowerContext
from pumice.kernels.lower import has_kernel
from pumice.kernels.map import lower_updates
from pumice.kernels.packs import find_pack_calls
from pumice.kernels.repeats import Repeats
from pumice.passes import optimize
from pumice.passes.compose import compose
from pumice.passes.merge_matmuls import Packs, merge_matmuls
from pumice.passes.shape_for_target import shape_for_target
from pumice.passes.turn_matmuls import turn_matmuls
from pumice.plan.fusion import Known, partition
from pumice.plan.memory import MemoryPlanner
from pumice.plan.pieces import split_large_steps
from pumice.plan.plan import DEFAULT_OPTIONS, Binding, Kernel, Plan, PlanOptions, Regime, Step
from pumice.plan.regimes import StepSchedule, find_schedules
from pumice.plan.updates import Chain, gather_updates
from pumice.plan.verify import verify_plan


@without_collection
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
    already which are adjacent: their matmuls are merged like that or not at all.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: pm.relu(x + 1.0), x=pm.spec("B", 4))
    >>> plan = build_plan(g, Caps.preset("browser-baseline"), max={"B": 8})
    >>> [s.label for s in plan.steps], plan.memory["arena"]
    (['add+relu'], 128)
    """
    verify(graph)
    maxima = symbol_maxima(graph, max or {}, options.default_max)
    graph = replace(graph, symbols=tuple((s, maxima[s]) for s, _ in graph.symbols))
    graph = optimize(_compose_all(graph, caps, maxima, options), check=options.check)
    if caps.turns_matmuls:
        graph = optimize(turn_matmuls(graph), check=options.check)
    if caps.merges_matmuls and options.fuse:
        graph = merge_matmuls(graph, caps, packs)
    graph = shape_for_target(graph, caps)
    lowering = _Lowering(graph, caps, maxima, options)
    several = options.regimes and bool(graph.symbols)
    schedules = find_schedules(lowering.lower) if several else [replace(lowering.lower(()), reason="for all sizes")]
    if options.largest_step is not None and caps.dispatches:
        schedules = [split_large_steps(s, options.largest_step, lowering.table.piece_of) for s in schedules]
    memory = MemoryPlanner(graph, caps, arena=options.arena, guard=options.guard)
    buffers, places = memory.plan(schedules)
    regimes = []
    for schedule, values in zip(schedules, places, strict=True):
        copies = tuple((s, v) for s, v in graph.updates if schedule.aliases.get(v) != s)
        regimes.append(Regime(lowering.table.renumbered(schedule.steps), values, copies, schedule.bounds, schedule.reason))
    plan = Plan(graph, caps, buffers, lowering.table.used, tuple(regimes), maxima, options)
    verify_plan(plan)
    return plan


def _compose_all(graph: Graph, caps: Caps, maxima: Mapping[str, int], options: PlanOptions) -> Graph:
    """The graph with ops that have no kernel expanded, and what these are composed of likewise."""
    while True:
        served = find_pack_calls(options.pack_kernels, caps, graph, maxima)
        kernels = {n.id for n in graph if n.id in served or has_kernel(caps, graph, n)}
        composed = compose(graph, lambda n: n.id in kernels)  # noqa: B023  called before the next round
        if composed is graph:
            return graph
        graph = composed


class _KernelTable:
    """The kernels of all schedules, each once; those that the plan's regimes use are renumbered."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], tuple[int, Kernel]] = {}
        self._kernels: list[Kernel] = []
        self._pieces: dict[int, int] = {}
        self._used: dict[int, int] = {}
        # By the id of a step, which is kept with it: regimes share most of them.
        self._renumbered: dict[int, tuple[Step, Step]] = {}

    def number(self, lowered: Lowered) -> int:
        """The number of a kernel."""
        key = lowered.wgsl, lowered.label
        if key not in self._all:
            self._all[key] = len(self._kernels), lowered.kernel()
            self._kernels.append(self._all[key][1])
        return self._all[key][0]

    def piece_of(self, number: int) -> int | None:
        """The number of the kernel for some of the workgroups of another one; None where that runs whole."""
        if self._kernels[number].origin != "generated":
            return None
        if number not in self._pieces:
            self._pieces[number] = len(self._kernels)
            self._kernels.append(kernel_of_pieces(self._kernels[number]))
        return self._pieces[number]

    def renumbered(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps with the numbers that their kernels have in the plan."""
        for s in steps:
            if id(s) not in self._renumbered:
                kernel = s.kernel if s.kernel < 0 else self._used.setdefault(s.kernel, len(self._used))
                self._renumbered[id(s)] = s, s.with_kernel(kernel)
        return tuple([self._renumbered[id(s)][1] for s in steps])

    @property
    def used(self) -> tuple[Kernel, ...]:
        """The kernels of all steps that were renumbered."""
        return tuple(self._kernels[k] for k in self._used)


class _Lowering:
    """Lowers a graph for several ranges of sizes; work that does not depend on sizes is done once."""

    def __init__(self, graph: Graph, caps: Caps, maxima: Mapping[str, int], options: PlanOptions) -> None:
        self.graph, self.caps, self.maxima, self.options = graph, caps, maxima, options
        self.table, self.repeats = _KernelTable(), Repeats()
        self.pack_calls = find_pack_calls(options.pack_kernels, caps, graph, maxima)
        # Partitions, with the questions about sizes that they depend on and the borders that they recorded.
        self._partitions: list[tuple[list[Asked], dict[Limit, dict[int, str]], list[Group | list[Chain]], list[Group]]] = []
        # Groups, and steps with what they were made of: the same objects wherever they are the same.
        self._groups: dict[Group, Group] = {}
        self._known = Known()
        self._steps: dict[tuple[int, int], tuple[Group | list[Chain], Lowered, Step]] = {}

    def lower(self, bounds: tuple[Limit, ...]) -> StepSchedule:
        """The steps for the sizes within bounds."""
        ctx = LowerContext(self.graph, self.caps, self.maxima, bounds, self.pack_calls)
        groups, work = self._partition(ctx)
        aliases = {value: state for g in groups for value, state in g.taken_over.items()}
        if not self.caps.dispatches:
            return StepSchedule(ctx, tuple(_host_step(ctx, g) for g in groups), aliases)
        steps = []
        for unit in work:
            for lowered in self.repeats.lower(ctx, unit) if isinstance(unit, Group) else [lower_updates(ctx, unit)]:
                known = self._steps.get((id(unit), id(lowered)))
                if known is None:
                    known = unit, lowered, _device_step(unit, lowered, self.table.number(lowered))
                    self._steps[id(unit), id(lowered)] = known
                steps.append(known[-1])
        return StepSchedule(ctx, tuple(steps), aliases)

    def _partition(self, ctx: LowerContext) -> tuple[list[Group], list[Group | list[Chain]]]:
        """The groups of the graph, and the same with updates gathered."""
        for asked, borders, work, groups in self._partitions:
            if all(question.answer_in(ctx.domain) == question.answer for question in asked):
                for border, nodes in borders.items():
                    for node, why in nodes.items():
                        ctx.note(border, node, why)
                return groups, work
        groups = [self._groups.setdefault(g, g) for g in partition(ctx, fuse=self.options.fuse, known=self._known)]
        work = list(gather_updates(ctx, groups)) if self.options.fuse and self.caps.dispatches else [*groups]
        distinct = {(question.decide, question.dims): question for question in ctx.asked}
        noted = {border: dict(nodes) for border, nodes in ctx.borders.items()}
        self._partitions.append((list(distinct.values()), noted, work, groups))
        return groups, work


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


def _host_step(ctx: LowerContext, g: Group) -> Step:
    reads = [Binding(v, 0, "read") for v in g.leaves if v != g.inplace]
    written = [Binding(v, 0, "write") for v in g.written] if g.inplace is None else [Binding(g.inplace, 0, "update")]
    call = None if g.anchor is None else ctx.pack_calls.get(g.anchor)
    variant = "" if call is None else call.kernel.variant
    return Step(ctx.label(g), g.nodes, g.root, (*reads, *written), anchor=g.anchor, variant=variant)


def _device_step(work: Group | Sequence[Chain], lowered: Lowered, kernel: int) -> Step:
    groups = [work] if isinstance(work, Group) else [g for chain in work for g in chain]
    return Step(
        lowered.label,
        work.nodes if isinstance(work, Group) else tuple(sorted({i for g in groups for i in g.nodes})),
        groups[-1].root,
        lowered.bindings,
        kernel,
        lowered.uniforms,
        lowered.groups,
        groups[-1].anchor,
        lowered.variant,
    )
