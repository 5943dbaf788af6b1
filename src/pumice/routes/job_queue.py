"""The inference queue of a route: jobs in order, one at a time; a job can be cancelled until it starts. Only states here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.application import Invocation, SchedulerApplication
from pumice.routes.coordinator import AdmissionCoordinator
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import field_of, is_object, is_text

_SCHEMA = "kaminos.webgpu-inference"
_AUTHORITY = "pending-jobs-only-no-active-work-preemption"


class QueueError(RouteError):
    """A queue that was asked for what its states do not allow; nothing changed."""

    code = "inference-queue"
    advice = "snapshot() has the jobs and their states"


_require = QueueError.require


@dataclass
class _QueuedJob:
    job_id: str
    metadata: Any
    queued_at: float
    status: str = "pending"
    started_at: float | None = None
    completed_at: float | None = None
    revision: int | None = None  # of the scheduler's settings with which it started
    admission: int | None = None  # the number of its request to the coordinator
    admitted: dict[str, Any] | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)  # output, failure or cancellation

    def to_json(self, admission_status: str) -> dict[str, Any]:
        return {
            "jobId": self.job_id,
            "status": self.status,
            "metadata": self.metadata,
            "queuedAtMs": self.queued_at,
            "startedAtMs": self.started_at,
            "completedAtMs": self.completed_at,
            "schedulerRevision": self.revision,
            "outputPresent": self.status == "succeeded",
            "failure": self.result.get("failure"),
            "cancellation": self.result.get("cancellation"),
            "progress": [dict(entry) for entry in self.progress],
            "admissionSequence": self.admission,
            "admissionStatus": admission_status,
        }


@dataclass
class _QueuedDecision:
    """A governor's decision that waits until no job runs."""

    sequence: int
    decision: Any
    queued_at: float
    status: str = "pending"
    completed_at: float | None = None
    application: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        revision = field_of(self.decision, "revision")
        return {
            "sequence": self.sequence,
            "status": self.status,
            "revision": revision if isinstance(revision, (int, float)) else None,
            "queuedAtMs": self.queued_at,
            "completedAtMs": self.completed_at,
            "application": self.application,
            "failure": self.failure,
        }


class InferenceQueue:
    """Jobs of one route. The caller runs them: `start_next`, then `succeed` or `fail`. `clock` gives milliseconds.

    With a `coordinator` the first job also waits for its admission, as other routes use the device too. With an
    `application` jobs start with its settings, and decisions are applied between jobs.

    >>> queue = InferenceQueue("demo.v0", clock=lambda: 0.0)
    >>> queue.enqueue("a"); queue.enqueue("b")
    >>> queue.start_next(), queue.start_next()
    ('a', None)
    >>> queue.cancel("a")["status"], queue.cancel("b")["status"], queue.succeed("a", 3)["output"]
    ('not-cancelled-active', 'cancelled-before-start', 3)
    """

    def __init__(
        self,
        route_id: str,
        *,
        clock: Callable[[], float],
        coordinator: AdmissionCoordinator | None = None,
        application: SchedulerApplication | None = None,
    ) -> None:
        _require(is_text(route_id), "routeId must be a non-empty string")
        self.route_id, self.clock, self.coordinator, self.application = route_id, clock, coordinator, application
        self._jobs: dict[str, _QueuedJob] = {}
        self._decisions: list[_QueuedDecision] = []
        self._invocation: Invocation | None = None

    def enqueue(self, job_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Puts a job at the end."""
        _require(is_text(job_id), "jobId must be a non-empty string")
        _require(job_id not in self._jobs, f"duplicate job {job_id}")
        _require(metadata is None or is_object(metadata), "job metadata must be an object")
        self._jobs[job_id] = _QueuedJob(job_id, plain(metadata or {}), self.clock())

    def schedule_decision(self, decision: Mapping[str, Any]) -> int:
        """Puts a decision before the jobs that have not started; its number. It is applied as soon as no job runs or waits
        for its admission.
        """
        _require(is_object(decision), "scheduler decision must be an object")
        self._decisions.append(_QueuedDecision(len(self._decisions) + 1, plain(decision), self.clock()))
        return len(self._decisions)

    def start_next(self) -> str | None:
        """The first pending job, now running; None while another runs, none is pending, or it waits for its admission."""
        pending = self._with("pending")
        if self._with("running") or (pending and self._awaits(pending[0])):
            return None
        if pending and any(one.status == "pending" for one in self._decisions):  # what was granted is asked for again
            self._withdraw(pending[0], "scheduler-decision-arrived-before-start")
            pending[0].admission = None
        self._apply_decisions()
        if not pending or not self._admitted(pending[0]):
            return None
        job = pending[0]
        job.status, job.started_at = "running", self.clock()
        if self.application is not None:
            self._invocation = self.application.begin(job.job_id)
            job.revision = self._invocation.revision
        return job.job_id

    def _awaits(self, job: _QueuedJob) -> bool:
        asked = self.coordinator is not None and job.admission is not None
        return asked and self._admission_status(job) == "pending"

    def _apply_decisions(self) -> None:
        for one in self._decisions:
            if one.status != "pending":
                continue
            try:
                if self.application is None:
                    raise QueueError("inference runtime has no scheduler application", hint="give the queue an application")
                one.application, one.status = self.application.apply(one.decision), "applied"
            except RouteError as error:
                one.status, one.failure = "failed", {"name": "Error", "message": error.message}
            one.completed_at = self.clock()

    def _admitted(self, job: _QueuedJob) -> bool:
        if self.coordinator is None:
            return True
        if job.admission is None:
            job.admission = self.coordinator.request(self.route_id, job.job_id, job.metadata)
        if self.coordinator.status(job.admission) != "granted":
            return False
        granted = self.coordinator.admission(job.admission) or {}
        job.admitted = {name: value for name, value in granted.items() if name != "status"}
        self.coordinator.begin(job.admission)
        return True

    def _withdraw(self, job: _QueuedJob, reason: str) -> None:
        if self.coordinator is not None and job.admission is not None:
            self.coordinator.cancel(job.admission, reason)

    def report_progress(self, job_id: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Adds to the history of the running job."""
        job = self._running(job_id)
        _require(is_object(value), "progress must be an object")
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
            raise QueueError(f"unknown job {job_id}", hint=QueueError.advice)
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
            self._withdraw(job, reason)
            self._end(job, "cancelled-before-start", {"cancellation": record})
        return record

    def cancel_pending(self, reason: str) -> None:
        """Cancels every job that has not started."""
        for job in self._with("pending"):
            self.cancel(job.job_id, reason)

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
        shown = job.to_json("")
        return {
            "schema": f"{_SCHEMA}-job-completion.v0",
            "routeId": self.route_id,
            **{name: shown[name] for name in (*names, "outputPresent")},
            **job.result,
            **({"admission": job.admitted} if job.admitted else {}),
        }

    def decision_receipt(self, sequence: int) -> dict[str, Any]:
        """The receipt of a decision that was applied between jobs."""
        one = self._decisions[sequence - 1]
        _require(one.status == "applied", f"decision {sequence} is not applied: {one.status}")
        return {
            "schema": "kaminos.webgpu-scheduler-decision-queue-receipt.v0",
            "routeId": self.route_id,
            "sequence": sequence,
            "status": one.status,
            "queuedAtMs": one.queued_at,
            "completedAtMs": one.completed_at,
            "application": one.application,
            "applicationAuthority": "between-queued-invocations-only",
        }

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self._with("running") or self._with("pending") or any(one.status == "pending" for one in self._decisions))

    def snapshot(self) -> dict[str, Any]:
        """The queue as a record: every job that was not forgotten, in order."""
        active, pending = self._with("running"), self._with("pending")
        waiting = sum(one.status == "pending" for one in self._decisions)
        shared = self.coordinator is not None
        return {
            "schema": f"{_SCHEMA}-queue.v0",
            "routeId": self.route_id,
            "status": "running" if active else "idle" if self.idle else "processing",
            "retention": "uncapped-until-explicit-forget",
            "cancellationAuthority": _AUTHORITY,
            "admissionPolicy": "shared-global-fifo-by-eligible-route-head" if shared else "route-local-fifo",
            "activeJobId": active[0].job_id if active else None,
            "pendingJobCount": len(pending),
            "pendingDecisionCount": waiting,
            "jobs": [job.to_json(self._admission_status(job)) for job in self._jobs.values()],
            "decisions": [one.to_json() for one in self._decisions],
        }

    def _admission_status(self, job: _QueuedJob) -> str:
        if self.coordinator is None:
            return "route-local"
        return "not-requested" if job.admission is None else self.coordinator.status(job.admission)

    def _with(self, status: str) -> list[_QueuedJob]:
        return [job for job in self._jobs.values() if job.status == status]

    def _running(self, job_id: str) -> _QueuedJob:
        job = self._jobs.get(job_id)
        if job is None or job.status != "running":
            raise QueueError(f"job {job_id} is not running", hint="start_next() says which one runs")
        return job

    def _end(self, job: _QueuedJob, status: str, result: dict[str, Any]) -> dict[str, Any]:
        ran = job.status == "running"
        job.status, job.completed_at, job.result = status, self.clock(), result
        if ran and self._invocation is not None and self.application is not None:
            self.application.end(self._invocation)
            self._invocation = None
        if ran and self.coordinator is not None and job.admission is not None:
            self.coordinator.release(job.admission, {"jobStatus": status})
        return self.completion(job.job_id)
