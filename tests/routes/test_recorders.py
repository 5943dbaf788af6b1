"""Host phases, command duties and device requirements: histories and mutated reports get the package's answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.boundaries import DUTY_KINDS, HOST_PHASES
from pumice.routes.clocks import ClockError, ClockIdentity
from pumice.routes.device_requirements import compose_requirements, unmet_requirements
from pumice.routes.documents import plain
from pumice.routes.duties import DutyRecorder, duty_descriptor, duty_observation, observation_from_report
from pumice.routes.errors import RouteError
from pumice.routes.host_phases import HostPhaseRecorder, host_phase_events
from pumice.routes.records import DUTY_DESCRIPTOR
from route_samples import mutate

CLOCK = ClockIdentity("clock", "performance.now", 1000)
CONTROL = {"controlId": "rows", "unit": "row", "current": 4, "bounds": {"min": 1, "max": 8, "stepFactor": 2}}
DUTY = {"dutyId": "d", "routeId": "r", "runId": "run", "clockId": "clock", "phase": "p", "kind": "compute"}
EXPECTED = {"firingId": "f", "expectedRouteId": "r", "expectedRunId": "run", "expectedClockId": "clock"}
IDS = {"firing_id": "f", "route_id": "r", "run_id": "run", "clock_id": "clock"}


def answer(work: Callable[..., Any], *given: Any) -> dict[str, Any]:
    try:
        return {"value": work(*given)}
    except RouteError as error:
        return {"thrown": error.message}


def agree(function: str, cases: list[list[Any]], ours: Callable[..., Any]) -> list[dict[str, Any]]:
    """Both sides on the same arguments; our answers."""
    theirs = kit.call([(function, *case) for case in cases])
    mine = [answer(ours, *case) for case in cases]
    for case, one, other in zip(cases, mine, theirs, strict=True):
        found = kit.difference(plain(one), {name: value for name, value in other.items() if name != "type"})
        assert found is None, f"{found}\nof {case}"
    return mine


def test_histories_of_host_phases_are_the_package_s() -> None:
    chance = random.Random(2)

    def history() -> list[tuple[str, Any]]:
        steps: list[tuple[str, Any]] = []
        for at in range(chance.randint(3, 20)):
            time = at - chance.choice((0, 0, 0, 0, 9))
            match chance.choice(("begin", "begin", "end", "end", "fail", "finish")):
                case "begin":
                    phase = chance.choice((*HOST_PHASES, "nothing"))
                    steps.append(("begin", [time, phase, chance.choice(({"a": 1}, {}))]))
                case "finish":
                    steps.append(("finish", None))
                case method:
                    steps.append((method, [time, chance.randint(0, 4)]))
        return steps

    def replay(steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        time = 0
        found = HostPhaseRecorder("r", "run", CLOCK, now=lambda: time)
        known: list[str] = []
        answers = []

        def step(method: str, given: Any) -> Any:
            nonlocal time
            if method == "finish":
                return found.finish()
            time = given[0]
            if method == "begin":
                known.append(found.begin(given[1], given[2]))
                return known[-1]
            if given[1] >= len(known):
                return None
            return found.end(known[given[1]]) if method == "end" else found.fail(known[given[1]], kit.KitError("no"))

        for method, given in steps:
            answers += [answer(step, method, given), {"value": found.snapshot()}]
        return answers

    kit.compare("hostPhases", [(history(),) for _ in range(80)], replay)


def duty(chance: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {"phase": "p", "kind": chance.choice((*DUTY_KINDS, "nothing")), "metadata": {"m": 1}}
    if chance.random() < 0.5:
        given["chunkControl"] = CONTROL if chance.random() < 0.7 else mutate(CONTROL, chance)
    return {**given, "dutyId": chance.choice("xyz")} if chance.random() < 0.3 else given


def test_histories_of_command_duties_are_the_package_s() -> None:
    chance = random.Random(3)

    def history() -> list[tuple[str, Any]]:
        steps: list[tuple[str, Any]] = []
        for at in range(chance.randint(2, 12)):
            end = at + chance.choice((0, 1, 2, -3))
            steps.append(("submit", [at, end, duty(chance), chance.random() < 0.15]))
        return [*steps, ("finish", None), *steps[:1]]

    def replay(steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        time = 0
        found = DutyRecorder("r", "run", CLOCK, now=lambda: time)
        answers = []

        def step(method: str, given: Any) -> Any:
            nonlocal time
            if method == "finish":
                return found.finish()
            time, end, one, fails = given

            def call() -> int:
                nonlocal time
                time = end
                if fails:
                    raise RouteError("full")
                return 7

            rest = {"duty_id": one.get("dutyId"), "chunk_control": one.get("chunkControl"), "metadata": one["metadata"]}
            return found.submit(call, phase=one["phase"], kind=one["kind"], **rest)

        for method, given in steps:
            answers += [answer(step, method, given), {"value": named(found.snapshot())}]
        return answers

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: "Error" if (name, one) == ("name", "RouteError") else named(one) for name, one in value.items()}
        if isinstance(value, list):
            return [named(one) for one in value]
        return value.split("\n")[0].removeprefix("[route] ") if isinstance(value, str) else value

    kit.compare("duties", [(history(),) for _ in range(60)], lambda steps: named(replay(steps)))


def test_mutated_descriptors_and_observations_get_the_same_answer() -> None:
    chance = random.Random(4)
    full = {**DUTY, "chunkControl": CONTROL, "metadata": {"m": 1}}
    cases = [[DUTY], [full], *([mutate(full, chance)] for _ in range(200))]
    made = agree("createWebGpuCommandDutyDescriptor", [case for case in cases if isinstance(case[0], dict)], duty_descriptor)
    for one in made:
        assert "thrown" in one or DUTY_DESCRIPTOR.errors(one["value"]) == []
    rows = [{"descriptor": duty_descriptor(DUTY), "observedDurationMs": 4, "foregroundOverlapDurationMs": 1}]
    rows.append({**rows[0], "descriptor": duty_descriptor({**full, "dutyId": "e"})})
    given = {"routeId": "r", "runId": "run", "clockId": "clock", "firingId": "f", "duties": rows}
    cases = [[given], *([mutate(given, chance)] for _ in range(150))]
    agree(
        "createWebGpuCommandDutyObservation",
        [case for case in cases if isinstance(case[0], dict)],
        lambda one: duty_observation(*(one.get(name) for name in ("routeId", "runId", "clockId", "firingId", "duties"))),
    )


def test_mutated_reports_of_duties_get_the_same_answer() -> None:
    chance = random.Random(5)
    time = iter(range(100))
    recorder = DutyRecorder("r", "run", CLOCK, now=lambda: next(time))
    for _ in range(2):
        recorder.submit(lambda: None, phase="p", kind="compute", chunk_control=CONTROL)
    report = recorder.finish()
    ids = [one["descriptor"]["dutyId"] for one in report["submissions"]]
    rows = [{"dutyId": name, "observedDurationMs": 5, "foregroundOverlapDurationMs": 2} for name in ids]
    cases = [[report, {**EXPECTED, "measurements": rows}]]
    cases += [[mutate(report, chance), {**EXPECTED, "measurements": rows}] for _ in range(150)]
    cases += [[report, {**EXPECTED, "measurements": mutate(rows, chance)}] for _ in range(80)]
    agree(
        "createWebGpuCommandDutyObservationFromReport",
        cases,
        lambda one, options: observation_from_report(one, options["measurements"], **IDS),
    )


def test_mutated_reports_of_host_phases_get_the_same_answer() -> None:
    chance = random.Random(6)
    time = iter(range(100))
    recorder = HostPhaseRecorder("r", "run", CLOCK, now=lambda: next(time))
    recorder.end(recorder.begin("readback", {"a": 1}))
    recorder.fail(recorder.begin("other"), kit.KitError("no"))
    report = recorder.finish()
    cases = [[report, EXPECTED], *([mutate(report, chance), EXPECTED] for _ in range(150))]
    agree("projectWebGpuHostPhaseEvents", cases, lambda one, options: host_phase_events(one, **IDS))


def test_an_exception_inside_a_measured_block_is_kept_and_raised() -> None:
    recorder = HostPhaseRecorder("r", "run", CLOCK, now=lambda: 1)
    with pytest.raises(ZeroDivisionError), recorder.measure("other"):
        raise ZeroDivisionError("no")
    assert recorder.finish()["failure"]["error"]["name"] == "ZeroDivisionError"
    with pytest.raises(ClockError, match="timeOriginEpochMs must be finite"):
        ClockIdentity("c", "s", float("nan"))


def test_requirements_are_composed_and_checked_alike() -> None:
    chance = random.Random(7)
    one = {"requiredFeatures": ["a", "b"], "requiredLimits": {"maxBufferSize": 4, "minUniformBufferOffsetAlignment": 256}}
    two = {"requiredFeatures": ["b", "c"], "requiredLimits": {"maxBufferSize": 8, "minUniformBufferOffsetAlignment": 64}}
    cases = [[[one, two]], [[two, one]], [[]], *([mutate([one, two], chance)] for _ in range(150))]
    agree("composeWebGpuDeviceRequirements", cases, compose_requirements)
    device = {"features": ["a", "b"], "limits": {"maxBufferSize": 8, "minUniformBufferOffsetAlignment": 128}}
    pairs = [[device, one], [device, two], *([device, mutate(two, chance)] for _ in range(100))]
    pairs += [[mutate(device, chance), one] for _ in range(100)]
    # The characters of a string pass for features there.
    pairs = [pair for pair in pairs if isinstance(pair[1], dict) and not isinstance(pair[0].get("features"), str)]

    def unmet(held: Any, wanted: Any) -> dict[str, Any]:
        errors = unmet_requirements(held, wanted)
        return {"ok": not errors, "errors": errors}

    agree("validateWebGpuDeviceRequirements", pairs, unmet)
