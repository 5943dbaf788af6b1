"""The governor: hysteresis, bounds and the way back on a simulated device, replays, bad evidence; its state is the package's."""

from __future__ import annotations

from typing import Any

import pytest

import route_kit as kit
from pumice.routes.governor import ChunkBounds, ForegroundGovernor, FrameWindow, GovernorError, YieldBounds
from pumice.routes.records import GOVERNOR_DECISION
from pumice.routes.scheduler import Settings

START = Settings("cooperative", 0, True, {"decode": 8, "prefill": 4})


def governor(**changed: Any) -> ForegroundGovernor:
    given: dict[str, Any] = {
        "target_gap_ms": 50,
        "chunks": {"decode": ChunkBounds(1, 8), "prefill": ChunkBounds(1, 4)},
        "yields": YieldBounds(0, 16, 4),
        **changed,
    }
    return ForegroundGovernor("r", given.pop("epoch", "e"), given.pop("scheduler", START), **given)


def windows(found: ForegroundGovernor, count: int, gap: float, **work: Any) -> list[dict[str, Any]]:
    """So many windows with the same gap, each an episode of its own; every decision is a document."""
    first = found.snapshot()["retainedEpisodeIdentityCount"]
    decisions = [found.observe(FrameWindow("e", str(first + i), "f", gap, **work)) for i in range(count)]
    assert all(GOVERNOR_DECISION.errors(decision) == [] for decision in decisions)
    return decisions


def test_pressure_must_last_before_a_chunk_shrinks_and_bounds_hold() -> None:
    found = governor()
    decisions = windows(found, 20, 100, phases={"decode": 90})
    assert [entry["status"] for entry in decisions[:4]] == ["accumulating-pressure", "adjusted"] * 2
    sizes = [entry["effectiveScheduler"]["phaseChunkSize"]["decode"] for entry in decisions if entry["schedulerChanged"]]
    assert sizes == [4, 2, 1, 1, 1, 1, 1]
    assert [entry["effectiveScheduler"]["yieldMs"] for entry in decisions if entry["schedulerChanged"]] == [0, 0, 0, 4, 8, 12, 16]
    assert decisions[-1]["status"] == "saturated" and decisions[-1]["revision"] == 7


def test_calm_relaxes_step_by_step_to_the_baseline_and_no_further() -> None:
    found = governor()
    windows(found, 10, 100, phases={"decode": 90})
    decisions = windows(found, 30, 10)
    assert [entry["status"] for entry in decisions[:3]] == ["maintaining", "maintaining", "relaxed"]
    assert [entry["action"] for entry in decisions if entry["schedulerChanged"]] == ["reduce-yield-budget"] * 2 + [
        "relax-phase-chunk"
    ] * 3
    assert found.scheduler == found.baseline and decisions[-1]["status"] == "maintaining"


def test_one_late_window_between_good_ones_changes_nothing() -> None:
    found = governor()
    for _ in range(10):
        windows(found, 1, 100, phases={"decode": 90})
        windows(found, 1, 10)
    assert found.revision == 0


def test_a_simulated_device_settles_below_the_target() -> None:
    """Frame gaps follow the chunk: 10 ms an item. The governor ends where they fit and stays there."""
    found = governor(success_windows=100)
    gaps = []
    for _ in range(40):
        gap = 10.0 * dict(found.scheduler.chunks or {})["decode"]
        gaps.append(gap)
        windows(found, 1, gap, phases={"decode": gap * 0.95})
    assert gaps[0] == 80 and gaps[-1] == 40 and max(gaps[2:]) <= 50


@pytest.mark.parametrize(
    ("work", "action"),
    [
        ({}, "instrument-unattributed-gap"),
        ({"phases": {"decode": 50}}, "increase-attribution-coverage"),
        ({"phases": {"decode": 70, "prefill": 60}, "shared_ms": 40}, "disambiguate-shared-pressure"),
    ],
)
def test_a_gap_that_nothing_explains_asks_for_instruments(work: dict[str, Any], action: str) -> None:
    found = governor()
    assert {(entry["status"], entry["action"]) for entry in windows(found, 5, 100, **work)} == {
        ("instrumentation-required", action)
    }
    assert found.revision == 0


def test_host_work_is_to_be_split_and_without_a_dominant_phase_the_yield_grows() -> None:
    assert windows(governor(), 2, 100, host={"readback": 90})[-1]["status"] == "host-phase-split-required"
    assert windows(governor(), 2, 100, phases={"decode": 45, "prefill": 45})[-1]["action"] == "increase-yield-budget"


def test_bad_evidence_and_replays_change_nothing() -> None:
    found = governor()
    windows(found, 1, 100, phases={"decode": 90})
    before = found.snapshot()
    again = found.observe(FrameWindow("e", "0", "f", 100, {"decode": 90}))
    assert again["status"] == "duplicate-observation-held"
    bad = [
        FrameWindow("e", "", "", 100),
        FrameWindow("other", "9", "f", 100),
        FrameWindow("e", "9", "f", float("nan")),
        FrameWindow("e", "9", "f", 100, {"decode": -1}),
        FrameWindow("e", "9", "f", 100, {"decode": 101}),
    ]
    decisions = [found.observe(window) for window in bad]
    assert {entry["status"] for entry in decisions} == {"held-invalid-evidence"}
    assert [entry["failures"][0] for entry in decisions] == [
        "episode-id-missing",
        "episode-epoch-mismatch",
        "frame-tail-invalid",
        "attribution-invalid",
        "attribution-exceeds-frame-gap",
    ]
    assert found.snapshot() == before
    found.clear_history()
    assert found.observe(FrameWindow("e", "0", "f", 100, {"decode": 90}))["status"] == "duplicate-observation-held"


def test_state_and_errors_are_the_package_s() -> None:
    options = {
        "routeId": "r",
        "episodeEpochId": "e",
        "targetFrameGapMs": 50,
        "scheduler": START.to_json(),
        "bounds": {
            "phaseChunkSize": {"decode": {"min": 1, "max": 8, "stepFactor": 2}, "prefill": {"min": 1, "max": 4, "stepFactor": 2}},
            "yieldMs": {"min": 0, "max": 16, "step": 4},
        },
        "attributionPolicy": {"minimumCoveredFraction": 0.8, "maximumSharedFraction": 0.25},
    }
    made, epoch, target = kit.call(
        [
            ("governor", options, "next"),
            ("createForegroundBudgetGovernor", {**options, "episodeEpochId": ""}),
            ("createForegroundBudgetGovernor", {**options, "targetFrameGapMs": 0}),
        ]
    )
    found = governor()
    decision = found.observe(FrameWindow("other", "1", "1", float("nan")))
    theirs = made["value"]["decision"]
    assert {**decision, "failures": 0} == {**theirs, "failures": 0}
    assert "frame-tail-invalid" in decision["failures"] and "frame-tail-invalid" in theirs["failures"]
    found.begin_epoch("next")
    assert found.snapshot() == made["value"]["snapshot"]
    for answer, changed in ((epoch, {"epoch": ""}), (target, {"target_gap_ms": 0})):
        with pytest.raises(GovernorError) as caught:
            governor(**changed)
        assert caught.value.message == answer["thrown"]


def test_settings_outside_the_bounds_are_refused() -> None:
    for changed in (
        {"chunks": {"decode": ChunkBounds(9, 10)}},
        {"yields": YieldBounds(4, 8, 4)},
        {"chunks": {"decode": ChunkBounds(1, 8, 1)}},
    ):
        with pytest.raises(GovernorError):
            governor(**changed)
