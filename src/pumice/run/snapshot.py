"""What a Cooperative is doing at one moment, as plain data: stages, ranges, frames, memory. For people who watch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.routes.cooperative import CooperativeRun

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.run.executable import Executable
    from pumice.run.paced import Lane

# Ranges and frame gaps that are listed one by one, the newest last.
_RANGES, _GAPS = 16, 240

Lanes = Sequence[tuple["Executable", Mapping[int, "Lane"]]]


def snapshot(c: Cooperative) -> dict[str, Any]:
    """The state of a Cooperative. Takes no turn on a store, so that it can be asked in the middle of a run.

    >>> import numpy as np, pumice as pm
    >>> c = pm.Cooperative(chunk=1)
    >>> with pm.compile(lambda x: pm.softmax(pm.exp(x) @ x), x=pm.spec(4, 4), device="host", cooperative=c) as exe:
    ...     _ = exe.run(x=np.eye(4))
    ...     found = snapshot(c)
    >>> found["state"], [(s["stage"], s["runs"], s["ranges"]) for s in found["stages"]]
    ('idle', [('run-1', 1, 3)])
    >>> found["residency"]["total"] > 0, found["frames"]["count"]
    (True, 0)
    """
    # Everything that changes is copied under the lock, which paced runs wait for; what is worked out from it is not.
    with c.monitor.lock:
        runs, lanes = list(c._runs), [(exe, dict(found)) for exe, found in c._lanes.items()]
        gaps, paused, active = list(c.frames.gaps), c.paused, len(c._active)
        last = runs[-1].report() if runs else None
        decisions = [dict(d) for d in list(c.decisions)[-1:]]
    reports = [*(run.report() for run in runs[:-1]), *([last] if last else [])]
    return {
        "mode": c.mode,
        "state": "paused" if paused else "running" if active else "idle",
        "settings": {"target_ms": c.target_ms, "yield_ms": c.yield_ms, "max_in_flight": c.max_in_flight, "chunk": c.chunk},
        "runs": c._begun,
        "turns": c.turns,
        "run": None if last is None else _run(last),
        "verification": None if last is None else _proof(c, runs),
        "decision": decisions[0] if decisions else None,
        "stages": _stages(reports, lanes),
        "frames": _frames(gaps, c.hz),
        "residency": _residency([exe for exe, _ in lanes]),
    }


def _run(report: Mapping[str, Any]) -> dict[str, Any]:
    """The last run: how far it is, its newest ranges, and how it ended."""
    (boundary,) = report["boundaries"]
    kept = ("rangeIndex", "itemStart", "itemEnd", "status", "observedDurationMs", "timingAuthority")
    waits = {duty["rangeId"]: duty["rawQueueDurationMs"] for duty in report["gpuDuties"]}
    ranges = [{**{k: entry.get(k) for k in kept}, "queueMs": waits.get(entry["rangeId"])} for entry in boundary["ranges"]]
    return {
        "id": report["invocationId"],
        "stage": boundary["phaseId"],
        "status": report["status"],
        "done": boundary["completedItems"],
        "total": boundary["totalItems"],
        "unit": boundary["unit"],
        "ranges": ranges[-_RANGES:],
        "in_flight": report["inFlightGpuDutyCount"],
        "duration_ms": report["durationMs"],
        "failure": report["failure"],
    }


def _proof(c: Cooperative, runs: Sequence[CooperativeRun]) -> dict[str, Any]:
    """What the trace of the last run proves, once it has ended."""
    if runs[-1].state != "succeeded":
        return {"status": f"not verified while {runs[-1].state}", "downgrades": []}
    found = c.verification()
    return {"status": found["status"], "downgrades": list(map(str, found.get("downgrades") or ()))}


def _stages(reports: Sequence[Mapping[str, Any]], lanes: Lanes) -> list[dict[str, Any]]:
    """By stage, which is an executable at the sizes of a regime: its runs and ranges among those that are remembered."""
    about = {lane.phase: (exe, number) for exe, found in lanes for number, lane in found.items()}
    stages: dict[str, dict[str, Any]] = {}
    for report in reports:
        for boundary in report["boundaries"]:
            name = boundary["phaseId"]
            exe, number = about.get(name, (None, 0))
            stage = stages.setdefault(
                name,
                {
                    "stage": name,
                    "device": "" if exe is None else exe.device.name,
                    "steps": 0 if exe is None else len(exe.plan.regimes[number].steps),
                    "runs": 0,
                    "ranges": 0,
                    "ms": 0.0,
                    "longest_ms": 0.0,
                    "authority": "",
                },
            )
            stage["runs"] += 1
            for entry in boundary["ranges"]:
                ms = entry.get("observedDurationMs")
                stage["ranges"] += 1
                if ms is not None:
                    stage["ms"] += ms
                    stage["longest_ms"] = max(stage["longest_ms"], ms)
                    stage["authority"] = entry["timingAuthority"]
    return list(stages.values())


def _frames(gaps: Sequence[float], hz: float | None) -> dict[str, Any]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "longest": 1.0}
    found = np.quantile(gaps, list(shares.values())) if gaps else [None] * len(shares)
    period = 1e3 / hz if hz else None
    return {
        "count": len(gaps),
        "period_ms": period,
        "late": 0 if period is None else sum(gap > 1.5 * period for gap in gaps),
        **{name: None if value is None else float(value) for name, value in zip(shares, found, strict=True)},
        "recent": list(gaps[-_GAPS:]),
    }


def _residency(executables: Sequence[Executable]) -> dict[str, Any]:
    """Bytes on the device by kind: what executables share counts once."""
    shared: dict[tuple[int, str, str], int] = {}
    own: dict[str, int] = {}
    for exe in executables:
        if exe.closed:
            continue
        for kind in ("param", "state"):
            # Params belong to the root of the stores, states to the store itself.
            owner = id(exe.store._root if kind == "param" else exe.store)
            for n in exe.graph.sources(kind):
                shared[owner, kind, n.name] = n.type.max_nbytes(exe.plan.maxima)
        for kind, nbytes in exe.plan.memory.items():
            if kind not in ("param", "state"):
                own[kind] = own.get(kind, 0) + nbytes
    kinds = {kind: sum(n for (_, k, _), n in shared.items() if k == kind) for kind in ("param", "state")} | own
    return {"executables": len(executables), "kinds": kinds, "total": sum(kinds.values())}
