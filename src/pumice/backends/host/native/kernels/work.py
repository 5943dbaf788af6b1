"""Work memory inside kernels: a slot for each thread, which a kernel takes while it runs and gives back.

The word before a task's words is the address of the memory: the number of slots and their size, a flag for each slot on a cache
line of its own, then the slots. scratch.py makes it. There are as many slots as threads, so that one is always free.
"""

from __future__ import annotations

from typing import Any

from numba import types

from pumice.backends.host.memory.scratch import WORK_LINE
from pumice.backends.host.native.codegen.lanes import ADDRESS, compare_and_swap, define, long_at, store_word
from pumice.backends.host.native.numba_text import inlined


@define(types.boolean, ADDRESS)
def _take_flag(builder: Any, at: Any) -> Any:
    return compare_and_swap(builder, at, 0, 1)


@define(types.void, ADDRESS)
def _clear_flag(builder: Any, at: Any) -> None:
    store_word(builder, at, 0)


@inlined
def take_work(job: int) -> Any:
    """The address of a slot that no other thread has, on a cache line."""
    memory = long_at(job - 8)
    count, flag = long_at(memory), 0
    while not _take_flag(memory + WORK_LINE * (flag + 1)):
        flag = flag + 1 if flag + 1 < count else 0
    return memory + WORK_LINE * (count + 1) + flag * long_at(memory + 8)


@inlined
def give_work(job: int, slot: int) -> None:
    """Leaves the slot to others."""
    memory = long_at(job - 8)
    flag = (slot - memory - WORK_LINE * (long_at(memory) + 1)) // long_at(memory + 8)
    _clear_flag(memory + WORK_LINE * (flag + 1))
