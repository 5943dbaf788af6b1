"""Worker phases: one piece of work on another thread, by messages with the ids of one request. Only states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import ABSENT, field_of, is_amount, is_count, is_object, is_text

_SCHEMA = "kaminos.webgpu-worker-phase"
_TIMER_CEILING_MS = 2147483647  # what a browser's timer takes


class WorkerPhaseError(RouteError):
    """A worker phase that was set up, or told of, what its state does not allow."""

    code = "worker-phase"
    advice = "a phase has the ids of its request, ends once, and has a timeout only where one is given"


_require = WorkerPhaseError.require


class WorkerPhase:
    """The caller's side of a worker phase: it sends `request`, gives every answer to `receive`, and reads `report`.

    There is no timeout unless one is given, and no other place where the work would run instead.

    >>> phase = WorkerPhase("run", "materialize", "textures.v0", {"size": 4}, clock=lambda: 0.0)
    >>> ids = {name: phase.request[name] for name in ("executionId", "operationId", "moduleId")}
    >>> phase.dispatched()
    >>> phase.receive({"schema": "kaminos.webgpu-worker-phase-result.v0", **ids, "status": "completed", "output": 3})
    >>> phase.status, phase.output
    ('completed', 3)
    """

    def __init__(
        self,
        execution_id: str,
        operation_id: str,
        module_id: str,
        payload: Any = None,
        *,
        clock: Callable[[], float],
        timeout_ms: float | None = None,
        metadata: Any = None,
        validate: Callable[[Any], Any] = lambda output: output,
    ) -> None:
        self._ids = {"executionId": execution_id, "operationId": operation_id, "moduleId": module_id}
        for name, text in self._ids.items():
            _require(is_text(text), f"worker phase {name} must be a non-empty string")
        positive = timeout_ms is None or (is_amount(timeout_ms) and timeout_ms > 0)
        _require(positive, "worker phase timeoutMs must be a positive finite number when provided")
        fits = timeout_ms is None or timeout_ms <= _TIMER_CEILING_MS
        _require(fits, f"worker phase timeoutMs exceeds the {_TIMER_CEILING_MS}ms platform timer ceiling")
        self.clock, self.timeout_ms, self._validate = clock, timeout_ms, validate
        self.request = {"schema": f"{_SCHEMA}-request.v0", **self._ids, "payload": plain(payload)}
        self.status, self.phase = "starting", "admission"
        self.output: Any = None
        self.error: dict[str, Any] | None = None
        self._metadata = plain(metadata)
        self._progress: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        self._started = clock()
        self._ended: float | None = None
        self._note("worker-create-started")

    def _note(self, kind: str, **rest: Any) -> None:
        self._history.append({"sequence": len(self._history), "kind": kind, "atMs": self.clock(), **rest})

    def dispatched(self) -> None:
        """The worker is there and has the request."""
        _require(self.status == "starting", f"a worker phase that is {self.status} cannot be dispatched")
        self._note("worker-created", workerIdentity={"moduleId": self._ids["moduleId"]})
        self._note("worker-capabilities-captured")
        self._note("dispatched", transferCount=0)
        self.status, self.phase = "running", "worker-operation"

    def receive(self, message: object) -> None:
        """An answer of the worker: progress, or the result. What breaks the protocol ends the phase as failed."""
        if self.status != "running":
            return  # the phase has ended, and later answers do not count
        given = plain(message)
        if (wrong := self._identity_error(given)) is not None:
            self._fail("response-validation", wrong)
        elif given.get("schema") == f"{_SCHEMA}-progress.v0":
            self._receive_progress(given)
        elif given.get("schema") == f"{_SCHEMA}-result.v0":
            self._receive_result(given)
        else:
            self._fail("response-validation", "worker response schema is invalid")

    def _identity_error(self, given: Any) -> str | None:
        if not is_object(given):
            return "worker response must be an object"
        for name, word in (("executionId", "execution"), ("operationId", "operation"), ("moduleId", "module")):
            if given.get(name) != self._ids[name]:
                return f"worker response {word} identity mismatch"
        return None

    def _receive_progress(self, given: dict[str, Any]) -> None:
        sequence = given.get("sequence")
        if not is_count(sequence, 0):
            self._fail("progress-validation", "worker progress sequence must be a non-negative safe integer")
        elif self._progress and sequence <= self._progress[-1]["sequence"]:
            self._fail("progress-validation", "worker progress sequence must increase")
        else:
            entry = {**given, "progress": given.get("progress"), "atMs": self.clock()}
            names = ("schema", *self._ids, "sequence", "progress", "atMs")
            self._progress.append({name: entry[name] for name in names})
            self._note("progress", progress=entry["progress"])

    def _receive_result(self, given: dict[str, Any]) -> None:
        match given.get("status"):
            case "failed":
                error = given.get("error")
                message = field_of(error, "message")
                if not is_text(message):
                    self._fail("response-validation", "worker failure result must include an error message")
                    return
                name = field_of(error, "name")
                cause = {"name": name if is_text(name) else "WorkerOperationError", "message": message}
                self._end("failed", "worker-operation", "worker-reported-failure", cause)
            case "completed":
                try:
                    self.output = self._validate(given.get("output"))
                except Exception as error:
                    self._fail("output-validation", str(error))
                    return
                self._end("completed", "completed", "completed", None)
            case _:
                self._fail("response-validation", "worker result status must be completed or failed")

    def crashed(self, message: str = "worker execution failed") -> None:
        """The worker is gone without an answer."""
        if self.status == "running":
            cause = {"name": "WorkerPhaseError", "message": message}
            self._end("failed", "worker-execution", "worker-crashed", cause)

    def cancel(self, reason: str = "worker phase aborted") -> None:
        """The caller wants no answer any more."""
        if self.status in ("starting", "running"):
            self._end("canceled", self.phase, "canceled", {"name": "AbortError", "message": reason})

    def tick(self) -> None:
        """Ends the phase if its timeout has passed; a phase without one waits on."""
        late = self.timeout_ms is not None and self.clock() - self._started >= self.timeout_ms
        if late and self.status in ("starting", "running"):
            ms = int(self.timeout_ms) if float(self.timeout_ms or 0).is_integer() else self.timeout_ms  # type: ignore[arg-type]
            self._end(
                "timed-out", self.phase, "timed-out", {"name": "TimeoutError", "message": f"worker phase timed out after {ms}ms"}
            )

    def _fail(self, phase: str, message: str) -> None:
        self._end("failed", phase, "failed", {"name": "WorkerPhaseError", "message": message})

    def _end(self, status: str, phase: str, kind: str, error: dict[str, Any] | None) -> None:
        self.status, self.phase, self.error, self._ended = status, phase, error, self.clock()
        self._note(kind, **({} if error is None else {"error": error}))

    def report(self) -> dict[str, Any]:
        """Everything that happened, in order; an error is in the last entry of the history."""
        ended = self._ended
        return {
            "schema": f"{_SCHEMA}-report.v0",
            **self._ids,
            "status": self.status,
            "phase": self.phase,
            "metadata": self._metadata,
            "workerIdentity": {"moduleId": self._ids["moduleId"]},
            "workerIdentityAuthority": "factory-returned",
            "timeoutMs": self.timeout_ms,
            "transferCount": 0,
            "transferOwnership": "transferred" if len(self._history) > 3 else "retained",
            "startedAtMs": self._started,
            "endedAtMs": ended,
            "durationMs": None if ended is None else ended - self._started,
            "progress": plain(self._progress),
            "history": plain(self._history),
            "cleanup": None if ended is None else {"status": "terminated", "failures": []},
            "clockFailures": [],
        }


def answer_request(request: Mapping[str, Any], work: Callable[[Any], Any]) -> dict[str, Any]:
    """The worker's side: the result of a request, by calling `work` on its payload.

    >>> request = WorkerPhase("run", "add", "numbers.v0", [1, 2], clock=lambda: 0.0).request
    >>> answer_request(request, sum)["output"]
    3
    """
    given = plain(request)
    _require(field_of(given, "schema") == f"{_SCHEMA}-request.v0", "worker phase request schema is invalid")
    ids = {name: given.get(name, ABSENT) for name in ("executionId", "operationId", "moduleId")}
    for name, text in ids.items():
        _require(is_text(text), f"worker phase {name} must be a non-empty string")
    result = {"schema": f"{_SCHEMA}-result.v0", **ids}
    try:
        return {**result, "status": "completed", "output": plain(work(given.get("payload")))}
    except Exception as error:
        return {**result, "status": "failed", "error": {"name": type(error).__name__, "message": str(error)}}
