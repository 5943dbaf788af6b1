"""Scratch arenas and single-flight resources: random histories give the package's records and errors."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.creations import CreationError, SharedCreations
from pumice.routes.residency import ResidencyLedger
from pumice.routes.scratch import ScratchArena, ScratchError, ScratchSlot

SLOTS = [ScratchSlot("scores", 64), ScratchSlot("sums", 8, {"dtype": "f32"})]


def arena_history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(3, 20)):
        method = chance.choice(("begin",) * 4 + ("submit",) * 4 + ("complete",) * 4 + ("abandon", "abandon", "fail", "close"))
        if method in ("fail", "close") and chance.random() < 0.7:
            continue
        steps.append((method, {"fail": "lost", "complete": None, "close": None}.get(method, chance.choice("abcdef"))))
    return steps


def arena_answers(steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    time = 0
    arena = ScratchArena("arena", SLOTS, clock=lambda: time)
    known: set[str] = set()
    answers: list[dict[str, Any]] = []

    def step(method: str, given: Any) -> Any:
        active = arena.snapshot()["activeUse"]
        submitted = active["useId"] if active and active["status"] == "submitted" else None
        match method:
            case "begin":
                found = arena.begin_use(given)
                known.add(given)
                return found
            case "submit" if given in known:
                arena.mark_submitted(given, {"kind": "queue-work-done"})
            case "abandon" if given in known:
                return arena.abandon(given)
            case "complete" if submitted:
                arena.complete(submitted)
            case "fail" if submitted:
                arena.fail(submitted, kit.KitError(given))
            case "close":
                return arena.close()
        return None

    for time, (method, given) in enumerate(steps, 1):  # noqa: B007 - the clock reads it
        try:
            answers.append({"value": step(method, given)})
        except ScratchError as error:
            answers.append({"thrown": error.message})
        answers.append({"value": arena.snapshot()})
    return answers


def test_arenas_are_the_package_s() -> None:
    chance = random.Random(11)
    cases = [arena_history(chance) for _ in range(100)]
    slots = [slot.to_json() for slot in SLOTS]
    answers = kit.call([("arena", slots, steps) for steps in cases])
    for steps, answer in zip(cases, answers, strict=True):
        theirs = [{k: v for k, v in one.items() if k != "type"} for one in answer["value"]]
        for i, (mine, other) in enumerate(zip(arena_answers(steps), theirs, strict=True)):
            assert mine == other, steps[: i // 2 + 1]


def test_slots_are_reused_only_after_the_device_is_done() -> None:
    arena = ScratchArena("a", SLOTS, clock=lambda: 0)
    for cycle in range(100):
        arena.begin_use(f"{cycle}")
        arena.mark_submitted(f"{cycle}", {"kind": "queue-work-done"})
        for refused in (lambda: arena.begin_use("other"), arena.close, lambda name=f"{cycle}": arena.abandon(name)):
            with pytest.raises(ScratchError):
                refused()
        arena.complete(f"{cycle}")
    assert arena.snapshot()["allocatedBytes"] == 72 and arena.status == "available"
    with pytest.raises(ScratchError, match="non-empty kind"):
        arena.begin_use("last")
        arena.mark_submitted("last", {})


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        ([], "scratch arena slots must be a non-empty array"),
        ([ScratchSlot("", 4)], "scratch arena slots[0].slotId must be a non-empty string"),
        ([ScratchSlot("s", 4)] * 2, "duplicate scratch slot s"),
        ([ScratchSlot("s", -1)], "scratch slot s declaredBytes must be a non-negative safe integer"),
    ],
)
def test_wrong_slots_are_refused_in_the_package_s_words(slots: list[ScratchSlot], text: str) -> None:
    with pytest.raises(ScratchError) as caught:
        ScratchArena("arena", slots, clock=lambda: 0)
    assert caught.value.message == text
    (answer,) = kit.call([("arena", [slot.to_json() for slot in slots], [])])
    assert answer["thrown"] == text


def creation_history(chance: random.Random) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for _ in range(chance.randint(3, 15)):
        name = chance.choice("ab")
        match chance.choice(("request",) * 3 + ("succeed", "fail")):
            case "request":
                given = {"resourceId": name, "routeId": chance.choice("pqr"), "declaredBytes": 8, "kind": "weights"}
                steps.append(("request", given))
            case method:
                steps.append((method, name))
    return steps


def creation_answers(steps: list[tuple[str, Any]]) -> list[list[dict[str, Any]]]:
    time = 0
    ledger = ResidencyLedger("s", clock=lambda: time)
    creations = SharedCreations(ledger)
    answers = []
    for time, (method, given) in enumerate(steps, 1):  # noqa: B007 - the clock reads it
        if method == "request":
            ids, size = (given["resourceId"], given["routeId"]), {"declared_bytes": 8, "kind": "weights"}
            if creations.request(*ids, **size) == "resident":
                ledger.acquire(*ids, **size, ownership="managed")
        elif any(one["resourceId"] == given and one["status"] == "active" for one in creations.snapshot()["flights"]):
            if method == "succeed":
                creations.succeed(given, object(), lambda _: None)
            else:
                creations.fail(given, kit.KitError("no"))
        answers.append([creations.snapshot(), ledger.snapshot()])
    return answers


def test_creations_are_the_package_s() -> None:
    chance = random.Random(12)
    cases = [creation_history(chance) for _ in range(100)]
    answers = kit.call([("flights", steps) for steps in cases])
    for steps, answer in zip(cases, answers, strict=True):
        for i, (mine, other) in enumerate(zip(creation_answers(steps), answer["value"], strict=True)):
            assert mine == other, steps[: i + 1]


def test_a_resource_is_made_once_and_after_a_failure_again() -> None:
    creations = SharedCreations(ResidencyLedger("s", clock=lambda: 0))
    asked = [creations.request("w", route, declared_bytes=8, kind="k") for route in "abc"]
    assert asked == ["make", "wait", "wait"]
    with pytest.raises(CreationError, match="conflicting descriptor"):
        creations.request("w", "d", declared_bytes=9, kind="k")
    assert creations.fail("w", RuntimeError("no memory")) == ["a", "b", "c"]
    assert creations.request("w", "b", declared_bytes=8, kind="k") == "make"
    assert len(creations.succeed("w", object())) == 1
    with pytest.raises(CreationError, match="nothing makes resource w"):
        creations.succeed("w", object())
    creations.ledger.invalidate_all("device-lost")
    with pytest.raises(CreationError, match="invalidated: device-lost"):
        creations.request("v", "a", declared_bytes=8, kind="k")
