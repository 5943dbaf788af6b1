"""One run under a Cooperative: the pacer that a session asks for ranges, which does the steps of the state machine."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pumice.errors import ClosedError, RunCancelled
from pumice.routes.boundaries import boundary_manifest
from pumice.routes.cooperative import CooperativeRun, RunStep
from pumice.routes.documents import RouteDocument
from pumice.run.step_times import StepTimes

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.run.executable import Executable

BOUNDARY = "steps"
# The host links the kernels of a range once, so its ranges keep their borders while they take less than this much too long.
_TOO_LONG = 1.6
# Manifests that a lane keeps: they repeat once it has found its sizes.
_MANIFESTS = 64
# Shorter yields are slept through.
_LONG_YIELD_MS = 50.0
_DEFERRED = "the run updates params or states, which change together: it ran to its end first"


def now_ms() -> float:
    """The clock of traces and reports."""
    return time.perf_counter() * 1e3


@dataclass(eq=False)
class Lane:
    """The runs of one executable at the sizes of one regime: what was learned about its steps is kept for the next run."""

    phase: str
    host: bool
    target_ms: float
    gain: float
    most: int
    chunk: int | None
    work: Callable[[], Sequence[float]]
    _times: dict[int, StepTimes] = field(default_factory=dict)
    # On the host: the borders of ranges and how many runs there were, by the number of steps; whether one takes too long.
    _drawn: dict[int, list[int]] = field(default_factory=dict)
    _runs: dict[int, int] = field(default_factory=dict)
    _late: bool = False
    _manifests: dict[tuple[int | None, int], RouteDocument] = field(default_factory=dict)

    def times(self, total: int) -> StepTimes:
        """The times of so many steps; at some sizes a regime has fewer than at others."""
        found = self._times.get(total)
        if found is None:
            work = self.work()
            found = self._times[total] = StepTimes(work if len(work) == total else [1.0] * total)
        return found

    def fitting(self, total: int, done: int) -> int:
        """How many steps the next range has, as far as they are known; one while nothing is."""
        times, drawn = self.times(total), self._drawn.get(total)
        if drawn is not None:
            return drawn[bisect.bisect_right(drawn, done)] - done
        return min(times.count(done, self.target_ms), self.most) if times.known else 1

    def _draw_borders(self, total: int) -> None:
        """Before a run on the host: borders are drawn anew after 1, 2, 4… runs, and where a range takes too long."""
        runs = self._runs[total] = self._runs.get(total, -1) + 1
        if runs and (runs & (runs - 1) == 0 or self._late):
            self._drawn[total] = self.times(total).borders(self.target_ms, self.most)
            self._late = False

    def learn(self, total: int, start: int, end: int, ms: float) -> None:
        """A range took so long."""
        times = self.times(total)
        times.observe(start, end, ms, self.gain)
        self._late = self._late or (end - start > 1 and times.expected(start, end) > self.target_ms * _TOO_LONG)

    def manifest(self, route_id: str, total: int | None, chunk: int | None = None) -> RouteDocument:
        """How a run of so many steps is divided; `chunk` sets the size of its ranges."""
        chunk = chunk or self.chunk
        if self.host and chunk is None and total is not None:
            self._draw_borders(total)
        first = 1 if total is None or chunk is not None else self.fitting(total, 0)
        key = (total, chunk or first)
        if key not in self._manifests:
            if len(self._manifests) >= _MANIFESTS:
                self._manifests.clear()
            self._manifests[key] = self._manifest(route_id, total, chunk, first)
        return self._manifests[key]

    def _manifest(self, route_id: str, total: int | None, chunk: int | None, first: int) -> RouteDocument:
        if chunk is not None or self.host:
            chunking: dict[str, Any] = {"mode": "fixed", "chunkItems": chunk or first}
        else:
            chunking = {
                "mode": "adaptive",
                "initialItems": first,
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

    def __init__(self, owner: Cooperative, lane: Lane, exe: Executable) -> None:
        self.owner, self.lane, self._exe = owner, lane, exe
        self.run: CooperativeRun | None = None
        # Of several ranges in flight each is waited for in the queue: that is what measures them.
        self.timestamps = owner.max_in_flight == 1
        self._finishing = False  # whether nothing is left that a pause could stop
        self._hurried = False  # whether a pause is over for it: somebody waits for its end, to close the store
        self._reason: str | None = None  # of a cancel that came before the steps were counted
        self._updates = bool(exe.graph.updates)
        self._total = self._issued = 0
        self._doing = "prepare"
        self._step = RunStep("done")
        self._busy_since = 0.0

    # -- for the session ----------------------------------------------------------------------------------------------
    def take(self, total: int, done: int) -> int:
        """The size of the next range, once everything that comes before it is done; 0 to wait for the oldest."""
        if self.run is None:
            self._open(total)
        while True:
            step = self._next()
            match step.kind:
                case "submit" | "work":
                    self._step, self._doing = step, step.kind
                    self._issued += step.range["itemCount"]
                    self._busy_since = max(self._busy_since, now_ms())
                    return int(step.range["itemCount"])
                case "wait":
                    self._step, self._doing = step, "wait"
                    return 0
                case "foreground":
                    self._doing = "foreground"
                    self._give_turn()
                case "yield":
                    self._doing = "yield"
                    self._rest(step.ms)
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
        ms, at = seconds * 1e3, now_ms()
        with self.owner.monitor.lock:
            done = self.run.oldest or self._step.range
            self.run.completed(done["rangeId"], ms, authority)
            self.owner.note_work(self.lane.phase, self._busy_since, at, authority)
        self._busy_since = at
        if self.lane.chunk is None:
            self.lane.learn(self._total, done["itemStart"], done["itemEnd"], ms)

    # -- for the owner ------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """The session has done all ranges: the last yield, and the end of the run."""
        assert self.run is not None
        self._finishing = True
        while (step := self._next()).kind != "done":
            if step.kind == "yield":
                self._rest(step.ms)
        if self.run.reason is not None:
            raise self._cancelled()

    def fail(self, error: BaseException) -> None:
        """The run ends by an error; the report keeps what was done before."""
        if self.run is None:
            self._open(None)
        assert self.run is not None
        with self.owner.monitor.lock:
            if self.run.state not in ("succeeded", "cancelled", "failed"):
                self.run.fail(self._doing, error)

    def cancel(self, reason: str) -> None:
        """Under the monitor's lock."""
        if self.run is None:
            self._reason = reason
        else:
            # Nothing has changed before the first range.
            self.run.cancel(reason, deferred=_DEFERRED if self._updates and self._issued else None)

    def hurry(self) -> None:
        """Under the monitor's lock: it goes on without pauses."""
        self._hurried = True

    def _open(self, total: int | None) -> None:
        self._total = total or 0
        run = self.owner.new_run(self.lane, total)
        with self.owner.monitor.lock:
            self.run = run
            if self._reason is not None:
                self.cancel(self._reason)

    def _next(self) -> RunStep:
        assert self.run is not None
        with self.owner.monitor.lock:
            if self.run.state in ("running", "pausing", "paused"):
                wanted = self.owner.paused and not (self._hurried or self._finishing)
                if wanted and self.run.state == "running":
                    self.run.pause()
                elif not wanted and self.run.state != "running":
                    self.run.resume()
            # A range is made after the foreground's turn before it.
            if self._doing in ("foreground", "paused") and self._issued < self._total:
                self.owner.apply(self, self._fitting())
            return self.run.next_step()

    def _fitting(self) -> int:
        lane = self.lane
        return lane.fitting(self._total, self._issued) if lane.chunk is None else lane.chunk

    def _give_turn(self) -> None:
        """The foreground's turn. It must not use the store whose run it is in the middle of."""
        turns = self._exe._turns
        turns.guest = True
        try:
            self.owner.give_turn()
        finally:
            turns.guest = False

    def _rest(self, ms: float) -> None:
        """A yield; a long one ends early where the run is cancelled or its store closes."""
        end = now_ms() + ms
        if ms > _LONG_YIELD_MS:
            self.owner.monitor.wait_for(self._is_unwanted, ms / 1e3)
        if ms and not self._is_unwanted():
            pause(max(0.0, end - now_ms()))

    def _is_unwanted(self) -> bool:
        return self._hurried or self._exe.closed or self.run is None or self.run.reason is not None

    def _wait_until_resumed(self) -> None:
        """Waits for the end of a pause, in which the foreground has its frames as ever."""
        owner = self.owner

        def due() -> bool:
            goes_on = not owner.paused or self._hurried or self._exe.closed
            return goes_on or self.run is None or self.run.state != "paused"

        while not owner.monitor.wait_for(due, owner.until_next_frame()):
            self._give_turn()
        if self._exe.closed and owner.paused and not self._hurried:
            if not (self._updates and self._issued):
                raise ClosedError("the executable was closed while this run was paused", hint="resume() or cancel() it first")
            self._hurried = True

    def _cancelled(self) -> RunCancelled:
        assert self.run is not None
        complete = self.run.state == "succeeded"
        return RunCancelled(
            f"the run was cancelled: {self.run.reason}",
            hint="its states are those after the whole run" if complete else "run it again; no state was changed",
            reason=self.run.reason,
            complete=complete,
        )


def pause(ms: float) -> None:
    """Let others run for at least so long."""
    end = now_ms() + ms
    time.sleep(ms / 1e3)
    while now_ms() < end:
        time.sleep(0)
