"""Backpressure profiles: what latency budget a route asks for and gets, and what it did to the foreground's frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument
from pumice.routes.rules import COUNT, MILLISECONDS, Field, Nested, Record, exactly, one_of, or_null

BACKPRESSURE_SCHEMA = "kaminos.webgpu-route-backpressure.v0"
_UNSUPPORTED = "has unsupported value"
BUDGET = one_of(_UNSUPPORTED, ("interactive", "visible-wait", "furnace", "batch", "unknown"))
EXCLUSIVITY = one_of(_UNSUPPORTED, ("shared", "exclusive", "unknown"))
CACHE_STATE = one_of(_UNSUPPORTED, ("cold", "warm", "hot", "unknown"))
_GAP_OR_NULL = or_null("must be null or a non-negative number", MILLISECONDS)

FRAME_TAIL = Record(
    "frameTail",
    (
        Field("sampleWindowMs", MILLISECONDS),
        Field("longFrameCount", COUNT),
        Field("maxFrameGapMs", MILLISECONDS),
        Field("p95FrameGapMs", _GAP_OR_NULL, "absent"),
        Field("p99FrameGapMs", _GAP_OR_NULL, "absent"),
    ),
    arrays=False,
)
BACKPRESSURE = DocumentKind(
    "backpressure profile",
    BACKPRESSURE_SCHEMA,
    Record(
        "backpressure profile",
        (
            Field("schema", exactly(BACKPRESSURE_SCHEMA)),
            Field("requestedBudget", BUDGET),
            Field("effectiveBudget", BUDGET),
            Field("memoryExclusivity", EXCLUSIVITY),
            Field("warmCacheState", CACHE_STATE),
            Nested("frameTail", FRAME_TAIL),
        ),
        arrays=False,
    ),
)


def backpressure_profile(
    requested: str = "unknown",
    effective: str | None = None,
    *,
    memory: str = "unknown",
    cache: str = "unknown",
    frame_tail: Mapping[str, Any] | None = None,
) -> RouteDocument:
    """A profile; the effective budget is the requested one unless given, and frames are unmeasured unless given.

    >>> profile = backpressure_profile("visible-wait", "furnace", memory="exclusive")
    >>> profile["effectiveBudget"], profile["frameTail"]["longFrameCount"]
    ('furnace', 0)
    """
    unmeasured = {"sampleWindowMs": 0, "longFrameCount": 0, "maxFrameGapMs": 0, "p95FrameGapMs": None, "p99FrameGapMs": None}
    return BACKPRESSURE.document(
        {
            "schema": BACKPRESSURE_SCHEMA,
            "requestedBudget": requested,
            "effectiveBudget": effective or requested,
            "memoryExclusivity": memory,
            "warmCacheState": cache,
            "frameTail": {**unmeasured, **(frame_tail or {})},
        }
    )
