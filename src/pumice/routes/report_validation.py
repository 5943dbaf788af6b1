"""The check of a finished execution report: identity, terminal progress, exact coverage, every submitted duty accounted for.

It reads reports of either side, and answers in the package's words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.records import EXECUTION_REPORT, PROGRESS
from pumice.routes.rules import ABSENT, TEXT, field_of, is_count, is_object, is_text, shown, truthy

VALIDATION_SCHEMA = "kaminos.webgpu-cooperative-report-validation.v0"
_STATES = ("succeeded", "failed", "cancelled")
_MODES = ("cooperative", "disabled")
_POLICIES = ("strict-prefix", "bounded-prefix")
_COUNTS = (
    "issuedGpuDutyCount",
    "retiredGpuDutyCount",
    "inFlightGpuDutyCount",
    "submittedGpuDutyCount",
    "observedPrefixFenceCount",
    "unfencedSubmittedGpuDutyCount",
    "maxObservedInFlightGpuDuties",
)


class ExpectationError(RouteError):
    """An expectation that no report could meet."""

    code = "report-expectation"
    advice = "docs/routes.md lists what can be expected of a report"


_require = ExpectationError.require


def validate_report(
    report: object,
    *,
    status: str = "succeeded",
    route_id: str | None = None,
    manifest_id: str | None = None,
    invocation_id: str | None = None,
    mode: str | None = None,
    policy: str | None = None,
    duty_count: int | None = None,
    max_in_flight: int | None = None,
    depth_observed: bool = False,
) -> dict[str, Any]:
    """What is wrong with a finished report, and whether it is what was expected of it.

    >>> validate_report(None)["errors"]
    ['report must be an object']
    """
    expected = {
        "expectedStatus": status,
        "expectedRouteId": route_id,
        "expectedManifestId": manifest_id,
        "expectedInvocationId": invocation_id,
        "expectedSchedulingMode": mode,
        "expectedCompletionPolicy": policy,
        "expectedGpuDutyCount": duty_count,
        "expectedMaxInFlightGpuDuties": max_in_flight,
        "requireConfiguredDepthObserved": depth_observed,
    }
    _check_expectations(expected)
    given = plain(report)
    if not is_object(given):
        return _answer(["report must be an object"], expected, None)
    names = ("status", "routeId", "manifestId", "invocationId", "schedulingMode", "completionPolicy")
    effective = {name: given.get(name) for name in names}
    effective["gpuDutyCount"] = given.get("submittedGpuDutyCount")
    effective["queueCompletionAuthority"] = given.get("queueCompletionAuthority")
    return _answer(list(_errors(given, expected)), expected, effective)


def _answer(errors: list[str], expected: dict[str, Any], effective: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "schema": VALIDATION_SCHEMA,
        "ok": not errors,
        "errors": errors,
        "expected": expected,
        "effective": effective,
    }


def _check_expectations(expected: Mapping[str, Any]) -> None:
    lists = (
        ("expectedStatus", _STATES, "succeeded, failed, or cancelled"),
        ("expectedSchedulingMode", _MODES, "cooperative or disabled"),
        ("expectedCompletionPolicy", _POLICIES, "strict-prefix or bounded-prefix"),
    )
    for name, values, text in lists:
        _require(expected[name] is None or expected[name] in values, f"{name} must be {text}")
    for name, least, text in (("expectedGpuDutyCount", 0, "nonnegative"), ("expectedMaxInFlightGpuDuties", 1, "positive")):
        _require(expected[name] is None or is_count(expected[name], least), f"{name} must be a {text} safe integer")
    _require(isinstance(expected["requireConfiguredDepthObserved"], bool), "requireConfiguredDepthObserved must be a boolean")
    for name in ("expectedRouteId", "expectedManifestId", "expectedInvocationId"):
        _require(expected[name] is None or is_text(expected[name]), f"{name} {TEXT.text}")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _errors(report: dict[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    def of(name: str) -> Any:
        return report.get(name, ABSENT)

    if of("schema") != EXECUTION_REPORT.schema_id:
        yield f"schema must be {EXECUTION_REPORT.schema_id}"
    ids = (("routeId", "expectedRouteId"), ("manifestId", "expectedManifestId"), ("invocationId", "expectedInvocationId"))
    for name, _ in ids:
        if not is_text(of(name)):
            yield f"{name} {TEXT.text}"
    status = of("status")
    if status not in _STATES:
        yield "status has an unsupported value"
    if status != expected["expectedStatus"]:
        yield f"status must match expected {expected['expectedStatus']}"
    if of("schedulingMode") not in _MODES:
        yield "schedulingMode must be cooperative or disabled"
    if of("completionPolicy") not in _POLICIES:
        yield "completionPolicy must be strict-prefix or bounded-prefix"
    modes = (("schedulingMode", "expectedSchedulingMode"), ("completionPolicy", "expectedCompletionPolicy"))
    for name, key in (*ids, *modes):
        if expected[key] is not None and of(name) != expected[key]:
            yield f"{name} must match expected {expected[key]}"
    if of("retention") != "uncapped":
        yield "retention must be uncapped"
    yield from _time_errors(report)
    if status == "succeeded":
        if report.get("failure") is not None:
            yield "failure must be null on success"
    else:
        yield from _failure_errors(of("failure"), f"failure for {shown(status)}")
    yield from _count_errors(report, expected["expectedGpuDutyCount"])
    yield from _progress_errors(report)
    yield from _boundary_errors(report)
    if of("completionPolicy") == "bounded-prefix":
        yield from _bounded_errors(report, expected)
    elif of("completionPolicy") == "strict-prefix":
        yield from _strict_errors(report)


def _time_errors(report: dict[str, Any]) -> Iterator[str]:
    start, end, total = (report.get(name) for name in ("startedAtMs", "endedAtMs", "durationMs"))
    if not (_number(start) and _number(end)):
        yield "startedAtMs and endedAtMs must be finite"
        return
    if end < start:  # type: ignore[operator]
        yield "endedAtMs must not precede startedAtMs"
    elif not same(total, end - start):  # type: ignore[operator]
        yield "durationMs must equal endedAtMs - startedAtMs"


def _failure_errors(failure: Any, label: str) -> Iterator[str]:
    if not is_object(failure):
        yield f"{label} must be an object"
        return
    if not is_text(failure.get("phase")):
        yield f"{label}.phase {TEXT.text}"
    error = failure.get("error")
    if not is_object(error):
        yield f"{label}.error must be an object"
    else:
        for name in ("name", "message"):
            if not is_text(error.get(name)):
                yield f"{label}.error.{name} {TEXT.text}"
    if not isinstance(failure.get("secondaryFailures"), list):
        yield f"{label}.secondaryFailures must be an array"


def _count_errors(report: dict[str, Any], duty_count: int | None) -> Iterator[str]:
    for name in _COUNTS:
        if not is_count(report.get(name), 0):
            yield f"{name} must be a nonnegative safe integer"
    for name in ("inFlightGpuDutyIds", "gpuDuties"):
        if not isinstance(report.get(name), list):
            yield f"{name} must be an array"
    bounded = ("issuedGpuDutyCount", "retiredGpuDutyCount", "submittedGpuDutyCount")
    for name in bounded if report.get("completionPolicy") == "bounded-prefix" else ("submittedGpuDutyCount",):
        if duty_count is not None and not same(report.get(name), duty_count):
            yield f"{name} must match expectedGpuDutyCount {duty_count}"
    if not same(report.get("inFlightGpuDutyCount"), 0):
        yield "inFlightGpuDutyCount must be zero"
    ids = report.get("inFlightGpuDutyIds")
    if isinstance(ids, list) and ids:
        yield "inFlightGpuDutyIds must be empty"
    if not same(report.get("unfencedSubmittedGpuDutyCount"), 0):
        yield "unfencedSubmittedGpuDutyCount must be zero"


def _complete(entry: Any, states: tuple[str, ...]) -> bool:
    done, total = field_of(entry, "completedItems"), field_of(entry, "totalItems")
    whole = is_count(total) and same(done, total) and same(field_of(entry, "progress"), 1)
    return whole and field_of(entry, "status") in states


def _progress_errors(report: dict[str, Any]) -> Iterator[str]:
    progress, status = report.get("progress"), report.get("status", ABSENT)
    if not is_object(progress):
        yield "progress must be an object"
        return
    assert isinstance(progress, dict)
    if progress.get("schema") != PROGRESS.schema_id:
        yield f"progress.schema must be {PROGRESS.schema_id}"
    for name in ("routeId", "invocationId"):
        if not same(progress.get(name, ABSENT), report.get(name, ABSENT)):
            yield f"progress.{name} must match {name}"
    if not same(progress.get("status", ABSENT), status):
        yield f"progress.status must match terminal report status {shown(status)}"
    succeeded = status == "succeeded"
    if succeeded and not (_complete(progress, ("succeeded",)) and same(progress.get("percent"), 100)):
        yield "progress must prove terminal completion"
    phases = progress.get("phases")
    if not isinstance(phases, list):
        yield "progress.phases must be an array"
        return
    for i, phase in enumerate(phases if succeeded else ()):
        if not (_complete(phase, ("complete",)) and same(field_of(phase, "percent"), 100)):
            yield f"progress.phases[{i}] must prove terminal completion"


def _boundary_errors(report: dict[str, Any]) -> Iterator[str]:
    boundaries = report.get("boundaries")
    if not isinstance(boundaries, list) or not boundaries:
        yield "boundaries must be a non-empty array"
        return
    succeeded = report.get("status") == "succeeded"
    for i, boundary in enumerate(boundaries):
        label = f"boundaries[{i}]"
        if not is_object(boundary):
            yield f"{label} must be an object"
            continue
        for name in ("boundaryId", "kind"):
            if not is_text(boundary.get(name)):
                yield f"{label}.{name} {TEXT.text}"
        yield from _done_errors(boundary, label) if succeeded else _ended_errors(boundary, label)
    if not succeeded:
        yield from _trust_errors(report, [one for one in boundaries if is_object(one)])


def _done_errors(boundary: dict[str, Any], label: str) -> Iterator[str]:
    if not _complete(boundary, ("complete",)):
        yield f"{label} must prove terminal completion"
    if boundary.get("failure") is not None:
        yield f"{label}.failure must be null on success"
    yield from _planner_errors(boundary, label)
    yield from _range_errors(boundary, label)


def _range_errors(boundary: dict[str, Any], label: str) -> Iterator[str]:
    """Ranges that are counted; those of a complete boundary leave no gap."""
    whole = boundary.get("status") == "complete"
    ranges = boundary.get("ranges")
    if not isinstance(ranges, list):
        yield f"{label}.ranges must be an array"
        return
    for name in ("rangeCount", "actualRangeCount") if whole else ("rangeCount",):
        if not same(boundary.get(name), len(ranges)):
            yield f"{label}.{name} must equal ranges length"
    if whole and boundary.get("rangeCountAuthority") != "actual":
        yield f"{label}.rangeCountAuthority must be actual"
    seen: set[str] = set()
    at: Any = 0
    for i, entry in enumerate(ranges):
        here = f"{label}.ranges[{i}]"
        if not is_object(entry):
            yield f"{here} must be an object"
            continue
        name = entry.get("rangeId")
        if not is_text(name) or name in seen:
            yield f"{here}.rangeId must be unique and non-empty"
        elif isinstance(name, str):
            seen.add(name)
        if not same(entry.get("rangeIndex"), i):
            yield f"{here}.rangeIndex must equal {i}"
        start, end, count = (entry.get(key) for key in ("itemStart", "itemEnd", "itemCount"))
        exact = same(start, at) and is_count(end) and is_count(count) and same(count, end - start)
        if whole and not exact:
            yield f"{here} must provide contiguous positive item coverage"
        at = end
    if whole and is_count(boundary.get("totalItems"), 0) and not same(at, boundary["totalItems"]):
        yield f"{label}.ranges must cover totalItems exactly"


def _ended_errors(boundary: dict[str, Any], label: str) -> Iterator[str]:
    status, failure = boundary.get("status"), boundary.get("failure")
    ranges = boundary.get("ranges")
    if status not in ("complete", "failed", "cancelled", "pending"):
        yield f"{label}.status must be terminal or untouched pending"
    if status in ("failed", "cancelled"):
        yield from _failure_errors(failure, f"{label}.failure")
    elif failure is not None:
        yield f"{label}.failure must be null unless the boundary failed or was cancelled"
    if status == "pending" and isinstance(ranges, list) and ranges:
        yield f"{label}.pending boundary must not contain ranges"
    yield from _planner_errors(boundary, label)
    yield from _range_errors(boundary, label)


def _planner_errors(boundary: dict[str, Any], label: str) -> Iterator[str]:
    planner = boundary.get("planner")
    if not isinstance(planner, dict):
        return
    ids = planner.get("pendingRangeIds")
    waits = planner.get("pendingRangeId") is not None or (isinstance(ids, list) and ids)
    if waits or not (planner.get("pendingRangeCount") is None or same(planner["pendingRangeCount"], 0)):
        yield f"{label}.planner must have no pending ranges"


def _trust_errors(report: dict[str, Any], boundaries: list[dict[str, Any]]) -> Iterator[str]:
    named = field_of(report.get("failure"), "boundaryId")
    if truthy(named):
        states = {one.get("boundaryId"): one.get("status") for one in boundaries if isinstance(one.get("boundaryId"), str)}
        if not isinstance(named, str) or states.get(named) not in ("failed", "cancelled"):
            yield "failure.boundaryId must identify the failed or cancelled boundary"
    ranged = [one for one in boundaries if isinstance(one.get("ranges"), list) and one["ranges"]]
    trusted = report.get("lastTrustworthyBoundary")
    if ranged:
        if not is_object(trusted):
            yield "lastTrustworthyBoundary must preserve the last boundary with range evidence"
        elif field_of(trusted, "boundaryId") != ranged[-1].get("boundaryId"):
            yield "lastTrustworthyBoundary must match the last boundary with range evidence"


def _gpu_ranges(report: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Boundary id, range id and number of all ranges that ran on the GPU."""
    return [
        (one.get("boundaryId", ABSENT), entry.get("rangeId", ABSENT), entry.get("rangeIndex", ABSENT))
        for one in _gpu_boundaries(report)
        if isinstance(one.get("ranges"), list)
        for entry in one["ranges"]
        if is_object(entry)
    ]


def _gpu_boundaries(report: dict[str, Any]) -> list[dict[str, Any]]:
    boundaries = report.get("boundaries")
    listed = boundaries if isinstance(boundaries, list) else []
    return [one for one in listed if is_object(one) and one.get("kind") == "gpu-command"]


def _strict_errors(report: dict[str, Any]) -> Iterator[str]:
    if same(report.get("submittedGpuDutyCount"), 0):
        return
    cooperative = report.get("schedulingMode") == "cooperative"
    authority = "per-gpu-duty-prefix-fence" if cooperative else "one-terminal-prefix-fence"
    if report.get("queueCompletionAuthority") != authority:
        yield f"queueCompletionAuthority must be {authority} for strict-prefix"
    if cooperative and not same(report.get("observedPrefixFenceCount", ABSENT), report.get("submittedGpuDutyCount", ABSENT)):
        yield "observedPrefixFenceCount must equal submittedGpuDutyCount"


def _as_number(value: object) -> float:
    """A value as JavaScript compares it with a number; NaN where it cannot."""
    if isinstance(value, (list, str)):
        text = shown(value).strip()
        try:
            return float(text) if text else 0
        except ValueError:
            return math.nan
    return math.nan if value is ABSENT or isinstance(value, Mapping) else float(value or 0)  # type: ignore[arg-type]


def _bounded_errors(report: dict[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    def of(name: str) -> Any:
        return report.get(name, ABSENT)

    if of("schedulingMode") != "cooperative":
        yield "bounded-prefix completion requires cooperative schedulingMode"
    most, seen = of("maxInFlightGpuDuties"), of("maxObservedInFlightGpuDuties")
    if not is_count(most):
        yield "maxInFlightGpuDuties must be a positive safe integer for bounded-prefix"
    if not is_count(seen, 0) or seen > _as_number(most):
        yield "maxObservedInFlightGpuDuties must not exceed maxInFlightGpuDuties"
    if _as_number(of("submittedGpuDutyCount")) > 0 and same(seen, 0):
        yield "maxObservedInFlightGpuDuties must observe submitted bounded work"
    wanted = expected["expectedMaxInFlightGpuDuties"]
    if wanted is not None and not same(most, wanted):
        yield f"maxInFlightGpuDuties must match expected {wanted}"
    if expected["requireConfiguredDepthObserved"] and not same(seen, most):
        yield "maxObservedInFlightGpuDuties must equal configured maxInFlightGpuDuties"
    if of("queueCompletionAuthority") != "bounded-per-gpu-duty-prefix-fence":
        yield "queueCompletionAuthority must be bounded-per-gpu-duty-prefix-fence for bounded-prefix"
    if not same(of("observedPrefixFenceCount"), of("submittedGpuDutyCount")):
        yield "observedPrefixFenceCount must equal submittedGpuDutyCount"
    duties = of("gpuDuties")
    if not isinstance(duties, list):
        return
    if not same(len(duties), of("issuedGpuDutyCount")):
        yield "gpuDuties length must equal issuedGpuDutyCount"
    if of("status") == "succeeded" and not same(of("issuedGpuDutyCount"), of("submittedGpuDutyCount")):
        yield "issuedGpuDutyCount must equal submittedGpuDutyCount"
    if of("status") == "succeeded" and not same(of("retiredGpuDutyCount"), of("issuedGpuDutyCount")):
        yield "retiredGpuDutyCount must equal issuedGpuDutyCount"
    ranges = _gpu_ranges(report)
    if of("status") == "succeeded" and len(duties) != len(ranges):
        yield "gpuDuties length must equal completed GPU-command ranges"
    yield from _duties_errors(duties, ranges, of("status"))


def _duties_errors(duties: list[Any], ranges: list[tuple[Any, Any, Any]], status: Any) -> Iterator[str]:
    seen: set[str] = set()
    matched: list[tuple[Any, Any, Any]] = []
    for i, duty in enumerate(duties):
        label = f"gpuDuties[{i}]"
        if not is_object(duty):
            yield f"{label} must be an object"
            continue
        name = duty.get("dutyId")
        if not is_text(name) or name in seen:
            yield f"{label}.dutyId must be unique and non-empty"
        elif isinstance(name, str):
            seen.add(name)
        of = (duty.get("boundaryId", ABSENT), duty.get("rangeId", ABSENT), duty.get("rangeIndex", ABSENT))
        matched.append(of)
        if not any(_equal(of, one) for one in ranges):
            yield f"{label} must match a completed GPU-command range"
        yield from (f"{label}{text}" for text in _duty_errors(duty, status))
    for of in ranges:
        if status == "succeeded" and sum(_equal(of, one) for one in matched) != 1:
            yield f"completed GPU-command range {shown(of[0])}/{shown(of[1])} must have exactly one gpuDuty"


def _equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(map(same, a, b))


def _duty_errors(duty: dict[str, Any], status: Any) -> Iterator[str]:
    lawful = ("retired",) if status == "succeeded" else ("retired", "retired-after-failure", "failed")
    if duty.get("status") not in lawful:
        yield f".status must be terminal for report status {shown(status)}"
    start, end, total = (duty.get(name) for name in ("submittedAtMs", "retiredAtMs", "rawQueueDurationMs"))
    if not _number(start):
        yield ".submittedAtMs must be finite"
    if not (_number(end) and not (_number(start) and end < start)):  # type: ignore[operator]
        yield ".retiredAtMs must be finite and not precede submittedAtMs"
    if not (_number(total) and total >= 0):  # type: ignore[operator]
        yield ".rawQueueDurationMs must be finite nonnegative"
    elif _number(start) and _number(end) and not same(total, end - start):  # type: ignore[operator]
        yield ".rawQueueDurationMs must equal retiredAtMs - submittedAtMs"
    authority = "queue-work-done-prefix-fence-rejected" if duty.get("status") == "failed" else "queue-work-done"
    if duty.get("timingAuthority") != authority:
        yield ".timingAuthority must be queue-work-done terminal authority"
    if status == "succeeded" and duty.get("failure") is not None:
        yield ".failure must be null on success"
