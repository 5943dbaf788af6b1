"""Plans of a model's token steps in the user's cache: the next start reads them, instead of tracing and planning again."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.caps import Caps
from pumice.core.kept import forget_oldest, keep, kept_folder, read_kept
from pumice.core.own_sources import sources_digest
from pumice.errors import FormatError, PlanError
from pumice.plan.file import plan_digest, plan_from_bytes, plan_to_bytes
from pumice.plan.plan import Plan
from pumice.run.opening import plan_options

# Plans that are kept; one takes some hundred kilobytes.
_KEPT = 64


def plan_path(caps: Caps, *inputs: Any) -> Path | None:
    """The path of the plan for these inputs; the repr of each must describe it completely.

    None for devices whose plans are not cached, and while planning is being debugged.

    >>> plan_path(Caps.preset("host"), 1) == plan_path(Caps.preset("host"), 1) != plan_path(Caps.preset("host"), 2)
    True
    """
    folder = None if not caps.keeps_plans or config.debug else kept_folder("plans")
    if folder is None:
        return None
    digest = hashlib.sha256(repr((sys.version_info, plan_options(), sources_digest(), caps, inputs)).encode())
    return folder / f"{digest.hexdigest()[:32]}.plan"


def read_plan(path: Path | None) -> Plan | None:
    """The plan in a file; None if there is none, or something else.

    It is a plan file like any other, and verified like one from a stranger: a cache can cost time, but never decide what runs.
    """
    body = None if path is None else read_kept(path)
    if body is None:
        return None
    try:
        found = plan_from_bytes(body)
    except FormatError:  # damaged, or of another version: it is made again
        return None
    _know_digest(found, body)
    return found if found.caps.keeps_plans else None


def _know_digest(plan: Plan, body: bytes) -> None:
    """Spares a receipt the writing of the plan: `body` is its file as `plan_to_bytes` writes it."""
    plan.__dict__["sha256"] = plan_digest(body)


def keep_plan(path: Path | None, plan: Plan) -> None:
    """Puts a plan where `read_plan` finds it, and forgets the oldest ones."""
    if path is None:
        return
    try:
        body = plan_to_bytes(plan)
    except PlanError:  # sizes beyond what a file counts: such a plan is made at each start
        return
    _know_digest(plan, body)
    if not keep(path, body):
        return
    forget_oldest(path.parent, _KEPT)
