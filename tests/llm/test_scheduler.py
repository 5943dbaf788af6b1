"""The scheduler: simulations with a fake model that computes in pages, and single rules."""

from __future__ import annotations

from typing import Any

import pytest

from pumice.llm.pages import PagePool
from pumice.llm.scheduler import Limits, Scheduler
from scheduler_simulation import Simulation


def make(
    *,
    slots: int = 4,
    pages: tuple[int, ...] = (40,),
    windows: tuple[int | None, ...] = (None,),
    chunk: int = 16,
    budget: int = 24,
    page_size: int = 4,
    context: int = 96,
    reuse: bool = True,
) -> Scheduler:
    pools = [PagePool(n, page_size, window) for n, window in zip(pages, windows)]
    return Scheduler(Limits(slots, context, chunk, budget, page_size), pools, reuse=reuse)


# Sizes of a scheduler and kinds of load; each runs 2,000 jobs.
LOADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"arrivals": 0.3}),
    "few pages, ahead": ({"pages": (24,)}, {"steps": 4, "depth": 3, "arrivals": 0.3}),
    "full and window": ({"pages": (30, 20), "windows": (None, 9)}, {"steps": 3, "depth": 2, "arrivals": 0.4}),
    "many slots, restarts": ({"slots": 12, "pages": (200,), "budget": 64}, {"steps": 4, "depth": 3, "border": 40}),
    "window only": ({"pages": (14,), "windows": (6,)}, {"steps": 5, "depth": 2, "arrivals": 0.3}),
}


@pytest.mark.parametrize("load", LOADS)
def test_every_answer_is_the_one_computed_alone(load: str) -> None:
    sizes, kind = LOADS[load]
    outcome = Simulation(make(**sizes), seed=1, jobs=2000, **kind).run()
    assert outcome.finished > 1500 and outcome.forks and outcome.cancelled and outcome.expired
