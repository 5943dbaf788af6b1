"""A profile as trace events, the JSON that Perfetto and Chrome read: one track for the device, one for the host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.run.profile import Profile

_PROCESS = 1
_DEVICE, _HOST = 1, 2


def trace_events(profile: Profile) -> list[dict[str, Any]]:
    """The events of one measured run, in microseconds since the call began.

    The two clocks have no zero in common: the device's first step is drawn where the host began to wait.
    """
    waits = [s.start for s in profile.spans if s.name in ("wait", "steps", "run")]
    begin = waits[0] if waits else 0.0
    known = {s.step: s for s in profile.steps}
    events: list[dict[str, Any]] = [
        _name("process_name", f"pumice on {profile.device}"),
        _name("thread_name", f"device ({profile.clock})", _DEVICE),
        _name("thread_name", "host", _HOST),
        _name("thread_sort_index", _DEVICE, _DEVICE),
        _name("thread_sort_index", _HOST, _HOST),
    ]
    for t in profile.timeline:
        s = known[t.step]
        about = {
            "step": s.step,
            "variant": s.variant,
            "ops": " ".join(s.ops),
            "bytes": s.bytes,
            "GB/s": round(s.gb_s, 3),
            **({} if s.gflop_s is None else {"flops": s.flops, "GFLOP/s": round(s.gflop_s, 3)}),
        }
        events.append(_slice(s.label, s.op, begin + t.start, t.seconds, _DEVICE, about))
    events += [_slice(span.name, "host", span.start, span.seconds, _HOST, {}) for span in profile.spans]
    return events


def save_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the trace of a profile."""
    document = {
        "traceEvents": trace_events(profile),
        "displayTimeUnit": "ns",
        "otherData": {
            "device": profile.device,
            "clock": profile.clock,
            "method": profile.method,
            **{f"symbol {name}": str(value) for name, value in profile.env.items()},
        },
    }
    try:
        Path(path).write_text(json.dumps(document), encoding="utf-8")
    except OSError as e:
        raise InputError(
            f"the trace cannot be written to {path}: {e.strerror or e}", hint="check the folder and its space", path=str(path)
        ) from e


def _name(what: str, value: str | int, thread: int = 0) -> dict[str, Any]:
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": {key: value}}


def _slice(name: str, category: str, start: float, seconds: float, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "pid": _PROCESS,
        "tid": thread,
        "args": args,
    }
