"""The foreground interlock and bounded submissions: random histories give the package's records."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.errors import RouteError
from pumice.routes.foreground import ForegroundError, ForegroundInterlock
from pumice.routes.records import FOREGROUND_RECEIPT, SUBMISSION_REPORT
from pumice.routes.submissions import BoundedSubmissions, SubmissionError

BOUNDARY = {"invocationId": "i", "boundaryId": "b", "dutyId": "d", "phase": "p", "position": "before-encode"}


def boundary(chance: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {**BOUNDARY, "metadata": {"z": 1}}
    if chance.random() < 0.1:
        given[chance.choice(list(given))] = chance.choice(("", 3, []))
    return given


def history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(5, 30)):
        name = chance.choice("abcdefgh")
        match chance.choice(
            ("request",) * 4 + ("service",) * 3 + ("submit",) * 3 + ("settle",) * 3 + ("fail", "cancel", "pressure", "finish")
        ):
            case "request":
                steps.append(("request", {"requestId": chance.choice((name, name, " ")), "metadata": {"m": 1}}))
            case "service":
                steps.append(("service", boundary(chance)))
            case "submit":
                given = {"count": chance.choice((1, 2, 0)), "fails": chance.random() < 0.2}
                own = {"submissionId": chance.choice("xy")} if chance.random() < 0.4 else {}
                steps.append(("submit", {**given, **own}))
            case "settle":
                steps.append(("settle", {"ok": 1}))
            case "fail":
                steps.append(("fail", "no"))
            case "cancel":
                steps.append(("cancel", name))
            case method:
                steps.append((method, None))
    return steps


def replay(steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    clock = kit.StepClock()
    found = ForegroundInterlock("r", "run", clock=clock)
    known: set[str] = set()
    answers: list[dict[str, Any]] = []

    def step(method: str, given: Any) -> Any:
        match method:
            case "request":
                found.request(given["requestId"], given["metadata"])
                known.add(given["requestId"])
            case "service":
                names = ("invocationId", "boundaryId", "dutyId", "phase")
                rest = {"position": given["position"], "metadata": given["metadata"]}
                return found.service(*(given[name] for name in names), **rest)
            case "submit" if found.active:
                error = kit.KitError("full") if given["fails"] else None
                submission = found.submit(given["count"], submission_id=given.get("submissionId"), error=error)
                if error is not None:
                    raise ForegroundError("full")
                return submission
            case "settle" if found.active:
                assert FOREGROUND_RECEIPT.errors(found.settle(given)) == []
            case "fail" if found.active:
                found.settle(error=kit.KitError(given))
            case "cancel" if given in known:
                return found.cancel(given, "why")
            case "pressure":
                return found.pressure()
            case "finish":
                return found.finish()
        return None

    for clock.time, (method, given) in enumerate(steps, 1):
        try:
            answers.append({"value": step(method, given)})
        except RouteError as error:
            answers.append({"thrown": error.message})
        answers.append({"value": found.snapshot()})
    return answers


def test_histories_of_the_interlock_are_the_package_s() -> None:
    chance = random.Random(21)
    kit.compare("interlock", [(history(chance),) for _ in range(120)], replay)


def test_a_result_that_is_no_json_fails_its_request() -> None:
    found = ForegroundInterlock("r", "run", clock=lambda: 0)
    found.request("a")
    found.service("i", "b", "d", "p")
    receipt = found.settle({"x": object()})
    assert receipt["status"] == "failed-before-submission" and receipt["failure"]["phase"] == "foreground-result-serialization"
    assert found.services[-1]["status"] == "failed"
    with pytest.raises(ForegroundError, match="no foreground opportunity is active"):
        found.settle()


def submission_history(chance: random.Random) -> list[tuple[str, Any]]:
    """Steps that a caller may take: it waits at full depth, and drains at the end."""
    steps: list[tuple[str, Any]] = []
    queue = BoundedSubmissions(depth := chance.randint(1, 3), clock=lambda: 0)
    flying: list[str] = []
    for number in range(chance.randint(3, 20)):
        if queue.waits_for:
            how = "rejected" if chance.random() < 0.1 else "completed"
            steps.append((how, None))
            name = flying.pop(0)
            queue.completed(name) if how == "completed" else queue.rejected(name, ValueError("lost"))
        else:
            name = chance.choice((f"d{number}", f"d{number}", "d0", " "))
            fails = chance.random() < 0.05
            steps.append(("submit", {"dutyId": name, "metadata": {"n": number}, "fails": fails}))
            try:
                queue.submit(name, lambda: None)
                if fails:
                    queue.failure = {"phase": "queue-submission"}
                    queue._flying.pop()
                    queue._waiting = None
                else:
                    flying.append(name)
            except SubmissionError:
                pass
        if queue.failure:
            break
    steps += [("completed", None)] * len(flying) + [("finish", None)]
    return [("depth", depth), *steps]


def submission_replay(depth: int, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    clock = kit.StepClock()
    found = BoundedSubmissions(depth, clock=clock)
    answers: list[dict[str, Any]] = []

    def refuse() -> None:
        raise kit.KitError("full")

    def step(method: str, given: Any) -> Any:
        flying = found.report()["inFlightDutyIds"]
        match method:
            case "submit":
                found.submit(given["dutyId"], refuse if given["fails"] else lambda: None, given["metadata"])
            case "completed" if flying:
                found.completed(flying[0])
            case "rejected" if flying:
                found.rejected(flying[0], kit.KitError("lost"))
            case "finish":
                return found.finish()
        return None

    for clock.time, (method, given) in enumerate(steps, 1):
        try:
            answers.append({"value": step(method, given)})
        except RouteError as error:
            answers.append({"thrown": error.message})
        except kit.KitError as error:
            answers.append({"thrown": str(error)})
        report = found.report()
        assert SUBMISSION_REPORT.errors(report) == []
        answers.append({"value": report})
    return answers


def test_histories_of_submissions_are_the_package_s() -> None:
    """The package settles a duty when it waits for it, and not when its fence does: their ends are compared."""
    chance = random.Random(31)
    cases = [(steps[0][1], steps[1:]) for steps in (submission_history(chance) for _ in range(80))]
    answers = kit.call([("submissions", depth, steps) for depth, steps in cases])
    for (depth, steps), answer in zip(cases, answers, strict=True):
        mine, theirs = submission_replay(depth, steps), answer["value"]
        found = kit.difference(mine[-2:], theirs[-2:])
        assert found is None, f"{found}\nafter {steps}"
        for i, (one, other) in enumerate(zip(mine[::2], theirs[::2], strict=True)):
            if steps[i][0] == "submit" and steps[i][1]["fails"]:
                continue  # which the package reports after everything else is done
            assert one == {key: value for key, value in other.items() if key != "type"}, steps[: i + 1]
