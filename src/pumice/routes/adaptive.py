"""Adaptive chunks: divides work into exact ranges whose size follows the observed duration. No clock and no device in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.errors import RouteError
from pumice.routes.rules import is_amount, is_integer, is_text

PLANNER_SCHEMA = "kaminos.webgpu-adaptive-command-duty-planner.v0"
RANGE_SCHEMA = "kaminos.webgpu-adaptive-command-duty-range.v0"
OBSERVATION_SCHEMA = "kaminos.webgpu-adaptive-command-duty-observation.v0"
QUEUE_WORK_DONE = "queue-work-done"
GPU_TIMESTAMPS = "gpu-timestamp-query"
HOST_WORK = "host-work-call"
_OPEN = "open-until-completion"


class PlannerError(RouteError):
    """A planner that was set up or called against its rules; nothing was counted as done."""

    code = "planner"


def _require(held: bool, rule: str) -> None:
    if not held:
        raise PlannerError(rule, hint="observe or fail the pending range, with a duration that the device measured")


def next_chunk(items: int, duration_ms: float, target_ms: float, gain: float) -> float | None:
    """How many items would take `target_ms`, as far as `gain` goes; None after no time at all: as many as there are.

    >>> next_chunk(10, 4.0, 8.0, 1), next_chunk(10, 2.0, 8.0, 0.5)
    (20.0, 20.0)
    """
    return items * (target_ms / duration_ms) ** gain if duration_ms else None


@dataclass
class AdaptivePlanner:
    """Hands out ranges [start, end) one at a time, without gaps; after each, the caller reports how long it took.

    The next chunk is the observed one times (target / observed) ** gain, rounded, within the bounds. A gain below one damps it.
    All methods return records of the kit.

    >>> planner = AdaptivePlanner("conv", "rows", total=100, initial=10, least=4, most=40, target_ms=8)
    >>> first = planner.next_range()
    >>> first["itemStart"], first["itemEnd"]
    (0, 10)
    >>> planner.observe(first["rangeId"], 4.0, QUEUE_WORK_DONE)["nextChunkItems"]
    20
    """

    planner_id: str
    unit: str
    total: int
    initial: int
    least: int
    most: int
    target_ms: float
    gain: float = 1
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in (("plannerId", self.planner_id), ("unit", self.unit)):
            _require(is_text(text), f"{name} must be a non-empty string")
        for name, count in (
            ("totalItems", self.total),
            ("initialChunkItems", self.initial),
            ("bounds.minChunkItems", self.least),
            ("bounds.maxChunkItems", self.most),
        ):
            _require(is_integer(count) and 0 < count < 2**53, f"{name} must be a positive safe integer")
        _require(self.least <= self.most, "bounds.maxChunkItems must be greater than or equal to bounds.minChunkItems")
        _require(self.least <= self.initial <= self.most, "initialChunkItems must be within caller-declared bounds")
        _require(is_amount(self.target_ms) and self.target_ms > 0, "targetDurationMs must be finite and greater than zero")
        _require(is_amount(self.gain) and 0 < self.gain <= 1, "adjustmentGain must be finite, greater than zero, and at most one")
        self._declared = self.most
        self._chunk = self.initial
        self._done = 0
        self._status = "active"
        self._ranges: list[dict[str, Any]] = []
        self._observations: list[dict[str, Any]] = []
        self._failure: dict[str, Any] | None = None

    @property
    def _settings(self) -> dict[str, Any]:
        return {"requestedAdjustmentGain": self.gain, "effectiveAdjustmentGain": self.gain}

    @property
    def _pending(self) -> dict[str, Any] | None:
        return self._ranges[-1] if self._ranges and self._ranges[-1]["status"] == "pending-observation" else None

    def next_range(self) -> dict[str, Any] | None:
        """The next range, or None when all items are done. One may be pending at a time."""
        _require(self._status != "failed", "failed planner cannot produce another range")
        if self._status == "complete":
            return None
        if self._pending is not None:
            _require(False, f"pending range {self._pending['rangeId']} must be observed or failed first")
        start, end = self._done, min(self._done + self._chunk, self.total)
        found = {
            "schema": RANGE_SCHEMA,
            "plannerId": self.planner_id,
            "rangeId": f"{self.planner_id}:{len(self._ranges)}",
            "rangeIndex": len(self._ranges),
            "rangeTotal": None,
            "rangeCountAuthority": "actual-after-completion",
            "unit": self.unit,
            "itemStart": start,
            "itemEnd": end,
            "itemCount": end - start,
            "totalItems": self.total,
            "completedItemsBefore": start,
            "completedItemsAfter": end,
            "progressBefore": start / self.total,
            "progressAfter": end / self.total,
            "plannedChunkItems": self._chunk,
            "targetDurationMs": self.target_ms,
            **self._settings,
            "bounds": {"minChunkItems": self.least, "maxChunkItems": self.most},
            "metadata": dict(self.metadata),
        }
        self._ranges.append({**found, "status": "pending-observation"})
        return found

    def limit(self, most: int) -> None:
        """The largest chunk from the next range on, within the bounds that were declared."""
        self.most = min(max(most, self.least), self._declared)
        self._chunk = min(self._chunk, self.most)

    def observe(self, range_id: str, duration_ms: float, authority: str) -> dict[str, Any]:
        """Counts the pending range as done and sets the next chunk. `authority` says what measured the duration."""
        _require(self._status == "active", f"{self._status} planner cannot accept range observations")
        pending = self._claim(range_id)
        _require(authority in (QUEUE_WORK_DONE, GPU_TIMESTAMPS), "timingAuthority must be queue-work-done or gpu-timestamp-query")
        _require(is_amount(duration_ms), "observedDurationMs must be finite and non-negative")
        positive = authority != GPU_TIMESTAMPS or duration_ms > 0
        _require(positive, "gpu-timestamp-query observedDurationMs must be greater than zero")
        pending |= {"status": "observed", "observedDurationMs": duration_ms, "timingAuthority": authority}
        self._done = pending["itemEnd"]
        if self._done == self.total:
            self._status = "complete"
        complete = self._status == "complete"
        found = {
            "schema": OBSERVATION_SCHEMA,
            "plannerId": self.planner_id,
            "status": "planner-complete" if complete else "range-observed",
            "rangeId": range_id,
            "rangeIndex": pending["rangeIndex"],
            "timingAuthority": authority,
            "observedDurationMs": duration_ms,
            "targetDurationMs": self.target_ms,
            **self._settings,
            **(self._finished(pending["itemCount"]) if complete else self._adjusted(pending["itemCount"], duration_ms)),
            "completedItems": self._done,
            "totalItems": self.total,
            "progress": self._done / self.total,
            "actualRangeCount": len(self._ranges) if complete else None,
            "rangeCountAuthority": "actual" if complete else _OPEN,
            "metadata": dict(self.metadata),
        }
        self._observations.append(found)
        return found

    def _claim(self, range_id: str) -> dict[str, Any]:
        pending = self._pending
        if pending is None:
            raise PlannerError("adaptive command duty planner has no pending range", hint="call next_range first")
        _require(range_id == pending["rangeId"], f"rangeId {range_id} does not match pending range {pending['rangeId']}")
        return pending

    @staticmethod
    def _finished(items: int) -> dict[str, Any]:
        nothing = ("rawNextChunkItems", "effectiveRawNextChunkItems", "nextChunkItems")
        return {
            "fullGainCorrectionRatio": None,
            "effectiveCorrectionRatio": None,
            "observedChunkItems": items,
            **dict.fromkeys(nothing),
            "adjustment": "complete",
            "boundApplication": None,
        }

    def _adjusted(self, items: int, duration_ms: float) -> dict[str, Any]:
        """The next chunk. A duration of zero says that any chunk is short enough: the largest one comes next."""
        full = self.target_ms / duration_ms if duration_ms else None
        ratio = None if full is None else full**self.gain
        raw = next_chunk(items, duration_ms, self.target_ms, self.gain)
        rounded = self.most if raw is None else math.floor(raw + 0.5)
        bound = "minChunkItems" if rounded < self.least else "maxChunkItems" if raw is None or rounded > self.most else None
        self._chunk = min(max(rounded, self.least), self.most)
        change = "increase" if self._chunk > items else "decrease" if self._chunk < items else "maintain"
        return {
            "fullGainCorrectionRatio": full,
            "effectiveCorrectionRatio": ratio,
            "observedChunkItems": items,
            "rawNextChunkItems": None if full is None else items * full,
            "effectiveRawNextChunkItems": raw,
            "nextChunkItems": self._chunk,
            "adjustment": change,
            "boundApplication": bound,
        }

    def fail(self, range_id: str, phase: str, error: BaseException) -> dict[str, Any]:
        """Ends the plan; what was observed before the pending range stays trustworthy."""
        _require(self._status == "active", f"{self._status} planner cannot fail a range")
        pending = self._claim(range_id)
        _require(is_text(phase), "range failure phase must be a non-empty string")
        self._status = "failed"
        cause = {"name": type(error).__name__, "message": str(error)}
        self._failure = {"rangeId": range_id, "rangeIndex": pending["rangeIndex"], "phase": phase, "error": cause}
        pending |= {"status": "failed", "failure": self._failure}
        return {
            "schema": OBSERVATION_SCHEMA,
            "plannerId": self.planner_id,
            "status": "failed",
            "completedItems": self._done,
            "totalItems": self.total,
            **self._settings,
            "rangeCountAuthority": "open-at-failure",
            "actualRangeCount": None,
            "failure": self._failure,
            "metadata": dict(self.metadata),
        }

    def snapshot(self) -> dict[str, Any]:
        """Everything so far; the number of ranges is known only at the end."""
        complete = self._status == "complete"
        return {
            "schema": PLANNER_SCHEMA,
            "plannerId": self.planner_id,
            "unit": self.unit,
            "status": self._status,
            "totalItems": self.total,
            "completedItems": self._done,
            "progress": self._done / self.total,
            "initialChunkItems": self.initial,
            "currentChunkItems": self._chunk,
            "targetDurationMs": self.target_ms,
            **self._settings,
            "bounds": {"minChunkItems": self.least, "maxChunkItems": self.most},
            "metadata": dict(self.metadata),
            "retention": "uncapped",
            "pendingRangeId": self._pending["rangeId"] if self._pending else None,
            "rangeCount": len(self._ranges),
            "actualRangeCount": len(self._ranges) if complete else None,
            "rangeCountAuthority": "actual" if complete else _OPEN,
            "ranges": [dict(entry) for entry in self._ranges],
            "observations": [dict(entry) for entry in self._observations],
            "failure": self._failure,
        }
