"""The compiled kernels by name, and the call that runs many of them. Importing this module compiles that call; see jit.py."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
from numba import types

from pumice.backends.host import formats, rowops
from pumice.backends.host.lanes import long_at
from pumice.backends.host.team import ALONE, BUSY, call_kernel, finish, post, read, write

_KERNEL = types.void(types.intp, types.intp, types.intp)
# The words of a task's record: the kernel's address, that of the task's words, the number of parts, of those taken at once, and
# of looks that the last one may take.
RECORD = 5


def is_supported() -> bool:
    """Whether this processor can widen f16: without the instruction, LLVM calls a function that is not there."""
    features = llvmlite.binding.get_host_cpu_features()
    return "f16c" not in features or bool(features["f16c"])


def compile_kernel(name: str) -> Any:
    """A kernel as numba's cfunc, from the cache if it is there. Formats without a matvec have their matmul do it."""
    function = getattr(formats, name, None) or getattr(rowops, name, None)
    function = function or getattr(formats, name.replace("matvec", "matmul"))
    return numba.cfunc(_KERNEL, cache=True, fastmath={"reassoc", "contract"})(function)


@numba.njit(types.void(types.intp, types.intp, types.intp, types.intp), nogil=True, cache=True)
def run_tasks(control: int, workers: int, table: int, count: int) -> None:
    """Runs the tasks at `table` one after the other, the larger ones together with the workers."""
    for record in range(table, table + 8 * RECORD * count, 8 * RECORD):
        kernel, job, parts, chunk = long_at(record), long_at(record + 8), long_at(record + 16), long_at(record + 24)
        if workers == 0 or chunk == 0:
            call_kernel(kernel, job, 0, parts)
            continue
        alone = read(control, ALONE)
        if alone > 0:
            write(control, ALONE, alone - 1)
            call_kernel(kernel, job, 0, parts)
            continue
        write(control, BUSY, 1)
        post(control, kernel, job, parts, chunk)
        finish(control, long_at(record + 32))
    if workers:
        write(control, BUSY, 0)
