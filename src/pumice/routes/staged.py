"""Staged profiles: how long each stage of a run took, and what measured it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, same
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT, TIMESTAMP_QUERY
from pumice.routes.rules import AMOUNT, TEXT, Field, Items, Law, Record, exactly, field_of, shown

STAGED_SCHEMA = "kaminos.webgpu-staged-profile.v0"

STAGE = Record("stage", (Field("name", TEXT), Field("ms", AMOUNT)))


def _required(profile: Mapping[str, Any]) -> Iterator[str]:
    stages, required = field_of(profile, "stages"), field_of(profile, "requiredStages")
    found = [field_of(entry, "name") for entry in stages] if isinstance(stages, list) else []
    for name in required if isinstance(required, list) else ():
        known = name in found if type(name) is str else any(same(name, other) for other in found)
        if not known:
            yield f"missing required stage {shown(name)}"


def _validated(profile: Mapping[str, Any]) -> Iterator[str]:
    checked = field_of(profile, "timestampQueryValidatedAgainstStaged")
    if field_of(profile, "timingSource") == TIMESTAMP_QUERY and checked is not True:
        yield "timestamp-query profile must be validated against staged-submit timings"


STAGED = DocumentKind(
    "staged profile",
    STAGED_SCHEMA,
    Record(
        "profile",
        (
            Field("schema", exactly(STAGED_SCHEMA)),
            Field("route", TEXT),
            Field("timingSource", TEXT),
            Items("stages", STAGE),
            Field("totalMs", AMOUNT),
            Law("every required stage was timed", _required),
            Law("timestamps count only if they agree with timings of staged submits", _validated),
        ),
    ),
)


def tenths(ms: float) -> float:
    """Milliseconds to one decimal, halves upwards.

    >>> tenths(0.25), tenths(1.26), tenths(3)
    (0.3, 1.3, 3)
    """
    rounded = math.floor(ms * 10 + 0.5) / 10
    return int(rounded) if rounded.is_integer() else rounded


def stage(
    name: str, ms: float, *, shape: Iterable[int] | None = None, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One stage of a profile."""
    entry: dict[str, Any] = {"name": name, "ms": tenths(ms)}
    if shape is not None:
        entry["shape"] = list(shape)
    return entry if metadata is None else {**entry, "metadata": dict(metadata)}


def staged_profile(
    stages: Iterable[Mapping[str, Any]],
    *,
    required_stages: Iterable[str] = (),
    timing_source: str = QUEUE_SUBMIT_WAIT,
    timestamps_validated: bool = False,
    route: str = "staged-submits",
) -> RouteDocument:
    """A finished profile: the stages in order, their names and their sum.

    >>> profile = staged_profile([stage("prefill", 12.34), stage("decode", 80)], required_stages=["decode"])
    >>> profile["stageNames"], profile["totalMs"]
    (('prefill', 'decode'), 92.3)
    """
    listed = [dict(entry) for entry in stages]
    return STAGED.document(
        {
            "schema": STAGED_SCHEMA,
            "route": route,
            "timingSource": timing_source,
            "timestampQueryValidatedAgainstStaged": timestamps_validated,
            "requiredStages": list(required_stages),
            "stages": listed,
            "stageNames": [entry.get("name") for entry in listed],
            "totalMs": tenths(sum(entry.get("ms", 0) for entry in listed)),
        }
    )
