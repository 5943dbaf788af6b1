"""Command duties: what was submitted to a GPU queue in one piece, measured around the submit, and what is known of it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pumice.routes.boundaries import DUTY_KINDS
from pumice.routes.clocks import ClockIdentity, instant
from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.rules import ABSENT, field_of, is_amount, is_count, is_integer, is_object, is_text

_SCHEMA = "kaminos.webgpu-command-duty"
NOT_PREEMPTIBLE = "submitted command duty is non-preemptible; split work before submission"
_AUTHORITY = "host-submit-call-only-not-gpu-completion"
_BOUNDARY = {
    "interruptible": False,
    "canSplitBefore": True,
    "canSplitAfter": True,
    "authority": "submitted-command-buffer-non-preemptible",
}
_IDS = ("dutyId", "routeId", "runId", "clockId", "phase")
_Result = TypeVar("_Result")


class DutyError(RouteError):
    """A duty or a report of duties that is refused."""

    code = "command-duty"
    advice = "a duty is one submit: its ids are the run's, and its chunk is within the bounds that the caller declared"


_require = DutyError.require


def duty_descriptor(given: Mapping[str, Any]) -> dict[str, Any]:
    """A duty with every field; the first rule that it breaks is raised.

    >>> duty = duty_descriptor({"dutyId": "d", "routeId": "demo.v0", "runId": "run", "clockId": "c", "phase": "decode",
    ...                         "kind": "compute"})
    >>> duty["submissionBoundary"]["interruptible"], duty["chunkControl"]
    (False, None)
    """
    found = plain(given)
    for rule in _descriptor_errors(found):
        _require(False, rule)
    control = found.get("chunkControl")
    bounds = control["bounds"] if control else {}
    return {
        "schema": f"{_SCHEMA}-descriptor.v0",
        **{name: found[name] for name in _IDS},
        "kind": found["kind"],
        "submissionBoundary": dict(_BOUNDARY),
        "chunkControl": None
        if control is None
        else {
            **{name: control[name] for name in ("controlId", "unit", "current")},
            "bounds": {name: bounds[name] for name in ("min", "max", "stepFactor")},
        },
        "metadata": found.get("metadata") or {},
    }


def _descriptor_errors(given: Any) -> Iterator[str]:
    def of(name: str) -> Any:
        return field_of(given, name)

    boundary = of("submissionBoundary")
    if of("interruptible") is True or field_of(boundary, "interruptible") is True:
        yield NOT_PREEMPTIBLE
    if not is_text(of("kind")):
        yield "kind must be a non-empty string"
    if of("kind") not in DUTY_KINDS:
        yield f"kind must be one of: {', '.join(DUTY_KINDS)}"
    if of("metadata") not in (ABSENT, None) and not is_object(of("metadata")):
        yield "metadata must be an object when provided"
    for name in _IDS:
        if not is_text(of(name)):
            yield f"{name} must be a non-empty string"
    if of("chunkControl") not in (ABSENT, None):
        yield from (f"chunkControl{text}" for text in _control_errors(of("chunkControl")))


def _control_errors(control: Any) -> Iterator[str]:
    if not is_object(control):
        yield " must be null or an object"
    for name in ("controlId", "unit"):
        if not is_text(control.get(name)):
            yield f".{name} must be a non-empty string"
    bounds = control.get("bounds")
    if not is_object(bounds):
        yield ".bounds must be an object"
    least, most, step = bounds.get("min"), bounds.get("max"), bounds.get("stepFactor")
    if not (is_integer(least) and is_integer(most) and 0 < least <= most):
        yield ".bounds must declare ordered positive integer min and max"
    if not (is_amount(step) and step > 1):
        yield ".bounds.stepFactor must be greater than 1"
    current = control.get("current")
    if not (is_integer(current) and least <= current <= most):
        yield ".current is outside caller-declared bounds"


class DutyRecorder:
    """Measures submits on the host's clock. That is the time of the call, never of the GPU: the report says so.

    >>> recorder = DutyRecorder("demo.v0", "run", ClockIdentity("c", "time.perf_counter", 0.0), now=lambda: 3.0)
    >>> recorder.submit(lambda: "submitted", phase="decode", kind="compute")
    'submitted'
    >>> report = recorder.finish()
    >>> report["submissions"][0]["descriptor"]["dutyId"], report["timingAuthority"]
    ('run:command-duty:0', 'host-submit-call-only-not-gpu-completion')
    """

    def __init__(self, route_id: str, run_id: str, clock: ClockIdentity, *, now: Callable[[], float]) -> None:
        for name, text in (("routeId", route_id), ("runId", run_id)):
            _require(is_text(text), f"{name} must be a non-empty string")
        self.route_id, self.run_id, self.clock, self.now = route_id, run_id, clock, now
        self._submissions: list[dict[str, Any]] = []
        self._failure: dict[str, Any] | None = None
        self._count = 0
        self._finished = False

    def submit(
        self,
        call: Callable[[], _Result],
        *,
        phase: str,
        kind: str,
        duty_id: str | None = None,
        chunk_control: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> _Result:
        """Calls `call`, which submits, and keeps when it began and returned, or what it raised."""
        _require(not self._finished, "command duty recorder is already finished")
        number = self._count
        self._count += 1
        descriptor = duty_descriptor(
            {
                "dutyId": duty_id or f"{self.run_id}:command-duty:{number}",
                "routeId": self.route_id,
                "runId": self.run_id,
                "clockId": self.clock.clock_id,
                "phase": phase,
                "kind": kind,
                "chunkControl": chunk_control,
                "metadata": metadata or {},
            }
        )
        start = instant(self.now, "command duty")
        try:
            result = call()
        except Exception as error:
            self._keep(descriptor, start, error)
            raise
        self._keep(descriptor, start, None)
        return result

    def _keep(self, descriptor: dict[str, Any], start: float, error: Exception | None) -> None:
        end = instant(self.now, "command duty")
        cause = None if error is None else {"name": type(error).__name__, "message": str(error)}
        backwards = {"name": "Error", "message": "command duty clock moved backwards"}
        if end >= start:
            self._submissions.append(
                {
                    "descriptor": descriptor,
                    "outcome": "succeeded" if cause is None else "failed",
                    "submitStartMs": start,
                    "submitEndMs": end,
                    "submitStartEpochMs": self.clock.epoch_ms(start),
                    "submitEndEpochMs": self.clock.epoch_ms(end),
                    "submitCallDurationMs": end - start,
                    **({} if cause is None else {"error": cause}),
                }
            )
        failed = {} if cause is None else {"error": cause}
        failed |= {"recordingError": backwards} if end < start else {}
        if failed and self._failure is None:
            self._failure = {"dutyId": descriptor["dutyId"], "phase": descriptor["phase"], **failed}

    def snapshot(self) -> dict[str, Any]:
        """The report so far; history is kept whole."""
        done = "failed" if self._failure else "succeeded"
        return {
            "schema": f"{_SCHEMA}-report.v0",
            "status": done if self._finished else "recording",
            "routeId": self.route_id,
            "runId": self.run_id,
            "clock": self.clock.to_json(),
            "retention": "uncapped",
            "timingAuthority": _AUTHORITY,
            "submissionCount": len(self._submissions),
            "activeSubmissionCount": 0,
            "submissions": plain(self._submissions),
            "failure": self._failure,
            "lastTrustworthySubmission": plain(self._submissions[-1]) if self._submissions else None,
        }

    def finish(self) -> dict[str, Any]:
        """The report of the run, once."""
        _require(not self._finished, "command duty recorder is already finished")
        self._finished = True
        return self.snapshot()


def duty_observation(
    route_id: str, run_id: str, clock_id: str, firing_id: str, duties: list[Mapping[str, Any]]
) -> dict[str, Any]:
    """What was measured of duties: each with its descriptor, duration, and the part of it that a frame waited for.

    >>> duty = duty_descriptor({"dutyId": "d", "routeId": "r", "runId": "run", "clockId": "c", "phase": "p", "kind": "copy"})
    >>> seen = {"descriptor": duty, "observedDurationMs": 4, "foregroundOverlapDurationMs": 1}
    >>> duty_observation("r", "run", "c", "frame", [seen])["totals"]
    {'observedDurationMs': 4, 'foregroundOverlapDurationMs': 1}
    """
    identity = {"routeId": route_id, "runId": run_id, "clockId": clock_id, "firingId": firing_id}
    for name, text in identity.items():
        _require(is_text(text), f"{name} must be a non-empty string")
    _require(isinstance(duties, list), "duties must be an array")
    rows: list[dict[str, Any]] = []
    for given in plain(duties):
        _require(is_object(given), "observed duty rows must be objects")
        rows.append(_observed(given, identity, {row["descriptor"]["dutyId"] for row in rows}))
    names = ("observedDurationMs", "foregroundOverlapDurationMs")
    return {
        "schema": f"{_SCHEMA}-observation.v0",
        "status": "observed",
        "identity": identity,
        "retention": "uncapped",
        "dutyCount": len(rows),
        "duties": rows,
        "totals": {name: sum(row[name] for row in rows) for name in names},
    }


def _read_descriptor(given: Any) -> dict[str, Any]:
    """A descriptor that somebody else wrote."""
    _require(field_of(given, "schema") == f"{_SCHEMA}-descriptor.v0", "command duty descriptor schema is invalid")
    found = duty_descriptor(given)
    _require(same(field_of(given, "submissionBoundary"), _BOUNDARY), "command duty submission boundary is invalid")
    return found


def _observed(given: Any, identity: Mapping[str, str], seen: set[str]) -> dict[str, Any]:
    duty = _read_descriptor(field_of(given, "descriptor"))
    for name, word in (("routeId", "route"), ("runId", "run"), ("clockId", "clock")):
        _require(duty[name] == identity[name], f"command duty {word} identity mismatch")
    _require(duty["dutyId"] not in seen, f"duplicate dutyId: {duty['dutyId']}")
    total, overlap = given.get("observedDurationMs"), given.get("foregroundOverlapDurationMs")
    _require(is_amount(total), "observedDurationMs must be finite and non-negative")
    lawful = is_amount(overlap) and overlap <= total
    _require(lawful, "foreground overlap duration must be finite, non-negative, and no greater than observed duration")
    return {"descriptor": duty, "observedDurationMs": total, "foregroundOverlapDurationMs": overlap}


def observation_from_report(
    report: Mapping[str, Any],
    measurements: list[Mapping[str, Any]],
    *,
    firing_id: str,
    route_id: str,
    run_id: str,
    clock_id: str,
) -> dict[str, Any]:
    """Joins a complete report of submits with what measured them; both must be of the same run, and of every duty."""
    given = plain(report)
    expected = (("expectedRouteId", route_id), ("expectedRunId", run_id), ("expectedClockId", clock_id))
    for rule in _report_errors(given, expected):
        _require(False, rule)
    _require(isinstance(measurements, list), "measurements must be an array")
    descriptors: dict[str, Any] = {}
    for submission in given["submissions"]:
        for rule in _submission_errors(submission, given, descriptors):
            _require(False, rule)
        descriptors[submission["descriptor"]["dutyId"]] = submission["descriptor"]
    rows: dict[str, Any] = {}
    for one in plain(measurements):
        name = field_of(one, "dutyId")
        _require(is_text(name), "measurement.dutyId must be a non-empty string")
        _require(name in descriptors, f"foreign or extra command duty measurement: {name}")
        _require(name not in rows, f"duplicate command duty measurement: {name}")
        rows[name] = {**one, "descriptor": descriptors[name]}
    _require(rows.keys() == descriptors.keys(), "complete command duty measurements are required for every submitted duty")
    return duty_observation(route_id, run_id, clock_id, firing_id, [rows[name] for name in descriptors])


def _report_errors(report: Any, expected: tuple[tuple[str, str], ...]) -> Iterator[str]:
    def of(name: str) -> Any:
        return field_of(report, name)

    if of("schema") != f"{_SCHEMA}-report.v0":
        yield "command duty report schema is required"
    for name, text in expected:
        if not is_text(text):
            yield f"{name} must be a non-empty string"
    found = (of("routeId"), of("runId"), field_of(of("clock"), "clockId"))
    for (_, wanted), value, word in zip(expected, found, ("route", "run", "clock"), strict=True):
        if value != wanted:
            yield f"command duty report {word} identity mismatch"
    if of("status") != "succeeded":
        yield "a succeeded command duty report is required; failed reports are not complete duty evidence"
    if of("failure") not in (ABSENT, None):
        yield "command duty report carries failure state and cannot project as succeeded"
    listed, count = of("submissions"), of("submissionCount")
    whole = isinstance(listed, list) and is_count(count, 0) and count == len(listed) and same(of("activeSubmissionCount"), 0)
    if of("retention") != "uncapped" or not whole:
        yield "command duty report is capped, partial, or still active"
    if of("timingAuthority") != _AUTHORITY:
        yield "command duty report timing authority is invalid"


def _submission_errors(submission: Any, report: Any, seen: Mapping[str, Any]) -> Iterator[str]:
    descriptor = _read_descriptor(field_of(submission, "descriptor"))
    found = [field_of(descriptor, name) for name in ("routeId", "runId", "clockId")]
    if found != [report["routeId"], report["runId"], report["clock"]["clockId"]]:
        yield "command duty report descriptor identity mismatch"
    if descriptor["dutyId"] in seen:
        yield f"duplicate dutyId: {descriptor['dutyId']}"
    if submission.get("outcome") != "succeeded":
        yield "failed command duty submission cannot project as observed duty"
    start, end, total = (submission.get(name) for name in ("submitStartMs", "submitEndMs", "submitCallDurationMs"))
    lawful = is_amount(start) and is_amount(end) and start <= end and same(total, end - start)
    origin = field_of(report["clock"], "timeOriginEpochMs")
    pairs = ((start, "submitStartEpochMs"), (end, "submitEndEpochMs"))
    if not (lawful and is_amount(origin) and all(same(submission.get(name), origin + at) for at, name in pairs)):
        yield "command duty report submission timing is invalid"
