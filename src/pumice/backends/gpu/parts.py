"""A run in parts: the device begins with the first steps while the host still records the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pumice.plan.plan import Plan, Regime

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import Dispatch

# A submit costs the host as much as to record several steps. So the first part is just long enough to keep the device at work
# until the second is there, each further one may be longer, and short runs stay in one piece.
LEAST, FIRST, GROWTH = 32, 8, 2


def part_sizes(count: int, free: int) -> list[int]:
    """How many of `count` steps are in each part, if only the first `free` of them may be in others than the last.

    >>> part_sizes(10, 10), part_sizes(49, 49), part_sizes(400, 390), part_sizes(400, 20)
    ([10], [8, 16, 25], [8, 16, 32, 64, 128, 152], [8, 392])
    """
    if count < LEAST:
        return [count]
    sizes: list[int] = []
    size, at = FIRST, 0
    while at + size <= free and at + 2 * size <= count:
        sizes.append(size)
        at += size
        size = int(size * GROWTH)
    return [*sizes, count - at]


def first_update(plan: Plan, regime: Regime) -> int:
    """The first step that updates a param or a state in place.

    It and all later steps go in one submit, so that an interrupted run has changed nothing.
    """
    sources = [*plan.graph.sources("param"), *plan.graph.sources("state")]
    resident = {p.buffer for n in sources if n.id in plan.values for p in plan.values[n.id].parts}
    for i, step in enumerate(regime.steps):
        if any(b.access != "read" and regime.values[b.value].parts[b.part].buffer in resident for b in step.bindings):
            return i
    return len(regime.steps)


def cut(dispatches: Sequence[Dispatch], free: int) -> list[list[Dispatch]]:
    """The dispatches in parts, each of which begins with a pipeline; `free` as for `part_sizes`."""
    spelt_out, parts, at = with_pipelines(dispatches), [], 0
    for size in part_sizes(len(dispatches), free):
        parts.append([*spelt_out[at : at + 1], *dispatches[at + 1 : at + size]])
        at += size
    return parts


def with_pipelines(dispatches: Sequence[Dispatch]) -> list[Dispatch]:
    """The dispatches with every pipeline spelt out: a new pass remembers nothing of the last."""
    out: list[Dispatch] = []
    current: Any = None
    for pipeline, *rest in dispatches:
        current = pipeline if pipeline is not None else current
        out.append((current, *rest))
    return out
