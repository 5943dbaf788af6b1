"""Scheduler profiles: how a route asks to be scheduled, how it really is, and where it can let the foreground breathe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, same
from pumice.routes.rules import (
    BOOLEAN,
    MILLISECONDS,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    Field,
    Items,
    Law,
    Nested,
    Record,
    exactly,
    field_of,
    is_integer,
    is_text,
    one_of,
)

SCHEDULER_SCHEMA = "kaminos.webgpu-route-scheduler.v0"
SPAN_KINDS = ("gpu-submit-bound", "gpu-submit-loop", "readback-bound", "js-yieldable", "cpu-bound", "external-bound", "unknown")
CHECKPOINT_KINDS = (
    "pre-submit",
    "post-submit",
    "stage-boundary",
    "diffusion-step",
    "readback",
    "external-callback",
    "unknown",
)
_UNSUPPORTED = "has unsupported value"
_MODE = one_of("must be throughput or cooperative", ("throughput", "cooperative"))
_STATE = one_of("must be verified, scheduler-unverified, or unsupported", ("verified", "scheduler-unverified", "unsupported"))


def _after_submit(span: Mapping[str, Any]) -> Iterator[str]:
    kind, interruptible = field_of(span, "kind"), span.get("interruptible")
    # An empty list or object is no boolean either, and counts as a claim.
    if kind in ("gpu-submit-bound", "gpu-submit-loop") and (interruptible or isinstance(interruptible, (list, dict))):
        yield f"{kind} cannot be interruptible after GPU submit"


SPAN = Record(
    "span",
    (
        Field("name", TEXT),
        Field("stage", TEXT_OR_NULL, "absent"),
        Field("kind", one_of(_UNSUPPORTED, SPAN_KINDS)),
        Field("interruptible", BOOLEAN),
        Field("canYieldBefore", BOOLEAN),
        Field("canYieldAfter", BOOLEAN),
        Field("nonInterruptibleReason", TEXT_OR_NULL, "absent"),
        Field("metadata", OBJECT),
        Law("work that was submitted to the GPU cannot be interrupted", _after_submit),
    ),
)
CHECKPOINT = Record(
    "checkpoint",
    (
        Field("name", TEXT),
        Field("kind", one_of(_UNSUPPORTED, CHECKPOINT_KINDS)),
        Field("beforeStage", TEXT_OR_NULL, "absent"),
        Field("afterStage", TEXT_OR_NULL, "absent"),
        Field("yieldable", BOOLEAN),
        Field("waitsForSubmittedWorkDone", BOOLEAN),
        Field("metadata", OBJECT),
    ),
)
BREATHABILITY = Record(
    "breathability",
    (
        Items("spans", SPAN, "must be an array", least=0),
        Items("checkpoints", CHECKPOINT, "must be an array", least=0),
        Field("notes", TEXT_OR_NULL, "absent"),
    ),
    arrays=False,
)


def _chunks(scheduler: Mapping[str, Any]) -> Iterator[str]:
    chunks = field_of(scheduler, "phaseChunkSize")
    for phase, size in chunks.items() if isinstance(chunks, dict) else ():
        if not is_integer(size) or size < 1:
            yield f"phaseChunkSize.{phase} must be a positive integer"


SETTINGS = Record(
    "scheduler",
    (
        Field("mode", _MODE),
        Field("yieldMs", MILLISECONDS),
        Field("waitForSubmittedWorkDone", BOOLEAN),
        Field("phaseChunkSize", OBJECT),
        Law("chunks are whole numbers of at least one", _chunks),
    ),
    arrays=False,
)


def _unsupported(profile: Mapping[str, Any]) -> list[Any] | None:
    listed = field_of(field_of(profile, "effectiveScheduler"), "unsupportedFields")
    return listed if isinstance(listed, list) else None


def _listed(profile: Mapping[str, Any]) -> Iterator[str]:
    listed = _unsupported(profile)
    if listed is None:
        yield "effectiveScheduler.unsupportedFields must be an array"
        return
    for entry in listed:
        if not is_text(entry):
            yield "effectiveScheduler.unsupportedFields entries must be non-empty strings"


def _verified(profile: Mapping[str, Any]) -> Iterator[str]:
    if field_of(profile, "verificationState") != "verified":
        return
    if _unsupported(profile):
        yield "verified scheduler cannot include unsupportedFields"
    requested, effective = (field_of(field_of(profile, side), "mode") for side in ("requestedScheduler", "effectiveScheduler"))
    if requested == "cooperative" and effective != "cooperative":
        yield "verified cooperative scheduler must have effectiveScheduler.mode cooperative"


def _kept(profile: Mapping[str, Any]) -> Iterator[str]:
    requested, effective = (field_of(profile, side) for side in ("requestedScheduler", "effectiveScheduler"))
    wanted, given = field_of(requested, "phaseChunkSize"), field_of(effective, "phaseChunkSize")
    if not isinstance(wanted, dict) or not isinstance(effective, dict):
        return
    listed = _unsupported(profile) or []
    for phase, size in wanted.items():
        if same(field_of(given, phase), size) or f"phaseChunkSize.{phase}" in listed or "phaseChunkSize" in listed:
            continue
        if field_of(profile, "verificationState") == "verified":
            yield f"verified scheduler cannot drop requested phaseChunkSize.{phase}"
        else:
            yield f"effectiveScheduler must list unsupported phaseChunkSize.{phase}"


SCHEDULER = DocumentKind(
    "scheduler profile",
    SCHEDULER_SCHEMA,
    Record(
        "scheduler profile",
        (
            Field("schema", exactly(SCHEDULER_SCHEMA)),
            Nested("requestedScheduler", SETTINGS),
            Nested("effectiveScheduler", SETTINGS),
            Law("the effective scheduler lists what it does not support", _listed),
            Field("verificationState", _STATE),
            Law("a verified scheduler supports everything", _verified),
            Law("requested chunks are kept or listed as unsupported", _kept),
            Nested("breathability", BREATHABILITY, "null"),
        ),
        arrays=False,
    ),
)


@dataclass(frozen=True)
class Settings:
    """How work is divided: for throughput, or in chunks per phase with a yield after each.

    >>> Settings("cooperative", 4, chunks={"decode": 1}).to_json()["phaseChunkSize"]
    {'decode': 1}
    """

    mode: str = "throughput"
    yield_ms: float = 0
    wait_for_done: bool = False
    chunks: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of `requestedScheduler`."""
        return {
            "mode": self.mode,
            "yieldMs": self.yield_ms,
            "waitForSubmittedWorkDone": self.wait_for_done,
            "phaseChunkSize": dict(self.chunks or {}),
        }


def span(
    name: str,
    stage: str | None,
    kind: str,
    *,
    reason: str | None = None,
    interruptible: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A stretch of work that can yield before and after, and inside only if it is interruptible."""
    return {
        "name": name,
        "stage": stage,
        "kind": kind,
        "interruptible": interruptible,
        "canYieldBefore": True,
        "canYieldAfter": True,
        "nonInterruptibleReason": reason,
        "metadata": dict(metadata or {}),
    }


def checkpoint(
    name: str, kind: str, after: str | None, *, waits: bool = True, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A place where a route yields."""
    return {
        "name": name,
        "kind": kind,
        "beforeStage": None,
        "afterStage": after,
        "yieldable": True,
        "waitsForSubmittedWorkDone": waits,
        "metadata": dict(metadata or {}),
    }


def scheduler_profile(
    requested: Settings = Settings(),  # noqa: B008 - frozen
    effective: Settings | None = None,
    *,
    unsupported: Iterable[str] = (),
    state: str | None = None,
    spans: Iterable[Mapping[str, Any]] = (),
    checkpoints: Iterable[Mapping[str, Any]] = (),
    notes: str | None = None,
) -> RouteDocument:
    """A profile; the effective scheduler is the requested one unless given. A cooperative one is unverified until it is proved.

    >>> scheduler_profile(Settings("cooperative", 4, chunks={"decode": 1}))["verificationState"]
    'scheduler-unverified'
    """
    default = "scheduler-unverified" if requested.mode == "cooperative" else "unsupported"
    return SCHEDULER.document(
        {
            "schema": SCHEDULER_SCHEMA,
            "requestedScheduler": requested.to_json(),
            "effectiveScheduler": {**(effective or requested).to_json(), "unsupportedFields": list(unsupported)},
            "verificationState": state or default,
            "breathability": {"spans": list(spans), "checkpoints": list(checkpoints), "notes": notes},
        }
    )
