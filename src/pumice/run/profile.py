"""exe.profile: where the time of a run goes, step by step, and how near each step is to what the device can do."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pumice.backends.timing import COPIES, Clock, Span, StepTime, Timing
from pumice.errors import DeviceLost, InputError
from pumice.ir.graph import Graph
from pumice.plan.cost import Cost, step_costs
from pumice.plan.plan import Regime, Step
from pumice.run.tables import quantity, table

if TYPE_CHECKING:
    from pumice.backends.base import Array, Session
    from pumice.run.entry import Entry
    from pumice.run.executable import Executable

Order = Literal["run", "time"]


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One step: its median time over the repeats, the bytes it must move and the arithmetic it does, by its shapes.

    `step` is its number in the plan, -1 for the copies after the steps (state updates, results). `flops` is None where
    unknown; known for matmuls, convolutions and attention.
    """

    step: int
    label: str
    variant: str
    op: str
    ops: tuple[str, ...]
    nodes: tuple[int, ...]
    seconds: float
    least: float
    most: float
    read_bytes: int
    written_bytes: int
    flops: int | None
    share: float

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def gb_s(self) -> float:
        """Gigabytes a second."""
        return _rate(self.bytes, self.seconds)

    @property
    def gflop_s(self) -> float | None:
        """Billions of floating-point operations a second."""
        return None if self.flops is None else _rate(self.flops, self.seconds)


@dataclass(frozen=True, slots=True)
class OpProfile:
    """All steps of one kind together."""

    op: str
    steps: int
    seconds: float
    bytes: int
    flops: int | None
    share: float

    @property
    def gb_s(self) -> float:
        return _rate(self.bytes, self.seconds)

    @property
    def gflop_s(self) -> float | None:
        return None if self.flops is None else _rate(self.flops, self.seconds)


@dataclass(frozen=True)
class Profile:
    """What `exe.profile` found.

    `clock` is "timestamps" (the device's own), or "host" where there are none; `method` says how the steps were told apart.
    `device_seconds` is the device time of an ordinary run, measured apart from the steps, so that `coverage`, the sum of
    the steps over it, shows how far the step times can be believed. `host_seconds` is what the host did in an ordinary
    run, by phase: upload, encode, wait, readback. `overhead` is the cost of one measurement, taken off each step already.
    """

    device: str
    clock: Clock
    method: str
    env: Mapping[str, int]
    repeats: int
    steps: tuple[StepProfile, ...]
    device_seconds: float
    host_seconds: Mapping[str, float]
    overhead: float
    timeline: tuple[StepTime, ...]
    spans: tuple[Span, ...]

    @property
    def step_seconds(self) -> float:
        """The sum of the steps."""
        return sum(s.seconds for s in self.steps)

    @property
    def coverage(self) -> float:
        """The sum of the steps over the device time of an ordinary run."""
        return self.step_seconds / self.device_seconds if self.device_seconds else 0.0

    @property
    def wall_seconds(self) -> float:
        """The host time of an ordinary run."""
        return sum(self.host_seconds.values())

    @property
    def host_overhead_seconds(self) -> float:
        """What an ordinary run takes beyond the device's work."""
        return max(0.0, self.wall_seconds - self.device_seconds)

    def by_op(self) -> tuple[OpProfile, ...]:
        """Times summed by kind of step, longest first."""
        found: dict[str, list[StepProfile]] = {}
        for s in self.steps:
            found.setdefault(s.op, []).append(s)
        out = []
        for op, steps in found.items():
            flops = [s.flops for s in steps if s.flops is not None]
            seconds, share = sum(s.seconds for s in steps), sum(s.share for s in steps)
            out.append(OpProfile(op, len(steps), seconds, sum(s.bytes for s in steps), sum(flops) if flops else None, share))
        return tuple(sorted(out, key=lambda o: -o.seconds))

    def table(self, order: Order = "run", limit: int | None = None) -> str:
        """The steps as text, in the order of the run or the longest first."""
        if order not in ("run", "time"):
            raise InputError(f"the order is {order!r}", hint="one of 'run', 'time'")
        steps = self.steps if order == "run" else sorted(self.steps, key=lambda s: -s.seconds)
        rows = [
            [str(s.step) if s.step >= 0 else "", s.label, s.variant or "-", *_figures(s), f"{s.share:.1%}"] for s in steps[:limit]
        ]
        text = table(["step", "label", "variant", "time", "moved", "rate", "arithmetic", "share"], rows, left=(1, 2))
        left = len(steps) - len(rows)
        return "\n".join([*self._head(), text, *([f"… {left} more"] if left else [])])

    def op_table(self) -> str:
        """The sums by op as text."""
        rows = [[o.op, str(o.steps), *_figures(o), f"{o.share:.1%}"] for o in self.by_op()]
        return table(["op", "steps", "time", "moved", "rate", "arithmetic", "share"], rows)

    def _head(self) -> list[str]:
        host = ", ".join(f"{name} {quantity(s, 's')}" for name, s in self.host_seconds.items())
        sizes = ", ".join(f"{k}={v}" for k, v in self.env.items())
        total, whole = quantity(self.step_seconds, "s"), quantity(self.device_seconds, "s")
        return [
            f"{self.device}{f' at {sizes}' if sizes else ''}, median of {self.repeats}; clock: {self.clock} ({self.method})",
            f"steps add up to {total}, {self.coverage:.0%} of the {whole} that a run takes on the device; host: {host}",
        ]

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.op_table()}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "device": self.device,
            "clock": self.clock,
            "method": self.method,
            "env": dict(self.env),
            "repeats": self.repeats,
            "device_seconds": self.device_seconds,
            "step_seconds": self.step_seconds,
            "coverage": self.coverage,
            "host_seconds": dict(self.host_seconds),
            "host_overhead_seconds": self.host_overhead_seconds,
            "overhead": self.overhead,
            "steps": [_with_rates(s) for s in self.steps],
            "ops": [_with_rates(o) for o in self.by_op()],
        }

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write one run as a Chrome trace, which ui.perfetto.dev and chrome://tracing show."""
        from pumice.run.timeline import save_trace

        save_trace(self, path)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds / 1e9 if seconds > 0 else 0.0


def _figures(p: StepProfile | OpProfile) -> list[str]:
    rate = quantity(p.gb_s * 1e9, "B/s") if p.bytes and p.seconds else "-"
    arithmetic = quantity(p.gflop_s * 1e9, "FLOP/s") if p.gflop_s else "-"
    return [quantity(p.seconds, "s"), quantity(p.bytes, "B"), rate, arithmetic]


def _with_rates(p: StepProfile | OpProfile) -> dict[str, Any]:
    return {**asdict(p), "gb_s": p.gb_s, "gflop_s": p.gflop_s}


def profile_executable(exe: Executable, given: Mapping[str, Any], outputs: Sequence[int | str] | None, repeats: int) -> Profile:
    """Alternates runs with each step timed and ordinary ones; states are restored."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats is {repeats!r}", hint="a whole number of at least 1")
    call = exe._call(given, outputs, False)
    plain = (call.env, call.inputs, call.wanted)
    stepped: list[Timing] = []
    whole: list[Timing] = []

    def measure(session: Session) -> None:
        exe._check_complete(call.states)
        with kept_values([*exe._updated, *call.states]):
            exe.store._write(call.states)
            session.run(*plain)  # drivers finish kernels when they first run
            for _ in range(repeats):
                stepped.append(session.profile(*plain, True)[1])
                whole.append(session.profile(*plain, False)[1])

    exe._in_turn(measure)
    return _combine(exe, call.env, call.wanted, stepped, whole)


@contextmanager
def kept_values(entries: Iterable[Entry]) -> Iterator[None]:
    """Restores params and states after the enclosed code."""
    kept = [(e, e._read()) for e in entries if e.ready]
    try:
        yield
    except DeviceLost:
        raise  # there is nothing left to put them back to
    except BaseException:
        _write_back(kept)
        raise
    _write_back(kept)


def _write_back(kept: Sequence[tuple[Entry, Array]]) -> None:
    for entry, array in kept:
        entry._memory().write(array)


def profiled_run(
    exe: Executable, session: Session, env: Mapping[str, int], inputs: Mapping[str, Array], wanted: Sequence[int]
) -> tuple[list[Array], Profile]:
    """One run that counts, with each step timed."""
    results, timing = session.profile(env, inputs, wanted, True)
    return results, _combine(exe, env, wanted, [timing], [timing])


def _combine(
    exe: Executable, env: Mapping[str, int], wanted: Sequence[int], stepped: Sequence[Timing], whole: Sequence[Timing]
) -> Profile:
    plan, regime = exe.plan, exe.plan.regime(env)
    times: dict[int, list[float]] = {}
    for timing in stepped:
        for t in timing.steps:
            times.setdefault(t.step, []).append(t.seconds)
    costs = step_costs(plan, env)
    medians = {step: statistics.median(found) for step, found in times.items()}
    total = sum(medians.values())
    steps = []
    for step, seconds in medians.items():
        about = _about_copies(regime) if step == COPIES else _about(plan.graph, regime.steps[step])
        cost = _copy_cost(plan.graph, regime, env, wanted) if step == COPIES else costs[step]
        found = times[step]
        steps.append(
            StepProfile(
                step,
                *about,
                seconds,
                min(found),
                max(found),
                cost.read,
                cost.written,
                cost.flops,
                seconds / total if total else 0.0,
            )
        )
    shown = sorted(stepped, key=lambda t: t.device_seconds)[len(stepped) // 2]
    phases: dict[str, list[float]] = {}
    for timing in whole:
        sums: dict[str, float] = {}
        for span in timing.spans:
            sums[span.name] = sums.get(span.name, 0.0) + span.seconds
        for name, s in sums.items():
            phases.setdefault(name, []).append(s)
    return Profile(
        exe.device.name,
        shown.clock,
        shown.method,
        dict(env),
        len(stepped),
        tuple(steps),
        statistics.median(t.device_seconds for t in whole),
        {name: statistics.median(found) for name, found in phases.items()},
        shown.overhead,
        shown.steps,
        shown.spans,
    )


def _about(graph: Graph, s: Step) -> tuple[str, str, str, tuple[str, ...], tuple[int, ...]]:
    """Label, variant, kind, op names and nodes of a step."""
    nodes = graph.nodes
    op = nodes[s.anchor].op if s.anchor is not None else "elementwise"
    return s.label, s.variant, op, tuple(nodes[i].op for i in s.nodes), s.nodes


def _about_copies(regime: Regime) -> tuple[str, str, str, tuple[str, ...], tuple[int, ...]]:
    label = "copies of results and states" if regime.copies else "copies of results"
    return label, "", "copies", (), ()


def _copy_cost(graph: Graph, regime: Regime, env: Mapping[str, int], wanted: Sequence[int]) -> Cost:
    copied = [*wanted, *(v for _, v in regime.copies)]
    moved = sum(graph.nodes[v].type.at(env).max_nbytes({}) for v in copied)
    return Cost(moved, moved, None)
