"""Runtime profiles: device, kernels and stage times of a route together, and what kind of evidence they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.backend import BACKEND
from pumice.routes.documents import DocumentKind, RouteDocument, now
from pumice.routes.kernel import KERNEL
from pumice.routes.rules import TEXT, Field, Items, Law, Nested, Record, exactly, field_of, is_text, one_of
from pumice.routes.staged import STAGED

RUNTIME_PROFILE_SCHEMA = "kaminos.webgpu-runtime-profile.v0"
EVIDENCE_MODES = ("live", "fallback", "cache", "demo", "partial", "unknown")


def _fallback(profile: Mapping[str, Any]) -> Iterator[str]:
    evidence = field_of(profile, "evidence")
    if field_of(evidence, "mode") == "fallback" and not is_text(field_of(evidence, "fallbackReason")):
        yield "fallback evidence must include fallbackReason"


def _same_source(profile: Mapping[str, Any]) -> Iterator[str]:
    own, staged = field_of(profile, "timingSource"), field_of(field_of(profile, "profile"), "timingSource")
    if is_text(own) and is_text(staged) and own != staged:
        yield "timingSource must match profile.timingSource"


EVIDENCE = Record(
    "evidence",
    (
        Field("mode", one_of("has unsupported state", EVIDENCE_MODES)),
        Field("source", TEXT),
    ),
)
RUNTIME_PROFILE = DocumentKind(
    "runtime profile",
    RUNTIME_PROFILE_SCHEMA,
    Record(
        "runtimeProfile",
        (
            Field("schema", exactly(RUNTIME_PROFILE_SCHEMA)),
            Field("routeId", TEXT),
            Field("runtimeLabel", TEXT),
            Nested("backend", BACKEND.record, own_name=True),
            Nested("kernel", KERNEL.record),
            Nested("profile", STAGED.record, own_name=True),
            Items("requiredStages", TEXT),
            Field("timingSource", TEXT),
            Law("the profile is timed by the same source", _same_source),
            Nested("evidence", EVIDENCE),
            Law("a fallback says why", _fallback),
        ),
    ),
)


def runtime_profile(
    route_id: str,
    *,
    backend: Mapping[str, Any],
    kernel: Mapping[str, Any],
    profile: Mapping[str, Any],
    mode: str = "live",
    source: str = "pumice",
    fallback_reason: str | None = None,
    runtime_label: str = "native-webgpu",
    created_at: str | None = None,
) -> RouteDocument:
    """Joins the parts; stages and timing source are the staged profile's.

    >>> from pumice.routes.backend import backend_identity
    >>> from pumice.routes.kernel import kernel_metadata
    >>> from pumice.routes.staged import stage, staged_profile
    >>> runtime_profile("demo.v0", backend=backend_identity("M4", features=[], limits={"maxBufferSize": 4096}),
    ...     kernel=kernel_metadata("p"), profile=staged_profile([stage("a", 1)], required_stages=["a"]))["evidence"]["mode"]
    'live'
    """
    return RUNTIME_PROFILE.document(
        {
            "schema": RUNTIME_PROFILE_SCHEMA,
            "routeId": route_id,
            "runtimeLabel": runtime_label,
            "backend": backend,
            "kernel": kernel,
            "profile": profile,
            "evidence": {"mode": mode, "source": source, "fallbackReason": fallback_reason},
            "requiredStages": profile.get("requiredStages") or (),
            "timingSource": profile.get("timingSource"),
            "createdAt": created_at or now(),
        }
    )
