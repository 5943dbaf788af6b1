"""The residency ledger: random histories give the package's records and errors, and the accounts never contradict themselves."""

from __future__ import annotations

import random
from typing import Any

import route_kit as kit
from pumice.routes.records import RESIDENCY
from pumice.routes.residency import Lease, ResidencyError, ResidencyLedger


def history(chance: random.Random) -> list[tuple[str, Any]]:
    """Steps over few resources, routes and sizes, so that they meet."""
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(5, 25)):
        name = chance.choice("abc")
        match chance.choice(("acquire",) * 4 + ("release",) * 3 + ("evict", "evict", "forget", "lose")):
            case "acquire":
                given: dict[str, Any] = {
                    "resourceId": name,
                    "routeId": chance.choice("pq"),
                    "declaredBytes": 8,
                    "kind": "weights",
                }
                given["metadata"] = {"dtype": "f16"}
                given |= chance.choice(({}, {}, {}, {}, {"declaredBytes": 9}, {"kind": ""}, {"metadata": {"dtype": "f32"}}))
                live = chance.choice((name, name, name, None, f"other {name}"))
                steps.append(("acquire", given if live is None else {**given, "live": live}))
            case "release":
                steps.append(("release", chance.randint(0, 6)))
            case "lose":
                if chance.random() < 0.2:
                    steps.append(("invalidateAll", {"reason": "device-lost", "message": "gone"}))
            case method:
                steps.append((method, name))
    return steps


class Replay:
    """The same steps on our ledger."""

    def __init__(self) -> None:
        self.time = 0
        self.ledger = ResidencyLedger("s", clock=lambda: self.time)
        self.leases: list[Lease] = []
        self.live: dict[str, object] = {}

    def step(self, method: str, given: Any) -> Any:
        match method:
            case "acquire":
                live = self.live.setdefault(given["live"], object()) if "live" in given else None
                ids = given["resourceId"], given["routeId"]
                size, kind, metadata = given["declaredBytes"], given["kind"], given["metadata"]
                lease = self.ledger.acquire(*ids, declared_bytes=size, kind=kind, resource=live, metadata=metadata)
                self.leases.append(lease)
                return lease.to_json()
            case "release":
                return self.leases[given].release() if given < len(self.leases) else None
            case "invalidateAll":
                return self.ledger.invalidate_all(**given)
            case "snapshot":
                return self.ledger.snapshot()
        return getattr(self.ledger, method)(given)

    def run(self, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for self.time, (method, given) in enumerate([*steps, ("snapshot", None)]):
            try:
                answers.append({"value": self.step(method, given)})
            except ResidencyError as error:
                answers.append({"thrown": error.message})
            assert RESIDENCY.errors(self.ledger.snapshot()) == []
        return answers


def test_histories_are_the_package_s() -> None:
    chance = random.Random(16)
    cases = [history(chance) for _ in range(200)]
    answers = kit.call([("ledger", steps) for steps in cases])
    for steps, answer in zip(cases, answers, strict=True):
        ours, theirs = Replay().run(steps), [{k: v for k, v in one.items() if k != "type"} for one in answer["value"]]
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert mine == other, steps[: i + 1]


def test_many_cycles_leave_nothing() -> None:
    ledger = ResidencyLedger("s", clock=lambda: 0)
    for _ in range(100):
        ledger.acquire("w", "r", declared_bytes=8, kind="k", resource=object()).release()
        ledger.evict("w")
        assert ledger.forget("w")
    assert ledger.snapshot()["resources"] == [] and ledger.snapshot()["routes"] == []
