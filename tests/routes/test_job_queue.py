"""The inference queue: random histories give the package's states and records, and its completions are documents."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.job_queue import InferenceQueue, QueueError
from pumice.routes.records import JOB_COMPLETION


def history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(4, 20)):
        name = chance.choice("abcd")
        match chance.choice(("enqueue",) * 4 + ("succeed", "succeed", "fail", "cancel", "cancel", "progress", "forget")):
            case "enqueue":
                steps.append(("enqueue", {"jobId": chance.choice((name, name, name, " ")), "metadata": {"n": 1}}))
            case "succeed":
                steps.append(("succeed", 3))
            case "fail":
                steps.append(("fail", "no"))
            case "cancel":
                steps.append(("cancel", [name, "why"]))
            case "progress":
                steps.append(("progress", chance.choice(({"x": 1}, None))))
            case method:
                steps.append((method, name))
    return steps


class Replay:
    """The same steps on our queue; a job starts as soon as it can, as the package's do."""

    def __init__(self) -> None:
        self.time = 0
        self.queue = InferenceQueue("r", clock=lambda: self.time)
        self.known: set[str] = set()

    def step(self, method: str, given: Any) -> Any:
        active = self.queue.snapshot()["activeJobId"]
        match method:
            case "enqueue":
                self.queue.enqueue(given["jobId"], given["metadata"])
                self.known.add(given["jobId"])
            case "succeed":
                if active:
                    assert JOB_COMPLETION.errors(self.queue.succeed(active, given)) == []
            case "fail":
                if active:
                    assert JOB_COMPLETION.errors(self.queue.fail(active, kit.KitError(given))) == []
            case "cancel":
                return self.queue.cancel(*given) if given[0] in self.known else None
            case "progress":
                return self.queue.report_progress(active, given) if active else None
            case "forget":
                done = self.queue.forget(given)
                self.known.discard(given)
                return done
        return None

    def run(self, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for self.time, (method, given) in enumerate(steps, 1):
            try:
                answers.append({"value": self.step(method, given)})
            except QueueError as error:
                answers.append({"thrown": error.message})
            self.queue.start_next()
            answers.append({"value": self.queue.snapshot()})
        return answers


def test_histories_are_the_package_s() -> None:
    chance = random.Random(5)
    cases = [[step for step in history(chance) if step[0] != "forget" or chance.random() < 0.3] for _ in range(100)]
    answers = kit.call([("queue", steps) for steps in cases])
    for steps, answer in zip(cases, answers, strict=True):
        theirs = [{k: v for k, v in one.items() if k != "type"} for one in answer["value"]]
        for i, (mine, other) in enumerate(zip(Replay().run(steps), theirs, strict=True)):
            assert mine == other, steps[: i // 2 + 1]


def test_jobs_run_in_order_one_at_a_time_and_leave_nothing() -> None:
    queue = InferenceQueue("r", clock=lambda: 0)
    for cycle in range(100):
        queue.enqueue(f"a{cycle}")
        queue.enqueue(f"b{cycle}")
        assert queue.start_next() == f"a{cycle}" and queue.start_next() is None
        queue.fail(f"a{cycle}", ValueError("no"))
        assert queue.start_next() == f"b{cycle}"
        assert queue.succeed(f"b{cycle}", 3)["output"] == 3
        assert queue.forget(f"a{cycle}") and queue.forget(f"b{cycle}") and not queue.forget(f"b{cycle}")
    assert queue.snapshot()["jobs"] == []


def test_what_no_state_allows_is_refused() -> None:
    queue = InferenceQueue("r", clock=lambda: 0)
    queue.enqueue("a")
    for refused in (
        lambda: queue.succeed("a"),
        lambda: queue.completion("a"),
        lambda: queue.cancel("zz"),
        lambda: queue.forget("a"),
    ):
        with pytest.raises(QueueError):
            refused()
    assert queue.snapshot()["pendingJobCount"] == 1
