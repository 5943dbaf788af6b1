"""Cooperative: runs of a store in short ranges, so that a foreground, pauses and cancels get their turn in between."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pumice.backends.base import Array, Done, Pending, Session
from pumice.core.dims import evaluate
from pumice.core.interrupts import Monitor
from pumice.errors import InputError
from pumice.plan.cost import step_costs
from pumice.plan.plan import Plan
from pumice.routes.adaptive import HOST_WORK, QUEUE_WORK_DONE
from pumice.routes.backpressure import backpressure_profile
from pumice.routes.cooperative import CooperativeRun
from pumice.routes.documents import RouteDocument
from pumice.routes.governor import ChunkBounds, ForegroundGovernor, YieldBounds
from pumice.routes.records import EXECUTION_REPORT, GOVERNOR_DECISION, PROGRESS, SCHEDULER_BOUNDARY
from pumice.routes.rules import is_amount, is_integer, is_text
from pumice.routes.scheduler import Settings, checkpoint, scheduler_profile, span
from pumice.routes.verification import verification_receipt
from pumice.run.frames import Frames
from pumice.run.paced import BOUNDARY, Lane, PacedRun, now_ms

if TYPE_CHECKING:
    from pumice.run.executable import Executable
    from pumice.run.request import RunRequest

MODES = ("cooperative", "disabled")
# A yield cannot be cut short.
LONGEST_YIELD = 60_000


class Cooperative:
    """How the runs of a store share the device. Set it by `store.cooperate(c)`; then every run on the store goes through it.

    A run is divided into ranges of its plan's steps, each submitted alone and waited for. Before each, `foreground` is called
    if its frame is due (`hz` times a second), in the thread that runs; foregrounds in threads of their own, with a store of
    their own on the same device, need no callback: between ranges the device is free. Ranges take about `target_ms`: the next
    one's size follows from how long the last one took, and what was learned is kept for the next run. With `chunk` all have
    that many steps, and `max_in_flight` of them may be on the queue at once. After each range the run waits for `yield_ms`.

    With `target_gap_ms` a governor looks at the gaps between frames, those of the callback or those that a thread reports by
    `c.frame()`: while they are longer, ranges become smaller and yields longer, and go back when they are not.

    The mode "disabled" runs the same work as without it, for comparison: whole runs, no turns, no yields, and no checkpoint but
    the start of a run. `keep` is how many executions the history has at most; None keeps all.

    >>> import numpy as np, pumice as pm
    >>> turns = []
    >>> c = pm.Cooperative(chunk=1, foreground=lambda: turns.append(1), hz=None)
    >>> with pm.compile(lambda x: pm.softmax(pm.exp(x) @ x), x=pm.spec(4, 4), device="host", cooperative=c) as exe:
    ...     exe.run(x=np.eye(4)).shape
    (4, 4)
    >>> report = c.report()
    >>> report["status"], report["progress"]["completedItems"] == len(turns)
    ('succeeded', True)
    """

    def __init__(
        self,
        target_ms: float = 4.0,
        yield_ms: float = 0.0,
        max_in_flight: int = 1,
        mode: str = "cooperative",
        *,
        chunk: int | None = None,
        most: int = 1024,
        gain: float = 0.5,
        foreground: Callable[[], Any] | None = None,
        hz: float | None = 60.0,
        target_gap_ms: float | None = None,
        keep: int | None = 1024,
        route_id: str = "pumice.run.v0",
    ) -> None:
        _require(mode in MODES, f"mode is {mode!r}", "one of " + " ".join(MODES))
        _require(is_amount(target_ms) and target_ms > 0, f"target_ms is {target_ms!r}", "a range takes some milliseconds")
        _require(
            is_amount(yield_ms) and yield_ms <= LONGEST_YIELD, f"yield_ms is {yield_ms!r}", "milliseconds, 0 to go on at once"
        )
        _require(is_amount(gain) and 0 < gain <= 1, f"gain is {gain!r}", "above 0, at most 1")
        _require(
            hz is None or (is_amount(hz) and hz > 0), f"hz is {hz!r}", "frames a second, or None for a turn before each range"
        )
        _require(foreground is None or callable(foreground), f"foreground is {foreground!r}", "a function without arguments")
        _require(is_text(route_id), f"route_id is {route_id!r}", "a string that is not empty")
        gap = target_gap_ms
        _require(gap is None or (is_amount(gap) and gap > 0), f"target_gap_ms is {gap!r}", "milliseconds between two frames")
        counts = {"max_in_flight": max_in_flight, "chunk": chunk, "most": most, "keep": keep}
        for name, count in counts.items():
            _require(
                (count is None and name in ("chunk", "keep")) or (is_integer(count) and count > 0),  # type: ignore[operator]
                f"{name} is {count!r}",
                "a whole number of at least 1",
            )
        _require(
            max_in_flight == 1 or chunk is not None,
            f"max_in_flight is {max_in_flight}, and the ranges are adaptive",
            "several may be in flight where all have one size: pass chunk=",
        )
        self.target_ms, self.yield_ms, self.max_in_flight, self.mode = target_ms, yield_ms, max_in_flight, mode
        self.chunk, self.most, self.gain, self.hz = chunk, most, gain, hz
        self.foreground, self.keep, self.route_id = foreground, keep, route_id
        # Held for every look at a run's state; never while something runs.
        self.monitor = Monitor()
        self.paused = False
        self.turns = 0
        self.frames = Frames(hz)
        self._governor: ForegroundGovernor | None = None
        if gap is not None:
            asked, bounds = Settings("cooperative", yield_ms, True), YieldBounds(yield_ms, max(yield_ms, gap), max(0.5, gap / 8))
            self._governor = ForegroundGovernor(route_id, "frames", asked, target_gap_ms=gap, chunks={}, yields=bounds)
        # Decisions of the governor, and the first range that each change of it was applied to.
        self.decisions: deque[RouteDocument] = deque(maxlen=keep)
        self.applications: deque[RouteDocument] = deque(maxlen=keep)
        self._applied = 0  # the governor's last revision that a range was made by
        self._due = 0.0
        self._runs: deque[CooperativeRun] = deque(maxlen=keep)
        self._begun = 0
        self._active: list[PacedRun] = []
        self._unfenced: list[_Unscheduled] = []
        self._lanes: weakref.WeakKeyDictionary[Executable, dict[int, Lane]] = weakref.WeakKeyDictionary()
        self._names = 0
        self._sizes: dict[str, int] = {}  # of each phase's last range
        self._authority = "not-observed"

    # -- control, from any thread -------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Stop at the next checkpoint: what is submitted is done, and nothing more begins, in later runs neither."""
        with self.monitor.lock:
            self.paused = True

    def resume(self) -> None:
        """Go on where it paused; no range runs twice."""
        with self.monitor.lock:
            self.paused = False
            self.monitor.notify_all()

    def cancel(self, reason: str = "cancelled") -> int:
        """End the runs that are under way, paused ones too: they raise RunCancelled. How many there were.

        A run that updates states ends before it has begun or after its end, so that these are never half updated. Later runs
        are not cancelled, and not paused.
        """
        with self.monitor.lock:
            for paced in self._active:
                paced.cancel(reason)
            self.paused = False
            self.monitor.notify_all()
            return len(self._active)

    # -- reports ------------------------------------------------------------------------------------------------------
    @property
    def executions(self) -> list[RouteDocument]:
        """The execution reports of all runs that began, or of the last `keep`."""
        with self.monitor.lock:
            reports = [run.report() for run in self._runs]
        return [EXECUTION_REPORT.document(report) for report in reports]

    def report(self) -> RouteDocument:
        """The execution report of the last run that began."""
        with self.monitor.lock:
            found = self._last().report()
        return EXECUTION_REPORT.document(found)

    def progress(self) -> RouteDocument:
        """How far the last run is."""
        with self.monitor.lock:
            found = self._last().progress()
        return PROGRESS.document(found)

    def scheduler(self) -> RouteDocument:
        """The scheduler profile of the last run: what was asked for, what was done, and whether its trace proves it."""
        proved = self.verification()["status"] == "verified"
        return self._profile("verified" if proved else None)

    def backpressure(self) -> RouteDocument:
        """The backpressure profile: the budget, and what became of the foreground's frames."""
        budget = "interactive" if self.mode == "cooperative" else "batch"
        with self.monitor.lock:
            tail = self.frames.tail()
        return backpressure_profile(budget, memory="shared", cache="warm" if self._begun > 1 else "cold", frame_tail=tail)

    def verification(self) -> RouteDocument:
        """What the trace of the last run proves: "verified", or what is missing is named in `downgrades`."""
        with self.monitor.lock:
            events, authority = list(self._last().trace), self._authority
        route = {"requestedRouteId": self.route_id, "effectiveRouteId": self.route_id, "backendKind": "webgpu-local"}
        return verification_receipt(route, self._profile(), self.backpressure(), events, timing_authority=authority)

    def _profile(self, state: str | None = None) -> RouteDocument:
        with self.monitor.lock:
            last = self._last()
        phase = last.manifest["phases"][0]
        boundary, name = phase["boundaries"][0], phase["phaseId"]
        host = boundary["kind"] == "cpu-work"
        chunking = boundary["chunking"]
        size = chunking["chunkItems"] if chunking["mode"] == "fixed" else chunking["maxItems"]
        if self.mode == "disabled":
            settings = Settings("throughput", 0, not host, {})
        else:
            # On the host a range is done when its call is back: there is no queue to wait for.
            settings = Settings(
                "cooperative", self.yield_ms, not host, {name: self.most if host and self.chunk is None else size}
            )
        kind = "cpu-bound" if host else "gpu-submit-loop"
        return scheduler_profile(
            settings,
            state=state,
            spans=[span(name, name, kind, reason=None if host else "work on the queue runs to its end")],
            checkpoints=[checkpoint(f"after {name}", "post-submit", name, waits=not host)],
        )

    def _last(self) -> CooperativeRun:
        if not self._runs:
            raise InputError("no run has begun yet", hint="set it on a store by store.cooperate(c), and run something")
        return self._runs[-1]

    # -- runs ---------------------------------------------------------------------------------------------------------
    def drive(self, exe: Executable, session: Session, call: RunRequest) -> Pending:
        """A run of an executable; the caller has the store's turn."""
        lane = self._lane(exe, call.env)
        if self.mode == "disabled":
            return self._run_whole(exe, session, call, lane)
        paced = PacedRun(self, lane, exe)
        with self.monitor.lock:
            self._active.append(paced)
            self.frames.begin(now_ms())
        try:
            results = session.run_paced(call.env, call.inputs, call.wanted, paced)
            paced.finish()
            return Done(results)
        except BaseException as e:
            paced.fail(e)
            raise
        finally:
            with self.monitor.lock:
                self._active.remove(paced)
                self.frames.end(now_ms())

    def _run_whole(self, exe: Executable, session: Session, call: RunRequest, lane: Lane) -> Pending:
        """A run as without scheduling; it is known to be done when its results, or those of a later run, are here."""
        # Whole runs have no checkpoint but their start.
        self.monitor.wait_for(lambda: not self.paused or exe.closed)
        total = max(1, len(_with_work(exe.plan, call.env)))
        run = self.new_run(lane, total, chunk=total)
        one = _Unscheduled(self, run, lane.host)
        try:
            pending = session.start(call.env, call.inputs, call.wanted)
        except BaseException as e:
            run.fail("submit", e)
            raise
        one.pending, one.nbytes = pending, pending.nbytes
        with self.monitor.lock:
            one.submitted()
            self._unfenced.append(one)
        if lane.host:
            self.fenced(one)
        return one

    def fenced(self, one: _Unscheduled, error: BaseException | None = None) -> None:
        """A whole run is done, and with it all that were submitted before."""
        with self.monitor.lock:
            while one in self._unfenced:
                self._unfenced.pop(0).end(error)
        self._authority = HOST_WORK if one.host else QUEUE_WORK_DONE

    def hurry(self) -> None:
        """Runs that are paused go on: somebody waits for their end, to close what they run on."""
        with self.monitor.lock:
            for paced in self._active:
                paced.hurry()
            self.monitor.notify_all()

    # -- for paced runs -----------------------------------------------------------------------------------------------
    def new_run(self, lane: Lane, total: int | None, chunk: int | None = None) -> CooperativeRun:
        """The state machine of a run whose steps are counted now."""
        with self.monitor.lock:
            self._begun += 1
            run = CooperativeRun(
                lane.manifest(self.route_id, total, chunk),
                f"{self.route_id}:{self._begun}",
                clock=now_ms,
                mode=self.mode,
                max_in_flight=1 if lane.host else self.max_in_flight,
                yield_ms=self.yield_ms,
            )
            self._runs.append(run)
        return run

    def give_turn(self) -> None:
        """Before a range is encoded: the callback's turn, if its frame is due."""
        if self.foreground is None or not self._claim_frame():
            return
        self.foreground()

    def _claim_frame(self) -> bool:
        """Whether a frame is due; then it is this thread's, and the next one is due a period later."""
        with self.monitor.lock:
            at, period = now_ms(), 1e3 / self.hz if self.hz else 0.0
            if at < self._due:
                return False
            # In step with the first frame, unless a whole frame was missed: it is not made up for.
            self._due = self._due + period if self._due + period > at else at + period
            self.turns += 1
            self._mark(at)
            return True

    def until_next_frame(self) -> float | None:
        """Seconds until a frame of the callback is due; None if there is no callback, or it has no rate."""
        if self.foreground is None or (self.hz is None and self.paused):
            return None
        return max(0.0, self._due - now_ms()) / 1e3

    def frame(self) -> None:
        """To be called by a foreground in a thread of its own, once per frame: its gaps are then known here."""
        self._mark(now_ms())

    def _mark(self, at: float) -> None:
        with self.monitor.lock:
            window = self.frames.mark(at)
            if window is None or self._governor is None:
                return
            for phase in window.phases:
                self._governor.admit(phase, self._sizes.get(phase, 1), ChunkBounds(1, max(self.most, self.chunk or 1)))
            self.decisions.append(GOVERNOR_DECISION.document(self._governor.observe(window)))

    def apply(self, paced: PacedRun, fitting: int) -> None:
        """Before a range is made, under the lock: the size that fits, and what the governor has decided since the last one."""
        assert paced.run is not None
        governor, phase = self._governor, paced.lane.phase
        if governor is not None:
            paced.run.yield_ms = governor.scheduler.yield_ms
            fitting = min(fitting, governor.limit_of(phase) or fitting)
            self._sizes[phase] = fitting
            if governor.revision != self._applied:
                self._applied = governor.revision
                self.applications.append(_application(governor))
        paced.run.limit(BOUNDARY, fitting)

    def note_work(self, phase: str, start: float, end: float, authority: str) -> None:
        """A range of a phase is done, under the lock."""
        self._authority = authority
        self.frames.work(phase, start, end)

    def _lane(self, exe: Executable, env: Mapping[str, int]) -> Lane:
        number = exe.plan.pick(env)
        with self.monitor.lock:
            lanes = self._lanes.get(exe)
            if lanes is None:
                lanes = self._lanes[exe] = {}
            if number not in lanes:
                self._names += 1
                lanes[number] = Lane(
                    f"run-{self._names}",
                    not exe.plan.caps.dispatches,
                    self.target_ms,
                    self.gain,
                    self.most,
                    self.chunk,
                    partial(_work_of, exe.plan, dict(env)),
                )
            return lanes[number]

    def __repr__(self) -> str:
        sizes = f"chunks of {self.chunk} steps" if self.chunk else f"ranges of about {self.target_ms:g} ms"
        return f"<cooperative: {self.mode}, {sizes}, {self._begun} runs>"


class _Unscheduled:
    """A whole run in the mode "disabled"."""

    def __init__(self, owner: Cooperative, run: CooperativeRun, host: bool) -> None:
        self._owner, self._run, self.host = owner, run, host
        self.pending: Pending = Done([])
        self.nbytes = 0
        self._range = run.next_step().range
        self._began = now_ms()

    def submitted(self) -> None:
        if not self.host:
            self._run.submitted(self._range["rangeId"])
            self._range = self._run.next_step().range

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            self._run.fail("wait", error)
            return
        self._run.completed(self._range["rangeId"], now_ms() - self._began, HOST_WORK if self.host else QUEUE_WORK_DONE)
        self._run.next_step()

    def result(self) -> list[Array]:
        """Wait for the outputs."""
        try:
            found = self.pending.result()
        except BaseException as e:
            self._owner.fenced(self, e)
            raise
        if found:
            self._owner.fenced(self)
        return found

    def abandon(self) -> None:
        """The outputs are not wanted any more."""
        self.pending.abandon()


def _with_work(plan: Plan, env: Mapping[str, int]) -> list[int]:
    """The steps that run at some sizes, as sessions count them."""
    steps = plan.regime(env).steps
    return [i for i, s in enumerate(steps) if not plan.caps.dispatches or evaluate(s.most_groups, env) > 0]


def _work_of(plan: Plan, env: Mapping[str, int]) -> list[float]:
    """What those steps cost, as far as their shapes say."""
    costs = step_costs(plan, env)
    return [float(costs[i].work) for i in _with_work(plan, env)]


def _application(governor: ForegroundGovernor) -> RouteDocument:
    """The record of the range before which a change of the scheduler took effect."""
    return SCHEDULER_BOUNDARY.document(
        {
            "schema": SCHEDULER_BOUNDARY.schema_id,
            "status": "encoded",
            "position": "before-encode",
            "requestedSchedulerRevision": governor.revision,
            "effectiveSchedulerRevision": governor.revision,
            "effectiveYieldMs": governor.scheduler.yield_ms,
            "effectivePhaseChunkSize": dict(governor.scheduler.chunks or {}),
            "submissionStatus": "not-claimed",
        }
    )


def _require(held: bool, what: str, hint: str) -> None:
    if not held:
        raise InputError(what, hint=hint)
