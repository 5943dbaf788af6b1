"""Sessions: random histories of routes that share a device give the package's records, down to queues and residency."""

from __future__ import annotations

import random
from typing import Any

import route_kit as kit
from pumice.routes.application import SchedulerApplication
from pumice.routes.backend import backend_identity
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.records import SESSION
from pumice.routes.residency import Lease
from pumice.routes.session import InferenceSession, SessionError, SessionRoute

SCHEDULER = {"mode": "cooperative", "yieldMs": 4, "waitForSubmittedWorkDone": True, "phaseChunkSize": {"a": 8}}
BOUNDS = {
    "yieldMs": {"min": 0, "max": 16, "step": 2},
    "phaseChunkSize": {"a": {"min": 1, "max": 16, "stepFactor": 2}},
}
DECISION = {
    "schema": "kaminos.foreground-budget-governor-decision.v0",
    "status": "adjusted",
    "action": "increase-yield-budget",
    "target": "yieldMs",
    "schedulerChanged": True,
    "applicationAuthority": "decision-state-only-not-runtime-application",
    "failures": [],
}
_ENDS = ("succeed", "fail")
_METHODS = (
    *("enqueue",) * 5,
    *_ENDS * 2,
    *("cancel", "decide", "acquire", "release", "release", "evict", "request", "made", "unmade", "unregister", "close"),
)


def identity() -> dict[str, Any]:
    found: dict[str, Any] = plain(
        backend_identity("counting", features=["shader-f16"], limits={"maxBufferSize": 4}, runtime="browser")
    )
    return found


def decision(route: str, revision: int) -> dict[str, Any]:
    before, after = 4 + 2 * (revision - 1), 4 + 2 * revision
    schedulers = {
        "previousScheduler": {**SCHEDULER, "yieldMs": before},
        "effectiveScheduler": {**SCHEDULER, "yieldMs": after},
    }
    return {**DECISION, "routeId": route, "revision": revision, **schedulers}


def history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = [("register", "r1"), ("register", "r2")]
    lost_at = chance.choice((0, 0, chance.randint(5, 25)))
    for count in range(chance.randint(6, 30)):
        route, job = chance.choice(("r1", "r1", "r2", "r3")), chance.choice("abcdef")
        resource = chance.choice("wxyz")
        match chance.choice(("register", *_METHODS)):
            case "enqueue":
                steps.append(("enqueue", {"route": route, "jobId": job, "metadata": {"n": 1}}))
            case "cancel":
                steps.append(("cancel", [route, job]))
            case "decide":
                steps.append(("decide", [route, decision(route, chance.choice((1, 1, 2, 3)))]))
            case "acquire":
                ownership = chance.choice(("borrowed", "managed"))
                given = {"declaredBytes": 4, "kind": "k", "ownership": ownership, "resourceId": resource}
                steps.append(("acquire", {"route": route, **given}))
            case "release":
                steps.append(("release", chance.randint(0, 3)))
            case "request":
                steps.append(("request", {"route": route, "resourceId": f"made-{resource}"}))
            case "made" | "unmade" as method:
                steps.append((method, f"made-{resource}"))
            case "evict":
                steps.append(("evict", chance.choice((resource, f"made-{resource}"))))
            case "close":
                steps.append(("close", None))
            case method:
                steps.append((method, route))
        if count == lost_at and lost_at:
            steps.append(("lose", "destroyed"))
    return steps


class Replay:
    """The same steps on our session; whatever can start does, as the package's jobs do by themselves."""

    def __init__(self) -> None:
        self.time = 0
        self.session = InferenceSession("s", identity(), clock=lambda: self.time)
        self.routes: dict[str, SessionRoute] = {}
        self.jobs: set[str] = set()
        self.leases: list[Lease] = []
        self.live: dict[str, object] = {}

    def step(self, method: str, given: Any) -> Any:
        route = self.routes.get(given if isinstance(given, str) else given["route"] if isinstance(given, dict) else "")
        match method:
            case "register":
                application = SchedulerApplication(given, SCHEDULER, BOUNDS)
                self.routes[given] = self.session.register(given, application)
            case "unregister":
                return self.session.unregister(given)
            case "enqueue" if route:
                route.enqueue(given["jobId"], given["metadata"])
                self.jobs.add(f"{given['route']}/{given['jobId']}")
            case "succeed" | "fail" if route:
                active = route.queue.snapshot()["activeJobId"]
                if active and method == "succeed":
                    route.queue.succeed(active, 3)
                elif active:
                    route.queue.fail(active, kit.KitError("no"))
            case "cancel" if "/".join(given) in self.jobs:
                return self.routes[given[0]].queue.cancel(given[1], "why")
            case "decide" if given[0] in self.routes:
                try:
                    self.routes[given[0]].schedule_decision(given[1])
                except SessionError as error:
                    if "detached" in error.message or "lost" in error.message or "closed" in error.message:
                        raise
            case "acquire" if route:
                name, size = given["resourceId"], {"declared_bytes": 4, "kind": "k", "ownership": given["ownership"]}
                dispose = (lambda _: None) if given["ownership"] == "managed" else None
                live = self.live.setdefault(name, object())
                self.leases.append(route.acquire(name, **size, resource=live, dispose=dispose))
            case "release":
                if given < len(self.leases):
                    self.leases[given].release()
            case "evict":
                return self.session.residency.evict(given)
            case "request" if route:
                name, size = given["resourceId"], {"declared_bytes": 8, "kind": "made"}
                if route.request_resource(name, **size) == "resident":
                    self.leases.append(route.acquire(name, **size, ownership="managed"))
            case "made" | "unmade" if self.session.creations.making(given):
                if method == "made":
                    self.leases += self.session.creations.succeed(given, object(), lambda _: None)
                else:
                    self.session.creations.fail(given, kit.KitError("no"))
            case "lose":
                self.session.lose(given, "gone")
            case "close":
                self.session.close()
        return None

    def run(self, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for self.time, (method, given) in enumerate(steps, 1):
            try:
                answers.append({"value": self.step(method, given)})
            except RouteError as error:
                answers.append({"thrown": error.message})
            # The queue whose job just ended asks again before the others.
            order = sorted(self.routes.values(), key=lambda route: route.route_id != given)
            for route in order * 3:  # a job that another one waited for may only now be admitted
                route.queue.start_next()
            answers.append({"value": self.session.snapshot()})
            assert SESSION.errors(answers[-1]["value"]) == []
        return answers


def test_histories_are_the_package_s() -> None:
    chance = random.Random(8)
    cases = [(SCHEDULER, BOUNDS, history(chance)) for _ in range(60)]
    kit.compare("session", cases, lambda scheduler, bounds, steps: Replay().run(steps))
