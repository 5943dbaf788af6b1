"""What a device compiles on the very first start, done while a model loads, where progress is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pumice.backends.base import Device
from pumice.plan.plan import Plan
from pumice.sources import Progress, ProgressCallback


def prepare_kernels(device: Device, plan: Plan, progress: ProgressCallback | None) -> None:
    """Has the host's kernels for a plan compiled, if they are not in the cache; other devices compile when they open a plan.

    The first answer would do it too, but silently. Called before weights are uploaded, as compiling needs memory for a while.
    """
    if device.caps.target != "host":
        return
    from pumice.backends.host import jit, native

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(total, done, "compile"))

    jit.prepare(native.kernels_for(plan.graph), report)


@contextmanager
def compiling_is_told(device: Device, progress: ProgressCallback | None) -> Iterator[None]:
    """Meanwhile `progress` is told of kernels that the host has to compile after all: what a run alone shows to be needed."""
    if device.caps.target != "host" or progress is None:
        yield
        return
    from pumice.backends.host import jit

    with jit.telling(lambda done: progress(Progress(None, done, "compile"))):
        yield
