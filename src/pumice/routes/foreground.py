"""The foreground interlock: frames get the GPU between two ranges of inference, and a receipt says what they did. Only states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.application import BEFORE_ENCODE
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_object, is_text

_SCHEMA = "kaminos.webgpu-foreground-opportunity"
_NO_CLAIM = "no-gpu-completion-or-presentation-claim"


class ForegroundError(RouteError):
    """An interlock that was asked for what its states do not allow; nothing changed."""

    code = "foreground"
    advice = "ask before the boundary, submit while the request is active, settle it once"


_require = ForegroundError.require


@dataclass
class _Request:
    request_id: str
    sequence: int
    metadata: Any
    requested_at: float
    status: str = "pending"
    started_at: float | None = None
    boundary: dict[str, Any] | None = None
    submissions: list[dict[str, Any]] = field(default_factory=list)
    cancellation: dict[str, Any] | None = None
    receipt: dict[str, Any] | None = None


@dataclass
class _Service:
    boundary: dict[str, Any]
    started_at: float | None = None
    captured: list[_Request] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)


class ForegroundInterlock:
    """Requests of the foreground, serviced one after another at boundaries before inference encodes its next range.

    The caller does the work of `active` and reports it; the next range is encoded when `active` is None again.

    >>> interlock = ForegroundInterlock("demo.v0", "run", clock=lambda: 0.0)
    >>> interlock.request("frame-1")
    >>> interlock.service("run-1", "tile-3", "duty-3", "decode")
    >>> interlock.active
    'frame-1'
    >>> submission = interlock.submit(1)
    >>> interlock.settle()["status"], interlock.active, interlock.services[-1]["status"]
    ('completed', None, 'serviced')
    """

    def __init__(self, route_id: str, run_id: str, *, clock: Callable[[], float]) -> None:
        _require(is_text(route_id), "routeId must be a non-empty string")
        _require(is_text(run_id), "runId must be a non-empty caller-owned identity")
        self.clock = clock
        self._ids = {"routeId": route_id, "runId": run_id}
        self._requests: dict[str, _Request] = {}
        self._queued: list[_Service] = []  # the first one is being serviced
        self._no_demand = 0
        self.receipts: list[dict[str, Any]] = []
        self.services: list[dict[str, Any]] = []

    def request(self, request_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """The foreground asks for a turn at the next boundary."""
        _require(is_text(request_id), "requestId must be a non-empty string")
        _require(request_id not in self._requests, f"duplicate foreground opportunity request {request_id}")
        given = metadata is None or is_object(metadata)
        _require(given, "foreground opportunity metadata must be an object when provided")
        sequence = len(self._requests) + 1
        self._requests[request_id] = _Request(request_id, sequence, plain(metadata or {}), self.clock())

    def service(
        self,
        invocation_id: str,
        boundary_id: str,
        duty_id: str,
        phase: str,
        *,
        position: str = BEFORE_ENCODE,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Inference is at a boundary: who asked gets a turn now, or after the boundary that is being serviced.

        The record says so where nobody asked; else `services` has it when everybody is done.
        """
        ids = {"invocationId": invocation_id, "boundaryId": boundary_id, "dutyId": duty_id, "phase": phase}
        for name, text in ids.items():
            _require(is_text(text), f"{name} must be a non-empty string")
        _require(position == BEFORE_ENCODE, f"foreground opportunities are serviced only at position {BEFORE_ENCODE}")
        given = metadata is None or is_object(metadata)
        _require(given, "foreground opportunity boundary metadata must be an object when provided")
        self._queued.append(_Service({**ids, "position": BEFORE_ENCODE, "metadata": plain(metadata or {})}))
        return self._start() if len(self._queued) == 1 else None

    def _start(self) -> dict[str, Any] | None:
        """Begins the first queued service with everybody who waits."""
        service = self._queued[0]
        service.captured = self._with("pending")
        if not service.captured:
            self._no_demand += 1
            del self._queued[0]
            return {
                "schema": f"{_SCHEMA}-service.v0",
                "status": "no-demand",
                **self._ids,
                "boundary": service.boundary,
                "capturedRequestCount": 0,
                "servicedRequestCount": 0,
                "failures": [],
                "authority": "no-foreground-demand-observed-at-safe-boundary",
            }
        service.started_at = self.clock()
        self._advance()
        return None

    def _advance(self) -> None:
        """Gives the next captured request its turn, or ends the service and begins the next one."""
        service = self._queued[0]
        waiting = next((one for one in service.captured if one.status == "pending"), None)
        if waiting is not None:
            waiting.status, waiting.started_at, waiting.boundary = "active", self.clock(), service.boundary
            return
        failures = [
            {"requestId": one["requestId"], "status": one["status"], "failure": one["failure"]}
            for one in service.receipts
            if one["failure"] is not None
        ]
        self.services.append(
            {
                "schema": f"{_SCHEMA}-service.v0",
                "status": "failed" if failures else "serviced",
                **self._ids,
                "serviceSequence": len(self.services) + 1,
                "boundary": service.boundary,
                "startedAtMs": service.started_at,
                "settledAtMs": self.clock(),
                "capturedRequestCount": len(service.captured),
                "servicedRequestCount": len(service.receipts),
                "receiptIds": [one["requestId"] for one in service.receipts],
                "failures": failures,
                "authority": f"foreground-callbacks-settled-before-next-inference-encode-{_NO_CLAIM}",
            }
        )
        del self._queued[0]
        while self._queued and self._start() is not None:
            pass

    @property
    def active(self) -> str | None:
        """The request whose turn it is."""
        found = self._with("active")
        return found[0].request_id if found else None

    def submit(
        self,
        command_buffers: int,
        *,
        submission_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> dict[str, Any]:
        """The active request submitted so many command buffers, or the submit raised an error."""
        one = self._turn("foreground opportunity submission lease is not active")
        _require(one.cancellation is None, "foreground opportunity was canceled before submission")
        _require(command_buffers > 0, "foreground opportunity submit requires a non-empty command buffer array")
        sequence = len(one.submissions) + 1
        name = submission_id or f"{one.request_id}:submission:{sequence}"
        known = {submission["submissionId"] for submission in one.submissions}
        _require(name not in known, f"duplicate foreground submission {name}")
        at = self.clock()
        threw = error is not None
        failure = {"failure": {"name": type(error).__name__, "message": str(error)}} if threw else {}
        outcome = "failed-no-gpu-submission-claim" if threw else f"returned-{_NO_CLAIM}"
        submission = {
            "submissionId": name,
            "submissionSequence": sequence,
            "commandBufferCount": command_buffers,
            "submittedAtMs": at,
            "returnedAtMs": at,
            "submissionStatus": "queue-submit-threw" if threw else "queue-submit-returned",
            "metadata": plain(metadata or {}),
            **failure,
            "authority": f"queue-submit-call-{outcome}",
        }
        one.submissions.append(submission)
        return dict(submission)

    def settle(self, result: Any = None, *, error: BaseException | None = None) -> dict[str, Any]:
        """The active request is done, with a JSON value or an error; its receipt."""
        one = self._turn("no foreground opportunity is active")
        cause = None if error is None else {"name": type(error).__name__, "message": str(error)}
        phase = "foreground-callback"
        if cause is None:
            try:
                json.dumps(result, allow_nan=False)
            except (TypeError, ValueError) as problem:
                cause, phase = {"name": type(problem).__name__, "message": str(problem)}, "foreground-result-serialization"
        submitted = any(one["submissionStatus"] == "queue-submit-returned" for one in one.submissions)
        if one.cancellation is not None:
            one.cancellation["callbackError"] = cause
            receipt = self._receipt(one, "canceled-during-service")
        elif cause is not None:
            status = "failed-after-submission" if submitted else "failed-before-submission"
            receipt = self._receipt(one, status, failure={"phase": phase, "error": cause})
        else:
            receipt = self._receipt(one, "completed", result=plain(result))
        self._queued[0].receipts.append(receipt)
        self._advance()
        return receipt

    def _receipt(self, one: _Request, status: str, *, result: Any = None, failure: Any = None) -> dict[str, Any]:
        at = self.clock()
        one.status = "settled"
        one.receipt = {
            "schema": f"{_SCHEMA}-receipt.v0",
            **self._ids,
            "requestId": one.request_id,
            "requestSequence": one.sequence,
            "status": status,
            "requestedAtMs": one.requested_at,
            "startedAtMs": one.started_at,
            "settledAtMs": at,
            "elapsedMs": 0 if one.started_at is None else max(0, at - one.started_at),
            "boundary": one.boundary,
            "metadata": one.metadata,
            "result": result,
            "submissionCount": sum(entry["submissionStatus"] == "queue-submit-returned" for entry in one.submissions),
            "submissions": [dict(entry) for entry in one.submissions],
            "cancellation": one.cancellation,
            "failure": failure,
            "authority": f"foreground-callback-and-queue-submission-observed-{_NO_CLAIM}",
        }
        self.receipts.append(one.receipt)
        return one.receipt

    def cancel(self, request_id: str, reason: str = "foreground-opportunity-canceled") -> dict[str, Any]:
        """Takes a request back. One that is active ends by itself but submits nothing more; one that is done stays."""
        one = self._requests.get(request_id)
        if one is None:
            raise ForegroundError(f"unknown foreground opportunity request {request_id}", hint=ForegroundError.advice)
        if one.receipt is not None:
            return one.receipt
        one.cancellation = {"reason": reason}
        if one.status == "active":
            return {"status": "cancellation-requested", "requestId": request_id, "reason": reason}
        return self._receipt(one, "canceled-before-service")

    def pressure(self) -> dict[str, Any]:
        """How many wait and are serviced now, without history."""
        return {
            "schema": f"{_SCHEMA}-pressure.v0",
            **self._ids,
            **self._counts(),
            "authority": "live-foreground-opportunity-counters-no-history-clone",
        }

    def _counts(self) -> dict[str, int]:
        captured = self._queued[0].captured if self._queued else []
        return {
            "pendingRequestCount": len([one for one in self._with("pending") if one not in captured]),
            "activeRequestCount": len(self._with("active")),
            "activeServiceCount": min(1, len(self._queued)),
            "queuedServiceCount": max(0, len(self._queued) - 1),
        }

    def snapshot(self) -> dict[str, Any]:
        """Every receipt and service, as a record."""
        return {
            "schema": f"{_SCHEMA}-interlock.v0",
            **self._ids,
            "retention": "uncapped",
            "requestCount": len(self._requests),
            **self._counts(),
            "receiptCount": len(self.receipts),
            "receipts": plain(self.receipts),
            "serviceCount": len(self.services),
            "services": plain(self.services),
            "noDemandBoundaryCount": self._no_demand,
            "authority": "foreground-opportunity-request-and-queue-submit-observation-no-presentation-claim",
        }

    def finish(self) -> dict[str, Any]:
        """The record at the end; "incomplete" where somebody still waits."""
        counts = self._counts()
        return {**self.snapshot(), "status": "incomplete" if any(counts.values()) else "succeeded"}

    def _with(self, status: str) -> list[_Request]:
        return [one for one in self._requests.values() if one.status == status]

    def _turn(self, rule: str) -> _Request:
        found = self._with("active")
        _require(bool(found), rule)
        return found[0]
