"""Threads that share one task by its numbered parts, without waiting for one another to wake up.

A thread pool of Python's costs more to wake than most products of a decoding step take. Here workers that had work a moment
ago spin on a word of memory, in code that holds no lock of the interpreter, and those that have long been idle sleep.
Whoever is awake takes the next part, so a worker that comes late, or that the system has put aside, delays nobody.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from pumice.backends.host.lanes import ADDRESS, call_named, define, pointer
from pumice.ir.registry import Array

# The words of the control block, on cache lines of their own. CLAIM holds the number of the task in its upper half and the
# next part to be taken in its lower one; DONE counts parts that are finished; BUSY says that more tasks follow at once. ALONE is
# the number of tasks that are not shared, as other programs had the cores when some were: a worker that is stopped in the
# middle of its part holds everybody up. It is longer each time.
_LINE = 8
CLAIM, DONE, TOTAL, CHUNK, KERNEL, JOB, BUSY, ALONE, _BACKOFF = 0, _LINE, *range(2 * _LINE, 2 * _LINE + 7)
_PARKED = 3 * _LINE  # one line for each worker: 1 while it sleeps or is about to
_LOW = 0xFFFFFFFF
_CLOSED = 0x7FFFFFFF  # a next part that no task reaches: the description is being rewritten
_NUMBERS = 0x7FFFFFFF
# How long a worker stays awake without work.
_AWAKE_SECONDS = 200e-6
# How many times longer it stays awake between the tasks of one call.
_BUSY_FACTOR = 100
_LEAST_ALONE, _MOST_ALONE = 64, 1 << 14

_LONG, _BOTH = ir.IntType(64), "seq_cst"
_MACHINE = platform.machine().lower()
_YIELD = "SwitchToThread" if os.name == "nt" else "sched_yield"


def _word(builder: Any, control: Any, index: Any) -> Any:
    return builder.gep(pointer(builder, control, _LONG), [index])


@define(types.int64, ADDRESS, types.intp)
def read(builder: Any, control: Any, index: Any) -> Any:
    return builder.load_atomic(_word(builder, control, index), _BOTH, 8)


@define(types.void, ADDRESS, types.intp, types.int64)
def write(builder: Any, control: Any, index: Any, value: Any) -> None:
    builder.store_atomic(value, _word(builder, control, index), _BOTH, 8)


@define(types.void, ADDRESS, types.intp, types.int64)
def _add(builder: Any, control: Any, index: Any, value: Any) -> None:
    builder.atomic_rmw("add", _word(builder, control, index), value, _BOTH)


@define(types.boolean, ADDRESS, types.intp, types.int64, types.int64)
def _swap(builder: Any, control: Any, index: Any, expected: Any, value: Any) -> Any:
    """Replaces `expected` by `value`; whether that was what stood there."""
    return builder.extract_value(builder.cmpxchg(_word(builder, control, index), expected, value, _BOTH), 1)


@define(types.void)
def _pause(builder: Any) -> None:
    """Tells the processor that this loop waits, where it has an instruction for that."""
    if _MACHINE in ("x86_64", "amd64"):
        call_named(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
    elif _MACHINE in ("aarch64", "arm64"):
        call_named(builder, "llvm.aarch64.hint", ir.VoidType(), [ir.IntType(32)(1)])


@define(types.void)
def _yield_core(builder: Any) -> None:
    call_named(builder, _YIELD, ir.IntType(32), [])


@define(types.void, ADDRESS, ADDRESS, types.intp, types.intp)
def call_kernel(builder: Any, kernel: Any, job: Any, first: Any, last: Any) -> None:
    """kernel(job, first, last) for a compiled kernel's address."""
    kind = ir.FunctionType(ir.VoidType(), [_LONG, _LONG, _LONG])
    builder.call(pointer(builder, kernel, kind), [job, first, last])


@numba.njit(nogil=True)
def _take(control: int) -> bool:
    """Does the next part of the current task; False if there is none."""
    claim = read(control, CLAIM)
    first, total, chunk = claim & _LOW, read(control, TOTAL), read(control, CHUNK)
    if first >= total:
        return False
    last = min(first + chunk, total)
    # If this succeeds, what was read belongs together: CLAIM changes before a new description is written.
    if _swap(control, CLAIM, claim, claim - first + last):
        call_kernel(read(control, KERNEL), read(control, JOB), first, last)
        _add(control, DONE, last - first)
    return True


@numba.njit(types.void(types.intp, types.intp, types.intp), nogil=True, cache=True)
def serve(control: int, me: int, patience: int) -> None:
    """Works on whatever comes until nothing has come for a while; then the caller must sleep until it is woken."""
    parked, idle = _PARKED + _LINE * me, 0
    while True:
        if _take(control):
            idle = 0
            continue
        idle += 1
        _pause()
        if idle < patience or (idle < _BUSY_FACTOR * patience and read(control, BUSY)):
            continue
        write(control, parked, 1)
        # Work that came just now: nobody would wake this worker for it.
        if read(control, CLAIM) & _LOW >= read(control, TOTAL) or not _swap(control, parked, 1, 0):
            return
        idle = 0


@numba.njit(types.intp(types.intp, types.intp), nogil=True, cache=True)
def sleepers(control: int, workers: int) -> int:
    """The set of workers, as bits, that sleep and are wanted; the caller must wake them."""
    found = 0
    for w in range(workers if read(control, ALONE) <= 0 else 0):
        if _swap(control, _PARKED + _LINE * w, 1, 0):
            found |= 1 << w
    return found


@numba.njit(nogil=True)
def post(control: int, kernel: int, job: int, total: int, chunk: int) -> None:
    """Opens a task to all who are awake."""
    number = ((read(control, CLAIM) >> 32) + 1) & _NUMBERS
    write(control, CLAIM, (number << 32) | _CLOSED)
    write(control, TOTAL, total)
    write(control, CHUNK, chunk)
    write(control, KERNEL, kernel)
    write(control, JOB, job)
    write(control, DONE, 0)
    write(control, CLAIM, number << 32)


@numba.njit(nogil=True)
def finish(control: int, patience: int) -> None:
    """Works on the current task until all of it is done; workers that take more than `patience` looks to do it are left out."""
    while _take(control):
        pass
    looks = 0
    while read(control, DONE) < read(control, TOTAL):
        _pause()
        looks += 1
        if looks > patience:
            _yield_core()
    backoff = max(_LEAST_ALONE, read(control, _BACKOFF))
    if looks > patience:
        write(control, ALONE, backoff)
        write(control, _BACKOFF, min(2 * backoff, _MOST_ALONE))
        write(control, BUSY, 0)
    elif backoff > _LEAST_ALONE:
        write(control, _BACKOFF, backoff - backoff // 64)


class Team:
    """The caller's thread and up to 31 workers. Whoever gives it tasks must hold `lock`."""

    def __init__(self, threads: int) -> None:
        self.workers = min(threads, 32) - 1
        self.lock = threading.Lock()
        self._process = -1
        self.control = 0

    def rouse(self) -> None:
        """Wakes the workers that sleep; starts them on first use, and in a forked process, which has none of its parent's."""
        if self._process != os.getpid():
            self._start()
        asleep = sleepers(self.control, self.workers)
        for w in range(asleep.bit_length()):
            if asleep >> w & 1:
                self._gates[w].release()

    def _start(self) -> None:
        self._process = os.getpid()
        memory = np.zeros((4 + self.workers) * _LINE, np.int64)
        skip = -memory.ctypes.data % 64 // 8
        self.control = memory.ctypes.data + 8 * skip
        self._gates = [threading.Lock() for _ in range(self.workers)]
        patience = _spins()
        for me, gate in enumerate(self._gates):
            gate.acquire()
            # The thread holds the memory, as it may still look at it when this object is gone.
            args = (memory, self.control, me, patience, gate)
            threading.Thread(target=_work, args=args, name=f"pumice-host-{me}", daemon=True).start()


def _work(memory: Array, control: int, me: int, patience: int, gate: threading.Lock) -> None:
    while True:
        serve(control, me, patience)
        gate.acquire()


def _spins() -> int:
    """How many looks at a control block fill the time that a worker stays awake: pauses differ a lot between processors."""
    tries, fastest = 200, 1.0
    empty = np.zeros(4 * _LINE, np.int64)
    for _ in range(3):
        start = time.perf_counter()
        serve(empty.ctypes.data, 0, tries)
        fastest = min(fastest, max(1e-9, time.perf_counter() - start))
    return max(100, int(tries * _AWAKE_SECONDS / fastest))
