"""A simulated device that drives cooperative runs, and the work that it is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pumice.routes.adaptive import HOST_WORK
from pumice.routes.boundaries import boundary_manifest
from pumice.routes.cooperative import CooperativeRun, RunStep
from pumice.routes.records import EXECUTION_REPORT, PROGRESS

ADAPTIVE = {"mode": "adaptive", "initialItems": 2, "minItems": 1, "maxItems": 16, "targetDurationMs": 8, "adjustmentGain": 1}
FIXED = {"mode": "fixed", "chunkItems": 3}


def boundary(name: str, total: int | None, chunking: dict[str, Any] = FIXED, kind: str = "gpu-command") -> dict[str, Any]:
    return {"boundaryId": name, "kind": kind, "unit": "row", "totalItems": total, "progressWeight": 1, "chunking": chunking}


FIXED_WORK = {"prefill": [boundary("tiles", 10)], "text": [boundary("compose", 5, kind="cpu-work"), boundary("more", 7)]}
ADAPTIVE_WORK = {"prefill": [boundary("tiles", 60, ADAPTIVE)], "text": [boundary("more", 7)]}


class Device:
    """Drives a run: a millisecond passes per item and per step, and every item that ran is written down."""

    def __init__(self, phases: dict[str, Any] = FIXED_WORK, **options: Any) -> None:
        self.time, self.items, self.kinds = 0.0, [], Counter[str]()  # type: ignore[var-annotated]
        manifest = boundary_manifest("m", "demo.v0", phases)
        self.run = CooperativeRun(manifest, "i", clock=lambda: self.time, **options)

    def step(self) -> RunStep:
        step = self.run.next_step()
        self.kinds[step.kind] += 1
        name, size = step.range.get("rangeId", ""), step.range.get("itemCount", 0)
        match step.kind:
            case "submit":
                self.run.submitted(name)
            case "work" | "wait":
                self.time += size
                self.run.completed(name, size, HOST_WORK if step.kind == "work" else "queue-work-done")
            case "yield":
                self.time += step.ms
        if step.kind in ("submit", "work"):
            self.items += [(name.rsplit(":", 2)[0], i) for i in range(step.range["itemStart"], step.range["itemEnd"])]
        assert PROGRESS.errors(self.run.progress()) == [] and EXECUTION_REPORT.errors(self.run.report()) == []
        return step

    def finish(self, limit: int = 500) -> dict[str, Any]:
        for _ in range(limit):
            if self.step().kind == "done":
                return self.run.report()
        raise AssertionError("the run does not end")
