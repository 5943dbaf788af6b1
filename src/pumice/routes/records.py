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
    exactly,
    field_of,
    is_amount,
    is_integer,
    one_of,
)
from pumice.routes.tables import (
    AMOUNT_OR_NULL,
    COUNT_OR_NULL,
    FRACTION_OR_NULL,
    NULL,
    OBJECT_OR_NULL,
    POSITIVE,
    fields,
    record_kind,
    status_field,
    text_fields,
)


def _exact_range(entry: Mapping[str, Any]) -> Iterator[str]:
    start, end, count = (field_of(entry, name) for name in ("itemStart", "itemEnd", "itemCount"))
    if all(map(is_integer, (start, end, count))) and end - start != count:
        yield "itemCount must equal itemEnd - itemStart"


_RANGE: tuple[Check, ...] = (
    *text_fields("plannerId", "rangeId", "unit"),
    *fields(COUNT, "rangeIndex", "itemStart", "itemEnd", "completedItemsBefore", "completedItemsAfter"),
    Field("rangeTotal", NULL),
    *fields(POSITIVE, "itemCount", "plannedChunkItems"),
    *fields(COUNT_OR_NULL, "totalItems"),
    *fields(FRACTION_OR_NULL, "progressBefore", "progressAfter"),
    Law("a range has as many items as lie between its ends", _exact_range),
)
_GAINS = fields(AMOUNT, "requestedAdjustmentGain", "effectiveAdjustmentGain")
_BOUNDS = Nested("bounds", Record("bounds", fields(POSITIVE, "minChunkItems", "maxChunkItems")))
COOPERATIVE_RANGE = record_kind("cooperative range", "cooperative-range", *_RANGE)
ADAPTIVE_RANGE = record_kind("adaptive range", RANGE_SCHEMA, *_RANGE, Field("targetDurationMs", AMOUNT), *_GAINS, _BOUNDS)


def _observed(entry: Mapping[str, Any]) -> Iterator[str]:
    if field_of(entry, "status") == "failed":
        if not isinstance(field_of(entry, "failure"), dict):
            yield "failed observations must include failure"
    elif field_of(entry, "timingAuthority") not in (QUEUE_WORK_DONE, GPU_TIMESTAMPS):
        yield "timingAuthority must be queue-work-done or gpu-timestamp-query"


_ADJUSTMENTS = one_of("has unsupported value", ("decrease", "increase", "maintain", "complete"))
OBSERVATION = record_kind(
    "adaptive observation",
    OBSERVATION_SCHEMA,
    Field("plannerId", TEXT),
    status_field("range-observed", "planner-complete", "failed"),
    *fields(COUNT, "completedItems"),
    *fields(POSITIVE, "totalItems"),
    *_GAINS,
    Field("adjustment", _ADJUSTMENTS, "absent"),
    Field("actualRangeCount", COUNT_OR_NULL),
    Law("an observation names its timing authority, a failure its cause", _observed),
)
PLANNER = record_kind(
    "adaptive planner",
    PLANNER_SCHEMA,
    *text_fields("plannerId", "unit"),
    status_field("active", "complete", "failed"),
    *fields(POSITIVE, "totalItems", "initialChunkItems", "currentChunkItems"),
    *fields(COUNT, "completedItems", "rangeCount"),
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
    Field("totalItems", COUNT_OR_NULL),
    Field("progress", FRACTION_OR_NULL),
    Field("percent", AMOUNT_OR_NULL),
    Law("progress has a real denominator or is null", _known_total),
)
PROGRESS = record_kind(
    "cooperative progress",
    "cooperative-progress",
    *text_fields("routeId", "invocationId"),
    *_PROGRESS,
    *fields(TEXT_OR_NULL, "currentPhaseId", "currentBoundaryId"),
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


EXECUTION_REPORT = record_kind(
    "cooperative execution report",
    "cooperative-execution-report",
    *text_fields("status", "routeId", "manifestId", "invocationId"),
    Field("schedulingMode", one_of("must be cooperative or disabled", ("cooperative", "disabled"))),
    Field("completionPolicy", one_of("must be strict-prefix or bounded-prefix", ("strict-prefix", "bounded-prefix"))),
    *fields(
        COUNT,
        "issuedGpuDutyCount",
        "retiredGpuDutyCount",
        "inFlightGpuDutyCount",
        "submittedGpuDutyCount",
        "observedPrefixFenceCount",
        "unfencedSubmittedGpuDutyCount",
        "maxObservedInFlightGpuDuties",
    ),
    *fields(ARRAY, "gpuDuties", "boundaries"),
    Field("durationMs", AMOUNT),
    Nested("progress", PROGRESS.record),
    Field("runtimeTelemetry", OBJECT_OR_NULL),
    Field("failure", OBJECT_OR_NULL),
    Field("lastTrustworthyBoundary", OBJECT_OR_NULL),
    Field("retention", exactly("uncapped")),
    Law("every duty is counted, and a failure says what it was", _counted),
)

_DUTY_STATES = ("in-flight", "completed", "completed-after-failure", "failed")
_DUTY = Record(
    "duty",
    (
        Field("dutyId", TEXT),
        Field("sequence", COUNT),
        status_field(*_DUTY_STATES),
        *fields(
            AMOUNT_OR_NULL, "submitStartedAtMs", "submitReturnedAtMs", "submittedAtMs", "completedAtMs", "rawQueueDurationMs"
        ),
        Field("timingAuthority", TEXT_OR_NULL),
    ),
)
_WAIT = Record("wait", (*text_fields("triggerDutyId", "settledDutyId"), Field("controlWaitMs", AMOUNT)))
SUBMISSION_REPORT = record_kind(
    "bounded submission report",
    "bounded-gpu-submission-report",
    Field("status", TEXT),
    Field("maxInFlightDuties", POSITIVE),
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


DUTY_DESCRIPTOR = record_kind(
    "command duty descriptor",
    "command-duty-descriptor",
    *text_fields("dutyId", "routeId", "runId", "clockId", "phase"),
    Field("kind", one_of("must be one of: compute, copy, render, mixed", ("compute", "copy", "render", "mixed"))),
    Nested("submissionBoundary", Record("boundary", (Law("submitted work is not interruptible", _not_preemptible),))),
    Nested(
        "chunkControl",
        Record(
            "control",
            (*text_fields("controlId", "unit"), Field("current", POSITIVE), Law("the chunk is within bounds", _control)),
        ),
        "null",
    ),
)

JOB_COMPLETION = record_kind(
    "inference job completion",
    "inference-job-completion",
    *text_fields("routeId", "jobId"),
    status_field("succeeded", "failed", "cancelled-before-start"),
    *fields(AMOUNT, "queuedAtMs", "completedAtMs"),
    Field("startedAtMs", AMOUNT_OR_NULL),
    Field("progress", ARRAY),
    Field("outputPresent", BOOLEAN),
)
ADMISSION = record_kind(
    "inference admission",
    "inference-admission",
    Field("sequence", COUNT),
    *text_fields("routeId", "jobId"),
    *fields(AMOUNT, "requestedAtMs", "grantedAtMs"),
    Field("schedulingPolicy", exactly(POLICY)),
)

_RESOURCE = Record(
    "resource",
    (
        Field("resourceId", TEXT),
        status_field("resident", "evicted", "invalidated"),
        *fields(COUNT, "generation", "declaredBytes", "activeLeaseCount"),
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


RESIDENCY = record_kind(
    "resource residency",
    "resource-residency",
    Field("totalResidentDeclaredBytes", COUNT),
    Field("evictionCandidates", ARRAY),
    Items("resources", _RESOURCE, "must be an array", least=0),
    Law("the total is that of the resident resources", _resident_bytes),
)
_LOSS = Record("loss", (*text_fields("reason"), Field("atMs", AMOUNT)))


def _lost(session: Mapping[str, Any]) -> Iterator[str]:
    if field_of(session, "status") == "device-lost" and not isinstance(field_of(session, "deviceLoss"), dict):
        yield "device-lost sessions must include deviceLoss"


SESSION = record_kind(
    "inference session",
    "inference-session",
    *text_fields("sessionId", "deviceOwnership"),
    status_field("active", "device-lost", "closed"),
    Nested("backendIdentity", BACKEND.record),
    Nested("deviceLoss", _LOSS, "null"),
    Law("a session that lost its device says how", _lost),
    Field("coordinator", OBJECT),
    Nested("residency", RESIDENCY.record),
    Field("resourceFactory", OBJECT),
    Field("routes", ARRAY),
)

SCHEDULER_BOUNDARY = record_kind(
    "scheduler boundary",
    "scheduler-boundary",
    status_field("pending-encode-validation", "encoded", "failed-before-encode"),
    Field("position", exactly("before-encode")),
    *fields(COUNT_OR_NULL, "requestedSchedulerRevision", "effectiveSchedulerRevision"),
    Field("effectiveYieldMs", AMOUNT),
    Field("effectivePhaseChunkSize", OBJECT),
    Field("submissionStatus", one_of("must be not-claimed or not-submitted", ("not-claimed", "not-submitted"))),
)
FOREGROUND_RECEIPT = record_kind(
    "foreground opportunity receipt",
    "foreground-opportunity-receipt",
    *text_fields("requestId", "status"),
    Field("requestedAtMs", AMOUNT),
    *fields(AMOUNT_OR_NULL, "startedAtMs", "settledAtMs"),
    Field("submissions", ARRAY),
)
_PARITY_METRICS = Record(
    "metrics",
    (
        Field("exactMatch", BOOLEAN),
        Field("mismatchCount", COUNT),
        *fields(AMOUNT, "maxAbsoluteError", "meanAbsoluteError", "rootMeanSquareError", "l2Error"),
        Field("relativeL2Error", AMOUNT_OR_NULL),
        Field("relativeL2Status", one_of("has unsupported value", ("defined", "infinite-zero-reference-norm"))),
    ),
)
PARITY = record_kind(
    "parity comparison",
    "parity-comparison",
    Nested(
        "comparisonDomain",
        Record("domain", (Field("mode", one_of("has unsupported value", ("float32-metrics", "integer-exact"))),)),
    ),
    Nested("sampling", Record("sampling", (Field("mode", one_of("has unsupported value", ("all", "stride"))),))),
    Nested("metrics", _PARITY_METRICS),
)
GOVERNOR_DECISION = record_kind(
    "governor decision",
    "kaminos.foreground-budget-governor-decision.v0",
    status_field(
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
    *fields(OBJECT, "previousScheduler", "effectiveScheduler"),
)
_WORKER = text_fields("executionId", "operationId", "moduleId")
WORKER_REQUEST = record_kind("worker phase request", "worker-phase-request", *_WORKER)
WORKER_PROGRESS = record_kind(
    "worker phase progress", "worker-phase-progress", *text_fields("executionId", "operationId"), Field("sequence", COUNT)
)
WORKER_RESULT = record_kind(
    "worker phase result", "worker-phase-result", *text_fields("executionId", "operationId"), status_field("completed", "failed")
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
