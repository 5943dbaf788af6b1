"""The coordinator of several routes on one device: one job runs at a time, in the order in which they asked. Only states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_object, is_text

POLICY = "global-fifo-by-eligible-route-head"
_SCHEMA = "kaminos.webgpu-inference"
_AUTHORITY = "pending-admission-only-no-active-work-preemption"


class CoordinatorError(RouteError):
    """A coordinator that was asked for what its states do not allow; nothing changed."""

    code = "inference-coordinator"
    advice = "snapshot() has the admissions and their states"


_require = CoordinatorError.require


@dataclass
class _Admission:
    sequence: int
    route_id: str
    job_id: str
    metadata: Any
    requested_at: float
    status: str = "pending"
    granted_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    cancellation: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None

    @property
    def ids(self) -> dict[str, Any]:
        return {"sequence": self.sequence, "routeId": self.route_id, "jobId": self.job_id}

    def to_json(self) -> dict[str, Any]:
        return {
            **self.ids,
            "status": self.status,
            "metadata": self.metadata,
            "requestedAtMs": self.requested_at,
            "grantedAtMs": self.granted_at,
            "startedAtMs": self.started_at,
            "completedAtMs": self.completed_at,
            "cancellation": self.cancellation,
            "outcome": self.outcome,
        }


class AdmissionCoordinator:
    """Admissions of the first jobs of several routes, one at a time. `clock` gives milliseconds; it is the caller's.

    >>> coordinator = AdmissionCoordinator(clock=lambda: 0.0)
    >>> first, second = coordinator.request("a.v0", "job"), coordinator.request("b.v0", "job")
    >>> coordinator.admission(first)["sequence"], coordinator.admission(second)
    (1, None)
    >>> started = coordinator.begin(first)
    >>> coordinator.release(first)["status"], coordinator.admission(second)["routeId"]
    ('released', 'b.v0')
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._admissions: dict[int, _Admission] = {}
        self._count = 0
        self._active: _Admission | None = None

    def request(self, route_id: str, job_id: str, metadata: Mapping[str, Any] | None = None) -> int:
        """Asks for the device on behalf of a route's first job; the number of the request."""
        for name, text in (("routeId", route_id), ("jobId", job_id)):
            _require(is_text(text), f"{name} must be a non-empty string")
        _require(metadata is None or is_object(metadata), "admission metadata must be an object")
        self._count += 1
        self._admissions[self._count] = _Admission(self._count, route_id, job_id, plain(metadata or {}), self.clock())
        self._grant()
        return self._count

    def admission(self, sequence: int) -> dict[str, Any] | None:
        """The admission record of a request, once it was granted; None before, and after a cancel that came first."""
        found = self._admissions[sequence]
        if found.granted_at is None:
            return None
        return {
            "schema": f"{_SCHEMA}-admission.v0",
            "status": "granted",
            "schedulingPolicy": POLICY,
            **found.ids,
            "requestedAtMs": found.requested_at,
            "grantedAtMs": found.granted_at,
        }

    def begin(self, sequence: int) -> dict[str, Any]:
        """The granted job starts: from here it cannot be cancelled."""
        found = self._admissions.get(sequence)
        granted = found is not None and found is self._active and found.status == "granted"
        _require(granted, "admission must be granted and active before begin")
        assert found is not None
        found.status, found.started_at = "running", self.clock()
        return found.to_json()

    def release(self, sequence: int, outcome: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The job ended; the oldest request is granted next."""
        found = self._admissions.get(sequence)
        held = found is not None and found.status in ("granted", "running")
        _require(held, "only an active admission can be released")
        assert found is not None
        _require(outcome is None or is_object(outcome), "admission outcome must be an object")
        found.status, found.completed_at, found.outcome = "released", self.clock(), plain(outcome or {})
        self._end(found)
        return {
            "schema": f"{_SCHEMA}-admission-release.v0",
            "status": "released",
            **found.ids,
            "completedAtMs": found.completed_at,
            "outcome": found.outcome,
        }

    def cancel(self, sequence: int, reason: str = "cancelled") -> dict[str, Any]:
        """Takes a request back that has not begun; work that runs is not interrupted, and the record says so."""
        found = self._admissions[sequence]
        states = {"pending": "cancelled-before-start", "granted": "cancelled-before-start", "running": "not-cancelled-active"}
        record = {
            "schema": f"{_SCHEMA}-admission-cancellation.v0",
            "status": states.get(found.status, "not-cancelled-terminal"),
            **found.ids,
            "reason": reason,
            "cancellationAuthority": _AUTHORITY,
        }
        if found.status in ("pending", "granted"):
            found.status, found.completed_at, found.cancellation = "cancelled-before-start", self.clock(), record
            self._end(found)
        return record

    def forget(self, sequence: int) -> bool:
        """Drops the history of an admission that ended; False if there is none."""
        found = self._admissions.get(sequence)
        if found is None:
            return False
        _require(found.status in ("released", "cancelled-before-start"), "cannot forget a pending or active admission")
        del self._admissions[sequence]
        return True

    def snapshot(self) -> dict[str, Any]:
        """All admissions that were not forgotten, as a record."""
        pending = [one for one in self._admissions.values() if one.status == "pending"]
        active = self._active
        return {
            "schema": f"{_SCHEMA}-coordinator.v0",
            "status": "running" if active else "idle",
            "schedulingPolicy": POLICY,
            "retention": "uncapped-until-explicit-forget",
            "cancellationAuthority": _AUTHORITY,
            "activeAdmissionSequence": active.sequence if active else None,
            "activeAdmission": active.to_json() if active else None,
            "pendingAdmissionCount": len(pending),
            "pendingAdmissions": [one.to_json() for one in pending],
            "admissions": [one.to_json() for one in self._admissions.values()],
        }

    def status(self, sequence: int) -> str:
        """The state of an admission: pending, granted, running, released or cancelled-before-start."""
        return self._admissions[sequence].status

    def _end(self, found: _Admission) -> None:
        if self._active is found:
            self._active = None
        self._grant()

    def _grant(self) -> None:
        head = next((one for one in self._admissions.values() if one.status == "pending"), None)
        if self._active is None and head is not None:
            self._active, head.status, head.granted_at = head, "granted", self.clock()
