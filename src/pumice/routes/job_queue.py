"""The inference queue of a route: jobs in order, one at a time; a job can be cancelled until it starts. Only states here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_text

_SCHEMA = "kaminos.webgpu-inference"
_AUTHORITY = "pending-jobs-only-no-active-work-preemption"


class QueueError(RouteError):
    """A queue that was asked for what its states do not allow; nothing changed."""

    code = "inference-queue"


def _require(held: bool, rule: str) -> None:
    if not held:
        raise QueueError(rule, hint="snapshot() has the jobs and their states")


@dataclass
class _QueuedJob:
    job_id: str
    metadata: Any
    queued_at: float
    status: str = "pending"
    started_at: float | None = None
    completed_at: float | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)  # output, failure or cancellation

    def to_json(self) -> dict[str, Any]:
        return {
            "jobId": self.job_id,
            "status": self.status,
            "metadata": self.metadata,
            "queuedAtMs": self.queued_at,
            "startedAtMs": self.started_at,
            "completedAtMs": self.completed_at,
            "schedulerRevision": None,
            "outputPresent": self.status == "succeeded",
            "failure": self.result.get("failure"),
            "cancellation": self.result.get("cancellation"),
            "progress": [dict(entry) for entry in self.progress],
            "admissionSequence": None,
            "admissionStatus": "route-local",
        }


class InferenceQueue:
    """Jobs of one route. The caller runs them: `start_next`, then `succeed` or `fail`. `clock` gives milliseconds.

    >>> queue = InferenceQueue("demo.v0", clock=lambda: 0.0)
    >>> queue.enqueue("a"); queue.enqueue("b")
    >>> queue.start_next(), queue.start_next()
    ('a', None)
    >>> queue.cancel("a")["status"], queue.cancel("b")["status"], queue.succeed("a", 3)["output"]
    ('not-cancelled-active', 'cancelled-before-start', 3)
    """

    def __init__(self, route_id: str, *, clock: Callable[[], float]) -> None:
        _require(is_text(route_id), "routeId must be a non-empty string")
        self.route_id, self.clock = route_id, clock
        self._jobs: dict[str, _QueuedJob] = {}

    def enqueue(self, job_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Puts a job at the end."""
        _require(is_text(job_id), "jobId must be a non-empty string")
        _require(job_id not in self._jobs, f"duplicate job {job_id}")
        self._jobs[job_id] = _QueuedJob(job_id, plain(metadata or {}), self.clock())

    def start_next(self) -> str | None:
        """The first pending job, now running; None while another runs or none is pending."""
        pending = self._with("pending")
        if self._with("running") or not pending:
            return None
        pending[0].status, pending[0].started_at = "running", self.clock()
        return pending[0].job_id

    def report_progress(self, job_id: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Adds to the history of the running job."""
        job = self._running(job_id)
        _require(isinstance(value, Mapping), "progress must be an object")
        entry = {"sequence": len(job.progress) + 1, "atMs": self.clock(), "value": plain(value)}
        job.progress.append(entry)
        return dict(entry)

    def succeed(self, job_id: str, output: Any = None) -> dict[str, Any]:
        """Ends the running job with its output; the completion record."""
        return self._end(self._running(job_id), "succeeded", {"output": output})

    def fail(self, job_id: str, error: BaseException) -> dict[str, Any]:
        """Ends the running job with its error; the jobs behind it still run."""
        failure = {"name": type(error).__name__, "message": str(error)}
        return self._end(self._running(job_id), "failed", {"failure": failure})

    def cancel(self, job_id: str, reason: str = "cancelled") -> dict[str, Any]:
        """Cancels a pending job. A running one is not interrupted, a finished one stays as it is: the record says so."""
        job = self._jobs.get(job_id)
        if job is None:
            raise QueueError(f"unknown job {job_id}", hint="snapshot() has the jobs and their states")
        states = {"pending": "cancelled-before-start", "running": "not-cancelled-active"}
        record = {
            "schema": f"{_SCHEMA}-job-cancellation.v0",
            "routeId": self.route_id,
            "jobId": job_id,
            "status": states.get(job.status, "not-cancelled-terminal"),
            "reason": reason,
            "cancellationAuthority": _AUTHORITY,
        }
        if job.status == "pending":
            self._end(job, "cancelled-before-start", {"cancellation": record})
        return record

    def forget(self, job_id: str) -> bool:
        """Drops the history of a finished job; False if there is none."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        _require(job.status not in ("pending", "running"), "cannot forget an active or pending job")
        del self._jobs[job_id]
        return True

    def completion(self, job_id: str) -> dict[str, Any]:
        """The completion record of a finished job."""
        job = self._jobs.get(job_id)
        if job is None or job.completed_at is None:
            raise QueueError(f"job {job_id} is not complete", hint="succeed, fail or cancel it first")
        names = ("jobId", "status", "metadata", "queuedAtMs", "startedAtMs", "completedAtMs", "schedulerRevision", "progress")
        shown = job.to_json()
        return {
            "schema": f"{_SCHEMA}-job-completion.v0",
            "routeId": self.route_id,
            **{name: shown[name] for name in (*names, "outputPresent")},
            **job.result,
        }

    def snapshot(self) -> dict[str, Any]:
        """The queue as a record: every job that was not forgotten, in order."""
        active, pending = self._with("running"), self._with("pending")
        return {
            "schema": f"{_SCHEMA}-queue.v0",
            "routeId": self.route_id,
            "status": "running" if active else "idle",
            "retention": "uncapped-until-explicit-forget",
            "cancellationAuthority": _AUTHORITY,
            "admissionPolicy": "route-local-fifo",
            "activeJobId": active[0].job_id if active else None,
            "pendingJobCount": len(pending),
            "pendingDecisionCount": 0,
            "jobs": [job.to_json() for job in self._jobs.values()],
            "decisions": [],
        }

    def _with(self, status: str) -> list[_QueuedJob]:
        return [job for job in self._jobs.values() if job.status == status]

    def _running(self, job_id: str) -> _QueuedJob:
        job = self._jobs.get(job_id)
        if job is None or job.status != "running":
            raise QueueError(f"job {job_id} is not running", hint="start_next() says which one runs")
        return job

    def _end(self, job: _QueuedJob, status: str, result: dict[str, Any]) -> dict[str, Any]:
        job.status, job.completed_at, job.result = status, self.clock(), result
        return self.completion(job.job_id)
