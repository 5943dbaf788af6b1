"""Turns: whose call has a store and its sessions now, and the runs that wait for it or are under way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pumice.backends.base import Array, Pending
from pumice.core.interrupts import Monitor
from pumice.core.records import dataclass
from pumice.errors import ClosedError, InputError

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative

T = TypeVar("T")

# Runs of one queue that a device has at once, and the bytes that may be on their way back; the rest waits its turn.
_IN_FLIGHT = 8
_BYTES_IN_FLIGHT = 128 << 20
# A worker with nothing to do stays this long before its thread ends.
_LINGER_SECONDS = 2.0


@dataclass(eq=False)
class DeviceCall:
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

    A store has one for all its executables. The worker thread exists only while there is something to wait for. Locks are taken
    by plain `with` statements around callbacks: see `pumice.core.interrupts`.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        # Held by the submitted run that takes the lock next: what is submitted meanwhile queues behind it.
        self._door = threading.Lock()
        self._changed = Monitor()
        self._waiting: deque[DeviceCall] = deque()
        self._flying: deque[DeviceCall] = deque()
        # The job that the worker begins; nothing overtakes it.
        self._starting: DeviceCall | None = None
        self._worker: threading.Thread | None = None
        # How runs share the device with others; None: each runs as a whole.
        self.cooperative: Cooperative | None = None
        # Whether the thread that has the lock is in the foreground's turn of a run (see `run/paced.py`).
        self.guest = False

    # -- blocking calls ---------------------------------------------------------------------------------------------
    def do(self, work: Callable[[], T]) -> T:
        """Wait for what was submitted before and for the lock, then do some work; a thread that has the lock takes it again."""
        if self.guest:
            self._refuse_guest()
        self._settle()
        with self._lock:
            return work()

    def _settle(self) -> None:
        """Wait until everything that was submitted so far has begun."""
        if not (self._waiting or self._starting) or self._lock._is_owned():
            return
        # The worker itself, in a callback of a future, would wait for ever.
        if threading.current_thread() is self._worker:
            return
        with self._changed.lock:
            last = self._waiting[-1] if self._waiting else self._starting

        def begun() -> bool:
            if self._waiting:
                self._wake()  # an interrupted `submit` may have left its job without a worker
            return last is None or (last is not self._starting and last not in self._waiting)

        self._changed.wait_for(begun)

    def _refuse_guest(self) -> None:
        if self._lock._is_owned():
            raise InputError(
                "the foreground callback uses the store whose run it is in the middle of",
                hint="give the foreground a store of its own, on the same device",
            )

    # -- submitted runs ---------------------------------------------------------------------------------------------
    def submit(self, job: DeviceCall) -> None:
        """Start a run now if the device takes it without waiting, else when its turn comes."""
        if self.guest:
            self._refuse_guest()
        if job.overlaps and self._starts_now():
            with self._door, self._lock:
                error = self._launch(job)
            _resolve(job, error)
            return
        with self._changed.lock:
            job.keep()
            self._waiting.append(job)
            self._wake()

    def _starts_now(self) -> bool:
        # A thread that has the lock must not wait at the door for one that waits for the lock.
        if self._door.locked() or self._lock._is_owned():
            return False
        with self._changed.lock:
            return not self._waiting and self._starting is None and self._has_room()

    def _has_room(self) -> bool:
        if not self._flying:
            return True
        nbytes = sum(j.pending.nbytes for j in self._flying if j.pending is not None)
        return len(self._flying) < _IN_FLIGHT and nbytes < _BYTES_IN_FLIGHT

    def _launch(self, job: DeviceCall) -> BaseException | None:
        """Begin a job under the lock; what went wrong is for `_resolve`, as callbacks of the future may use the executable."""
        error: BaseException | None = None
        if job.future.set_running_or_notify_cancel():
            try:
                job.pending = job.start()
            except BaseException as e:
                error = e
        with self._changed.lock:
            if job.pending is not None:
                self._flying.append(job)
                self._wake()
        return error

    def _wake(self) -> None:
        # A thread whose start was interrupted may never have begun.
        if self._worker is None or not self._worker.is_alive():
            self._worker = threading.Thread(target=self._work, name="pumice-submit", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def _work(self) -> None:
        me = threading.current_thread()

        def has_work() -> bool:
            if self._worker is not me:
                return True
            return bool(self._flying) or (bool(self._waiting) and self._has_room())

        while True:
            self._changed.wait_for(has_work, _LINGER_SECONDS)
            job = None
            with self._changed.lock:
                if self._worker is not me:
                    return
                if self._waiting and self._has_room():
                    job = self._starting = self._waiting.popleft()
                elif not self._flying:
                    self._worker = None
                    return
            if job is not None:
                self._begin(job)
                continue
            first = self._flying[0]
            first.complete()
            with self._changed.lock:
                self._flying.remove(first)
                self._changed.notify_all()

    def _begin(self, job: DeviceCall) -> None:
        """Launch a job that waited; it is in `_starting`, so that nothing overtakes it."""
        with self._door, self._lock:
            error = self._launch(job)
        with self._changed.lock:
            self._starting = None
            self._changed.notify_all()
        _resolve(job, error)

    def dismiss(self, leaves: Callable[[Any], bool]) -> None:
        """Resolve the futures of owners that leave; their runs that are under way end as soon as they look."""
        while True:
            with self._changed.lock:
                job = next((j for j in self._waiting if leaves(j.owner)), None)
                if job is None:
                    break
                self._waiting.remove(job)
                self._changed.notify_all()
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(
                    ClosedError("the executable was closed before this run began", hint="wait for results first")
                )
        with self._changed.lock:
            for job in self._flying:
                if leaves(job.owner) and job.pending is not None:
                    job.pending.abandon()
            self._changed.notify_all()
        if threading.current_thread() is not self._worker:
            self._changed.wait_for(lambda: all(j is None or not leaves(j.owner) for j in (*self._flying, self._starting)))
            self._stop()

    def _stop(self) -> None:
        """End the worker if nothing is left for it to do."""
        with self._changed.lock:
            worker = self._worker
            if worker is None or self._waiting or self._flying or self._starting:
                return
            self._worker = None
            self._changed.notify_all()
        if worker.is_alive():
            worker.join()


def _resolve(job: DeviceCall, error: BaseException | None) -> None:
    """Tell the future of a job what went wrong when it began."""
    if error is not None:
        job.future.set_exception(error)
        if not isinstance(error, Exception):
            raise error
