"""Regimes: ranges of sizes with steps of their own. Kernels name the borders of their choices; the few that matter are kept.

The graph is lowered for all sizes first. That records where its choices would change for fewer rows, shorter sequences or a
smaller batch. It is lowered again below each border that affects enough of the work, which may record further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pumice.core.dims import evaluate, symbols
from pumice.core.domain import Domain, Limit
from pumice.kernels.context import LowerContext
from pumice.plan.cost import FLOPS_A_BYTE, step_costs
from pumice.plan.plan import Part, Plan, Regime, Step, Value
from pumice.plan.verify import MAX_REGIMES

# Below this share of a run's time at a border, another choice is not worth a regime.
_SHARE = 0.1


@dataclass(frozen=True)
class StepSchedule:
    """The steps of a graph for the sizes within `bounds`; `aliases` maps a value to the state whose memory it takes over."""

    ctx: LowerContext
    steps: tuple[Step, ...]
    aliases: Mapping[int, int]
    bounds: tuple[Limit, ...] = ()
    reason: str = ""

    @cached_property
    def distinct(self) -> list[tuple[Step, int]]:
        """The steps that differ, and how often each occurs: the same kernel over the same sizes costs the same in every layer."""
        found: dict[object, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step_kind(step), []).append(step)
        return [(same[0], len(same)) for same in found.values()]

    @cached_property
    def draft(self) -> Plan:
        """A plan of the distinct steps, to work out their costs: its values have no memory yet."""
        ctx, steps = self.ctx, tuple([step for step, _ in self.distinct])
        bound = {i for s in steps for i in (*s.nodes, s.root, *(b.value for b in s.bindings))}
        values = {i: Value(i, ctx.type(i), (Part(self.aliases.get(i, i), 0, 0),)) for i in bound}
        return Plan(ctx.graph, ctx.caps, (), (), (Regime(steps, values),), ctx.maxima)

    @property
    def largest_sizes(self) -> dict[str, int]:
        """The largest sizes within the bounds."""
        return border_sizes(self.ctx.maxima, self.bounds[0]) if self.bounds else dict(self.ctx.maxima)

    def same_steps(self, other: StepSchedule) -> bool:
        """Whether two schedules run the same: their temporaries have the same types then, at other sizes perhaps."""
        return self.steps == other.steps and self.aliases == other.aliases and self.ctx.temps == other.ctx.temps


def step_kind(step: Step) -> tuple[object, ...]:
    """What steps that cost the same have in common."""
    return step.kernel, step.uniforms, step.groups, step.label


def find_schedules(lower: Callable[[tuple[Limit, ...]], StepSchedule]) -> list[StepSchedule]:
    """The schedules of a plan, the one for all sizes last; `lower` makes the one for given bounds."""
    widest = lower(())
    found: dict[Limit, StepSchedule] = {}
    dropped = 0
    waiting = [widest]
    while waiting:
        source = waiting.pop(0)
        for border, share, why in _borders(source, found):
            if share < _SHARE:
                continue
            if len(found) == MAX_REGIMES - 1:
                dropped += 1
                continue
            narrow = lower((border,))
            found[border] = StepSchedule(narrow.ctx, narrow.steps, narrow.aliases, (border,), why)
            waiting.append(found[border])
    ordered = sorted(found.values(), key=lambda s: (_total(s), str(s.bounds)))
    rest = f"; {dropped} more borders were left out" if dropped else ""
    reason = ("for all other sizes" if ordered else "for all sizes") + rest
    return [*_distinct([*ordered, widest]), StepSchedule(widest.ctx, widest.steps, widest.aliases, (), reason)]


def _distinct(schedules: Sequence[StepSchedule]) -> Iterator[StepSchedule]:
    """All but the last that are ever picked and run otherwise than what would be picked without them."""
    maxima = schedules[-1].ctx.maxima
    kept: list[StepSchedule] = []

    def within(inner: StepSchedule, outer: StepSchedule) -> bool:
        domain = Domain(maxima, inner.bounds)
        return all(domain.upper(d) <= most for d, most in outer.bounds)

    for s in reversed(schedules[:-1]):
        following = [*reversed(kept), schedules[-1]]
        to = next(k for k, other in enumerate(following) if within(s, other))
        if not all(s.same_steps(other) for other in following[: to + 1]):
            kept.append(s)
    for k, s in enumerate(reversed(kept)):
        if not any(within(s, other) for other in list(reversed(kept))[:k]):
            yield s


def _borders(schedule: StepSchedule, known: Container[Limit]) -> list[tuple[Limit, float, str]]:
    """The borders that a schedule has noted within its bounds and that are not known yet.

    Those come first that concern the largest share of the work there.
    """
    ctx, out = schedule.ctx, []
    for border, nodes in ctx.borders.items():
        d, most = border
        if border in known or (schedule.bounds and (d != schedule.bounds[0][0] or most >= schedule.bounds[0][1])):
            continue
        seconds, concerned, why = 0.0, 0.0, dict[str, float]()
        for step, count, cost in _costs(schedule, border_sizes(ctx.maxima, border)):
            about = next((nodes[n] for n in (step.root, *step.nodes) if n in nodes), None)
            seconds += count * cost
            if about is not None:
                concerned += count * cost
                why[f"{step.label}: {about}"] = why.get(f"{step.label}: {about}", 0.0) + count * cost
        if concerned:
            out.append((border, concerned / seconds, max(why, key=lambda text: why[text])))
    return sorted(out, key=lambda b: (-b[1], -b[0][1], str(b[0][0])))


def _total(schedule: StepSchedule) -> float:
    """What the steps of a schedule cost at the largest of its sizes."""
    return sum(count * cost for _, count, cost in _costs(schedule, schedule.largest_sizes))


def _costs(schedule: StepSchedule, env: Mapping[str, int]) -> list[tuple[Step, int, float]]:
    """The distinct steps of a schedule, how often each occurs, and about what one costs."""
    costs = [cost.moved + (cost.flops or 0) / FLOPS_A_BYTE for cost in step_costs(schedule.draft, env)]
    return [(step, count, cost) for (step, count), cost in zip(schedule.distinct, costs, strict=True)]


def border_sizes(maxima: Mapping[str, int], border: Limit) -> dict[str, int]:
    """Sizes at a border: as large as it allows, and where several symbols make it up, the largest of them reduced first.

    >>> from pumice.core.dims import sym
    >>> border_sizes({"B": 4, "T": 512}, (sym("B") * sym("T"), 32))
    {'B': 4, 'T': 8}
    """
    d, most = border
    env = dict(maxima)
    for name in sorted(symbols(d), key=lambda s: (-maxima[s], s)):
        least, high = 1, env[name]
        while least < high:
            middle = (least + high + 1) // 2
            least, high = (middle, high) if evaluate(d, {**env, name: middle}) <= most else (least, middle - 1)
        env[name] = least
    return env
