"""The compiled kernels by name, and the call that runs many of them. Importing this module compiles that call; see jit.py."""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from pumice.backends.host import rowops, tiled
from pumice.backends.host.lanes import long_at
from pumice.backends.host.team import BUSY, call_kernel, finish, post, write

_KERNEL = types.void(types.intp, types.intp, types.intp)
# The words of a task's record: the kernel's address, that of the task's words, the number of parts and of those taken at once.
RECORD = 4


def compile_kernel(name: str) -> Any:
    """A kernel as numba's cfunc, from the cache if it is there. Formats without a matvec have their matmul do it."""
    function = getattr(tiled, name, None) or getattr(rowops, name, None) or getattr(tiled, name.replace("matvec", "matmul"))
    return numba.cfunc(_KERNEL, cache=True)(function)


@numba.njit(types.void(types.intp, types.intp, types.intp, types.intp), nogil=True, cache=True)
def run_tasks(control: int, workers: int, table: int, count: int) -> None:
    """Runs the tasks at `table` one after the other, the larger ones together with the workers."""
    if workers:
        write(control, BUSY, 1)
    for record in range(table, table + 8 * RECORD * count, 8 * RECORD):
        kernel, job, parts, chunk = long_at(record), long_at(record + 8), long_at(record + 16), long_at(record + 24)
        if workers == 0 or chunk == 0:
            call_kernel(kernel, job, 0, parts)
        else:
            post(control, kernel, job, parts, chunk)
            finish(control)
    if workers:
        write(control, BUSY, 0)
