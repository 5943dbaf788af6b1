"""Kernel metadata and timing metadata: which kernels a route runs, and how its stages are timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pumice.routes.documents import KIT_VERSION, DocumentKind, RouteDocument, plain
from pumice.routes.rules import TEXT, Field, Items, Record, Rule, or_null

QUEUE_SUBMIT_WAIT = "queue-submit-wait"
TIMESTAMP_QUERY = "timestamp-query"

STRING_OR_NULL = or_null("must be a string or null", Rule("", lambda value: isinstance(value, str), {"type": "string"}))
KERNEL = DocumentKind(
    "kernel metadata",
    "",
    Record("kernel", (Field("kitVersion", TEXT), Field("profile", TEXT), Field("commit", STRING_OR_NULL, "absent"))),
)
TIMING = DocumentKind(
    "timing metadata",
    "",
    Record("timing metadata", (Items("requiredStages", TEXT), Field("timingSource", TEXT))),
)


def kernel_metadata(profile: str, *, commit: str | None = None, kit_version: str = KIT_VERSION) -> RouteDocument:
    """Names the kernels of a run: the profile (which set), the version of the kit, and the commit if it is known.

    >>> dict(kernel_metadata("conv-transpose2d-stride2", commit="1f2e3d"))
    {'kitVersion': '0.1.52', 'profile': 'conv-transpose2d-stride2', 'commit': '1f2e3d'}
    """
    return KERNEL.document({"kitVersion": kit_version, "profile": profile, "commit": commit})


def timing_metadata(required_stages: Iterable[str], source: str = QUEUE_SUBMIT_WAIT) -> RouteDocument:
    """The stages that a run must time, and what measures them.

    >>> timing_metadata(["prefill", "decode"])["timingSource"]
    'queue-submit-wait'
    """
    return TIMING.document({"requiredStages": list(required_stages), "timingSource": source})


def route_kernel_metadata(
    profile: str, required_stages: Iterable[str], *, source: str = QUEUE_SUBMIT_WAIT, commit: str | None = None
) -> dict[str, Any]:
    """Kernels and timing of a route together, each checked.

    >>> route_kernel_metadata("fused-attention", ["decode"])["kernel"]["profile"]
    'fused-attention'
    """
    return {"kernel": plain(kernel_metadata(profile, commit=commit)), **plain(timing_metadata(required_stages, source))}
