"""Scheduler verification: what an event trace proves of a scheduler profile; what is missing for a proof is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pumice.routes.adaptive import GPU_TIMESTAMPS, QUEUE_WORK_DONE
from pumice.routes.documents import DocumentKind, RouteDocument, plain, same
from pumice.routes.rules import Law, Record, field_of, is_amount, is_integer, is_text

VERIFICATION_SCHEMA = "kaminos.webgpu-scheduler-verification-receipt.v0"
TRACE_SCHEMA = "kaminos.webgpu-scheduler-event-trace.v0"
WAIT, YIELD, CHUNK = "queue-work-done", "js-yield", "phase-chunk"
VERIFIED, UNVERIFIED, UNSUPPORTED, INVALID = "verified", "scheduler-unverified", "unsupported", "invalid"
_NOT_OBSERVED = "not-observed"


@dataclass(frozen=True)
class TraceEvent:
    """One event of a trace: the start or end of a wait for the queue, of a yield or of a chunk, in a phase.

    >>> TraceEvent("phase-chunk-start", "decode", 1.0, items=2).to_json()
    {'kind': 'phase-chunk-start', 'phase': 'decode', 'boundary': 'decode', 'atMs': 1.0, 'items': 2}
    """

    kind: str
    phase: str
    at_ms: float
    items: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The event as the trace has it; `items` only where it is known."""
        found = {"kind": self.kind, "phase": self.phase, "boundary": self.phase, "atMs": self.at_ms}
        return found if self.items is None else {**found, "items": self.items}


class _Trace:
    """Questions to a list of events. An end pairs with the start before it, in the same phase."""

    def __init__(self, events: list[Any]) -> None:
        self.events = [event for event in events if isinstance(event, dict)]

    def about(self, phase: str) -> list[dict[str, Any]]:
        return [event for event in self.events if phase in (event.get("phase"), event.get("boundary"))]

    def pairs(self, kind: str, phase: str | None = None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        begun: dict[object, list[dict[str, Any]]] = {}  # several chunks may be in flight, and end in their order
        found = []
        for event in self.events if phase is None else self.about(phase):
            place = str(event.get("phase", event.get("boundary")))
            if event.get("kind") == f"{kind}-start":
                begun.setdefault(place, []).append(event)
            elif event.get("kind") == f"{kind}-end" and begun.get(place):
                found.append((begun[place].pop(0), event))
        return found

    def in_order(self) -> bool:
        times: list[Any] = [event.get("atMs") for event in self.events]
        return all(map(is_amount, times)) and all(a <= b for a, b in itertools.pairwise(times))


def verification_receipt(
    route: Mapping[str, Any],
    scheduler: Mapping[str, Any],
    backpressure: Mapping[str, Any],
    events: Iterable[TraceEvent | Mapping[str, Any]] = (),
    *,
    timing_authority: str = _NOT_OBSERVED,
    frame_tail: Mapping[str, Any] | None = None,
    timing_proxy_only: bool = False,
) -> RouteDocument:
    """What a trace proves of a scheduler profile. `route` has the requested and the effective route id and the backend kind.

    Verified means: every requested phase has chunks of at most the requested size, and in it the waits and yields that were
    asked for, in order and as long as asked; nothing is unsupported. Otherwise `downgrades` says what is missing.

    >>> from pumice.routes.backpressure import backpressure_profile
    >>> from pumice.routes.scheduler import Settings, scheduler_profile
    >>> route = {"requestedRouteId": "demo.v0", "effectiveRouteId": "demo.v0", "backendKind": "webgpu-local"}
    >>> scheduler = scheduler_profile(Settings("cooperative", 2, chunks={"decode": 1}))
    >>> events = [TraceEvent("phase-chunk-start", "decode", 0, items=1), TraceEvent("phase-chunk-end", "decode", 1),
    ...           TraceEvent("js-yield-start", "decode", 1), TraceEvent("js-yield-end", "decode", 3)]
    >>> proved = verification_receipt(route, scheduler, backpressure_profile(), events, timing_authority="queue-work-done")
    >>> proved["status"], proved["downgrades"]
    ('verified', ())
    >>> verification_receipt(route, scheduler, backpressure_profile())["downgrades"][0]
    'event-trace-missing'
    """
    listed = [event.to_json() if isinstance(event, TraceEvent) else plain(event) for event in events]
    return VERIFICATION.document(
        _receipt(
            plain(route), plain(scheduler), plain(backpressure), listed, timing_authority, plain(frame_tail), timing_proxy_only
        )
    )


def _receipt(
    route: Any, scheduler: Any, backpressure: Any, events: list[Any], authority: str, frame_tail: Any, proxy: bool
) -> dict[str, Any]:
    trace = _Trace(events)
    assertions = [_assertion(scheduler, phase, size, trace) for phase, size in _chunks(scheduler, "requestedScheduler").items()]
    unsupported = field_of(field_of(scheduler, "effectiveScheduler"), "unsupportedFields")
    listed = unsupported if isinstance(unsupported, list) else []
    checks = {
        "eventTraceMissing": not events,
        "verifiedWithoutObservedBoundary": False,
        "timingProxyOnly": proxy,
        "queueWaitEventsMissing": _asks(scheduler, "waitForSubmittedWorkDone") and not trace.pairs(WAIT),
        "boundaryAssertionEventMismatch": False,
        "requestedBoundaryAssertionMissing": any(entry["status"] == "unverified" for entry in assertions),
        "requestedFieldDroppedWithoutUnsupported": any(
            entry["effective"] is None and entry["status"] != UNSUPPORTED for entry in assertions
        ),
    }
    missing = {
        "route-identity-missing": not _identified(route),
        "scheduler-envelope-missing": not _scheduled(scheduler),
        "backpressure-envelope-missing": not (isinstance(backpressure, dict) and backpressure),
        "event-trace-missing": checks["eventTraceMissing"],
        "requested-field-dropped-without-unsupported": checks["requestedFieldDroppedWithoutUnsupported"],
        "requested-boundary-assertion-missing": checks["requestedBoundaryAssertionMissing"],
        "queue-wait-events-missing": checks["queueWaitEventsMissing"],
        "yield-events-missing": _asks(scheduler, "yieldMs") and not trace.pairs(YIELD),
    }
    downgrades = [name for name, found in missing.items() if found]
    if missing["route-identity-missing"] or checks["requestedFieldDroppedWithoutUnsupported"]:
        status = INVALID
    elif listed or any(entry["status"] == UNSUPPORTED for entry in assertions):
        status = UNSUPPORTED
    else:
        if events:
            downgrades += _unproved(scheduler, trace, authority)
        downgrades += ["timing-proxy-only"] if proxy else []
        status = UNVERIFIED if downgrades else VERIFIED
    if status == VERIFIED:
        assertions = [{**entry, "status": VERIFIED} for entry in assertions]
    observed = any(entry["status"] in ("observed", VERIFIED) for entry in assertions)
    seen = "observed-stage-boundary" if observed and events else "event-trace-only" if events else "config-only"
    damage = "damage-only" if proxy else "config-only"
    return {
        "schema": VERIFICATION_SCHEMA,
        "status": status,
        "classification": damage if status == UNVERIFIED else status,
        "observationClass": "proxy-only" if proxy else seen,
        "route": route if isinstance(route, dict) else {},
        "scheduler": {**(scheduler if isinstance(scheduler, dict) else {}), "unsupportedFields": listed},
        "backpressure": backpressure if isinstance(backpressure, dict) else {},
        "eventTrace": {"schema": TRACE_SCHEMA, "clock": "performance.now", "timingAuthority": authority, "events": events},
        "boundaryAssertions": assertions,
        "frameTail": {
            "evidenceSource": authority,
            "disclaimer": "not-gpu-exclusive-or-present-latency",
            "rafFps": None,
            "frameP95Ms": None,
            "queueDoneP95Ms": None,
            **(frame_tail or {}),
        },
        "downgrades": downgrades,
        "falseAuthorityChecks": checks,
    }


def _assertion(scheduler: Any, phase: str, size: Any, trace: _Trace) -> dict[str, Any]:
    """What the trace says of one phase whose chunk size was asked for."""
    about = trace.about(phase)
    listed = field_of(field_of(scheduler, "effectiveScheduler"), "unsupportedFields")
    dropped = isinstance(listed, list) and ("phaseChunkSize" in listed or f"phaseChunkSize.{phase}" in listed)
    boundary = next((event.get("boundary", event.get("phase")) for event in about), phase)
    return {
        "field": f"phaseChunkSize.{phase}",
        "requested": size,
        "effective": _chunks(scheduler, "effectiveScheduler").get(phase),
        "status": UNSUPPORTED if dropped else "observed" if about else "unverified",
        "observedBoundary": boundary,
        "observedCount": len(about),
        "expectedMinimumCount": 1,
        "observedQueueWaitCount": len(trace.pairs(WAIT)),
        "observedYieldCount": len(trace.pairs(YIELD)),
        "unsupportedReason": "effective scheduler declared this field unsupported" if dropped else None,
    }


def _unproved(scheduler: Any, trace: _Trace, authority: str) -> Iterator[str]:
    """What keeps a trace with events from being a proof, beyond what the kit asks for."""
    if authority not in (QUEUE_WORK_DONE, GPU_TIMESTAMPS):
        yield "timing-authority-not-observed"
    if not trace.in_order():
        yield "event-times-out-of-order"
    requested, effective = (field_of(scheduler, side) for side in ("requestedScheduler", "effectiveScheduler"))
    if not same(*(plain(field_of(side, "mode")) for side in (requested, effective))):
        yield "effective-mode-differs"
    if not _chunks(scheduler, "requestedScheduler"):
        yield "phase-chunk-not-requested"
    wanted = field_of(requested, "yieldMs")
    pause = wanted if is_amount(wanted) else 0
    for phase, size in _chunks(scheduler, "requestedScheduler").items():
        chunks: list[Any] = [start.get("items") for start, _ in trace.pairs(CHUNK, phase)]
        if not chunks or not all(map(is_integer, chunks)):
            yield f"chunk-size-not-observed.{phase}"
        elif max(chunks) > size:
            yield f"chunk-larger-than-requested.{phase}"
        if _asks(scheduler, "waitForSubmittedWorkDone") and len(trace.pairs(WAIT, phase)) < len(chunks):
            yield f"queue-wait-missing-after-chunk.{phase}"
        yields = trace.pairs(YIELD, phase)
        if pause and len(yields) < len(chunks):
            yield f"yield-missing-after-chunk.{phase}"
        if any(not _lasts(start, end, pause) for start, end in yields):
            yield f"yield-shorter-than-requested.{phase}"


def _lasts(start: dict[str, Any], end: dict[str, Any], pause: float) -> bool:
    a, b = start.get("atMs"), end.get("atMs")
    return is_amount(a) and is_amount(b) and b - a >= pause  # type: ignore[operator]


def _chunks(scheduler: Any, side: str) -> dict[str, Any]:
    found = field_of(field_of(scheduler, side), "phaseChunkSize")
    return found if isinstance(found, dict) else {}


def _asks(scheduler: Any, name: str) -> bool:
    values = (field_of(field_of(scheduler, side), name) for side in ("requestedScheduler", "effectiveScheduler"))
    return any(value is True or (is_amount(value) and value > 0) for value in values)


def _identified(route: Any) -> bool:
    return any(is_text(field_of(route, name)) for name in ("requestedRouteId", "effectiveRouteId"))


def _scheduled(scheduler: Any) -> bool:
    return isinstance(scheduler, dict) and any(scheduler.get(n) for n in ("schema", "requestedScheduler", "effectiveScheduler"))


def proves(receipt: object) -> bool:
    """Whether a receipt that says it is verified is: its own trace, looked at again, must prove its own profile."""
    given = plain(receipt)
    trace = field_of(given, "eventTrace")
    events = field_of(trace, "events")
    if field_of(given, "status") != VERIFIED or not isinstance(events, list):
        return False
    route, scheduler, backpressure = (field_of(given, name) for name in ("route", "scheduler", "backpressure"))
    proxy = bool(field_of(field_of(given, "falseAuthorityChecks"), "timingProxyOnly") is True)
    found = _receipt(route, scheduler, backpressure, events, str(field_of(trace, "timingAuthority")), None, proxy)
    return bool(found["status"] == VERIFIED)


def _errors(receipt: Mapping[str, Any]) -> Iterator[str]:
    """The kit's rules, in its words, and the one that makes "verified" more than a claim."""
    if field_of(receipt, "schema") != VERIFICATION_SCHEMA:
        yield "schema-mismatch"
    if not _identified(field_of(receipt, "route")):
        yield "route-identity-missing"
    if not _scheduled(field_of(receipt, "scheduler")):
        yield "scheduler-envelope-missing"
    if not (isinstance(field_of(receipt, "backpressure"), dict) and receipt["backpressure"]):
        yield "backpressure-envelope-missing"
    status = field_of(receipt, "status")
    if status == VERIFIED:
        assertions, events = field_of(receipt, "boundaryAssertions"), field_of(field_of(receipt, "eventTrace"), "events")
        if not isinstance(events, list) or not events:
            yield "verified-without-event-trace"
        if not isinstance(assertions, list) or not any(field_of(entry, "status") == VERIFIED for entry in assertions):
            yield "verified-without-boundary-assertion"
        elif not proves(receipt):
            yield "verified-without-proof"
    if status == INVALID:
        yield "receipt-invalid"


VERIFICATION = DocumentKind(
    "scheduler verification receipt",
    VERIFICATION_SCHEMA,
    Record("receipt", (Law("verified means that the receipt's own trace proves its own profile", _errors),)),
)
