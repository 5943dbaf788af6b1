"""Scheduler applications: histories, mutated settings and mutated decisions get the package's records and error texts."""

from __future__ import annotations

import random
from typing import Any

import route_kit as kit
from pumice.routes.application import ApplicationError, Invocation, SchedulerApplication
from pumice.routes.governor import ChunkBounds, ForegroundGovernor, FrameWindow, YieldBounds
from pumice.routes.records import SCHEDULER_BOUNDARY
from pumice.routes.scheduler import Settings
from route_samples import mutate

SCHEDULER = {"mode": "cooperative", "yieldMs": 4, "waitForSubmittedWorkDone": True, "phaseChunkSize": {"a": 8, "b": 4}}
CHUNK = {"min": 1, "max": 16, "stepFactor": 2}
BOUNDS = {"yieldMs": {"min": 0, "max": 16, "step": 2}, "phaseChunkSize": {"a": CHUNK, "b": CHUNK}}
OPTIONS = {"routeId": "r", "revision": 0, "scheduler": SCHEDULER, "bounds": BOUNDS}
_ACTIONS = ("increase-yield-budget", "reduce-yield-budget", "reduce-phase-chunk", "relax-phase-chunk")


def decision(previous: dict[str, Any], revision: int, action: str, control: str = "a") -> dict[str, Any]:
    """A lawful decision, but for bounds."""
    step = 1 if action in ("increase-yield-budget", "relax-phase-chunk") else -1
    yields = action.endswith("yield-budget")
    chunks = dict(previous["phaseChunkSize"])
    if not yields:
        chunks[control] = chunks[control] * 2 if step > 0 else chunks[control] // 2
    after = {**previous, "yieldMs": previous["yieldMs"] + 2 * step * yields, "phaseChunkSize": chunks}
    return {
        "schema": "kaminos.foreground-budget-governor-decision.v0",
        "routeId": "r",
        "status": "adjusted",
        "action": action,
        "target": "yieldMs" if yields else control,
        "schedulerChanged": True,
        "applicationAuthority": "decision-state-only-not-runtime-application",
        "revision": revision,
        "previousScheduler": previous,
        "effectiveScheduler": after,
        "failures": [],
    }


def boundary(chance: random.Random) -> dict[str, Any]:
    given = {"boundaryId": chance.choice("12345678"), "dutyId": "d", "phase": "p", "position": "before-encode"}
    if chance.random() < 0.2:
        given[chance.choice(list(given))] = chance.choice(("", "x", "after-encode"))
    if chance.random() < 0.3:
        return {**given, "metadata": chance.choice(({"m": 1}, {}, [], 3))}
    return given


def history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    scheduler, revision = SCHEDULER, 0
    for _ in range(chance.randint(5, 25)):
        name = chance.choice(("i", "j", "j", ""))
        match chance.choice(("begin", "begin", "end", "control", "refresh", "refresh", "refresh", "settle", "settle", "apply")):
            case "control":
                steps.append(("control", [name, chance.choice(("a", "b", "zz", ""))]))
            case "refresh":
                steps.append(("refresh", [name, boundary(chance)]))
            case "settle":
                status = chance.choice(("encoded", "encoded", "failed-before-encode", "other"))
                phase = {"phase": chance.choice(("compile", ""))} if status == "failed-before-encode" else {}
                steps.append(("settle", [name, {"boundaryId": chance.choice("12345678"), "status": status, **phase}]))
            case "apply":
                given = decision(scheduler, revision + 1, chance.choice(_ACTIONS), chance.choice("ab"))
                after = given["effectiveScheduler"]
                inside = 0 <= after["yieldMs"] <= 16 and all(1 <= n <= 16 for n in after["phaseChunkSize"].values())
                if inside and chance.random() < 0.7:
                    scheduler, revision = after, revision + 1
                elif inside:
                    given = mutate(given, chance)
                    given = {"routeId": "other"} if application_errors(scheduler, revision, given) is None else given
                steps.append(("apply", given))
            case method:
                steps.append((method, name))
    return steps


def application_errors(scheduler: dict[str, Any], revision: int, given: Any) -> str | None:
    try:
        SchedulerApplication("r", scheduler, BOUNDS, revision=revision).apply(given)
    except ApplicationError as error:
        return error.message
    return None


def replay(options: dict[str, Any], steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    application = SchedulerApplication(options["routeId"], options["scheduler"], options["bounds"], revision=options["revision"])
    known: dict[str, Invocation] = {}
    answers: list[dict[str, Any]] = []

    def step(method: str, given: Any) -> Any:
        if method == "begin":
            known[given] = application.begin(given)
            return known[given].to_json()
        if method == "apply":
            return application.apply(given)
        name = given if isinstance(given, str) else given[0]
        if name not in known:
            return None
        match method:
            case "end":
                return application.end(known[name])
            case "control":
                return known[name].control(given[1])
            case "refresh":
                one = given[1]
                rest = {"position": one["position"], "metadata": one.get("metadata")}
                return known[name].refresh(one["boundaryId"], one["dutyId"], one["phase"], **rest)
        return known[name].settle(given[1]["boundaryId"], given[1]["status"], phase=given[1].get("phase"))

    for method, given in steps:
        try:
            answers.append({"value": step(method, given)})
        except ApplicationError as error:
            answers.append({"thrown": error.message})
        answers.append({"value": application.snapshot()})
        assert all(SCHEDULER_BOUNDARY.errors(one) == [] for one in application.boundaries)
    return answers


def test_histories_are_the_package_s() -> None:
    chance = random.Random(4)
    kit.compare("application", [(OPTIONS, history(chance)) for _ in range(80)], replay)


def test_mutated_decisions_get_the_same_answer() -> None:
    chance = random.Random(6)
    lawful = [decision(SCHEDULER, 1, action) for action in _ACTIONS]
    cases: list[Any] = [mutate(chance.choice(lawful), chance) for _ in range(200)]
    answers = kit.call([("application", OPTIONS, [("apply", given)]) for given in cases])
    for given, answer in zip(cases, answers, strict=True):
        mine, theirs = application_errors(SCHEDULER, 0, given), answer["value"][0].get("thrown")
        assert mine == theirs, given
    assert len({answer["value"][0].get("thrown") for answer in answers}) > 12, "the mutations break too few rules"


def test_mutated_settings_get_the_same_answer() -> None:
    chance = random.Random(70)
    cases = [mutate(OPTIONS, chance) for _ in range(200)]
    answers = kit.call([("application", given, []) for given in cases])
    for given, answer in zip(cases, answers, strict=True):
        try:
            SchedulerApplication(
                given.get("routeId", ""),
                given.get("scheduler", {}) if "scheduler" in given else None,
                given.get("bounds"),
                **({"revision": given["revision"]} if given.get("revision") is not None else {}),
            )
            mine = None
        except ApplicationError as error:
            mine = error.message
        assert mine == answer.get("thrown"), given


def test_the_package_applies_our_governor_s_decisions() -> None:
    governor = ForegroundGovernor(
        "r",
        "epoch",
        Settings("cooperative", 4, True, {"a": 8, "b": 4}),
        target_gap_ms=16,
        chunks={"a": ChunkBounds(1, 16), "b": ChunkBounds(1, 16)},
        yields=YieldBounds(0, 16, 2),
    )
    decisions = []
    for i in range(12):
        gap = 40 if i < 8 else 8
        decisions.append(governor.observe(FrameWindow("epoch", str(i), str(i), gap, {"a": gap})))
    changed = [one for one in decisions if one["schedulerChanged"]]
    assert len(changed) >= 4 and {one["status"] for one in changed} == {"adjusted", "relaxed"}
    (answer,) = kit.call([("application", OPTIONS, [("apply", one) for one in changed])])
    assert [one["value"]["status"] for one in answer["value"][::2]] == ["applied"] * len(changed)
    ours = SchedulerApplication("r", SCHEDULER, BOUNDS)
    assert [ours.apply(one)["effectiveRevision"] for one in changed] == list(range(1, len(changed) + 1))
