"""Phase programs, working sets and worker phases: mutated documents and histories get the package's answers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.documents import plain
from pumice.routes.errors import InvalidDocument, RouteError
from pumice.routes.phase_program import PHASE_PROGRAM, phase_program, program_errors
from pumice.routes.records import WORKER_PROGRESS, WORKER_REQUEST, WORKER_RESULT
from pumice.routes.residency import ResidencyLedger
from pumice.routes.worker_phase import WorkerPhase, WorkerPhaseError, answer_request
from pumice.routes.working_sets import RESOURCE_PLAN, WorkingSet, WorkingSetError, plan_errors, resource_plan
from route_samples import mutate

PROGRAM: dict[str, Any] = {
    "name": "p",
    "tensors": {"x": {}, "y": {}},
    "uniforms": {"u": {}},
    "buffers": {"b": {}, "x": {}},
    "resources": {"r": {}},
    "kernels": {
        "k": {
            "code": "c",
            "bindings": [{"name": "a", "resource": "tensor:x", "access": "storage"}, {"name": "p", "resource": "uniform:u"}],
        },
        "l": {"code": "c", "bindings": [{"name": "a", "resource": "x"}, {"name": "r", "resource": "resource:r"}]},
    },
    "phases": [
        {"name": "one", "kernel": "k", "dispatch": [1, 2], "yieldAfter": True, "commandDuty": {"n": 1}},
        {"name": "two", "kernel": "l", "dispatch": [3], "metadata": {"m": 1}},
        {"name": "three", "readbacks": [{"name": "out", "tensor": "y"}, {"name": "bytes", "resource": "buffer:b"}]},
    ],
}
PLAN: dict[str, Any] = {
    "planId": "p 1",
    "resources": [
        {"resourceId": "a", "declaredBytes": 4},
        {"resourceId": "b", "declaredBytes": 8, "metadata": {"m": "ü"}},
        {"resourceId": "c", "declaredBytes": 16},
    ],
    "phases": [
        {"phaseId": "one", "requiredResourceIds": ["a"], "prefetchResourceIds": ["b"]},
        {"phaseId": "two", "requiredResourceIds": ["c", "b"], "metadata": {"z": 1}},
        {"phaseId": "three", "requiredResourceIds": []},
    ],
}


def referenced(value: Any) -> Any:
    """The package's program with references instead of resources."""
    if isinstance(value, dict):
        return value["ref"] if "ref" in value else {name: referenced(one) for name, one in value.items()}
    return [referenced(one) for one in value] if isinstance(value, list) else value


def well_formed(program: dict[str, Any]) -> bool:
    """Whether lists of bindings and readbacks hold objects: the package takes other things for them, or throws."""
    phases, kernels = program.get("phases"), program.get("kernels")
    lists = [one.get("readbacks", []) for one in (phases if isinstance(phases, list) else ()) if isinstance(one, dict)]
    held = list(kernels.values()) if isinstance(kernels, dict) else []
    lists += [one.get("bindings", []) for one in held if isinstance(one, dict)]
    entries = [one for listed in lists if isinstance(listed, list) for one in listed]
    sources = [one.get(name) for one in entries if isinstance(one, dict) for name in ("resource", "tensor")]
    objects = all(isinstance(one, dict) for one in entries) and not any(isinstance(one, list) for one in sources)
    tables = [program.get(f"{kind}s") for kind in ("tensor", "uniform", "buffer", "resource")]
    objects = objects and not any(isinstance(one, str) for one in tables)
    return objects and all(isinstance(one, list) or one is None for one in lists[: len(lists) - len(held)])


def first_error(errors: list[str]) -> str | None:
    return errors[0] if errors else None


def test_programs_are_the_package_s() -> None:
    chance = random.Random(41)
    cases: list[Any] = [PROGRAM]
    cases += [mutated for _ in range(300) if isinstance(mutated := mutate(PROGRAM, chance), dict)]
    cases = [case for case in cases if well_formed(case)]
    answers = kit.call([("program", case) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        assert first_error(program_errors(case)) == answer.get("thrown"), case
        if "value" in answer:
            program = phase_program(case)
            found = kit.difference(plain(program), referenced(answer["value"]))
            assert found is None, (found, case)
            assert PHASE_PROGRAM.errors(program) == []
    assert sum("thrown" in answer for answer in answers) > 60


def test_plans_are_the_package_s() -> None:
    chance = random.Random(42)
    cases = [PLAN, *(mutate(PLAN, chance) for _ in range(200))]
    cases = [case for case in cases if isinstance(case, dict)]
    answers = kit.call([("defineWebGpuPhaseResourcePlan", case) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        assert first_error(plan_errors(case)) == answer.get("thrown"), case
        if "value" in answer:
            plan = resource_plan(case)
            assert kit.difference(plain(plan), answer["value"]) is None, case
            assert RESOURCE_PLAN.errors(plan) == []
    with pytest.raises(InvalidDocument, match=r"planId must be a non-empty string; .*duplicate phase one"):
        resource_plan({**PLAN, "planId": "", "phases": PLAN["phases"] + PLAN["phases"][:1]})


def working_set_history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(3, 14)):
        how: dict[str, Any] = {}
        if chance.random() < 0.2:
            how["missing"] = chance.choice("abc")
        if chance.random() < 0.15:
            how["stuck"] = chance.choice("abc")
        if chance.random() < 0.15:
            how["answers"] = chance.choice(("already-released", "invalidated", "odd"))
        if chance.random() < 0.12:
            steps.append(("close", how))
        else:
            steps.append(("transition", [chance.choice(("one", "two", "three", "four")), how]))
    return steps


def working_set_replay(plan: dict[str, Any], steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    clock = kit.StepClock()
    how: dict[str, Any] = {}

    def acquire(name: str, purpose: str) -> Any:
        assert purpose == ("prefetch" if name == "b" and how["phase"] == "one" else "required")
        if how.get("missing") == name:
            raise kit.KitError(f"no {name}")

        def release() -> str:
            if how.get("stuck") == name:
                raise kit.KitError("stuck")
            answered: str = how.get("answers", "released")
            return answered

        return release

    held = WorkingSet("c", resource_plan(plan), acquire, clock=clock)
    answers: list[dict[str, Any]] = []
    for clock.time, (method, given) in enumerate(steps, 1):
        how.clear()
        try:
            if method == "close":
                how |= given
                answers.append({"value": held.close()})
            else:
                how |= {**given[1], "phase": given[0]}
                answers.append({"value": held.transition(given[0])})
        except WorkingSetError as error:
            report = error.fields.get("report")
            answers.append({"thrown": error.message if report is None else report})
        answers.append({"value": held.snapshot()})
    return answers


def test_histories_of_working_sets_are_the_package_s() -> None:
    chance = random.Random(43)
    cases = [(PLAN, working_set_history(chance)) for _ in range(150)]
    answers = kit.call([("workingSet", *case) for case in cases])
    for (plan, steps), answer in zip(cases, answers, strict=True):
        for i, (mine, other) in enumerate(zip(working_set_replay(plan, steps), answer["value"], strict=True)):
            thrown = other.get("thrown", "")
            theirs = {"thrown": json.loads(thrown) if thrown.startswith("{") else thrown} if thrown else other
            found = kit.difference(mine, theirs)
            assert found is None, f"{found}\nafter {steps[: i // 2 + 1]}"


def test_a_working_set_holds_leases_of_a_ledger() -> None:
    ledger = ResidencyLedger("s", clock=lambda: 0)
    sizes = {one["resourceId"]: one["declaredBytes"] for one in PLAN["resources"]}

    def acquire(name: str, purpose: str) -> Any:
        lease = ledger.acquire(name, "r", declared_bytes=sizes[name], kind="weights", resource=sizes)
        return lambda: lease.release()["status"]

    held = WorkingSet("c", resource_plan(PLAN), acquire, clock=lambda: 0)
    held.transition("one")
    assert held.transition("two")["releasedResourceIds"] == ["a"]
    assert [one["resourceId"] for one in ledger.snapshot()["evictionCandidates"]] == ["a"]
    ledger.invalidate_all("device-lost")
    assert held.close()["status"] == "closed-after-invalidation"


IDS = {"executionId": "e", "operationId": "o", "moduleId": "m"}


def worker_history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for number in range(chance.randint(1, 6)):
        ids = {**IDS, chance.choice(list(IDS)): "other"} if chance.random() < 0.1 else IDS
        match chance.choice(("progress", "progress", "progress", "result", "cancel", "crash", "odd")):
            case "progress":
                sequence = chance.choice((number, number, number, 0, -1, "x"))
                message = {"schema": "kaminos.webgpu-worker-phase-progress.v0", **ids, "sequence": sequence}
                steps.append(("receive", {**message, "progress": {"done": number}}))
            case "result":
                status = chance.choice(("completed", "failed", "odd"))
                rest: dict[str, Any] = {"output": chance.choice(({"z": 1}, "bad"))}
                if status == "failed":
                    rest = {"error": chance.choice(({"name": "X", "message": "no"}, {"message": "no"}, {}, None))}
                steps.append(("receive", {"schema": "kaminos.webgpu-worker-phase-result.v0", **ids, "status": status, **rest}))
            case "cancel":
                steps.append(("cancel", None))
            case "crash":
                steps.append(("crash", "gone"))
            case _:
                steps.append(("receive", chance.choice((3, {"schema": "x", **IDS}, []))))
    return steps


def comparable(report: Any) -> Any:
    """What both sides say of a phase, without how a browser ends a worker."""
    if report is None:
        return None
    history = [{name: value for name, value in one.items() if name != "sequence"} for one in report["history"]]
    rest = {name: value for name, value in report.items() if name not in ("cleanup", "history")}
    return {**rest, "history": history}


def test_histories_of_worker_phases_are_the_package_s() -> None:
    """Except for the numbers of the history, which progress overwrites with the worker's there."""
    chance = random.Random(44)
    cases = [(None, worker_history(chance)) for _ in range(120)]
    answers = kit.call([("worker", *case) for case in cases])

    def validate(output: Any) -> Any:
        if output == "bad":
            raise kit.KitError("bad output")
        return output

    for (_, steps), answer in zip(cases, answers, strict=True):
        clock = kit.StepClock()
        phase = WorkerPhase("e", "o", "m", {"a": 1}, clock=clock, metadata={"m": 1}, validate=validate)
        phase.dispatched()
        assert WORKER_REQUEST.errors(phase.request) == []
        for clock.time, ((method, given), other) in enumerate(zip(steps, answer["value"][1::2], strict=True), 1):
            match method:
                case "receive":
                    phase.receive(given)
                case "cancel":
                    phase.cancel("AbortError: This operation was aborted")
                case "crash":
                    phase.crashed(given)
            ended = phase.report() if phase.status != "running" else None
            found = kit.difference(comparable(ended), comparable(other["value"]))
            assert found is None, f"{found}\nafter {steps}"
        history = phase.report()["history"]
        assert [one["sequence"] for one in history] == list(range(len(history)))
        assert all(WORKER_PROGRESS.errors(one) == [] for one in phase.report()["progress"])


def test_a_worker_phase_times_out_only_where_it_is_told_to() -> None:
    clock = kit.StepClock()
    patient, hasty = (WorkerPhase("e", "o", "m", clock=clock, timeout_ms=ms) for ms in (None, 5))
    for phase in (patient, hasty):
        phase.dispatched()
    clock.time = 1e9
    patient.tick()
    hasty.tick()
    assert patient.status == "running" and hasty.status == "timed-out"
    assert hasty.error == {"name": "TimeoutError", "message": "worker phase timed out after 5ms"}
    hasty.receive({"schema": "kaminos.webgpu-worker-phase-result.v0", **IDS, "status": "completed"})
    assert hasty.status == "timed-out"
    for ms in (0, -1, float("nan"), 2**31):
        with pytest.raises(WorkerPhaseError, match="timeoutMs"):
            WorkerPhase("e", "o", "m", clock=clock, timeout_ms=ms)


def test_a_worker_answers_with_a_result() -> None:
    request = WorkerPhase("e", "o", "m", {"n": 2}, clock=lambda: 0).request
    done = answer_request(request, lambda payload: payload["n"] + 1)
    failed = answer_request(request, lambda payload: payload["missing"])
    assert WORKER_RESULT.errors(done) == [] == WORKER_RESULT.errors(failed)
    assert (done["output"], failed["error"]["name"]) == (3, "KeyError")
    with pytest.raises(RouteError, match="request schema is invalid"):
        answer_request({}, len)
