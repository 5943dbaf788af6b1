"""The background encoder: a second thread that finishes and submits what the caller's thread has recorded, in order."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable

from pumice.core.interrupts import Monitor

# Jobs that may be queued: one in work, and one that waits for it.
_MOST = 2
# A thread with nothing to do stays this long.
_LINGER_SECONDS = 2.0


class EncodeJob:
    """A job of the background encoder: `result` waits for it."""

    __slots__ = ("_encoder", "_error", "_work", "done")

    def __init__(self, encoder: BackgroundEncoder, work: Callable[[], None]) -> None:
        self._encoder, self._work = encoder, work
        self._error: BaseException | None = None
        self.done = False

    def run(self) -> None:
        try:
            self._work()
        except BaseException as e:
            self._error = e
        del self._work
        self.done = True

    def result(self) -> None:
        """Wait until the job is done; raise what went wrong with it."""
        if not self.done:
            self._encoder.wait_until(lambda: self.done)
        if self._error is not None:
            raise self._error


class BackgroundEncoder:
    """Jobs done one after the other in another thread. Calls are made under the device's lock, which jobs must not need."""

    def __init__(self) -> None:
        # Those that are done stay until a caller has looked at them.
        self._jobs: deque[EncodeJob] = deque()
        self._changed = Monitor()
        self._thread: threading.Thread | None = None
        # A daemon thread that is inside the driver when the interpreter ends would crash it.
        atexit.register(_wait_at_exit, weakref.ref(self))

    @property
    def busy(self) -> bool:
        """Whether a job is not done yet."""
        return any(not job.done for job in self._jobs)

    def make_room(self) -> None:
        """Wait until the next job fits the queue; raise what went wrong with one that is done."""
        while len(self._jobs) >= _MOST or (self._jobs and self._jobs[0].done):
            self._take()

    def put(self, work: Callable[[], None]) -> EncodeJob:
        """Another job, after those that were put before it."""
        job = EncodeJob(self, work)
        # From here on the job counts: a thread that waits for it starts the worker if need be.
        self._jobs.append(job)
        with self._changed.lock:
            self._wake()
        return job

    def drain(self) -> None:
        """Wait until all jobs are done; raise what went wrong with one."""
        while self._jobs:
            self._take()

    def _take(self) -> None:
        """Wait for the oldest job, which leaves; raise what went wrong with it."""
        first = self._jobs[0]
        self.wait_until(lambda: first.done)
        self._jobs.popleft()
        first.result()

    def wait(self) -> None:
        """As `drain`, but errors are left to the next caller."""
        self.wait_until(lambda: not self.busy)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition that the thread's work makes true; starts the thread if it is not running."""
        if holds():
            return

        def look() -> bool:
            if self.busy and not (self._thread is not None and self._thread.is_alive()):
                self._wake()
            return holds()

        self._changed.wait_for(look)

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="pumice-encode", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            self._changed.wait_for(lambda: self.busy or self._thread is not me, _LINGER_SECONDS)
            with self._changed.lock:
                job = next((j for j in self._jobs if not j.done), None)
                if self._thread is not me or job is None:
                    if self._thread is me:
                        self._thread = None
                    return
            job.run()
            with self._changed.lock:
                self._changed.notify_all()


def _wait_at_exit(encoder: weakref.ref[BackgroundEncoder]) -> None:
    found = encoder()
    if found is not None:
        found.wait()
