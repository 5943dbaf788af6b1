"""Host phases: what the processor did around the GPU's work, in intervals of one named clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pumice.routes.boundaries import HOST_PHASES
from pumice.routes.clocks import ClockIdentity, instant
from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.rules import field_of, is_amount, is_count, is_object, is_text

_SCHEMA = "kaminos.webgpu-host-phase"
_INTERVAL = ("phase", "outcome", "startMs", "endMs", "startEpochMs", "endEpochMs", "durationMs", "detail")


class HostPhaseError(RouteError):
    """An interval or a report of host phases that is refused."""

    code = "host-phase"
    advice = "an interval begins once and ends once; a report is read when it is finished, by the run that wrote it"


_require = HostPhaseError.require


class HostPhaseRecorder:
    """Keeps every interval of a run, also those that failed. `now` gives milliseconds of the named clock.

    >>> times = iter([1.0, 3.0])
    >>> recorder = HostPhaseRecorder("demo.v0", "run", ClockIdentity("c", "time.perf_counter", 0.0), now=lambda: next(times))
    >>> with recorder.measure("readback"):
    ...     pass
    >>> recorder.finish()["intervals"][0]["durationMs"]
    2.0
    """

    def __init__(self, route_id: str, run_id: str, clock: ClockIdentity, *, now: Callable[[], float]) -> None:
        for name, text in (("routeId", route_id), ("runId", run_id)):
            _require(is_text(text), f"{name} must be a non-empty string")
        self.clock, self.now = clock, now
        self._ids = {"routeId": route_id, "runId": run_id}
        self._active: dict[str, tuple[str, float, Any]] = {}
        self._intervals: list[dict[str, Any]] = []
        self._failure: dict[str, Any] | None = None
        self._count = 0
        self._finished = False

    def begin(self, phase: str, detail: Mapping[str, Any] | None = None) -> str:
        """An interval begins; its id."""
        _require(not self._finished, "host phase recorder is already finished")
        _require(phase in HOST_PHASES, f"phase must be one of: {', '.join(HOST_PHASES)}")
        _require(detail is None or is_object(detail), "host phase detail must be an object when provided")
        name = f"{self._ids['runId']}:host-phase:{self._count}"
        self._active[name] = (phase, instant(self.now, "host phase"), plain(detail or {}))
        self._count += 1
        return name

    def end(self, interval_id: str) -> dict[str, Any]:
        """The interval is over."""
        return self._close(interval_id, None)

    def fail(self, interval_id: str, error: BaseException) -> dict[str, Any]:
        """The interval is over, by an error; the first one makes the report a failed one."""
        return self._close(interval_id, {"name": type(error).__name__, "message": str(error)})

    def _close(self, interval_id: str, error: dict[str, Any] | None) -> dict[str, Any]:
        _require(not self._finished, "host phase recorder is already finished")
        _require(interval_id in self._active, "host phase token is foreign, stale, or already closed")
        phase, start, detail = self._active[interval_id]
        end = instant(self.now, "host phase")
        backwards = "host phase clock moved backwards; interval was not recorded"
        if end < start and error is not None:  # the failure is kept all the same
            del self._active[interval_id]
            self._failure = {"intervalId": interval_id, "phase": phase, "error": error}
            self._failure["recordingError"] = {"name": "Error", "message": backwards}
            return {"recorded": False, "failure": self._failure}
        _require(end >= start, backwards)
        del self._active[interval_id]
        found = {
            "intervalId": interval_id,
            **self._ids,
            "clockId": self.clock.clock_id,
            "phase": phase,
            "outcome": "succeeded" if error is None else "failed",
            "startMs": start,
            "endMs": end,
            "startEpochMs": self.clock.epoch_ms(start),
            "endEpochMs": self.clock.epoch_ms(end),
            "durationMs": end - start,
            "detail": detail,
            **({} if error is None else {"error": error}),
        }
        self._intervals.append(found)
        if error is not None and self._failure is None:
            self._failure = {"intervalId": interval_id, "phase": phase, "error": error}
        return dict(found)

    @contextmanager
    def measure(self, phase: str, detail: Mapping[str, Any] | None = None) -> Iterator[None]:
        """An interval around a block; what it raises is kept and raised on."""
        name = self.begin(phase, detail)
        try:
            yield
        except BaseException as error:
            self.fail(name, error)
            raise
        self.end(name)

    def snapshot(self) -> dict[str, Any]:
        """The report so far; history is kept whole."""
        done = "failed" if self._failure else "succeeded"
        return {
            "schema": f"{_SCHEMA}-recorder.v0",
            "status": done if self._finished else "recording",
            **self._ids,
            "clock": self.clock.to_json(),
            "retention": "uncapped",
            "intervalCount": len(self._intervals),
            "activeIntervalCount": len(self._active),
            "intervals": plain(self._intervals),
            "failure": self._failure,
            "lastTrustworthyInterval": plain(self._intervals[-1]) if self._intervals else None,
        }

    def finish(self) -> dict[str, Any]:
        """The report of the run, once, when every interval has ended."""
        _require(not self._finished, "host phase recorder is already finished")
        _require(not self._active, f"cannot finish with {len(self._active)} active host phase interval(s)")
        self._finished = True
        return self.snapshot()


def host_phase_events(report: Mapping[str, Any], *, firing_id: str, route_id: str, run_id: str, clock_id: str) -> dict[str, Any]:
    """The intervals of a finished report as events of one firing; the first rule that the report breaks is raised."""
    given = plain(report)
    expected = (("expectedRouteId", route_id), ("expectedRunId", run_id), ("expectedClockId", clock_id))
    for rule in _report_errors(given, expected, firing_id):
        _require(False, rule)
    events = [
        {
            **({"eventId": one["intervalId"]} if "intervalId" in one else {}),
            "firingId": firing_id,
            "routeId": route_id,
            "runId": run_id,
            "clockId": clock_id,
            "kind": "webgpu-runtime-host-phase",
            "source": "runtime-explicit",
            **{name: one[name] for name in _INTERVAL if name in one},
            "error": one.get("error"),
        }
        for one in given["intervals"]
    ]
    return {
        "schema": f"{_SCHEMA}-event-batch.v0",
        "status": "verified",
        "routeId": route_id,
        "runId": run_id,
        "clock": given["clock"],
        "firingId": firing_id,
        "retention": "uncapped",
        "eventCount": len(events),
        "events": events,
    }


def _report_errors(report: Any, expected: tuple[tuple[str, str], ...], firing_id: str) -> Iterator[str]:
    def of(name: str) -> Any:
        return field_of(report, name)

    if of("schema") != f"{_SCHEMA}-recorder.v0":
        yield "host phase recorder report schema is required"
    if of("status") not in ("succeeded", "failed"):
        yield "terminal host phase report status is required before projection"
    for name, text in expected:
        if not is_text(text):
            yield f"{name} must be a non-empty string"
    found = (of("routeId"), of("runId"), field_of(of("clock"), "clockId"))
    words = ("route", "run", "clock")
    for (_, wanted), value, word in zip(expected, found, words, strict=True):
        if value != wanted:
            yield f"host phase {word} identity mismatch"
    if not is_text(firing_id):
        yield "firingId must be a non-empty string"
    listed, count = of("intervals"), of("intervalCount")
    if of("retention") != "uncapped" or not (isinstance(listed, list) and is_count(count, 0) and count == len(listed)):
        yield "host phase report is capped or partial"
    if not same(of("activeIntervalCount"), 0):
        yield "host phase report has active host phase intervals"
    origin = field_of(of("clock"), "timeOriginEpochMs")
    for one in listed:
        for (_, wanted), name, word in zip(expected, ("routeId", "runId", "clockId"), words, strict=True):
            if field_of(one, name) != wanted:
                yield f"host phase interval {word} identity mismatch"
        if one.get("phase") not in HOST_PHASES:
            yield "host phase interval phase is invalid"
        if one.get("outcome") not in ("succeeded", "failed"):
            yield "host phase interval outcome is invalid"
        start, end, total = (one.get(name) for name in ("startMs", "endMs", "durationMs"))
        if not (is_amount(start) and is_amount(end) and start <= end and _in_epoch(one, origin)):
            yield "host phase interval timing is invalid"
        if not (is_amount(total) and total == end - start):
            yield "host phase interval duration is invalid"


def _in_epoch(interval: Mapping[str, Any], origin: Any) -> bool:
    if not is_amount(origin):
        return False
    pairs = (("startMs", "startEpochMs"), ("endMs", "endEpochMs"))
    return all(same(interval.get(epoch), origin + interval[name]) for name, epoch in pairs)
