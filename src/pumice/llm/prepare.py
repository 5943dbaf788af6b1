"""What a device compiles on the very first start, done while a model loads, where progress is shown."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pumice.backends.base import Device
from pumice.errors import PumiceError
from pumice.plan.plan import Plan
from pumice.sources import Progress, ProgressCallback


def prepare_kernels(device: Device, plan: Plan, progress: ProgressCallback | None) -> None:
    """Has the host's kernels for a plan compiled, if they are not in the cache; other devices compile when they open a plan.

    The first answer would do it too, but silently. Called before weights are uploaded, as compiling needs memory for a while.
    """
    if device.caps.target != "host":
        return
    from pumice.backends.host.native import jit, kernel_tasks

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(total, done, "compile"))

    jit.prepare(kernel_tasks.kernels_for(plan.graph), report)


@contextmanager
def report_compilation(device: Device, progress: ProgressCallback | None) -> Iterator[None]:
    """Reports to `progress` the kernels that the host compiles meanwhile: those that only a run shows to be needed."""
    if device.caps.target != "host" or progress is None:
        yield
        return
    from pumice.backends.host.native import jit

    with jit.report_compilation(lambda done: progress(Progress(None, done, "compile"))):
        yield


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
