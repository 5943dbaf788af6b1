"""Large steps in pieces: dispatches of some of a step's workgroups each, so that none keeps the device for long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pumice.core.dims import dim_max, dim_min
from pumice.plan.cost import step_work
from pumice.plan.plan import Step
from pumice.plan.regimes import StepSchedule, step_kind

# Pieces of one step: with more, the dispatches themselves would take the time.
_MOST_PIECES = 4096


def split_large_steps(schedule: StepSchedule, largest: int, piece_of: Callable[[int], int | None]) -> StepSchedule:
    """The schedule with every step that has more work than `largest`, at its largest sizes, as several.

    The pieces run one kernel, which `piece_of` finds by the kernel of the whole step. They write the same value, each what its
    workgroups write of it: nothing is copied, and every workgroup computes what it did before. At smaller sizes the last
    pieces are empty, and runtimes skip them. A piece keeps the device busy: fewer workgroups would take as long.
    """
    works = step_work(schedule.draft, schedule.largest_sizes)
    wanted = {step_kind(s): -(-work // largest) for (s, _), work in zip(schedule.distinct, works, strict=True)}
    steps: list[Step] = []
    for step in schedule.steps:
        groups = max(1, schedule.ctx.domain.upper(step.most_groups))
        size = max(-(-groups // min(wanted[step_kind(step)], _MOST_PIECES)), schedule.ctx.caps.busy_groups)
        kernel = piece_of(step.kernel) if size < groups else None
        steps += [step] if kernel is None else _pieces(step, kernel, size, -(-groups // size))
    return replace(schedule, steps=tuple(steps))


def _pieces(step: Step, kernel: int, size: int, count: int) -> list[Step]:
    """`count` steps of `size` workgroups. Where the device counts them, kernels end at the count; the host knows the most."""
    return [
        replace(
            step,
            kernel=kernel,
            uniforms=(*step.uniforms, k * size, (k + 1) * size),
            groups=dim_max(0, dim_min(step.most_groups - k * size, size)),
            variant=f"{step.variant}, piece {k + 1} of {count}",
        )
        for k in range(count)
    ]
