"""Behind: a second thread that sends off what the caller's thread has recorded, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

# Jobs that it may be behind with: one that it works on, and one that waits for it.
_MOST = 2


class Behind:
    """Jobs done one after the other in another thread. Calls are made under the device's lock, which jobs must not need."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._jobs: deque[Future[None]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job is not done yet."""
        return any(not job.done() for job in self._jobs)

    def make_room(self) -> None:
        """Wait until the next job would not be too far behind; raise what went wrong with one that is done."""
        while len(self._jobs) >= _MOST or (self._jobs and self._jobs[0].done()):
            self._jobs.popleft().result()

    def put(self, work: Callable[[], None]) -> Future[None]:
        """Another job, after those that were put before it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="pumice-encode")
        job = self._pool.submit(work)
        self._jobs.append(job)
        return job

    def drain(self) -> None:
        """Wait until all jobs are done; raise what went wrong with one."""
        while self._jobs:
            self._jobs.popleft().result()

    def wait(self) -> None:
        """As `drain`, but errors are left to whoever comes next."""
        wait(self._jobs)
