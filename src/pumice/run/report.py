"""exe.report: what was planned – steps, variants and why, memory, bytes moved – as data and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pumice.core.dims import evaluate
from pumice.errors import SymbolError
from pumice.ir.graph import Graph
from pumice.kernels.reasons import reason
from pumice.plan.cost import step_costs
from pumice.plan.plan import DeviceCount, Plan, Regime
from pumice.run.tables import quantity, table

if TYPE_CHECKING:
    from pumice.run.executable import Executable


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: what it computes, how, and what it moves at the report's sizes. `groups` 0 means that it is skipped.

    Where `counted`, the number of workgroups comes from the device, and `groups` is the most that it can be. `piece` is the
    number of a piece of a large step, from 1 on, and how many pieces that has.
    """

    step: int
    label: str
    variant: str
    why: str
    ops: tuple[str, ...]
    nodes: tuple[int, ...]
    where: str
    kernel: int
    groups: int
    counted: bool
    piece: tuple[int, int] | None
    read_bytes: int
    written_bytes: int
    flops: int | None

    @property
    def groups_text(self) -> str:
        return f"≤{self.groups}" if self.counted else str(self.groups)


@dataclass(frozen=True, slots=True)
class ParamReport:
    """The params of one dtype: how many, their bytes as they are stored, and what they would take as f32."""

    dtype: str
    count: int
    bytes: int
    f32_bytes: int


@dataclass(frozen=True)
class Report:
    """What `exe.report` found, at the symbol sizes `env`: the steps are those of the regime for them.

    `regimes` says for each regime of the plan when it is taken and why it exists; `regime` is the number of this one.
    `memory` is in bytes by buffer kind, at the symbols' maxima. `arena_unshared_bytes` is what intermediate values would take
    with memory of their own; `memory["arena"]` is what they do take. `upload_bytes` and `readback_bytes` travel between host and
    device in a run, `moved_bytes` is the least that the steps move in the device's memory.
    """

    device: str
    target: str
    env: Mapping[str, int]
    maxima: Mapping[str, int]
    regime: int
    regimes: tuple[str, ...]
    steps: tuple[StepReport, ...]
    kernels: int
    pipelines: int
    copies: int
    memory: Mapping[str, int]
    buffers: int
    arena_unshared_bytes: int
    upload_bytes: int
    readback_bytes: int
    moved_bytes: int
    flops: int
    params: tuple[ParamReport, ...]
    counters: Mapping[str, int]

    @property
    def dispatches(self) -> int:
        """Steps with work at these sizes."""
        return sum(s.groups > 0 for s in self.steps)

    @property
    def in_pieces(self) -> str:
        """The large steps that run as several dispatches, as text; "" if there are none."""
        found: dict[str, int] = {}
        for s in self.steps:
            if s.piece is not None and s.piece[0] == 1:
                text = f"{s.label} in {s.piece[1]}"
                found[text] = found.get(text, 0) + 1
        return ", ".join(text if n == 1 else f"{n} times {text}" for text, n in found.items())

    @property
    def arena_saved_bytes(self) -> int:
        """What sharing memory between intermediate values saves."""
        return self.arena_unshared_bytes - self.memory.get("arena", 0)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "dispatches": self.dispatches, "arena_saved_bytes": self.arena_saved_bytes}

    def table(self) -> str:
        """The steps as text."""
        rows = [
            [str(s.step), s.label, s.variant or "-", s.groups_text, quantity(s.read_bytes + s.written_bytes, "B"), s.why]
            for s in self.steps
        ]
        return table(["step", "label", "variant", "groups", "moves", "why"], rows, left=(1, 2, 5))

    def __str__(self) -> str:
        sizes = ", ".join(f"{k}={v} of at most {self.maxima.get(k, v)}" for k, v in self.env.items())
        memory = ", ".join(f"{kind} {quantity(n, 'B')}" for kind, n in self.memory.items())
        lines = [
            f"{self.device}, planned for {self.target}" + (f", at {sizes}" if sizes else ""),
            f"{len(self.steps)} steps, {self.dispatches} dispatches, {self.copies} copies, "
            f"{self.kernels} kernels, {self.pipelines} pipelines, {self.buffers} buffers",
            *([f"large steps in pieces: {split}"] if (split := self.in_pieces) else []),
            *(f"regime {k}{' (this one)' if k == self.regime else ''}: {text}" for k, text in enumerate(self.regimes)),
            f"memory: {memory or 'none'}",
            f"arena: {quantity(self.memory.get('arena', 0), 'B')} instead of {quantity(self.arena_unshared_bytes, 'B')}",
            f"a run uploads {quantity(self.upload_bytes, 'B')}, reads back {quantity(self.readback_bytes, 'B')}, "
            f"moves {quantity(self.moved_bytes, 'B')} on the device, computes {quantity(self.flops, 'FLOP')} in matmuls",
        ]
        for p in self.params:
            lines.append(
                f"params {p.dtype}: {p.count} in {quantity(p.bytes, 'B')}"
                + ("" if p.bytes == p.f32_bytes else f", as f32 {quantity(p.f32_bytes, 'B')}")
            )
        return "\n".join([*lines, self.table()])


def report_executable(exe: Executable, sizes: Mapping[str, int]) -> Report:
    """The report of an executable; symbols that `sizes` leaves out are at their maxima."""
    return report_plan(exe.plan, sizes, device=exe.device.name, counters={} if exe.closed else exe.counters())


def report_plan(plan: Plan, sizes: Mapping[str, int], *, device: str = "", counters: Mapping[str, int] | None = None) -> Report:
    """The report of a plan that need not be open on any device."""
    counters = counters or {}
    for name, size in sizes.items():
        if name not in plan.maxima:
            raise SymbolError(
                f"the graph has no symbol {name!r}", hint="it has " + (" ".join(plan.maxima) or "none"), symbol=name
            )
        if not 0 <= size <= plan.maxima[name]:
            raise SymbolError(f"{name} is {size}, the plan is made for 0 to {plan.maxima[name]}", symbol=name, value=size)
    env = {**plan.maxima, **sizes}
    costs = step_costs(plan, env)
    regime = plan.regime(env)
    steps = tuple(
        StepReport(
            step=i,
            label=s.label,
            variant=s.variant,
            why=reason(plan.graph, s.anchor, s.whole_variant, plan.maxima),
            ops=tuple(plan.graph.nodes[n].op for n in s.nodes),
            nodes=s.nodes,
            where=plan.graph.nodes[s.root].where,
            kernel=s.kernel,
            groups=evaluate(s.most_groups, env),
            counted=isinstance(s.groups, DeviceCount),
            piece=s.piece,
            read_bytes=costs[i].read,
            written_bytes=costs[i].written,
            flops=costs[i].flops,
        )
        for i, s in enumerate(regime.steps)
    )
    graph = plan.graph
    return Report(
        device=device,
        target=plan.caps.name,
        env=env,
        maxima=dict(plan.maxima),
        regime=plan.pick(env),
        regimes=tuple(describe_regime(plan, r) for r in plan.regimes),
        steps=steps,
        kernels=len(plan.kernels),
        pipelines=counters.get("pipelines", 0),
        copies=len(regime.copies),
        memory=plan.memory,
        buffers=len(plan.buffers),
        arena_unshared_bytes=_unshared(plan, regime),
        upload_bytes=sum(n.type.at(env).max_nbytes({}) for n in graph.sources("input")),
        readback_bytes=sum(graph.nodes[i].type.at(env).max_nbytes({}) for _, i in graph.outputs),
        moved_bytes=sum(c.moved for c in costs),
        flops=sum(c.flops or 0 for c in costs),
        params=_params(graph, plan.maxima),
        counters=counters,
    )


def describe_regime(plan: Plan, regime: Regime) -> str:
    """When a regime is taken, and why it exists."""
    bounds = " and ".join(f"{d} ≤ {most}" for d, most in regime.bounds)
    when = bounds or ("otherwise" if len(plan.regimes) > 1 else "always")
    return f"{when}, {len(regime.steps)} steps; {regime.reason}"


def _unshared(plan: Plan, regime: Regime) -> int:
    """Bytes of all intermediate values that steps write, each with memory of its own."""
    written = {b.value for s in regime.steps for b in s.bindings if b.access != "read"}
    in_arena = (v for v in written if any(plan.buffers[p.buffer].kind == "arena" for p in regime.values[v].parts))
    domain = plan.domain(regime)
    types = (regime.values[v].type for v in in_arena)
    return sum(t.dtype.nbytes(domain.upper(t.numel)) for t in types)


def _params(graph: Graph, maxima: Mapping[str, int]) -> tuple[ParamReport, ...]:
    found: dict[str, list[int]] = {}
    for n in graph.sources("param"):
        row = found.setdefault(n.type.dtype.name, [0, 0, 0])
        row[0] += 1
        row[1] += n.type.max_nbytes(maxima)
        row[2] += 4 * evaluate(n.type.numel, maxima)
    return tuple(ParamReport(name, *row) for name, row in found.items())
