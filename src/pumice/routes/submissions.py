"""Bounded submissions: how many submitted duties wait for the GPU, and what each took. Only states; the caller waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pumice.routes.adaptive import QUEUE_WORK_DONE
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_count, is_object, is_text

_SCHEMA = "kaminos.webgpu-bounded-gpu-submission-report.v0"
_FENCE = "queue-work-done-prefix-fence"
_WAIT = "host-backpressure-await"


class SubmissionError(RouteError):
    """A submission that the queue's state does not allow; nothing changed."""

    code = "bounded-submission"
    advice = "wait for the duty that waits_for names before the next submit; after a failure only waits are left"


_require = SubmissionError.require


class BoundedSubmissions:
    """Duties on a GPU queue, at most `most` in flight: at that depth the caller waits for the oldest before it goes on.

    >>> queue = BoundedSubmissions(1, clock=lambda: 0.0)
    >>> queue.submit("a", lambda: None)
    >>> queue.waits_for
    'a'
    >>> queue.completed("a")
    >>> queue.finish()["status"]
    'drained'
    """

    def __init__(self, most: int, *, clock: Callable[[], float]) -> None:
        _require(is_count(most), "maxInFlightDuties must be a positive safe integer")
        self.most, self.clock = most, clock
        self.status = "active"
        self.failure: dict[str, Any] | None = None
        self._noticed = False
        self._duties: dict[str, dict[str, Any]] = {}
        self._flying: list[str] = []
        self._most_flying = 0
        self._waiting: tuple[str, float] | None = None  # the duty that filled the queue, and when
        self._waits: list[dict[str, Any]] = []
        self._started = self._now()
        self._ended: float | None = None

    def _now(self) -> float:
        found = self.clock()
        _require(math.isfinite(found), "bounded GPU submission clock returned a non-finite value")
        return found

    @property
    def waits_for(self) -> str | None:
        """The oldest duty, where the queue is full and the caller must wait for it."""
        return self._flying[0] if self._waiting is not None and self._flying else None

    def submit(self, duty_id: str, call: Callable[[], None], metadata: Mapping[str, Any] | None = None) -> None:
        """Calls `call`, which submits the duty. What it raises ends the queue, and is raised on."""
        _require(is_text(duty_id), "dutyId must be a non-empty caller-owned identity")
        _require(metadata is None or is_object(metadata), "GPU duty metadata must be an object when provided")
        _require(self.status == "active" and self.failure is None, f"bounded GPU submission queue is {self._state}")
        _require(duty_id not in self._duties, f"duplicate GPU duty {duty_id}")
        _require(self.waits_for is None, f"duty {self.waits_for} must be waited for first")
        duty = self._duties[duty_id] = {
            "dutyId": duty_id,
            "sequence": len(self._duties) + 1,
            "metadata": plain(metadata or {}),
            "status": "in-flight",
            "submitStartedAtMs": self._now(),
            "submitReturnedAtMs": None,
            "submittedAtMs": None,
            "completedAtMs": None,
            "submitDurationMs": None,
            "rawQueueDurationMs": None,
            "timingAuthority": f"{_FENCE}-pending",
            "failure": None,
        }
        try:
            call()
        except Exception as error:
            duty["submitReturnedAtMs"] = self._now()
            duty["timingAuthority"] = "queue-submit-call-failed"
            self._fail(duty, "queue-submission", error, noticed=True)
            raise
        at = self._now()
        duty |= {"submitReturnedAtMs": at, "submittedAtMs": at, "submitDurationMs": at - duty["submitStartedAtMs"]}
        self._flying.append(duty_id)
        self._most_flying = max(self._most_flying, len(self._flying))
        if len(self._flying) == self.most:
            self._waiting = (duty_id, at)

    def completed(self, duty_id: str) -> None:
        """The GPU is done with the oldest duty, and with everything before it."""
        duty = self._settle(duty_id)
        duty["status"] = "completed" if self.failure is None else "completed-after-failure"
        duty["timingAuthority"] = QUEUE_WORK_DONE
        self._end_if_failed()

    def rejected(self, duty_id: str, error: BaseException) -> None:
        """The wait for the oldest duty failed: what is in flight is still waited for, and nothing else is submitted."""
        waited = self._waiting is not None
        duty = self._settle(duty_id)
        duty["timingAuthority"] = f"{_FENCE}-rejected"
        self._fail(duty, "queue-completion", error, noticed=waited)

    def cancel(self, duty_id: str, error: BaseException) -> None:
        """A duty that was about to be submitted is not, as the run was cancelled; what is in flight is waited for."""
        if self.failure is None:
            self.failure = self._cause("cancellation", duty_id, error)

    def _settle(self, duty_id: str) -> dict[str, Any]:
        oldest = self._flying[0] if self._flying else None
        _require(duty_id == oldest, f"bounded GPU submission settlement order mismatch at {duty_id}")
        at, duty = self._now(), self._duties[duty_id]
        if self._waiting is not None:
            trigger, since = self._waiting
            self._waits.append(
                {
                    "triggerDutyId": trigger,
                    "settledDutyId": duty_id,
                    "inFlightDutyCountBeforeWait": len(self._flying),
                    "waitStartedAtMs": since,
                    "waitEndedAtMs": at,
                    "controlWaitMs": at - since,
                    "timingAuthority": _WAIT,
                }
            )
            self._waiting = None
        del self._flying[0]
        duty |= {"completedAtMs": at, "rawQueueDurationMs": at - duty["submittedAtMs"]}
        return duty

    def _fail(self, duty: dict[str, Any], phase: str, error: BaseException, *, noticed: bool) -> None:
        duty |= {"status": "failed", "failure": {"name": type(error).__name__, "message": str(error)}}
        if self.failure is None:
            self.failure = self._cause(phase, duty["dutyId"], error)
        else:
            cause = self._cause(phase, duty["dutyId"], error)
            self.failure["secondaryFailures"].append({name: cause[name] for name in ("phase", "dutyId", "error")})
        self._noticed = self._noticed or noticed
        self._end_if_failed()

    def _end_if_failed(self) -> None:
        """A queue whose failure somebody waited for ends by itself when nothing is in flight any more."""
        if self._noticed and not self._flying and self.status == "active":
            self.status, self._ended = self._state, self._now()

    @staticmethod
    def _cause(phase: str, duty_id: str, error: BaseException) -> dict[str, Any]:
        cause = {"name": type(error).__name__, "message": str(error)}
        return {"phase": phase, "dutyId": duty_id, "error": cause, "secondaryFailures": []}

    @property
    def _state(self) -> str:
        if self.status != "active" or self.failure is None:
            return self.status
        return "cancelled" if self.failure["phase"] == "cancellation" else "failed"

    def finish(self) -> dict[str, Any]:
        """The report at the end, when nothing is in flight; again is harmless."""
        _require(not self._flying, f"duty {self._flying[0] if self._flying else ''} must be waited for first")
        if self.status == "active":
            self._ended = self._now()
            self.status = "drained" if self.failure is None else self._state
        return self.report()

    def report(self) -> dict[str, Any]:
        """The report so far; every duty is in it."""
        states = [duty["status"] for duty in self._duties.values()]
        return {
            "schema": _SCHEMA,
            "status": self.status,
            "maxInFlightDuties": self.most,
            "maxObservedInFlightDuties": self._most_flying,
            "retention": "uncapped",
            "timingAuthority": {"rawQueueDurationMs": _FENCE, "controlWaitMs": _WAIT, "presentation": "not-observed"},
            "startedAtMs": self._started,
            "endedAtMs": self._ended,
            "submittedDutyCount": len(states),
            "completedDutyCount": sum(state.startswith("completed") for state in states),
            "failedDutyCount": states.count("failed"),
            "inFlightDutyCount": len(self._flying),
            "inFlightDutyIds": list(self._flying),
            "duties": plain(list(self._duties.values())),
            "backpressure": plain(self._waits),
            "failure": plain(self.failure),
        }
