"""Memory that routines use while they run, kept for the next call."""

from __future__ import annotations

import threading

import numpy as np

from pumice.ir.registry import Array

_local = threading.local()
# Bytes of the head of work memory, and of each flag in it: a cache line, at which slots begin too.
WORK_LINE = 64


def scratch(name: str, elements: int) -> Array:
    """A float32 array kept for this thread: fresh large allocations would fault in every page on every call."""
    found: Array | None = getattr(_local, name, None)
    if found is None or found.size < elements:
        found = np.empty(elements, np.float32)
        setattr(_local, name, found)
    return found[:elements]


class ScratchPool:
    """Memory that calls borrow while they run: as many blocks as there were calls at the same time, each as long as ever asked.

    >>> pool = ScratchPool()
    >>> first = pool.take(100)
    >>> first.ctypes.data % 64, first.nbytes >= 100
    (0, True)
    >>> pool.give(first)
    >>> pool.take(50) is first
    True
    """

    def __init__(self) -> None:
        self._free: list[Array] = []

    def take(self, size: int) -> Array:
        """At least so many bytes, from a cache line on."""
        try:
            found = self._free.pop()  # one step of the interpreter: no other thread gets the same
        except IndexError:
            found = np.empty(0, np.uint8)
        if found.nbytes < size:
            raw = np.empty(size + 64, np.uint8)
            skip = -raw.ctypes.data % 64
            found = raw[skip : skip + size]
        return found

    def give(self, memory: Array) -> None:
        """Back to those who come next."""
        self._free.append(memory)


def work_bytes(threads: int, each: int) -> int:
    """Bytes of work memory with a slot of `each` bytes for every thread.

    >>> work_bytes(2, 100), work_bytes(2, 0)
    (448, 0)
    """
    return WORK_LINE * (threads + 1) + threads * _slot_bytes(each) if each else 0


def prepare_work(memory: Array, threads: int, each: int) -> None:
    """Writes the head of work memory, all of whose slots are free then; work.py has how kernels read it."""
    words = memory[: WORK_LINE * (threads + 1)].view(np.int64)
    words.fill(0)
    words[:2] = threads, _slot_bytes(each)


def _slot_bytes(each: int) -> int:
    return -(-each // WORK_LINE) * WORK_LINE
