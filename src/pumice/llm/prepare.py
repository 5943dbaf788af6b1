"""Compiles kernels on the first start, while a model loads and progress is shown."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pumice.errors import PumiceError
from pumice.plan.plan import Plan
from pumice.run.device import Device
from pumice.sources import Progress, ProgressCallback


def prepare_kernels(device: Device, plan: Plan, progress: ProgressCallback | None) -> None:
    """Has a device compile the kernels of a plan that it would compile in the first run, where no progress is shown."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(total, done, "compile"))

    device.prepare_kernels(plan, report)


@contextmanager
def report_compilation(device: Device, progress: ProgressCallback | None) -> Iterator[None]:
    """Reports to `progress` the kernels that a run compiles meanwhile, which only the run shows to be needed."""
    if progress is None:
        yield
        return
    with device.report_compilation(lambda done: progress(Progress(None, done, "compile"))):
        yield


class TimeLeft:
    """Passes progress on, and says how many seconds an upload takes from now on, by what it took so far.

    >>> left = TimeLeft(None)
    >>> left()
    inf
    >>> left.report(Progress(10, 10, "upload"))
    >>> left()
    0.0
    """

    def __init__(self, progress: ProgressCallback | None) -> None:
        self._progress, self._began, self._done, self._rest = progress, time.perf_counter(), 0, 1

    def report(self, now: Progress) -> None:
        """To be called with the progress of the upload."""
        self._done, self._rest = now.done, (now.total or 0) - now.done
        if self._progress is not None:
            self._progress(now)

    def __call__(self) -> float:
        return (time.perf_counter() - self._began) * self._rest / self._done if self._done else math.inf


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Does some work in a thread while the block runs, and waits for it at the end.

    The work only prepares what is needed later: an error in it occurs again then, where it can be reported.

    >>> done = []
    >>> with in_background(lambda: done.append(1)):
    ...     pass
    >>> done
    [1]
    """

    def run() -> None:
        with suppress(PumiceError, MemoryError):
            work()

    # Switches that the caller has set for a while hold for the thread too.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="pumice-prepare", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
