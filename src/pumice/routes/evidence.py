"""Classification of evidence: what a receipt proves to someone who was not there. The first rule that applies wins."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pumice.routes.backend import BACKEND
from pumice.routes.backpressure import BACKPRESSURE
from pumice.routes.documents import plain
from pumice.routes.receipts import RECEIPT
from pumice.routes.rules import ABSENT, field_of, is_text, shown
from pumice.routes.scheduler import SCHEDULER
from pumice.routes.verification import proves

EVIDENCE_SCHEMA = "kaminos.webgpu-route-evidence-classification.v0"
LIVE = "authoritative-live-webgpu"
_BY_STATUS = {
    "fallback": "fallback",
    "cached": "cache",
    "cache": "cache",
    "demo": "demo",
    "fixture": "demo",
    "partial": "partial",
}
# Outputs by weight: one that is partial says more than one from a cache.
_BY_OUTPUT = {"partial": ("partial",), "cache": ("cached", "cache"), "demo": ("demo", "fixture")}


def classify_receipt(
    receipt: object, *, expected_route_id: str | None = None, max_age_ms: float | None = None, now: str | None = None
) -> dict[str, Any]:
    """What a receipt proves: a class, whether it is authoritative, the reasons, and what readers want to show.

    >>> classify_receipt({})["classification"]
    'invalid'
    """
    value = plain(receipt)
    found, reasons = _class(value, expected_route_id, max_age_ms, now)
    return {
        "schema": EVIDENCE_SCHEMA,
        "classification": found,
        "authoritative": found == LIVE,
        "reasons": reasons,
        **_surface(value),
    }


def classify_result(
    result: object, *, expected_route_id: str | None = None, max_age_ms: float | None = None, now: str | None = None
) -> dict[str, Any]:
    """What the receipt of a worker result proves, with the result's own ids; `result_errors` checks the result itself."""
    value = plain(result)
    receipt = field_of(value, "receipt")
    found = classify_receipt(
        None if receipt is ABSENT else receipt, expected_route_id=expected_route_id, max_age_ms=max_age_ms, now=now
    )
    ids = {"requestId": "requestId", "resultRouteId": "routeId", "resultStatus": "status"}
    return {**found, **{name: _or_null(field_of(value, own)) for name, own in ids.items()}}


def _class(value: Any, expected: str | None, max_age_ms: float | None, now: str | None) -> tuple[str, list[str]]:
    if errors := _errors(value):
        return "invalid", errors
    route = value["effectiveRouteId"]
    if expected is not None and route != expected:
        return "route-mismatch", [f"effectiveRouteId {route} does not match expected {expected}"]
    if max_age_ms is not None and (stale := _stale(value.get("createdAt"), max_age_ms, now)):
        return "stale", [stale]
    status, reason = value["status"], value.get("fallbackReason")
    if status != "real":
        return _BY_STATUS.get(status, "non-real"), [f"receipt status is {status}"]
    if reason:
        return "fallback", [f"fallback reason present: {shown(reason)}"]
    statuses = {output["status"] for output in value["outputs"]} - {"real"}
    if statuses:
        known = (name for name, those in _BY_OUTPUT.items() if statuses & set(those))
        found = next(known, "non-real-output")
        return found, [f"one or more outputs are {found}"]
    return LIVE, []


def _errors(value: Any) -> list[str]:
    runtime = field_of(value, "runtime")
    errors = RECEIPT.errors(value) + [f"backend.{text}" for text in BACKEND.errors(_or_null(field_of(value, "backend")))]
    for name, kind in (("scheduler", SCHEDULER), ("backpressure", BACKPRESSURE)):
        if (part := field_of(runtime, name)) not in (ABSENT, None):
            errors += [f"{name}.{text}" for text in kind.errors(part)]
    return errors


def _stale(created_at: object, max_age_ms: float, now: str | None) -> str:
    created, present = _time(created_at), datetime.now().astimezone() if now is None else _time(now)
    if created is None:
        return "createdAt is missing or invalid for freshness check"
    if present is None:
        return "now is invalid for freshness check"
    old = (present - created).total_seconds() * 1000 > max_age_ms
    return f"receipt is older than {shown(max_age_ms)}ms" if old else ""


def _time(value: object) -> datetime | None:
    if not is_text(value) or not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else None


def _surface(value: Any) -> dict[str, Any]:
    """What readers show of a receipt, null where it says nothing."""

    def at(*path: str) -> Any:
        found = value
        for name in path:
            found = field_of(found, name)
        return _or_null(found)

    outputs = at("outputs")
    roles = [field_of(output, "role") for output in outputs] if isinstance(outputs, list) else []
    verification = at("runtime", "schedulerVerification")
    return {
        "routeId": at("effectiveRouteId"),
        "requestedRouteId": at("requestedRouteId"),
        "effectiveRouteId": at("effectiveRouteId"),
        "backendKind": at("backend", "kind"),
        "adapterName": at("backend", "adapterName"),
        "timingSource": at("timings", "source"),
        "totalMs": at("timings", "totalMs"),
        **_verification(verification, at("runtime", "scheduler", "verificationState")),
        "schedulerMode": at("runtime", "scheduler", "effectiveScheduler", "mode"),
        "schedulerUnsupportedFields": at("runtime", "scheduler", "effectiveScheduler", "unsupportedFields") or [],
        "requestedBudget": at("runtime", "backpressure", "requestedBudget"),
        "effectiveBudget": at("runtime", "backpressure", "effectiveBudget"),
        "longFrameCount": at("runtime", "backpressure", "frameTail", "longFrameCount"),
        "maxFrameGapMs": at("runtime", "backpressure", "frameTail", "maxFrameGapMs"),
        "outputRoles": [role for role in roles if is_text(role)],
        "createdAt": at("createdAt"),
    }


def _verification(receipt: Any, claimed: Any) -> dict[str, Any]:
    """What is known of the scheduler: "verified" is a claim until a verification receipt with an event trace proves it."""
    reported = _or_null(field_of(receipt, "status"))
    downgrades = field_of(receipt, "downgrades")
    listed = list(downgrades) if isinstance(downgrades, list) else []
    proved = proves(receipt)
    unproved = "verified" in (reported, claimed) and not proved
    if unproved and not listed:
        listed = ["event-trace-missing"]
    status = "scheduler-unverified" if reported == "verified" and not proved else reported
    return {
        "schedulerVerification": {**receipt, "status": status} if isinstance(receipt, dict) and reported else receipt,
        "schedulerVerificationState": "scheduler-unverified" if unproved else status or claimed,
        "schedulerVerificationStatus": status,
        "schedulerVerificationReportedStatus": reported,
        "schedulerVerificationClassification": _or_null(field_of(receipt, "classification")),
        "schedulerVerificationObservationClass": _or_null(field_of(receipt, "observationClass")),
        "schedulerVerificationDowngrades": listed,
        "schedulerVerificationEventTraceTimingAuthority": _or_null(field_of(field_of(receipt, "eventTrace"), "timingAuthority")),
    }


def _or_null(value: Any) -> Any:
    return None if value is ABSENT else value
