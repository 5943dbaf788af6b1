"""Records that a scheduled run writes: ranges, duties, progress, jobs, sessions, residency. Tables for readers; no device.

Unknown totals are null and never guessed, every duration names what measured it, and history is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.adaptive import GPU_TIMESTAMPS, OBSERVATION_SCHEMA, PLANNER_SCHEMA, QUEUE_WORK_DONE, RANGE_SCHEMA
from pumice.routes.backend import BACKEND
from pumice.routes.coordinator import POLICY
from pumice.routes.documents import DocumentKind
from pumice.routes.rules import (
    AMOUNT,
    ARRAY,
    BOOLEAN,
    COUNT,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    Check,
    Field,
    Items,
    Law,
    Nested,
    Record,
    Rule,
    exactly,
    field_of,
    is_amount,
    is_integer,
    one_of,
    or_null,
)

_POSITIVE = Rule(
    "must be a positive safe integer",
    lambda value: is_integer(value) and is_amount(value) and 0 < value < 2**53,  # type: ignore[operator]
    {"type": "integer", "minimum": 1},
)
_FRACTION = Rule(
    "must be a number from 0 to 1",
    lambda value: is_amount(value) and value <= 1,  # type: ignore[operator]
    {"type": "number", "minimum": 0, "maximum": 1},
)
_COUNT_OR_NULL = or_null("must be null or a non-negative integer", COUNT)
_AMOUNT_OR_NULL = or_null("must be null or a finite non-negative number", AMOUNT)
_FRACTION_OR_NULL = or_null("must be null or a number from 0 to 1", _FRACTION)
_OBJECT_OR_NULL = or_null("must be null or an object", OBJECT)
_NULL = Rule("must be null", lambda value: value is None, {"type": "null"})


def _status(*states: str) -> Field:
    return Field("status", one_of(f"must be one of {', '.join(states)}", states))


def _texts(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, TEXT) for name in names)


def _all(rule: Rule, *names: str) -> tuple[Field, ...]:
    return tuple(Field(name, rule) for name in names)


def _kind(name: str, schema: str, *checks: Check) -> DocumentKind:
    full = schema if "." in schema else f"kaminos.webgpu-{schema}.v0"
    return DocumentKind(name, full, Record(name, (Field("schema", exactly(full)), *checks)))


def _exact_range(entry: Mapping[str, Any]) -> Iterator[str]:
    start, end, count = (field_of(entry, name) for name in ("itemStart", "itemEnd", "itemCount"))
    if all(map(is_integer, (start, end, count))) and end - start != count:
        yield "itemCount must equal itemEnd - itemStart"


_RANGE: tuple[Check, ...] = (
    *_texts("plannerId", "rangeId", "unit"),
    *_all(COUNT, "rangeIndex", "itemStart", "itemEnd", "completedItemsBefore", "completedItemsAfter"),
    Field("rangeTotal", _NULL),
    *_all(_POSITIVE, "itemCount", "plannedChunkItems"),
    *_all(_COUNT_OR_NULL, "totalItems"),
    *_all(_FRACTION_OR_NULL, "progressBefore", "progressAfter"),
    Law("a range has as many items as lie between its ends", _exact_range),
)
_GAINS = _all(AMOUNT, "requestedAdjustmentGain", "effectiveAdjustmentGain")
_BOUNDS = Nested("bounds", Record("bounds", _all(_POSITIVE, "minChunkItems", "maxChunkItems")))
COOPERATIVE_RANGE = _kind("cooperative range", "cooperative-range", *_RANGE)
ADAPTIVE_RANGE = _kind("adaptive range", RANGE_SCHEMA, *_RANGE, Field("targetDurationMs", AMOUNT), *_GAINS, _BOUNDS)


def _observed(entry: Mapping[str, Any]) -> Iterator[str]:
    if field_of(entry, "status") == "failed":
        if not isinstance(field_of(entry, "failure"), dict):
            yield "failed observations must include failure"
    elif field_of(entry, "timingAuthority") not in (QUEUE_WORK_DONE, GPU_TIMESTAMPS):
        yield "timingAuthority must be queue-work-done or gpu-timestamp-query"


_ADJUSTMENTS = one_of("has unsupported value", ("decrease", "increase", "maintain", "complete"))
OBSERVATION = _kind(
    "adaptive observation",
    OBSERVATION_SCHEMA,
    Field("plannerId", TEXT),
    _status("range-observed", "planner-complete", "failed"),
    *_all(COUNT, "completedItems"),
    *_all(_POSITIVE, "totalItems"),
    *_GAINS,
    Field("adjustment", _ADJUSTMENTS, "absent"),
    Field("actualRangeCount", _COUNT_OR_NULL),
    Law("an observation names its timing authority, a failure its cause", _observed),
)
PLANNER = _kind(
    "adaptive planner",
    PLANNER_SCHEMA,
    *_texts("plannerId", "unit"),
    _status("active", "complete", "failed"),
    *_all(_POSITIVE, "totalItems", "initialChunkItems", "currentChunkItems"),
    *_all(COUNT, "completedItems", "rangeCount"),
    _BOUNDS,
    Field("retention", exactly("uncapped")),
    Items("ranges", ADAPTIVE_RANGE.record, "must be an array", least=0),
    Items("observations", OBSERVATION.record, "must be an array", least=0),
)


def _known_total(entry: Mapping[str, Any]) -> Iterator[str]:
    if field_of(entry, "totalItems") is None and field_of(entry, "progress") is not None:
        yield "progress must be null until totalItems is known"


_PROGRESS: tuple[Check, ...] = (
    Field("status", TEXT),
    Field("completedItems", COUNT),
    Field("totalItems", _COUNT_OR_NULL),
    Field("progress", _FRACTION_OR_NULL),
    Field("percent", _AMOUNT_OR_NULL),
    Law("progress has a real denominator or is null", _known_total),
)
PROGRESS = _kind(
    "cooperative progress",
    "cooperative-progress",
    *_texts("routeId", "invocationId"),
    *_PROGRESS,
    *_all(TEXT_OR_NULL, "currentPhaseId", "currentBoundaryId"),
    Items("phases", Record("phase", (Field("phaseId", TEXT), *_PROGRESS))),
)


def _counted(report: Mapping[str, Any]) -> Iterator[str]:
    if field_of(report, "status") == "failed" and not isinstance(field_of(report, "failure"), dict):
        yield "failed reports must include failure"
    if field_of(report, "status") in ("failed", "cancelled"):
        return  # what was in flight then is retired, rejected or unproved
    names = ("issuedGpuDutyCount", "retiredGpuDutyCount", "inFlightGpuDutyCount")
    issued, retired, flying = (field_of(report, name) for name in names)
    if all(map(is_integer, (issued, retired, flying))) and issued != retired + flying:
        yield "issuedGpuDutyCount must equal retiredGpuDutyCount + inFlightGpuDutyCount"
    names = ("submittedGpuDutyCount", "observedPrefixFenceCount", "unfencedSubmittedGpuDutyCount")
    submitted, observed, unfenced = (field_of(report, name) for name in names)
    # Without scheduling one fence at the end is for everything that was submitted.
    fenced = field_of(report, "schedulingMode") != "disabled"
    if fenced and all(map(is_integer, (submitted, observed, unfenced))) and submitted != observed + unfenced:
        yield "submittedGpuDutyCount must equal observedPrefixFenceCount + unfencedSubmittedGpuDutyCount"


EXECUTION_REPORT = _kind(
    "cooperative execution report",
    "cooperative-execution-report",
    *_texts("status", "routeId", "manifestId", "invocationId"),
    Field("schedulingMode", one_of("must be cooperative or disabled", ("cooperative", "disabled"))),
    Field("completionPolicy", one_of("must be strict-prefix or bounded-prefix", ("strict-prefix", "bounded-prefix"))),
    *_all(
        COUNT,
        "issuedGpuDutyCount",
        "retiredGpuDutyCount",
        "inFlightGpuDutyCount",
        "submittedGpuDutyCount",
        "observedPrefixFenceCount",
        "unfencedSubmittedGpuDutyCount",
        "maxObservedInFlightGpuDuties",
    ),
    *_all(ARRAY, "gpuDuties", "boundaries"),
    Field("durationMs", AMOUNT),
    Nested("progress", PROGRESS.record),
    Field("runtimeTelemetry", _OBJECT_OR_NULL),
    Field("failure", _OBJECT_OR_NULL),
    Field("lastTrustworthyBoundary", _OBJECT_OR_NULL),
    Field("retention", exactly("uncapped")),
    Law("every duty is counted, and a failure says what it was", _counted),
)

_DUTY_STATES = ("in-flight", "completed", "completed-after-failure", "failed")
_DUTY = Record(
    "duty",
    (
        Field("dutyId", TEXT),
        Field("sequence", COUNT),
        _status(*_DUTY_STATES),
        *_all(_AMOUNT_OR_NULL, "submitStartedAtMs", "submitReturnedAtMs", "submittedAtMs", "completedAtMs", "rawQueueDurationMs"),
        Field("timingAuthority", TEXT_OR_NULL),
    ),
)
_WAIT = Record("wait", (*_texts("triggerDutyId", "settledDutyId"), Field("controlWaitMs", AMOUNT)))
SUBMISSION_REPORT = _kind(
    "bounded submission report",
    "bounded-gpu-submission-report",
    Field("status", TEXT),
    Field("maxInFlightDuties", _POSITIVE),
    Items("duties", _DUTY, "must be an array", least=0),
    Items("backpressure", _WAIT, "must be an array", least=0),
)


def _not_preemptible(boundary: Mapping[str, Any]) -> Iterator[str]:
    if field_of(boundary, "interruptible") is not False:
        yield " submitted command duty is non-preemptible; split work before submission"


def _control(control: Mapping[str, Any]) -> Iterator[str]:
    bounds = field_of(control, "bounds")
    current, least, most, step = (
        field_of(control, "current"),
        *(field_of(bounds, name) for name in ("min", "max", "stepFactor")),
    )
    if all(map(is_integer, (current, least, most))) and not least <= current <= most:
        yield "current is outside caller-declared bounds"
    if not (is_amount(step) and step > 1):
        yield "bounds.stepFactor must be greater than 1"


DUTY_DESCRIPTOR = _kind(
    "command duty descriptor",
    "command-duty-descriptor",
    *_texts("dutyId", "routeId", "runId", "clockId", "phase"),
    Field("kind", one_of("must be one of: compute, copy, render, mixed", ("compute", "copy", "render", "mixed"))),
    Nested("submissionBoundary", Record("boundary", (Law("submitted work is not interruptible", _not_preemptible),))),
    Nested(
        "chunkControl",
        Record(
            "control", (*_texts("controlId", "unit"), Field("current", _POSITIVE), Law("the chunk is within bounds", _control))
        ),
        "null",
    ),
)

JOB_COMPLETION = _kind(
    "inference job completion",
    "inference-job-completion",
    *_texts("routeId", "jobId"),
    _status("succeeded", "failed", "cancelled-before-start"),
    *_all(AMOUNT, "queuedAtMs", "completedAtMs"),
    Field("startedAtMs", _AMOUNT_OR_NULL),
    Field("progress", ARRAY),
    Field("outputPresent", BOOLEAN),
)
ADMISSION = _kind(
    "inference admission",
    "inference-admission",
    Field("sequence", COUNT),
    *_texts("routeId", "jobId"),
    *_all(AMOUNT, "requestedAtMs", "grantedAtMs"),
    Field("schedulingPolicy", exactly(POLICY)),
)

_RESOURCE = Record(
    "resource",
    (
        Field("resourceId", TEXT),
        _status("resident", "evicted", "invalidated"),
        *_all(COUNT, "generation", "declaredBytes", "activeLeaseCount"),
        Field("kind", TEXT),
        Field("ownership", one_of("must be borrowed or managed", ("borrowed", "managed"))),
        Field("owners", ARRAY),
    ),
)


def _resident_bytes(ledger: Mapping[str, Any]) -> Iterator[str]:
    listed = field_of(ledger, "resources")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    sizes: list[Any] = [entry.get("declaredBytes") for entry in entries if entry.get("status") == "resident"]
    if all(map(is_integer, sizes)) and field_of(ledger, "totalResidentDeclaredBytes") != sum(sizes):
        yield "totalResidentDeclaredBytes must equal the declared bytes of resident resources"


RESIDENCY = _kind(
    "resource residency",
    "resource-residency",
    Field("totalResidentDeclaredBytes", COUNT),
    Field("evictionCandidates", ARRAY),
    Items("resources", _RESOURCE, "must be an array", least=0),
    Law("the total is that of the resident resources", _resident_bytes),
)
_LOSS = Record("loss", (*_texts("reason"), Field("atMs", AMOUNT)))


def _lost(session: Mapping[str, Any]) -> Iterator[str]:
    if field_of(session, "status") == "device-lost" and not isinstance(field_of(session, "deviceLoss"), dict):
        yield "device-lost sessions must include deviceLoss"


SESSION = _kind(
    "inference session",
    "inference-session",
    *_texts("sessionId", "deviceOwnership"),
    _status("active", "device-lost", "closed"),
    Nested("backendIdentity", BACKEND.record),
    Nested("deviceLoss", _LOSS, "null"),
    Law("a session that lost its device says how", _lost),
    Field("coordinator", OBJECT),
    Nested("residency", RESIDENCY.record),
    Field("resourceFactory", OBJECT),
    Field("routes", ARRAY),
)

SCHEDULER_BOUNDARY = _kind(
    "scheduler boundary",
    "scheduler-boundary",
    _status("pending-encode-validation", "encoded", "failed-before-encode"),
    Field("position", exactly("before-encode")),
    *_all(_COUNT_OR_NULL, "requestedSchedulerRevision", "effectiveSchedulerRevision"),
    Field("effectiveYieldMs", AMOUNT),
    Field("effectivePhaseChunkSize", OBJECT),
    Field("submissionStatus", one_of("must be not-claimed or not-submitted", ("not-claimed", "not-submitted"))),
)
FOREGROUND_RECEIPT = _kind(
    "foreground opportunity receipt",
    "foreground-opportunity-receipt",
    *_texts("requestId", "status"),
    Field("requestedAtMs", AMOUNT),
    *_all(_AMOUNT_OR_NULL, "startedAtMs", "settledAtMs"),
    Field("submissions", ARRAY),
)
_PARITY_METRICS = Record(
    "metrics",
    (
        Field("exactMatch", BOOLEAN),
        Field("mismatchCount", COUNT),
        *_all(AMOUNT, "maxAbsoluteError", "meanAbsoluteError", "rootMeanSquareError", "l2Error"),
        Field("relativeL2Error", _AMOUNT_OR_NULL),
        Field("relativeL2Status", one_of("has unsupported value", ("defined", "infinite-zero-reference-norm"))),
    ),
)
PARITY = _kind(
    "parity comparison",
    "parity-comparison",
    Nested(
        "comparisonDomain",
        Record("domain", (Field("mode", one_of("has unsupported value", ("float32-metrics", "integer-exact"))),)),
    ),
    Nested("sampling", Record("sampling", (Field("mode", one_of("has unsupported value", ("all", "stride"))),))),
    Nested("metrics", _PARITY_METRICS),
)
GOVERNOR_DECISION = _kind(
    "governor decision",
    "kaminos.foreground-budget-governor-decision.v0",
    _status(
        "held-invalid-evidence",
        "duplicate-observation-held",
        "instrumentation-required",
        "maintaining",
        "relaxed",
        "host-phase-split-required",
        "accumulating-pressure",
        "adjusted",
        "saturated",
    ),
    Field(
        "action",
        one_of(
            "has unsupported value",
            (
                "hold",
                "instrument-unattributed-gap",
                "increase-attribution-coverage",
                "disambiguate-shared-pressure",
                "relax-phase-chunk",
                "reduce-yield-budget",
                "split-host-phase",
                "reduce-phase-chunk",
                "increase-yield-budget",
            ),
        ),
    ),
    Field("revision", COUNT),
    *_all(OBJECT, "previousScheduler", "effectiveScheduler"),
)
_WORKER = _texts("executionId", "operationId", "moduleId")
WORKER_REQUEST = _kind("worker phase request", "worker-phase-request", *_WORKER)
WORKER_PROGRESS = _kind(
    "worker phase progress", "worker-phase-progress", *_texts("executionId", "operationId"), Field("sequence", COUNT)
)
WORKER_RESULT = _kind(
    "worker phase result", "worker-phase-result", *_texts("executionId", "operationId"), _status("completed", "failed")
)

RECORDS: tuple[DocumentKind, ...] = (
    PROGRESS,
    COOPERATIVE_RANGE,
    ADAPTIVE_RANGE,
    OBSERVATION,
    PLANNER,
    EXECUTION_REPORT,
    SUBMISSION_REPORT,
    DUTY_DESCRIPTOR,
    JOB_COMPLETION,
    ADMISSION,
    RESIDENCY,
    SESSION,
    SCHEDULER_BOUNDARY,
    FOREGROUND_RECEIPT,
    PARITY,
    GOVERNOR_DECISION,
    WORKER_REQUEST,
    WORKER_PROGRESS,
    WORKER_RESULT,
)
