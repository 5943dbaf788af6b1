"""Cooperative runs: what to do next in work that is divided into ranges, so that foreground, pauses and cancels get their turn.

A state machine without clock, thread or device: it hands out one step at a time, the caller does it and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.adaptive import HOST_WORK, AdaptivePlanner
from pumice.routes.documents import RouteDocument, plain
from pumice.routes.errors import RouteError
from pumice.routes.records import COOPERATIVE_RANGE, EXECUTION_REPORT, PROGRESS
from pumice.routes.rules import is_amount, is_integer, is_text
from pumice.routes.verification import CHUNK, WAIT, YIELD, TraceEvent

_ENDED = ("succeeded", "cancelled", "failed")


class ExecutionError(RouteError):
    """A run that was asked for, or told of, what its state does not allow; nothing changed."""

    code = "cooperative-run"


def _require(held: bool, rule: str) -> None:
    if not held:
        raise ExecutionError(rule, hint="do the step that next_step() gave, and report it")


@dataclass(frozen=True)
class RunStep:
    """What the caller does next: "foreground" (let it render), "submit" (a range, to the GPU), "work" (a range, on the host),
    "wait" (for the oldest submitted range), "yield" (for `ms`), "paused" (nothing, until resumed) or "done".
    """

    kind: str
    range: Mapping[str, Any] = field(default_factory=dict)
    ms: float = 0


class _FixedRanges:
    """Ranges of one size, without gaps; several may be open."""

    def __init__(self, planner_id: str, unit: str, total: int, chunk: int, metadata: Mapping[str, Any]) -> None:
        self._fixed = {"plannerId": planner_id, "unit": unit, "totalItems": total, "metadata": dict(metadata)}
        self._total, self._chunk, self._given, self._count = total, chunk, 0, 0

    def limit(self, chunk: int) -> None:
        self._chunk = chunk

    def next_range(self) -> dict[str, Any] | None:
        if self._given == self._total:
            return None
        start, end = self._given, min(self._given + self._chunk, self._total)
        found = {
            "schema": COOPERATIVE_RANGE.schema_id,
            **self._fixed,
            "rangeId": f"{self._fixed['plannerId']}:{self._count}",
            "rangeIndex": self._count,
            "rangeTotal": None,
            "rangeCountAuthority": "actual-after-completion",
            "itemStart": start,
            "itemEnd": end,
            "itemCount": end - start,
            "completedItemsBefore": start,
            "completedItemsAfter": end,
            "progressBefore": start / self._total,
            "progressAfter": end / self._total,
            "plannedChunkItems": self._chunk,
        }
        self._given, self._count = end, self._count + 1
        return found


class _Boundary:
    """One boundary of the manifest: its ranges, and how many items are done."""

    def __init__(self, run_id: str, ids: Mapping[str, Any], given: Mapping[str, Any], *, adapts: bool) -> None:
        self.ids, self.given = dict(ids), given
        self.phase, self.name, self.total = ids["phaseId"], ids["boundaryId"], given["totalItems"]
        self.gpu, self.chunking = given["kind"] == "gpu-command", given["chunking"]
        self.adaptive = adapts and self.chunking["mode"] == "adaptive"
        self._planner_id = f"{run_id}:{self.name}:range"
        self.planner: AdaptivePlanner | _FixedRanges | None = None
        self.most: int | None = None
        self.ranges: list[dict[str, Any]] = []
        self.done = 0
        self.failure: dict[str, Any] | None = None
        self.ended = "failed"  # how, where there is a failure

    @property
    def complete(self) -> bool:
        return self.total is not None and self.done == self.total

    @property
    def issued(self) -> bool:
        return self.total is not None and bool(self.ranges) and self.ranges[-1]["itemEnd"] == self.total

    def limit(self, items: int) -> None:
        self.most = items
        if self.planner is not None:
            self.planner.limit(items)

    def next_range(self) -> dict[str, Any] | None:
        _require(self.total is not None, f"totalItems of boundary {self.name} must be set before its first range")
        chunking, unit = self.chunking, self.given["unit"]
        if self.planner is None and not self.adaptive:
            size = chunking["chunkItems" if chunking["mode"] == "fixed" else "initialItems"]
            self.planner = _FixedRanges(self._planner_id, unit, self.total, size, self.ids)
        elif self.planner is None:
            self.planner = AdaptivePlanner(
                self._planner_id,
                unit,
                self.total,
                initial=chunking["initialItems"],
                least=chunking["minItems"],
                most=chunking["maxItems"],
                target_ms=chunking["targetDurationMs"],
                gain=chunking["adjustmentGain"],
                metadata=self.ids,
            )
        if self.most is not None and not self.ranges:
            self.planner.limit(self.most)
        found = self.planner.next_range()
        if found is not None:
            self.ranges.append({**found, "status": "issued"})
        return found

    def retire(self, range_id: str, ms: float | None, authority: str) -> None:
        entry = next(entry for entry in self.ranges if entry["rangeId"] == range_id)
        if isinstance(self.planner, AdaptivePlanner) and ms is not None:
            self.planner.observe(range_id, ms, authority)
        entry |= {"status": "completed", "timingAuthority": authority, "observedDurationMs": ms}
        self.done = entry["itemEnd"]

    def progress(self) -> dict[str, Any]:
        share = None if self.total is None else self.done / self.total
        return {"completedItems": self.done, "totalItems": self.total, "progress": share}

    def to_json(self) -> dict[str, Any]:
        return {
            "phaseId": self.phase,
            "boundaryId": self.name,
            "kind": self.given["kind"],
            "unit": self.given["unit"],
            "status": "complete" if self.complete else self.ended if self.failure else "running" if self.ranges else "pending",
            **self.progress(),
            "progressWeight": self.given["progressWeight"],
            "rangeCount": len(self.ranges),
            "actualRangeCount": len(self.ranges) if self.complete else None,
            "rangeCountAuthority": "actual" if self.complete else "open-until-completion",
            "ranges": [dict(entry) for entry in self.ranges],
            "failure": self.failure,
        }


class CooperativeRun:
    """One run of a boundary manifest. In the mode "disabled" the same work runs for throughput, to compare with: no foreground
    turns, no yields, chunks that do not adapt, and one wait at the end for everything that was submitted.

    `max_in_flight` above one lets so many submitted ranges wait for the GPU; then all chunks must be fixed. Pausing and
    cancelling take effect at the next checkpoint: after the submitted ranges are done, before another one is encoded.

    >>> from pumice.routes.boundaries import boundary_manifest
    >>> manifest = boundary_manifest("demo", "demo.v0", {"decode": [{"boundaryId": "tokens", "kind": "gpu-command",
    ...     "unit": "token", "totalItems": 3, "progressWeight": 1, "chunking": {"mode": "fixed", "chunkItems": 2}}]})
    >>> run, kinds = CooperativeRun(manifest, "run", clock=lambda: 0.0, yield_ms=4), []
    >>> while (step := run.next_step()).kind != "done":
    ...     kinds.append(step.kind)
    ...     if step.kind == "submit":
    ...         run.submitted(step.range["rangeId"])
    ...     elif step.kind == "wait":
    ...         run.completed(step.range["rangeId"], 3.0, "queue-work-done")
    >>> " ".join(kinds)
    'foreground submit wait yield foreground submit wait yield'
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        invocation_id: str,
        *,
        clock: Callable[[], float],
        mode: str = "cooperative",
        max_in_flight: int = 1,
        yield_ms: float = 0,
    ) -> None:
        given = manifest if isinstance(manifest, RouteDocument) else plain(manifest)  # documents do not change
        _require(is_text(invocation_id), "invocationId must be a non-empty string")
        _require(mode in ("cooperative", "disabled"), "schedulingMode must be cooperative or disabled")
        _require(is_integer(max_in_flight) and max_in_flight > 0, "maxInFlightGpuDuties must be a positive safe integer")
        self.manifest, self.invocation_id, self.clock = given, invocation_id, clock
        self.mode, self.max_in_flight, self.yield_ms = mode, max_in_flight, yield_ms
        ids = {"manifestId": given["manifestId"], "routeId": given["routeId"]}
        self._boundaries = [
            _Boundary(
                invocation_id,
                {**ids, "phaseId": phase["phaseId"], "boundaryId": boundary["boundaryId"]},
                boundary,
                adapts=mode == "cooperative",
            )
            for phase in given["phases"]
            for boundary in phase["boundaries"]
        ]
        for boundary in self._boundaries:
            adaptive = boundary.adaptive
            _require(
                not adaptive or max_in_flight == 1, f"bounded-prefix requires fixed ranges; boundary {boundary.name} is adaptive"
            )
            _require(
                not adaptive or boundary.gpu,
                f"adaptive ranges need durations of a GPU queue; boundary {boundary.name} is host work",
            )
        self.state = "running"
        self.trace: list[TraceEvent] = []  # what a verification receipt is made from
        self.failure: dict[str, Any] | None = None
        self.reason: str | None = None
        self._deferred: str | None = None
        self._next: tuple[_Boundary, dict[str, Any]] | None = None  # the range that is handed out
        self._turned = False  # whether the foreground had its turn before the next range
        self._handed_out = False
        self._flying: list[tuple[_Boundary, dict[str, Any]]] = []
        self._yield_after: str | None = None  # the phase of the range after which a yield is due
        self._yielding: str | None = None
        self._duties: list[dict[str, Any]] = []
        self._most_flying = 0
        self._started = clock()
        self._ended: float | None = None

    def next_step(self) -> RunStep:
        """The next step. A range that was handed out must be reported before another step is asked for."""
        if self._yielding is not None:
            self._note(f"{YIELD}-end", self._yielding)
            self._yielding = None
        if self.state in _ENDED:
            return RunStep("done")
        _require(not self._handed_out, f"range {self._next[1]['rangeId'] if self._next else ''} must be reported first")
        if self.state in ("pausing", "cancelling"):
            if self._flying:
                return self._wait()
            self._settle("paused" if self.state == "pausing" else "cancelled")
        if self.state in _ENDED:
            return RunStep("done")
        if self.state == "paused":
            return RunStep("paused")
        if self._yield_after is not None:
            self._yielding, self._yield_after = self._yield_after, None
            self._note(f"{YIELD}-start", self._yielding)
            return RunStep("yield", ms=self.yield_ms)
        if self.mode == "cooperative" and len(self._flying) >= self.max_in_flight:
            return self._wait()
        return self._range()

    def _range(self) -> RunStep:
        if self._next is None:
            fenced = self.mode == "cooperative"
            boundary = next((one for one in self._boundaries if not (one.complete if fenced else one.issued)), None)
            if boundary is None and not self._flying:
                self._settle("succeeded")
                return RunStep("done")
            if boundary is None or boundary.issued:  # all of it is submitted
                return self._wait()
            if fenced and not self._turned:
                self._turned = True
                return RunStep("foreground")
            found = boundary.next_range()  # after the foreground's turn, in which its size may change
            assert found is not None
            self._next, self._turned = (boundary, found), False
        boundary, found = self._next
        self._handed_out = True
        if not boundary.gpu:
            self._note(f"{CHUNK}-start", boundary.phase, found["itemCount"])
        return RunStep("submit" if boundary.gpu else "work", found)

    @property
    def _fenced(self) -> int:
        """How many ranges in flight one wait is for: the oldest, or without scheduling all of them."""
        return 1 if self.mode == "cooperative" else len(self._flying)

    def _wait(self) -> RunStep:
        boundary, found = self._flying[self._fenced - 1]
        self._note(f"{WAIT}-start", boundary.phase)
        return RunStep("wait", found)

    @property
    def oldest(self) -> Mapping[str, Any] | None:
        """The range that has been in flight for longest."""
        return self._flying[0][1] if self._flying else None

    def submitted(self, range_id: str) -> None:
        """The range is on the GPU's queue: from here nothing interrupts it."""
        boundary, found = self._claim(range_id)
        _require(boundary.gpu, f"range {range_id} is host work: report it as completed")
        self._next, self._handed_out = None, False
        self._flying.append((boundary, found))
        self._most_flying = max(self._most_flying, len(self._flying))
        self._note(f"{CHUNK}-start", boundary.phase, found["itemCount"])
        self._duties.append(
            {
                "dutyId": range_id,
                "rangeId": range_id,
                "rangeIndex": found["rangeIndex"],
                "boundaryId": boundary.name,
                "status": "in-flight",
                "submittedAtMs": self.clock(),
                "retiredAtMs": None,
                "rawQueueDurationMs": None,
                "timingAuthority": None,
                "failure": None,
            }
        )

    def completed(self, range_id: str, ms: float, authority: str) -> None:
        """The oldest submitted range, or the host work that was handed out, is done; `authority` names what measured it."""
        host = self._next is not None and self._handed_out and not self._next[0].gpu
        if host:
            boundary, _ = self._claim(range_id)
            _require(authority == HOST_WORK, f"timingAuthority of host work must be {HOST_WORK}")
        else:
            last = self._flying[self._fenced - 1] if self._flying else None
            if last is None or last[1]["rangeId"] != range_id:
                raise ExecutionError(f"range {range_id} is not the one that is waited for", hint="ask next_step() which one is")
            boundary = last[0]
        _require(is_amount(ms), "observedDurationMs must be finite and non-negative")
        if host:
            boundary.retire(range_id, ms, authority)
            self._next, self._handed_out = None, False
            self._note(f"{CHUNK}-end", boundary.phase)
        else:
            self._retire(range_id, ms, authority)
            self._note(f"{WAIT}-end", boundary.phase)
        if self.mode == "cooperative" and boundary.given["yieldPolicy"] == "after-duty":
            self._yield_after = boundary.phase

    def _retire(self, range_id: str, ms: float, authority: str) -> None:
        """Retires what one wait was for; only the last range of it has a duration of its own."""
        count = self._fenced
        for boundary, found in self._flying[:count]:
            name = found["rangeId"]
            own = ms if name == range_id else None
            boundary.retire(name, own, authority)
            duty = next(duty for duty in self._duties if duty["rangeId"] == name)
            at = self.clock()  # the raw duration is that in the queue, behind the ranges before it
            duty |= {"status": "retired", "retiredAtMs": at, "rawQueueDurationMs": at - duty["submittedAtMs"]}
            duty["timingAuthority"] = authority
            self._note(f"{CHUNK}-end", boundary.phase)
        del self._flying[:count]

    def set_total(self, boundary_id: str, total: int) -> None:
        """Says how many items a boundary has, once that is known; it never changes afterwards."""
        boundary = next((boundary for boundary in self._boundaries if boundary.name == boundary_id), None)
        if boundary is None:
            raise ExecutionError(f"unknown boundary {boundary_id}", hint="the manifest lists the boundaries")
        _require(is_integer(total) and total > 0, "totalItems must be a positive safe integer")
        _require(boundary.total in (None, total), f"totalItems of boundary {boundary_id} is already {boundary.total}")
        boundary.total = total

    def limit(self, boundary_id: str, items: int) -> None:
        """Changes the chunk of a boundary from its next range on: that of fixed ones, of adaptive ones the largest.

        A range is made after the foreground's turn before it.
        """
        _require(is_integer(items) and items > 0, "chunkItems must be a positive safe integer")
        boundary = next((boundary for boundary in self._boundaries if boundary.name == boundary_id), None)
        if boundary is None:
            raise ExecutionError(f"unknown boundary {boundary_id}", hint="the manifest lists the boundaries")
        boundary.limit(items)

    def pause(self) -> str:
        """Stops at the next checkpoint; the state, "pausing" until the submitted ranges are done."""
        _require(self.state in ("running", "pausing", "paused"), f"a run that is {self.state} cannot pause")
        self.state = "pausing" if self.state == "running" else self.state
        return self.state

    def resume(self) -> str:
        """Goes on after a pause, with the next range: none is run twice."""
        _require(self.state in ("running", "pausing", "paused"), f"a run that is {self.state} cannot resume")
        self.state = "running"
        return self.state

    def cancel(self, reason: str = "cancelled", *, deferred: str | None = None) -> str:
        """Ends at the next checkpoint; what is submitted is waited for, and what is done stays trustworthy.

        `deferred` says why a run cannot end before its end: all of its ranges run then, and the report says so.
        """
        if self.state not in _ENDED:
            self.reason, self._deferred = reason, deferred
            if deferred is not None:
                return self.state
            self.state = "cancelling"
            if not self._handed_out and not self._flying:
                self._settle("cancelled")
        return self.state

    def fail(self, phase: str, error: BaseException) -> None:
        """Ends the run at once: a submit that failed, a lost device. What is in flight stays unproved."""
        _require(self.state not in _ENDED, f"a run that is {self.state} cannot fail")
        cause = {"name": type(error).__name__, "message": str(error) or type(error).__name__}
        current = self._next or (self._flying[0] if self._flying else None)
        self._blame("failed", phase, cause, current[0] if current else None, current[1]["rangeId"] if current else None)
        self._handed_out = False
        self._settle("failed")

    def _blame(
        self, ended: str, phase: str, error: dict[str, Any], boundary: _Boundary | None = None, range_id: str | None = None
    ) -> None:
        """Keeps why the run ends, and in which boundary: the given one, or the one that was begun and is not complete."""
        begun = (one for one in self._boundaries if one.ranges and not one.complete)
        found = boundary if boundary is not None else next(begun, None)
        cause: dict[str, Any] = {"phase": phase, "error": error, "rangeId": range_id, "secondaryFailures": []}
        self.failure = {**cause, "boundaryId": None if found is None else found.name}
        if found is not None:
            found.failure, found.ended = cause, ended

    def _settle(self, state: str) -> None:
        if state == "cancelled":
            self._blame(state, "cancellation", {"name": "Cancelled", "message": self.reason or state})
        self.state = state
        if state in _ENDED:
            self._ended = self.clock()

    def _claim(self, range_id: str) -> tuple[_Boundary, dict[str, Any]]:
        if self._next is None or not self._handed_out or self._next[1]["rangeId"] != range_id:
            raise ExecutionError(f"range {range_id} was not handed out", hint="report the range of the last step")
        return self._next

    def _note(self, kind: str, phase: str, items: int | None = None) -> None:
        self.trace.append(TraceEvent(kind, phase, self.clock(), items))

    def progress(self) -> dict[str, Any]:
        """How far the run is, with real denominators: null until every total is known."""
        current = next((boundary for boundary in self._boundaries if not boundary.complete), None)
        shown = current if self.state not in _ENDED else None
        return {
            "schema": PROGRESS.schema_id,
            "routeId": self.manifest["routeId"],
            "invocationId": self.invocation_id,
            "status": self.state,
            **_together(self._boundaries),
            "currentPhaseId": shown.phase if shown else None,
            "currentBoundaryId": shown.name if shown else None,
            "phases": [self._phase(phase["phaseId"]) for phase in self.manifest["phases"]],
        }

    def _phase(self, name: str) -> dict[str, Any]:
        own = [boundary for boundary in self._boundaries if boundary.phase == name]
        begun = any(boundary.ranges for boundary in own)
        status = "complete" if all(boundary.complete for boundary in own) else "running" if begun else "pending"
        return {"phaseId": name, "status": status, **_together(own)}

    def report(self) -> dict[str, Any]:
        """The execution report; it can be asked for at any time, and keeps the last boundary that can be trusted."""
        retired = sum(duty["status"] == "retired" for duty in self._duties)
        flying = [duty["dutyId"] for duty in self._duties if duty["status"] == "in-flight"]
        bounded = self.max_in_flight > 1
        authority = "bounded-per-gpu-duty-prefix-fence" if bounded else "per-gpu-duty-prefix-fence"
        authority = authority if self.mode == "cooperative" else "one-terminal-prefix-fence"
        trusted = [boundary for boundary in self._boundaries if boundary.ranges]  # it says how many of its items are done
        ended = self.clock() if self._ended is None else self._ended
        return {
            "schema": EXECUTION_REPORT.schema_id,
            "status": self.state,
            "routeId": self.manifest["routeId"],
            "manifestId": self.manifest["manifestId"],
            "invocationId": self.invocation_id,
            "schedulingMode": self.mode,
            "completionPolicy": "bounded-prefix" if bounded else "strict-prefix",
            "maxInFlightGpuDuties": self.max_in_flight,
            "maxObservedInFlightGpuDuties": self._most_flying,
            "issuedGpuDutyCount": len(self._duties),
            "retiredGpuDutyCount": retired,
            "inFlightGpuDutyCount": len(flying),
            "inFlightGpuDutyIds": flying,
            "gpuDuties": [dict(duty) for duty in self._duties],
            "queueCompletionAuthority": authority,
            "submittedGpuDutyCount": len(self._duties),
            "observedPrefixFenceCount": retired,
            "unfencedSubmittedGpuDutyCount": len(flying),
            "retention": "uncapped",
            "startedAtMs": self._started,
            "endedAtMs": self._ended,
            "durationMs": ended - self._started,
            "progress": self.progress(),
            "boundaries": [boundary.to_json() for boundary in self._boundaries],
            "runtimeTelemetry": None,
            "failure": self.failure,
            "cancellation": None if self.reason is None else {"reason": self.reason, "deferred": self._deferred},
            "lastTrustworthyBoundary": trusted[-1].to_json() if trusted else None,
        }


def _together(boundaries: list[_Boundary]) -> dict[str, Any]:
    """Items and weights of several boundaries; nothing is guessed where a total is not known."""
    known = all(boundary.total is not None for boundary in boundaries)
    weights: list[tuple[float, _Boundary]] = [(boundary.given["progressWeight"], boundary) for boundary in boundaries]
    total = sum(weight for weight, _ in weights)
    done = sum(weight * boundary.done / boundary.total for weight, boundary in weights) if known else None
    share = None if done is None else done / total
    return {
        "completedItems": sum(boundary.done for boundary in boundaries),
        "totalItems": sum(boundary.total for boundary in boundaries) if known else None,
        "progress": share,
        "percent": None if share is None else share * 100,
        "completedWeight": done,
        "totalWeight": total,
    }
