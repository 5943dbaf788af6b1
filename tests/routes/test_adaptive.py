"""The adaptive planner: exact ranges, the kit's records step by step, and a simulated device that it settles on."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.adaptive import GPU_TIMESTAMPS, QUEUE_WORK_DONE, AdaptivePlanner, PlannerError


def planner(**changed: Any) -> AdaptivePlanner:
    given = {"total": 1000, "initial": 10, "least": 4, "most": 400, "target_ms": 8.0, **changed}
    return AdaptivePlanner("p", "rows", **given)


def run(plan: AdaptivePlanner, ms_per_item: float) -> list[dict[str, Any]]:
    """All ranges of a plan on a device of this speed."""
    ranges = []
    while (entry := plan.next_range()) is not None:
        ranges.append(entry)
        plan.observe(entry["rangeId"], entry["itemCount"] * ms_per_item, GPU_TIMESTAMPS)
    return ranges


@pytest.mark.parametrize("speed", [0.001, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("gain", [1.0, 0.5, 0.25])
def test_ranges_cover_all_items_once_and_settle_on_the_target(speed: float, gain: float) -> None:
    plan = planner(total=20_000, gain=gain)
    ranges = run(plan, speed)
    ends = [0, *(entry["itemEnd"] for entry in ranges)]
    assert [entry["itemStart"] for entry in ranges] == ends[:-1] and ends[-1] == 20_000
    wanted = min(max(8 / speed, 4), 400)
    assert abs(ranges[-2]["itemCount"] - wanted) <= max(2, wanted * 0.1)
    assert plan.snapshot()["actualRangeCount"] == len(ranges)


def test_a_chunk_never_leaves_its_bounds_and_history_is_whole() -> None:
    chance = random.Random(1)
    plan = planner(total=5000)
    while (entry := plan.next_range()) is not None:
        assert plan.snapshot()["actualRangeCount"] is None
        assert entry["itemCount"] <= 400 and (entry["itemCount"] >= 4 or entry["itemEnd"] == 5000)
        plan.observe(entry["rangeId"], chance.choice((0, 0.5, 8, 900)), QUEUE_WORK_DONE)
    found = plan.snapshot()
    assert len(found["ranges"]) == len(found["observations"]) == found["rangeCount"]


def test_a_failure_keeps_what_was_done() -> None:
    plan = planner()
    first, second = plan.next_range(), None
    assert first is not None
    plan.observe(first["rangeId"], 8, QUEUE_WORK_DONE)
    second = plan.next_range()
    assert second is not None
    failed = plan.fail(second["rangeId"], "submit", RuntimeError("device lost"))
    assert failed["completedItems"] == 10 and failed["failure"]["error"] == {"name": "RuntimeError", "message": "device lost"}
    with pytest.raises(PlannerError, match="failed planner cannot produce another range"):
        plan.next_range()


_NAMES = {
    "totalItems": "total",
    "initialChunkItems": "initial",
    "targetDurationMs": "target_ms",
    "adjustmentGain": "gain",
}


def simulated(chance: random.Random) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Options and steps as the kit takes them: good ones, stale ids, wrong authorities, durations that cannot be."""
    least, most = sorted((chance.randint(1, 50), chance.randint(1, 200)))
    options = {
        "plannerId": "p",
        "unit": "rows",
        "totalItems": chance.randint(1, 900),
        "initialChunkItems": chance.randint(least, most),
        "targetDurationMs": chance.choice((1, 8, 16.5)),
        "adjustmentGain": chance.choice((1, 0.5, 0.375)),
        "bounds": {"minChunkItems": least, "maxChunkItems": most},
        "metadata": {"phase": "x"},
    }
    steps: list[tuple[str, Any]] = []
    for i in range(chance.randint(1, 12)):
        steps.append(("nextRange", None))
        for _ in range(chance.choice((1, 1, 1, 2))):
            name = f"p:{i if chance.random() < 0.9 else 99}"
            authority = chance.choice((QUEUE_WORK_DONE, GPU_TIMESTAMPS, QUEUE_WORK_DONE, "wall-clock"))
            duration = chance.choice((0, 0.25, 3, 8, 77.7, -1))
            steps.append(("observeRange", {"rangeId": name, "observedDurationMs": duration, "timingAuthority": authority}))
    return options, steps


def ours(options: dict[str, Any], steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    given = {_NAMES[name]: value for name, value in options.items() if name in _NAMES}
    bounds = options["bounds"]
    plan = AdaptivePlanner(
        "p", "rows", least=bounds["minChunkItems"], most=bounds["maxChunkItems"], metadata=options["metadata"], **given
    )
    answers: list[dict[str, Any]] = []
    for method, argument in [*steps, ("snapshot", None)]:
        try:
            if method == "observeRange":
                found: Any = plan.observe(*argument.values())
            else:
                found = plan.next_range() if method == "nextRange" else plan.snapshot()
            answers.append({"value": found})
        except PlannerError as error:
            answers.append({"thrown": error.message})
    return answers


def close(a: Any, b: Any) -> bool:
    """Equal but for the last bits of powers, which the two languages compute differently."""
    if isinstance(a, float) or isinstance(b, float):
        return a == b or (a is not None and b is not None and abs(a - b) <= 1e-12 * abs(a))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(close(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(close, a, b))
    return bool(a == b)


def test_every_record_and_error_is_the_kit_s() -> None:
    chance = random.Random(20261116)
    cases = [simulated(chance) for _ in range(150)]
    answers = kit.call([("planner", options, steps) for options, steps in cases])
    for (options, steps), answer in zip(cases, answers, strict=True):
        theirs = [{k: v for k, v in step.items() if k != "type"} for step in answer["value"]]
        assert close(ours(options, steps), theirs), (options, steps)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"total": 0}, "totalItems must be a positive safe integer"),
        ({"initial": 2}, "initialChunkItems must be within caller-declared bounds"),
        ({"least": 9, "most": 5}, "bounds.maxChunkItems must be greater than or equal to bounds.minChunkItems"),
        ({"target_ms": 0}, "targetDurationMs must be finite and greater than zero"),
        ({"gain": 2}, "adjustmentGain must be finite, greater than zero, and at most one"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_the_kit_s_words(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError) as caught:
        planner(**changed)
    assert caught.value.message == said
