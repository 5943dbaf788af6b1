"""A run in ranges, each a submit of its own: between them the device's lock is free, and so is its queue for others."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import Array, Pacer
from pumice.backends.gpu.results import Results, shaped
from pumice.errors import PlanError
from pumice.routes.adaptive import GPU_TIMESTAMPS, QUEUE_WORK_DONE

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import AnyCommands, AnyReadback, Read, Record, TimestampQueries
    from pumice.backends.gpu.regime_steps import RegimeSteps
    from pumice.backends.gpu.session import GpuSession

# What two timestamps take, and how much longer than the host's clock they may claim to have run.
_STAMP_BYTES, _SLACK_SECONDS = 16, 1e-3


def run_paced(
    session: GpuSession, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], pacer: Pacer
) -> list[Array]:
    """A run of the session whose dispatches are divided by a pacer."""
    session._check_open()
    uploads = session._check_inputs(env, inputs)
    steps = session._steps_at(env)
    gpu = session._gpu
    with gpu.lock:
        session._check_open()
        with gpu.guard("a run"):
            results = session._results(env, outputs, steps)
            session._counters["uploads_bytes"] += steps.prepare(env, session._type)
            session._upload_inputs(uploads)
    return _PacedRun(session, steps, results, pacer).run()


@dataclass(frozen=True)
class _Fence:
    """A range in flight: its readback arrives when the queue has done it."""

    readback: AnyReadback
    began: float
    stamps: TimestampQueries | None


class _PacedRun:
    """The ranges of one run."""

    def __init__(self, session: GpuSession, steps: RegimeSteps, results: Results, pacer: Pacer) -> None:
        self._session, self._gpu, self._steps, self._pacer = session, session._gpu, steps, pacer
        self._results = results
        # A run without steps still copies and reads: it counts as one.
        self._total = max(1, len(steps.dispatches))
        self._done = 0
        self._flying: deque[_Fence] = deque()
        self._arrays: list[Array] = []
        self._completed = 0.0  # when the last range was
        self._updated = False  # whether the copies to states are submitted
        timed = pacer.timestamps and self._gpu.caps.timestamps and session.plan.caps.timestamps
        self._stamps: list[TimestampQueries] | None = session.stamps if timed else None

    def run(self) -> list[Array]:
        try:
            while self._done < self._total or self._flying:
                count = self._pacer.take(self._total, self._done)
                if count:
                    self._submit(count)
                    self._pacer.submitted(count)
                else:
                    self._pacer.completed(*self._wait())
            return self._finish()
        except BaseException:
            self._complete_updates()
            raise

    def _submit(self, count: int) -> None:
        if not 0 < count <= self._total - self._done:
            raise PlanError(f"the pacer takes {count} steps, {self._total - self._done} are left")
        gpu, end = self._gpu, self._done + count
        with gpu.lock:
            self._session._check_open()
            with gpu.guard("a range of a run"):
                stamps = self._take_stamps()
                reads: list[Read] = [] if stamps is None else [([stamps.place], _STAMP_BYTES)]
                after: Record | None = None
                if end == self._total:
                    reads += self._results.reads
                    # Large outputs leave afterwards, one piece at a time, and before the updates.
                    after = None if self._results.large else self._record_updates
                before, began = gpu.submits, time.perf_counter()
                try:
                    readback = gpu.begin(reads, [partial(self._record, end, stamps)], after)
                except BaseException:
                    if stamps is not None:
                        self._session.stamps.append(stamps)
                    raise
                finally:
                    # Under the lock nobody else submits: an interrupt can neither make a range run twice nor leave it out.
                    if gpu.submits != before:
                        self._done, self._updated = end, self._updated or after is not None
        self._session._counters["submits"] += 1
        self._flying.append(_Fence(readback, began, stamps))

    def _record(self, end: int, stamps: TimestampQueries | None, commands: AnyCommands) -> None:
        commands.steps(self._steps.between(self._done, end), None if stamps is None else stamps.writes(0, 1))
        if stamps is not None:
            stamps.resolve(commands)

    def _record_updates(self, commands: AnyCommands) -> None:
        for update in self._steps.updates:
            commands.copy(*update)

    def _take_stamps(self) -> TimestampQueries | None:
        """Timestamps for a range; as many as are in flight at once belong to the session."""
        if self._stamps is None:
            return None
        if not self._stamps:
            made = self._gpu.queries(2)
            self._session._owned.append(made.place.buffer)
            self._stamps.append(made)
        return self._stamps.pop()

    def _wait(self) -> tuple[float, str]:
        """Wait for the oldest range; how long it took, and what measured that."""
        if not self._flying:
            raise PlanError("the pacer waits, and nothing is in flight")
        fence = self._flying.popleft()
        if fence.stamps is not None:
            self._session.stamps.append(fence.stamps)
        arrays = fence.readback.wait()
        now = time.perf_counter()
        # Behind other ranges of the run it began when they were done.
        waited, self._completed = now - max(fence.began, self._completed), now
        found: tuple[float, str] = waited, QUEUE_WORK_DONE
        if fence.stamps is not None:
            first, last = arrays.pop(0).view(np.uint64).tolist()
            seconds = (last - first) * self._gpu.timestamp_period * 1e-9
            # A device's clock is believed where it does not contradict the host's.
            if 0 < seconds <= now - fence.began + _SLACK_SECONDS:
                found = seconds, GPU_TIMESTAMPS
        self._arrays = arrays  # those of the last range are the outputs
        return found

    def _finish(self) -> list[Array]:
        """The outputs, when all ranges are done: large ones leave now, then states are updated."""
        results, session = self._results, self._session
        found: dict[int, Any] = dict(zip(results.inline, self._arrays, strict=True))
        for i, (places, nbytes) in results.large.items():
            found[i] = np.empty(nbytes, np.uint8)
            for at, piece in self._gpu.pieces(places, nbytes):
                with self._gpu.lock, self._gpu.guard("a readback"):
                    readback = self._gpu.begin([([piece], piece.nbytes)])
                found[i][at : at + piece.nbytes] = readback.wait()[0]
                session._counters["submits"] += 1
        if not self._updated:
            self._send_updates()
        session._counters["dispatches"] += len(self._steps.dispatches)
        session._counters["readback_bytes"] += results.nbytes + sum(n for _, n in results.large.values())
        return [shaped(found[i], type) for i, type in enumerate(results.types)]

    def _send_updates(self, *records: Record) -> None:
        with self._gpu.lock, self._gpu.guard("state updates"):
            before = self._gpu.submits
            try:
                self._gpu.execute((), [*records, self._record_updates])
            finally:
                self._updated = self._gpu.submits != before

    def _complete_updates(self) -> None:
        """A run that ends early leaves states as they were, or if some were changed already, as they are after the whole run."""
        begun = min(self._done, len(self._steps.dispatches)) > self._steps.free
        # What goes wrong here is the device's end, and that of its states; the first error says more.
        with contextlib.suppress(Exception):
            if begun and not self._updated:
                rest = self._steps.between(self._done, self._total)
                self._done = self._total
                self._send_updates(*([partial(_record_steps, rest)] if rest else []))
        while self._flying:
            # The session may be closed after this: nothing of the run is left on the queue then.
            with contextlib.suppress(Exception):
                self._pacer.completed(*self._wait())


def _record_steps(dispatches: Sequence[Any], commands: AnyCommands) -> None:
    commands.steps(dispatches)
