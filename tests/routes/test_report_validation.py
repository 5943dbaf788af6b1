"""The check of execution reports: reports of both sides, whole and mutated, get the package's errors word for word."""

from __future__ import annotations

import random
from typing import Any

import route_kit as kit
from pumice.routes.report_validation import ExpectationError, validate_report
from route_device import ADAPTIVE_WORK, FIXED_WORK, Device
from route_samples import mutate

NAMES = {
    "expectedStatus": "status",
    "expectedRouteId": "route_id",
    "expectedManifestId": "manifest_id",
    "expectedInvocationId": "invocation_id",
    "expectedSchedulingMode": "mode",
    "expectedCompletionPolicy": "policy",
    "expectedGpuDutyCount": "duty_count",
    "expectedMaxInFlightGpuDuties": "max_in_flight",
    "requireConfiguredDepthObserved": "depth_observed",
}


def ended(how: str, after: int, **options: Any) -> dict[str, Any]:
    """A report of ours that is cancelled or fails after so many steps."""
    device = Device(FIXED_WORK, **options)
    for _ in range(after):
        device.step()
    if how == "cancel":
        device.run.cancel("enough")
    else:
        device.run.fail("device-lost", RuntimeError("gone"))
    return device.finish()


def ours() -> list[dict[str, Any]]:
    return [
        Device(FIXED_WORK).finish(),
        Device(ADAPTIVE_WORK).finish(),
        Device(FIXED_WORK, max_in_flight=2).finish(),
        Device(FIXED_WORK, mode="disabled").finish(),
        *(ended(how, after, max_in_flight=depth) for how in ("cancel", "fail") for after in (0, 7) for depth in (1, 2)),
    ]


def theirs() -> list[dict[str, Any]]:
    return [one for one in kit.records().values() if one["schema"] == "kaminos.webgpu-cooperative-execution-report.v0"]


def own(report: Any, options: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": validate_report(report, **{NAMES[name]: value for name, value in options.items()})}
    except ExpectationError as error:
        return {"thrown": error.message}


def agree(cases: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    answers = kit.call([("validateWebGpuCooperativeExecutionReport", report, options) for report, options in cases])
    found = []
    for (report, options), other in zip(cases, answers, strict=True):
        mine = own(report, options)
        if "value" in other:
            assert mine["value"]["errors"] == other["value"]["errors"], (options, report)
        assert mine == {name: value for name, value in other.items() if name != "type"}
        found.append(mine)
    return found


def test_whole_reports_of_both_sides_are_judged_alike() -> None:
    reports = [*ours(), *theirs()]
    answers = agree([(report, {"expectedStatus": report["status"]}) for report in reports])
    for report, answer in list(zip(reports, answers, strict=True))[: len(ours())]:
        # What was in flight when a device was lost stays unproved, and such a report is no settled one.
        assert answer["value"]["ok"] == (report["unfencedSubmittedGpuDutyCount"] == 0), answer["value"]["errors"]
    assert sum(answer["value"]["ok"] for answer in answers[: len(ours())]) == 11


def test_mutated_reports_are_judged_alike() -> None:
    chance = random.Random(17)
    reports = [*ours(), *theirs()]
    cases = []
    for _ in range(500):
        report = chance.choice(reports)
        mutated = mutate(report, chance)
        while chance.random() < 0.3:
            mutated = mutate(mutated, chance)
        cases.append((mutated, {"expectedStatus": report["status"]}))
    answers = agree(cases)
    texts = {text.split("]")[-1] for answer in answers for text in answer["value"]["errors"]}
    assert len(texts) > 40, "the mutations break too few rules"


def test_expectations_are_compared_alike() -> None:
    chance = random.Random(18)
    reports = [*ours()[:4], *theirs()[:3]]
    given = {
        "expectedStatus": ("succeeded", "failed", "x"),
        "expectedRouteId": ("demo.v0", "other", ""),
        "expectedManifestId": ("m", "other", 3),
        "expectedInvocationId": ("i", "other"),
        "expectedSchedulingMode": ("cooperative", "disabled", "x"),
        "expectedCompletionPolicy": ("strict-prefix", "bounded-prefix", "x"),
        "expectedGpuDutyCount": (8, 3, 0, -1),
        "expectedMaxInFlightGpuDuties": (2, 3, 0),
        "requireConfiguredDepthObserved": (True, False, 3),
    }
    cases = []
    for _ in range(150):
        names = chance.sample(list(given), chance.randint(1, 3))
        cases.append((chance.choice(reports), {name: chance.choice(given[name]) for name in names}))
    agree(cases)
