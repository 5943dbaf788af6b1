"""Turns: who may use an executable's session now, and the runs that wait for it or are under way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pumice.backends.base import Array, Pending
from pumice.errors import ClosedError

# Runs of one queue that a device has at once, and the bytes that may be on their way back; the rest waits its turn.
_IN_FLIGHT = 8
_BYTES_IN_FLIGHT = 128 << 20
# A worker with nothing to do stays this long before its thread ends.
_LINGER_SECONDS = 2.0


@dataclass(eq=False)
class Job:
    """A submitted run. `start` begins it, `finish` makes its result of what came back; `keep` is called if it has to wait."""

    owner: object
    overlaps: bool
    start: Callable[[], Pending]
    finish: Callable[[list[Array]], Any]
    keep: Callable[[], None]
    future: Future[Any]
    pending: Pending | None = None

    def complete(self) -> None:
        """Wait for the device and resolve the future."""
        assert self.pending is not None
        try:
            result = self.finish(self.pending.result())
        except BaseException as e:
            self.future.set_exception(e)
        else:
            self.future.set_result(result)


class Turns:
    """A lock for blocking calls and a queue for submitted ones: everything takes effect in the order in which it was asked for.

    Executables that see each other's changes join their turns. The worker thread exists only while there is something to
    wait for.
    """

    def __init__(self) -> None:
        # Turns that were joined have become part of these, and get no more jobs.
        self._next: Turns | None = None
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._flying: deque[Job] = deque()
        self._starting: Job | None = None
        self._worker: threading.Thread | None = None

    def current(self) -> Turns:
        """These, or what they have become part of."""
        found = self
        while found._next is not None:
            found = found._next
        return found

    # -- blocking calls ---------------------------------------------------------------------------------------------
    def acquire(self) -> Turns:
        """Wait for what was submitted before, and for the lock; a thread that has it may take it again.

        What comes back is to be released: these turns may have become part of others meanwhile.
        """
        while True:
            turns = self.current()
            turns._settle()
            turns._acquire()
            if turns._next is None:
                return turns
            turns.release()

    def _acquire(self) -> None:
        self._lock.acquire()
        self._depth += 1
        self._owner = threading.get_ident()

    def release(self) -> None:
        """Give the lock back."""
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def _settle(self, *, idle: bool = False) -> None:
        """Wait until everything that was submitted so far has begun; with `idle`, until nothing waits any more."""
        if not (self._waiting or self._starting) or self._owner == threading.get_ident():
            return
        # The worker itself, in a callback of a future, would wait for ever.
        if threading.current_thread() is not self._worker:
            with self._changed:
                last = self._waiting[-1] if self._waiting else self._starting

                def begun() -> bool:
                    if idle:
                        return not self._waiting and self._starting is None
                    return last is None or (last is not self._starting and last not in self._waiting)

                self._changed.wait_for(begun)

    # -- submitted runs ---------------------------------------------------------------------------------------------
    def submit(self, job: Job) -> None:
        """Start a run now if the device takes it without waiting, else when its turn comes."""
        while True:
            turns = self.current()
            now = turns._take(job)
            if now is not None:
                break
        if now:
            turns._launch(job)

    def _take(self, job: Job) -> bool | None:
        """Whether the job is to be launched now, or else waits; None if these turns have become part of others."""
        with self._changed:
            if self._next is not None:
                return None
            now = job.overlaps and not self._waiting and not self._starting and self._has_room()
            if now:
                self._starting = job
            else:
                job.keep()
                self._waiting.append(job)
                self._wake()
            return now

    def _has_room(self) -> bool:
        if not self._flying:
            return True
        nbytes = sum(j.pending.nbytes for j in self._flying if j.pending is not None)
        return len(self._flying) < _IN_FLIGHT and nbytes < _BYTES_IN_FLIGHT

    def _launch(self, job: Job) -> None:
        """Begin a job; it is in `_starting`, so that nothing overtakes it."""
        error: BaseException | None = None
        if job.future.set_running_or_notify_cancel():
            self._acquire()
            try:
                job.pending = job.start()
            except BaseException as e:
                error = e
            finally:
                self.release()
        with self._changed:
            self._starting = None
            if job.pending is not None:
                self._flying.append(job)
                self._wake()
            self._changed.notify_all()
        if error is not None:
            # Last, as the callbacks of the future may use the executable.
            job.future.set_exception(error)
            if not isinstance(error, Exception):
                raise error

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="pumice-submit", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                busy = self._changed.wait_for(lambda: self._flying or self._waiting or self._worker is not me, _LINGER_SECONDS)
                if self._worker is not me:
                    return
                if not busy:
                    self._worker = None
                    return
                job = None
                if self._waiting and not self._starting and self._has_room():
                    job = self._waiting.popleft()
                    self._starting = job
                elif not self._flying:
                    self._changed.wait_for(lambda: self._flying or not self._starting)
                    continue
            if job is not None:
                self._launch(job)
                continue
            first = self._flying[0]
            first.complete()
            with self._changed:
                self._flying.remove(first)
                self._changed.notify_all()

    def dismiss(self, owner: object) -> None:
        """Resolve the futures of an owner that closes; its runs that are under way end as soon as they look."""
        turns: Turns | None = self
        while turns is not None:  # runs that began before turns were joined are still with the old ones
            turns._dismiss(owner)
            turns = turns._next

    def _dismiss(self, owner: object) -> None:
        with self._changed:
            gone = [j for j in self._waiting if j.owner is owner]
            for job in gone:
                self._waiting.remove(job)
            for job in self._flying:
                if job.owner is owner and job.pending is not None:
                    job.pending.abandon()
            self._changed.notify_all()
        for job in gone:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(
                    ClosedError("the executable was closed before this run began", hint="wait for results first")
                )
        if threading.current_thread() is not self._worker:
            with self._changed:
                self._changed.wait_for(lambda: all(j is None or j.owner is not owner for j in (*self._flying, self._starting)))
            self._stop()

    def _stop(self) -> None:
        """End the worker if nothing is left for it to do."""
        with self._changed:
            worker = self._worker
            if worker is None or self._waiting or self._flying or self._starting:
                return
            self._worker = None
            self._changed.notify_all()
        worker.join()


@contextmanager
def hold(several: Iterable[Turns], *, idle: bool = False) -> Iterator[tuple[Turns, ...]]:
    """Have all these turns at once: waits for what was submitted to any before, then takes the locks in a fixed order."""
    wanted = list(several)
    while True:
        found = tuple(sorted({t.current() for t in wanted}, key=id))
        # Not under a lock: what waits here may have a callback that wants it.
        for t in found:
            t._settle(idle=idle)
        with ExitStack() as held:
            for t in found:
                t._acquire()
                held.callback(t.release)
            if all(t._next is None for t in found):
                yield found
                return


def join(several: Iterable[Turns]) -> None:
    """Make one of several turns: from now on all their calls take effect in one order. Waits until nothing waits in any."""
    wanted = list(several)
    while len({t.current() for t in wanted}) > 1:
        with hold(wanted, idle=True) as (first, *others):
            for t in others:
                with t._changed:
                    # Whatever was submitted meanwhile has to begin first; the next round sees to it.
                    if not t._waiting and not t._starting:
                        t._next = first
