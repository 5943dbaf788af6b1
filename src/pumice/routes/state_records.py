"""Records that state machines write: queues, applications, interlocks, recorders, working sets. Tables for readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind
from pumice.routes.phase_program import PHASE_PROGRAM
from pumice.routes.records import DUTY_DESCRIPTOR, FOREGROUND_RECEIPT, SCHEDULER_BOUNDARY
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
    is_integer,
)
from pumice.routes.tables import (
    AMOUNT_OR_NULL,
    COUNT_OR_NULL,
    OBJECT_OR_NULL,
    POSITIVE,
    fields,
    record_kind,
    status_field,
    text_fields,
)
from pumice.routes.working_sets import RESOURCE_PLAN

_UNCAPPED = Field("retention", exactly("uncapped"))
_TIMES = Rule("must be a number", lambda value: isinstance(value, (int, float)), {"type": "number"})


def _counts(name: str, listed: str) -> Law:
    """A count that says how many entries a list has."""

    def check(owner: Mapping[str, Any]) -> Iterator[str]:
        entries, count = field_of(owner, listed), field_of(owner, name)
        if isinstance(entries, list) and is_integer(count) and count != len(entries):
            yield f"{name} must equal {listed} length"

    return Law(f"{name} is the length of {listed}", check)


def _listed(name: str, count: str, item: Record | None = None) -> tuple[Check, ...]:
    entries: Check = Field(name, ARRAY) if item is None else Items(name, item, "must be an array", least=0)
    return (Field(count, COUNT), entries, _counts(count, name))


# Jobs and admissions
_JOB = Record(
    "job", (*text_fields("jobId", "status", "admissionStatus"), Field("outputPresent", BOOLEAN), Field("progress", ARRAY))
)
QUEUE = record_kind(
    "inference queue",
    "inference-queue",
    Field("routeId", TEXT),
    status_field("idle", "processing", "running"),
    Field("activeJobId", TEXT_OR_NULL),
    *fields(COUNT, "pendingJobCount", "pendingDecisionCount"),
    Items("jobs", _JOB, "must be an array", least=0),
    Field("decisions", ARRAY),
)
JOB_CANCELLATION = record_kind(
    "inference job cancellation",
    "inference-job-cancellation",
    *text_fields("routeId", "jobId", "reason"),
    status_field("cancelled-before-start", "not-cancelled-active", "not-cancelled-terminal"),
)
COORDINATOR = record_kind(
    "inference coordinator",
    "inference-coordinator",
    status_field("idle", "processing", "running"),
    Field("schedulingPolicy", exactly("global-fifo-by-eligible-route-head")),
    Field("activeAdmissionSequence", COUNT_OR_NULL),
    *_listed("pendingAdmissions", "pendingAdmissionCount"),
    Field("admissions", ARRAY),
)
_ADMITTED = (Field("sequence", POSITIVE), *text_fields("routeId", "jobId"))
ADMISSION_RELEASE = record_kind(
    "inference admission release", "inference-admission-release", status_field("released"), *_ADMITTED, Field("outcome", OBJECT)
)
ADMISSION_CANCELLATION = record_kind(
    "inference admission cancellation",
    "inference-admission-cancellation",
    status_field("cancelled-before-start", "not-cancelled-active", "not-cancelled-terminal"),
    *_ADMITTED,
    Field("reason", TEXT),
)
SESSION_ROUTE = record_kind(
    "inference session route",
    "inference-session-route",
    Field("routeId", TEXT),
    status_field("registered", "detached"),
    Nested("queue", QUEUE.record),
    Field("residency", OBJECT),
)
DEVICE_LOSS = record_kind(
    "device loss", "inference-session-device-loss", *text_fields("sessionId", "reason"), Field("atMs", AMOUNT)
)

# Resources
_ACTIVE = status_field("active", "invalidated")
RESOURCE = record_kind(
    "resident resource",
    "resource-residency-resource",
    *text_fields("resourceId", "kind"),
    status_field("resident", "evicted", "invalidated"),
    *fields(COUNT, "generation", "declaredBytes", "activeLeaseCount"),
    Field("owners", ARRAY),
)
LEASE = record_kind(
    "resource lease",
    "resource-residency-lease",
    *text_fields("leaseId", "resourceId", "routeId"),
    Field("generation", POSITIVE),
)
INVALIDATION = record_kind(
    "residency invalidation",
    "resource-residency-invalidation",
    *text_fields("sessionId", "reason"),
    Field("invalidatedAtMs", AMOUNT),
    Field("managedDisposal", OBJECT),
)
CREATION = record_kind(
    "resource creation",
    "resource-flight",
    *text_fields("flightId", "resourceId", "kind"),
    status_field("active", "succeeded", "failed", "cancelled", "invalidated"),
    *fields(COUNT, "generation", "declaredBytes", "waiterCount", "requestedWaiterCount"),
)
FACTORY = record_kind(
    "resource creations",
    "resource-factory",
    Field("sessionId", TEXT),
    _ACTIVE,
    Field("activeFlightCount", COUNT),
    Items("flights", CREATION.record, "must be an array", least=0),
)
ARENA = record_kind(
    "scratch arena", "scratch-arena", *text_fields("arenaId", "status"), Field("slots", ARRAY), Field("uses", ARRAY, "absent")
)
ARENA_USE = record_kind("scratch use", "scratch-arena-use", *text_fields("arenaId", "useId"), Field("useSequence", POSITIVE))
WORKING_SET = record_kind(
    "phase working set",
    "phase-resource-working-set",
    *text_fields("controllerId", "status"),
    Field("heldResourceIds", ARRAY, "absent"),
    Field("heldDeclaredBytes", COUNT, "absent"),
)
TRANSITION = record_kind(
    "phase transition",
    "phase-resource-transition",
    *text_fields("controllerId", "planIdentity", "toPhaseId"),
    status_field("prepared", "prepared-after-invalidation", "failed", "canceled", "release-failed"),
    *fields(ARRAY, "acquiredResourceIds", "retainedResourceIds", "releasedResourceIds", "invalidatedResourceIds"),
    *fields(AMOUNT, "startedAtMs", "settledAtMs"),
    Field("heldDeclaredBytes", COUNT),
)

# Scheduling
_SETTINGS = Record(
    "scheduler",
    (Field("mode", TEXT), Field("yieldMs", AMOUNT), Field("waitForSubmittedWorkDone", BOOLEAN), Field("phaseChunkSize", OBJECT)),
)
APPLICATION = record_kind(
    "scheduler application",
    "scheduler-application",
    Field("routeId", TEXT),
    *fields(COUNT, "revision", "activeInvocationCount"),
    Nested("scheduler", _SETTINGS),
    Field("bounds", OBJECT),
    _UNCAPPED,
    *_listed("boundaries", "boundaryCount", SCHEDULER_BOUNDARY.record),
)
INVOCATION = record_kind(
    "scheduler invocation",
    "scheduler-invocation",
    *text_fields("routeId", "invocationId"),
    Field("schedulerRevision", COUNT),
    Nested("scheduler", _SETTINGS),
)
DECISION_APPLICATION = record_kind(
    "decision application",
    "scheduler-decision-application",
    *text_fields("routeId", "action"),
    status_field("applied"),
    *fields(COUNT, "previousRevision", "effectiveRevision"),
    *(Nested(name, _SETTINGS) for name in ("previousScheduler", "effectiveScheduler")),
)
DECISION_RECEIPT = record_kind(
    "decision queue receipt",
    "scheduler-decision-queue-receipt",
    Field("routeId", TEXT),
    status_field("applied"),
    Field("sequence", POSITIVE),
    *fields(AMOUNT, "queuedAtMs", "completedAtMs"),
    Nested("application", DECISION_APPLICATION.record),
)
_RUN = text_fields("routeId", "runId")
_PRESSURE = fields(COUNT, "pendingRequestCount", "activeRequestCount", "activeServiceCount", "queuedServiceCount")
PRESSURE = record_kind("foreground pressure", "foreground-opportunity-pressure", *_RUN, *_PRESSURE)
FOREGROUND_SERVICE = record_kind(
    "foreground service",
    "foreground-opportunity-service",
    *_RUN,
    status_field("no-demand", "serviced", "failed"),
    Field("boundary", OBJECT),
    *fields(COUNT, "capturedRequestCount", "servicedRequestCount"),
    Field("failures", ARRAY),
)
INTERLOCK = record_kind(
    "foreground interlock",
    "foreground-opportunity-interlock",
    *_RUN,
    _UNCAPPED,
    *_PRESSURE,
    *_listed("receipts", "receiptCount", FOREGROUND_RECEIPT.record),
    *_listed("services", "serviceCount", FOREGROUND_SERVICE.record),
)

# Measurements
_CLOCK = Nested("clock", Record("clock", (*text_fields("clockId", "source"), Field("timeOriginEpochMs", _TIMES))))
_INTERVAL = Record("interval", (*text_fields("intervalId", "phase", "outcome"), *fields(AMOUNT, "durationMs")))
HOST_RECORDER = record_kind(
    "host phase report",
    "host-phase-recorder",
    *_RUN,
    status_field("recording", "succeeded", "failed"),
    _CLOCK,
    _UNCAPPED,
    *_listed("intervals", "intervalCount", _INTERVAL),
    Field("failure", OBJECT_OR_NULL),
    Field("lastTrustworthyInterval", OBJECT_OR_NULL),
)
HOST_EVENTS = record_kind(
    "host phase events",
    "host-phase-event-batch",
    *_RUN,
    status_field("verified"),
    Field("firingId", TEXT),
    _CLOCK,
    _UNCAPPED,
    *_listed("events", "eventCount"),
)
_SUBMISSION = Record(
    "submission", (Nested("descriptor", DUTY_DESCRIPTOR.record), Field("outcome", TEXT), Field("submitCallDurationMs", AMOUNT))
)
DUTY_REPORT = record_kind(
    "command duty report",
    "command-duty-report",
    *_RUN,
    status_field("recording", "succeeded", "failed"),
    _CLOCK,
    _UNCAPPED,
    Field("timingAuthority", exactly("host-submit-call-only-not-gpu-completion")),
    *_listed("submissions", "submissionCount", _SUBMISSION),
)
_OBSERVED = Record(
    "duty", (Nested("descriptor", DUTY_DESCRIPTOR.record), *fields(AMOUNT, "observedDurationMs", "foregroundOverlapDurationMs"))
)
DUTY_OBSERVATION = record_kind(
    "command duty observation",
    "command-duty-observation",
    status_field("observed"),
    Field("identity", OBJECT),
    _UNCAPPED,
    *_listed("duties", "dutyCount", _OBSERVED),
    Field("totals", OBJECT),
)
CAPTURE = record_kind(
    "parity capture",
    "parity-capture",
    *text_fields("runId", "stageId", "typedArrayConstructor"),
    *fields(POSITIVE, "elementCount", "byteLength"),
    Field("layout", TEXT_OR_NULL),
)
TENSOR = record_kind(
    "tensor",
    "tensor",
    *text_fields("name", "dtype"),
    *fields(ARRAY, "shape", "strides"),
    *fields(POSITIVE, "elements", "bytesPerElement", "byteLength", "allocationByteLength"),
)
WORKER_REPORT = record_kind(
    "worker phase report",
    "worker-phase-report",
    *text_fields("executionId", "operationId", "moduleId", "phase"),
    status_field("starting", "running", "completed", "failed", "canceled", "timed-out"),
    Field("timeoutMs", AMOUNT_OR_NULL),
    *fields(ARRAY, "progress", "history"),
)
CONFORMANCE = record_kind(
    "adapter conformance report",
    "cooperative-adapter-conformance-report",
    *text_fields("conformanceId", "routeId", "manifestId", "kitVersion"),
    status_field("passed", "failed"),
    Field("adapterIdentity", OBJECT),
    _UNCAPPED,
    *fields(ARRAY, "scenarios", "checks"),
    Field("summary", OBJECT),
)
REPORT_VALIDATION = record_kind(
    "execution report validation",
    "cooperative-report-validation",
    Field("ok", BOOLEAN),
    Field("errors", ARRAY),
    Field("expected", OBJECT),
    Field("effective", OBJECT_OR_NULL),
)

STATE_RECORDS: tuple[DocumentKind, ...] = (
    QUEUE, JOB_CANCELLATION, COORDINATOR, ADMISSION_RELEASE, ADMISSION_CANCELLATION, SESSION_ROUTE, DEVICE_LOSS,
    RESOURCE, LEASE, INVALIDATION, CREATION, FACTORY, ARENA, ARENA_USE, RESOURCE_PLAN, WORKING_SET, TRANSITION,
    APPLICATION, INVOCATION, DECISION_APPLICATION, DECISION_RECEIPT, PRESSURE, FOREGROUND_SERVICE, INTERLOCK,
    HOST_RECORDER, HOST_EVENTS, DUTY_REPORT, DUTY_OBSERVATION, CAPTURE, TENSOR, PHASE_PROGRAM, WORKER_REPORT,
    CONFORMANCE, REPORT_VALIDATION,
)  # fmt: skip
