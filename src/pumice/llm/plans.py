"""Plans of a model's steps in the user's cache: the next start reads them, instead of tracing and planning again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.caps import Caps
from pumice.core.kept import keep, read_kept
from pumice.plan.plan import Plan

# Plans that are kept; one takes some hundred kilobytes.
_KEPT = 64
# Switches that a plan depends on.
_SWITCHES = ("nofuse", "noarena", "default_max", "validate")
# What a plan for the host is made of. Nothing else is ever looked up by a name in a file.
_MODULES = (
    "pumice.core.caps",
    "pumice.core.dims",
    "pumice.core.dtypes",
    "pumice.ir.graph",
    "pumice.ir.types",
    "pumice.plan.plan",
)


class _Writer(pickle.Pickler):
    """Writes dataclasses as calls of themselves, which are several times faster to read than what Python makes of slots."""

    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__ not in _MODULES or not dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
            return NotImplemented
        return type(value), tuple(getattr(value, f.name) for f in dataclasses.fields(value))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES:
            raise pickle.UnpicklingError(f"a plan holds no {module}.{name}")
        return super().find_class(module, name)


def plan_path(caps: Caps, *inputs: Any) -> Path | None:
    """Where the plan lies that follows from these inputs, each of which must say all of itself by its repr.

    None for devices whose plans are not kept, and where it is to be shown how a plan is made. Like compiled kernels,
    plans are only as trustworthy as the folder; what reading them can do is make objects of a few classes of Pumice's.

    >>> plan_path(Caps.preset("host"), 1) == plan_path(Caps.preset("host"), 1) != plan_path(Caps.preset("host"), 2)
    True
    """
    if caps.target != "host" or config.debug:
        return None
    switches = [getattr(config, name) for name in _SWITCHES]
    digest = hashlib.sha256(repr((sys.version_info, switches, list(_sources()), caps, inputs)).encode())
    return config.home / "plans" / f"{digest.hexdigest()[:32]}.plan"


def _sources() -> Iterator[tuple[str, int, int]]:
    """The files that make plans what they are: an edited one counts as another version."""
    folders = [str(Path(__file__).parent.parent)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith(".py"):
                    found = entry.stat()
                    yield entry.path, found.st_size, found.st_mtime_ns
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)


def read_plan(path: Path | None) -> Plan | None:
    """The plan in a file; None if there is none, or something else."""
    if path is None:
        return None
    body = read_kept(path)
    if body is None:
        return None
    try:
        found = _Reader(io.BytesIO(body)).load()
    except Exception:  # whatever a plan of another version makes of it: it is made anew
        return None
    return found if isinstance(found, Plan) else None


def keep_plan(path: Path | None, plan: Plan) -> None:
    """Puts a plan where `read_plan` finds it, and forgets the oldest ones."""
    if path is None:
        return
    body = io.BytesIO()
    _Writer(body, pickle.HIGHEST_PROTOCOL).dump(plan)
    keep(path, body.getvalue())
    with contextlib.suppress(OSError):
        by_age = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        for old in by_age[_KEPT:]:
            old.unlink()
