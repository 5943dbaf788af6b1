"""The foreground governor: makes chunks smaller or yields longer while frames are late, and relaxes back when they are not.

It decides only after several windows agree (hysteresis), and only on evidence that says what took the time. No clock, no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pumice.routes.errors import RouteError
from pumice.routes.rules import is_amount, is_integer, is_text
from pumice.routes.scheduler import Settings

GOVERNOR_SCHEMA = "kaminos.foreground-budget-governor-decision.v0"


class GovernorError(RouteError):
    """A governor that was set up against its rules."""

    code = "governor"


def _require(held: bool, rule: str) -> None:
    if not held:
        raise GovernorError(rule, hint="the caller owns the bounds, the target and the ids of episodes")


@dataclass(frozen=True)
class ChunkBounds:
    """Between which sizes the chunk of a phase moves, and by what factor at a time."""

    least: int
    most: int
    factor: float = 2

    def to_json(self) -> dict[str, Any]:
        return {"min": self.least, "max": self.most, "stepFactor": self.factor}


@dataclass(frozen=True)
class YieldBounds:
    """Between which durations in milliseconds the yield moves, and by how much at a time."""

    least: float
    most: float
    step: float

    def to_json(self) -> dict[str, Any]:
        return {"min": self.least, "max": self.most, "step": self.step}


@dataclass(frozen=True)
class FrameWindow:
    """What was seen in one window: its longest frame gap, and how many milliseconds of that gap which work took.

    `shared_ms` is the part of it in which several of them ran, so that none can be blamed alone.
    """

    epoch: str
    episode: str
    firing: str
    gap_ms: float
    phases: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    shared_ms: float = 0

    def failures(self, epoch: str) -> Iterator[str]:
        """Why the window is no evidence."""
        for name, text in (("episode-id", self.episode), ("episode-epoch-id", self.epoch), ("firing-id", self.firing)):
            if not is_text(text):
                yield f"{name}-missing"
        if is_text(self.epoch) and self.epoch != epoch:
            yield "episode-epoch-mismatch"
        if not is_amount(self.gap_ms):
            yield "frame-tail-invalid"
        parts = [*self.phases.values(), *self.host.values()]
        if not all(map(is_amount, [*parts, self.shared_ms])):
            yield "attribution-invalid"
        elif is_amount(self.gap_ms) and (sum(parts) - self.shared_ms > self.gap_ms * (1 + 1e-9) or self.shared_ms > sum(parts)):
            yield "attribution-exceeds-frame-gap"

    def attribution(self) -> dict[str, Any]:
        """Which part of the gap is accounted for, which part is shared, and what took most of it."""
        work = {("phase", name): ms for name, ms in self.phases.items()} | {("host", name): ms for name, ms in self.host.items()}
        total = self.gap_ms or 1
        kind, name = max(work, key=lambda key: (work[key], key)) if work else (None, None)
        return {
            "coveredFraction": (sum(work.values()) - self.shared_ms) / total,
            "sharedFraction": self.shared_ms / total,
            "dominantKind": kind,
            "dominantPhase": name,
            "dominantFraction": max(work.values(), default=0) / total,
        }


class ForegroundGovernor:
    """Decides on a scheduler from windows of frame gaps; `observe` returns a decision record of the kit.

    >>> governor = ForegroundGovernor("demo.v0", "run", Settings("cooperative", 0, True, {"decode": 8}), target_gap_ms=16,
    ...                               chunks={"decode": ChunkBounds(1, 8)}, yields=YieldBounds(0, 8, 4))
    >>> for episode in ("1", "2"):
    ...     decision = governor.observe(FrameWindow("run", episode, episode, 40, {"decode": 38}))
    >>> decision["status"], decision["action"], decision["effectiveScheduler"]["phaseChunkSize"]
    ('adjusted', 'reduce-phase-chunk', {'decode': 4})
    """

    def __init__(
        self,
        route_id: str,
        epoch: str,
        scheduler: Settings,
        *,
        target_gap_ms: float,
        chunks: Mapping[str, ChunkBounds],
        yields: YieldBounds,
        least_covered: float = 0.8,
        most_shared: float = 0.25,
        failure_windows: int = 2,
        success_windows: int = 3,
        dominant_fraction: float = 0.6,
    ) -> None:
        _require(is_text(epoch), "episodeEpochId must be a non-empty caller-owned lifecycle identity")
        _require(is_amount(target_gap_ms) and target_gap_ms > 0, "targetFrameGapMs must be greater than 0")
        for name, count in (("failureWindowsBeforeAdjust", failure_windows), ("successWindowsBeforeRelax", success_windows)):
            _require(is_integer(count) and count > 0, f"{name} must be a positive integer")
        for name, share in (("minimumCoveredFraction", least_covered), ("maximumSharedFraction", most_shared)):
            _require(is_amount(share) and share <= 1, f"{name} must be a number from 0 to 1")
        current = dict(scheduler.chunks or {})
        for phase, bounds in chunks.items():
            _require(
                0 < bounds.least <= bounds.most and bounds.factor > 1,
                f"bounds of {phase} must be positive, with a factor above 1",
            )
            _require(
                bounds.least <= current.get(phase, 0) <= bounds.most, f"phaseChunkSize.{phase} is outside caller-declared bounds"
            )
        _require(
            yields.step > 0 and yields.least <= scheduler.yield_ms <= yields.most, "yieldMs is outside caller-declared bounds"
        )
        self.route_id, self.epoch, self.target_gap_ms = route_id, epoch, target_gap_ms
        self.baseline = self.scheduler = replace(scheduler, chunks=current)
        self.revision = 0
        self._chunks, self._yields = dict(chunks), yields
        self._least_covered, self._most_shared, self._dominant = least_covered, most_shared, dominant_fraction
        self._failures, self._successes = failure_windows, success_windows
        self._pressure = self._healthy = 0
        self._seen: set[tuple[str, str]] = set()
        self._decisions: dict[tuple[str, str], dict[str, Any]] = {}
        self._steps: list[tuple[str | None, Settings]] = []  # the controls that were moved, and the settings before

    def admit(self, phase: str, size: int, bounds: ChunkBounds) -> None:
        """Puts a phase under control; one that is already, and was not moved yet, starts from this size."""
        _require(0 < bounds.least <= size <= bounds.most and bounds.factor > 1, f"phaseChunkSize.{phase} is outside its bounds")
        if any(moved == phase for moved, _ in self._steps):
            return

        def with_phase(settings: Settings) -> Settings:
            return replace(settings, chunks={**(settings.chunks or {}), phase: size})

        self._chunks[phase] = bounds
        self.baseline, self.scheduler = with_phase(self.baseline), with_phase(self.scheduler)
        self._steps = [(moved, with_phase(before)) for moved, before in self._steps]

    def limit_of(self, phase: str) -> int | None:
        """The chunk of a phase while it is smaller than at first."""
        size = (self.scheduler.chunks or {}).get(phase)
        return size if size is not None and size < (self.baseline.chunks or {})[phase] else None

    def observe(self, window: FrameWindow) -> dict[str, Any]:
        """One decision for one window. A window that was seen before, or that proves nothing, changes nothing."""
        failures = list(window.failures(self.epoch))
        if failures:
            return self._decision(window, "held-invalid-evidence", "hold", failures=failures)
        identity = (window.episode, window.firing)
        if identity in self._seen:
            return self._decision(window, "duplicate-observation-held", "hold", attribution=window.attribution())
        self._seen.add(identity)
        found = self._healthy_window(window) if window.gap_ms <= self.target_gap_ms else self._late_window(window)
        self._decisions[identity] = found
        return found

    def _healthy_window(self, window: FrameWindow) -> dict[str, Any]:
        self._pressure, self._healthy = 0, self._healthy + 1
        if self._healthy < self._successes or not self._steps:
            return self._decision(window, "maintaining", "hold", attribution=window.attribution())
        self._healthy = 0
        phase, before = self._steps.pop()  # the last step is the first that is taken back
        previous, self.scheduler = self.scheduler, before
        action = "reduce-yield-budget" if phase is None else "relax-phase-chunk"
        return self._changed(window, "relaxed", action, phase, previous)

    def _late_window(self, window: FrameWindow) -> dict[str, Any]:
        self._healthy = 0
        seen = window.attribution()
        if seen["coveredFraction"] < self._least_covered:
            action = "increase-attribution-coverage" if seen["coveredFraction"] > 0 else "instrument-unattributed-gap"
            return self._decision(window, "instrumentation-required", action, attribution=seen)
        if seen["sharedFraction"] > self._most_shared:
            return self._decision(window, "instrumentation-required", "disambiguate-shared-pressure", attribution=seen)
        self._pressure += 1
        if self._pressure < self._failures:
            return self._decision(window, "accumulating-pressure", "hold", attribution=seen)
        phase = seen["dominantPhase"] if seen["dominantFraction"] >= self._dominant else None
        if phase is not None and seen["dominantKind"] == "host":
            return self._decision(window, "host-phase-split-required", "split-host-phase", phase, attribution=seen)
        return self._tightened(window, phase, seen)

    def _tightened(self, window: FrameWindow, phase: str | None, seen: dict[str, Any]) -> dict[str, Any]:
        """A smaller chunk for the phase to blame; a longer yield where there is none, or where its chunk is the least."""
        previous, sizes = self.scheduler, dict(self.scheduler.chunks or {})
        bounds = self._chunks.get(phase or "")
        if phase is not None and bounds is not None and sizes[phase] > bounds.least:
            sizes[phase] = max(bounds.least, int(sizes[phase] / bounds.factor))
            self.scheduler, action = replace(previous, chunks=sizes), "reduce-phase-chunk"
        elif previous.yield_ms < self._yields.most:
            longer = min(self._yields.most, previous.yield_ms + self._yields.step)
            self.scheduler, action, phase = replace(previous, yield_ms=longer), "increase-yield-budget", None
        else:
            return self._decision(window, "saturated", "hold", attribution=seen)
        self._pressure = 0
        self._steps.append((phase, previous))
        return self._changed(window, "adjusted", action, phase, previous)

    def _changed(self, window: FrameWindow, status: str, action: str, phase: str | None, previous: Settings) -> dict[str, Any]:
        self.revision += 1
        target = "yieldMs" if phase is None else phase  # the id of the control, as an application of it reads
        return self._decision(window, status, action, target, previous, attribution=window.attribution())

    def _decision(
        self,
        window: FrameWindow,
        status: str,
        action: str,
        target: str | None = None,
        previous: Settings | None = None,
        *,
        attribution: dict[str, Any] | None = None,
        failures: list[str] | None = None,
    ) -> dict[str, Any]:
        return {
            "schema": GOVERNOR_SCHEMA,
            "routeId": self.route_id,
            "status": status,
            "action": action,
            "target": target,
            "measuredPhase": attribution["dominantPhase"] if attribution else None,
            "commandDutyId": None,
            "commandDutyKind": None,
            "schedulerChanged": previous is not None,
            "applicationAuthority": "decision-state-only-not-runtime-application",
            "revision": self.revision,
            "observation": {
                "episodeId": window.episode or None,
                "episodeEpochId": window.epoch or None,
                "firingId": window.firing or None,
                "maxFrameGapMs": window.gap_ms if is_amount(window.gap_ms) else None,
                "targetFrameGapMs": self.target_gap_ms,
            },
            "attribution": attribution,
            "consecutivePressureWindows": self._pressure,
            "consecutiveHealthyWindows": self._healthy,
            "previousScheduler": (previous or self.scheduler).to_json(),
            "effectiveScheduler": self.scheduler.to_json(),
            "failures": failures or [],
        }

    def clear_history(self) -> None:
        """Forgets decisions; windows that were seen stay seen."""
        self._decisions.clear()

    def begin_epoch(self, epoch: str) -> None:
        """A new life of episode ids: counters begin again, and the scheduler stays as it is."""
        _require(is_text(epoch) and epoch != self.epoch, "episodeEpochId must be a non-empty caller-owned lifecycle identity")
        self.epoch, self._pressure, self._healthy = epoch, 0, 0
        self._seen.clear()
        self._decisions.clear()

    def snapshot(self) -> dict[str, Any]:
        """The state as the kit writes it."""
        return {
            "schema": GOVERNOR_SCHEMA,
            "routeId": self.route_id,
            "revision": self.revision,
            "scheduler": self.scheduler.to_json(),
            "baseline": self.baseline.to_json(),
            "bounds": {
                "phaseChunkSize": {phase: bounds.to_json() for phase, bounds in self._chunks.items()},
                "yieldMs": self._yields.to_json(),
            },
            "targetFrameGapMs": self.target_gap_ms,
            "attributionPolicy": {"minimumCoveredFraction": self._least_covered, "maximumSharedFraction": self._most_shared},
            "episodeEpochId": self.epoch,
            "retainedDecisionCount": len(self._decisions),
            "retainedEpisodeIdentityCount": len(self._seen),
        }
