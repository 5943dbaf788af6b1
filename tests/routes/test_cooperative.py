"""Cooperative runs on a simulated device: exact ranges, yields, pauses, cancels, losses; reports and traces that hold."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.backpressure import backpressure_profile
from pumice.routes.cooperative import ExecutionError
from pumice.routes.documents import plain
from pumice.routes.scheduler import Settings, scheduler_profile
from pumice.routes.verification import verification_receipt
from route_device import ADAPTIVE, ADAPTIVE_WORK, FIXED_WORK, Device, boundary


@pytest.mark.parametrize("mode", ["cooperative", "disabled"])
@pytest.mark.parametrize(("phases", "depth"), [(FIXED_WORK, 1), (FIXED_WORK, 2), (FIXED_WORK, 5), (ADAPTIVE_WORK, 1)])
def test_every_item_runs_once_and_in_order_in_both_modes(phases: dict[str, Any], depth: int, mode: str) -> None:
    device = Device(phases, max_in_flight=depth, mode=mode)
    report = device.finish()
    names = [(one["boundaryId"], one["totalItems"]) for boundaries in phases.values() for one in boundaries]
    assert device.items == [(f"i:{name}", i) for name, total in names for i in range(total)]
    assert report["status"] == "succeeded" and report["progress"]["percent"] == 100
    assert mode == "disabled" or report["maxObservedInFlightGpuDuties"] == min(depth, 4)
    ranges = sum(len(one["ranges"]) for one in report["boundaries"])
    turns = (device.kinds["foreground"], device.kinds["yield"])
    assert turns == ((0, 0) if mode == "disabled" else (ranges, turns[1])) and (mode == "disabled" or turns[1] > 0)


def test_strict_prefix_yields_after_every_range_and_chunks_follow_durations() -> None:
    device = Device(ADAPTIVE_WORK, yield_ms=4)
    report = device.finish()
    sizes = [entry["itemCount"] for entry in report["boundaries"][0]["ranges"]]
    assert sizes[:3] == [2, 8, 8] and device.kinds["yield"] == device.kinds["submit"] == device.kinds["wait"]


def test_the_package_accepts_the_reports() -> None:
    reports = [Device(FIXED_WORK).finish(), Device(ADAPTIVE_WORK).finish(), Device(FIXED_WORK, max_in_flight=2).finish()]
    reports.append(Device(FIXED_WORK, mode="disabled").finish())
    expected = {"expectedRouteId": "demo.v0", "expectedManifestId": "m", "expectedInvocationId": "i"}
    answers = kit.call([("validateWebGpuCooperativeExecutionReport", report, expected) for report in reports])
    for answer in answers:
        assert answer["value"]["errors"] == []


def test_ranges_are_the_package_s() -> None:
    theirs = kit.records()["cooperativeRange"]
    device = Device({"text": [boundary("compose", 5, kind="cpu-work")]})
    while (step := device.run.next_step()).kind != "work":
        pass
    own = {"metadata": {**theirs["metadata"], "manifestId": "m", "routeId": "demo.v0"}}
    assert step.range == {**theirs, **own}


def test_a_cooperative_run_verifies_its_scheduler_and_a_disabled_one_does_not() -> None:
    work = {"prefill": [boundary("tiles", 10)], "decode": [boundary("tokens", 6, {"mode": "fixed", "chunkItems": 2})]}
    scheduler = scheduler_profile(Settings("cooperative", 4, True, {"prefill": 3, "decode": 2}))
    route = {"requestedRouteId": "demo.v0", "effectiveRouteId": "demo.v0", "backendKind": "webgpu-local"}
    found = {}
    for mode in ("cooperative", "disabled"):
        device = Device(work, yield_ms=4, mode=mode)
        device.finish()
        trace = device.run.trace
        receipt = verification_receipt(route, scheduler, backpressure_profile(), trace, timing_authority="queue-work-done")
        found[mode] = receipt["status"], plain(receipt["downgrades"])
    assert found["cooperative"] == ("verified", [])
    assert found["disabled"][0] == "scheduler-unverified" and "yield-events-missing" in found["disabled"][1]


@pytest.mark.parametrize("depth", [1, 3])
def test_pausing_anywhere_changes_no_item(depth: int) -> None:
    whole = Device(max_in_flight=depth)
    whole.finish()
    for stop in range(sum(whole.kinds.values())):
        device = Device(max_in_flight=depth)
        for _ in range(stop):
            device.step()
        device.run.pause()
        while (step := device.step()).kind != "paused":
            assert step.kind in ("wait", "yield"), "nothing new is begun"
        device.time += 10_000
        assert device.step().kind == "paused" and device.run.report()["inFlightGpuDutyCount"] == 0
        device.run.resume()
        assert device.finish()["status"] == "succeeded" and device.items == whole.items


@pytest.mark.parametrize("depth", [1, 3])
def test_cancels_and_losses_anywhere_keep_what_is_done(depth: int) -> None:
    for stop in range(40):
        for how in ("cancel", "lose"):
            device = Device(max_in_flight=depth)
            for _ in range(stop):
                device.step()
            if device.run.state == "succeeded":
                assert device.run.cancel() == "succeeded"
                continue
            if how == "cancel":
                device.run.cancel("enough")
            else:
                device.run.fail("device-lost", RuntimeError("gone"))
            report = device.finish()
            assert report["status"] == ("cancelled" if how == "cancel" else "failed")
            assert how == "lose" or report["unfencedSubmittedGpuDutyCount"] == 0
            done = sum(one["completedItems"] for one in report["boundaries"])
            begun = [one for one in report["boundaries"] if one["ranges"]]
            assert report["lastTrustworthyBoundary"] == (begun[-1] if begun else None)
            ranges = {entry["rangeId"]: entry["itemCount"] for one in report["boundaries"] for entry in one["ranges"]}
            assert done + sum(ranges[name] for name in report["inFlightGpuDutyIds"]) == len(device.items)


def test_unknown_totals_are_null_until_they_are_set() -> None:
    device = Device({"a": [boundary("first", 4)], "b": [boundary("second", None)]})
    with pytest.raises(ExecutionError, match="totalItems of boundary second must be set"):
        device.finish()
    assert device.run.progress()["progress"] is None and len(device.items) == 4
    device.run.set_total("second", 5)
    assert device.finish()["progress"]["progress"] == 1
    with pytest.raises(ExecutionError, match="is already 5"):
        device.run.set_total("second", 6)


def test_reports_out_of_turn_are_refused_and_change_nothing() -> None:
    device = Device(max_in_flight=2)
    while (step := device.run.next_step()).kind != "submit":
        pass
    name = step.range["rangeId"]
    for refused in (
        lambda: device.run.next_step(),
        lambda: device.run.submitted("other"),
        lambda: device.run.completed(name, 3, "queue-work-done"),
    ):
        with pytest.raises(ExecutionError):
            refused()
    device.run.submitted(name)
    assert device.run.report()["issuedGpuDutyCount"] == 1 and device.finish()["status"] == "succeeded"


def test_bounded_prefixes_need_fixed_ranges() -> None:
    with pytest.raises(ExecutionError, match="bounded-prefix requires fixed ranges"):
        Device(ADAPTIVE_WORK, max_in_flight=2)
    with pytest.raises(ExecutionError, match="is host work"):
        Device({"a": [boundary("x", 3, ADAPTIVE, "cpu-work")]})


def test_runs_with_random_pauses_end_alike() -> None:
    chance = random.Random(3)
    whole = Device(max_in_flight=2)
    whole.finish()
    for _ in range(30):
        device = Device(max_in_flight=2)
        while device.run.state not in ("succeeded",):
            if chance.random() < 0.2:
                device.run.pause()
            device.step()
            if device.run.state == "paused" and chance.random() < 0.5:
                device.run.resume()
        assert device.items == whole.items
