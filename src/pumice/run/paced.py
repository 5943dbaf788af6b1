"""One run under a Cooperative: the pacer that a session asks for ranges, which does the steps of the state machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumice.errors import ClosedError, RunCancelled
from pumice.routes.adaptive import HOST_WORK, next_chunk
from pumice.routes.boundaries import boundary_manifest
from pumice.routes.cooperative import CooperativeRun, RunStep
from pumice.routes.documents import RouteDocument

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative

BOUNDARY = "steps"
# On the host ranges whose borders repeat are linked already: a size stays until it is off by more than this.
_BAND = 1.4
_DEFERRED = "the run updates states, which change together: it ran to its end first"


def now_ms() -> float:
    """The clock of traces and reports."""
    return time.perf_counter() * 1e3


@dataclass(eq=False)
class Lane:
    """The runs of one executable at the sizes of one regime: what was learned about its ranges is kept for the next run."""

    phase: str
    host: bool
    chunk: float
    target_ms: float
    gain: float
    fixed: bool
    most: int

    @property
    def items(self) -> int:
        return min(max(1, int(self.chunk + 0.5)), self.most)

    def learn(self, items: int, ms: float) -> None:
        """A range of so many steps took so long."""
        if self.fixed:
            return
        if self.host and self.target_ms / _BAND <= ms <= self.target_ms * _BAND:
            return
        wanted = next_chunk(items, ms, self.target_ms, self.gain)
        # A range that was cut short by the end of the run says little about larger ones.
        if wanted is None or (items < self.items and wanted > items and wanted < self.chunk):
            return
        self.chunk = min(max(1.0, wanted), float(self.most))

    def manifest(self, route_id: str, total: int | None, chunk: int | None = None) -> RouteDocument:
        """How a run of so many steps is divided; `chunk` sets the size of its ranges."""
        if self.fixed or self.host or chunk is not None:
            chunking: dict[str, Any] = {"mode": "fixed", "chunkItems": chunk or self.items}
        else:
            chunking = {
                "mode": "adaptive",
                "initialItems": self.items,
                "minItems": 1,
                "maxItems": self.most,
                "targetDurationMs": self.target_ms,
                "adjustmentGain": self.gain,
            }
        boundary = {
            "boundaryId": BOUNDARY,
            "kind": "cpu-work" if self.host else "gpu-command",
            "unit": "step",
            "totalItems": total,
            "progressWeight": 1,
            "chunking": chunking,
        }
        return boundary_manifest(f"{route_id}:{self.phase}", route_id, {self.phase: [boundary]})


class PacedRun:
    """Implements `pumice.backends.base.Pacer` by a `CooperativeRun`, whose calls are made under the monitor's lock."""

    def __init__(self, owner: Cooperative, lane: Lane, updates: bool, closed: Callable[[], bool]) -> None:
        self.owner, self.lane, self.updates, self._closed = owner, lane, updates, closed
        self.run: CooperativeRun | None = None
        self.hurried = False  # whether a pause is over for it: somebody waits for its end, to close the store
        self._doing = "prepare"
        self._step = RunStep("done")
        self._began = 0.0

    # -- for the session ----------------------------------------------------------------------------------------------
    def take(self, total: int, done: int) -> int:
        """The size of the next range, once everything that comes before it is done; 0 to wait for the oldest."""
        if self.run is None:
            self.run = self.owner.open_run(self, total)
        while True:
            step = self._next()
            match step.kind:
                case "submit" | "work":
                    self._step, self._doing, self._began = step, step.kind, now_ms()
                    return int(step.range["itemCount"])
                case "wait":
                    self._step, self._doing = step, "wait"
                    return 0
                case "foreground":
                    self._doing = "foreground"
                    self.owner.give_turn()
                case "yield":
                    self._doing = "yield"
                    pause(step.ms)
                case "paused":
                    self._doing = "paused"
                    self._wait_until_resumed()
                case _:
                    raise self._cancelled()

    def submitted(self, count: int) -> None:
        """The range is on the queue."""
        assert self.run is not None
        with self.owner.monitor.lock:
            self.run.submitted(self._step.range["rangeId"])

    def completed(self, seconds: float, authority: str) -> None:
        """The range is done."""
        assert self.run is not None
        ms, found = seconds * 1e3, self._step.range
        with self.owner.monitor.lock:
            self.run.completed(found["rangeId"], ms, authority)
            self.owner.note_work(self.lane.phase, ms, authority)
        self.lane.learn(found["itemCount"], ms)

    # -- for the owner ------------------------------------------------------------------------------------------------
    def _next(self) -> RunStep:
        assert self.run is not None
        with self.owner.monitor.lock:
            if self.run.state in ("running", "pausing", "paused"):
                wanted = self.owner.paused and not self.hurried
                if wanted and self.run.state == "running":
                    self.run.pause()
                elif not wanted and self.run.state != "running":
                    self.run.resume()
            self.owner.apply(self)
            return self.run.next_step()

    def _wait_until_resumed(self) -> None:
        owner = self.owner

        def due() -> bool:
            return not owner.paused or self.hurried or self._closed() or self.run is None or self.run.state != "paused"

        owner.monitor.wait_for(due)
        if self._closed() and owner.paused:
            if not self.updates:
                raise ClosedError("the executable was closed while this run was paused", hint="resume() first, or cancel()")
            self.hurried = True

    def finish(self) -> None:
        """The session has done all ranges: the last yield, and the end of the run."""
        self.hurried = True  # nothing is left that could wait
        if self.run is None:
            self.run = self.owner.open_run(self, None)
        while (step := self._next()).kind != "done":
            if step.kind == "yield":
                pause(step.ms)
        if self.run.reason is not None:
            raise self._cancelled()

    def fail(self, error: BaseException) -> None:
        """The run ends by an error; the report keeps what was done before."""
        if self.run is None:
            self.run = self.owner.open_run(self, None)
        with self.owner.monitor.lock:
            if self.run.state not in ("succeeded", "cancelled", "failed"):
                self.run.fail(self._doing, error)

    def cancel(self, reason: str) -> None:
        """Under the monitor's lock."""
        if self.run is not None:
            self.run.cancel(reason, deferred=_DEFERRED if self.updates else None)

    def _cancelled(self) -> RunCancelled:
        assert self.run is not None
        complete = self.run.state == "succeeded"
        return RunCancelled(
            f"the run was cancelled: {self.run.reason}",
            hint="its states are complete: run again from here" if complete else "run it again; no state was changed",
            reason=self.run.reason,
            complete=complete,
        )


def pause(ms: float) -> None:
    """Let others run for at least so long; with 0 those that wait for the interpreter or a processor get their turn."""
    end = now_ms() + ms
    time.sleep(ms / 1e3)
    while now_ms() < end:
        time.sleep(0)


__all__ = ["BOUNDARY", "HOST_WORK", "Lane", "PacedRun", "now_ms"]
