"""Compiled functions by which threads share tasks: what workers do, and the call that runs many tasks; pool.py has the rules.

Like all that is compiled here they take three words and give none, so that Python can call them without numba.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import ADDRESS, LEVEL, call_named, define, long_at, pointer
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.threads.pool import (
    ALONE,
    ASLEEP,
    BACKOFF,
    BUSY,
    CHUNK,
    CLAIM,
    DONE,
    JOB,
    KERNEL,
    LINE,
    PARKED,
    RECORD,
    THREADS,
    TOTAL,
)

_SHORT = 0xFFFF
_NUMBERS = 0x7FFFFFFF
# A thread takes this part of its share in what is left.
_SHARE = 2
# How many times longer a worker stays awake between the tasks of one call.
_BUSY_FACTOR = 10
_LEAST_ALONE, _MOST_ALONE = 64, 1 << 14
# After so many looks at a large task, about 100 µs, the thread yields its core: a late worker may need it.
_LOOKS_BEFORE_YIELD = 2000

_LONG, _BOTH = ir.IntType(64), "seq_cst"
_YIELD = "SwitchToThread" if os.name == "nt" else "sched_yield"


def _word(builder: Any, control: Any, index: Any) -> Any:
    return builder.gep(pointer(builder, control, _LONG), [index])


@define(types.int64, ADDRESS, types.intp)
def _read(builder: Any, control: Any, index: Any) -> Any:
    return builder.load_atomic(_word(builder, control, index), _BOTH, 8)


@define(types.void, ADDRESS, types.intp, types.int64)
def _write(builder: Any, control: Any, index: Any, value: Any) -> None:
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
    if LEVEL.machine == "x86_64":
        call_named(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
    elif LEVEL.machine == "aarch64":
        call_named(builder, "llvm.aarch64.hint", ir.VoidType(), [ir.IntType(32)(1)])


@define(types.void)
def _yield_core(builder: Any) -> None:
    call_named(builder, _YIELD, ir.IntType(32), [])


@define(types.void, ADDRESS, ADDRESS, types.intp, types.intp)
def _call_kernel(builder: Any, kernel: Any, job: Any, first: Any, last: Any) -> None:
    """kernel(job, first, last) for a compiled kernel's address."""
    kind = ir.FunctionType(ir.VoidType(), [_LONG, _LONG, _LONG])
    builder.call(pointer(builder, kernel, kind), [job, first, last])


@inlined
def _is_open(claim: int) -> bool:
    """Whether chunks are left."""
    return claim & _SHORT < claim >> 16 & _SHORT


@inlined
def _take(control: int, from_front: bool) -> bool:
    """Does some of the chunks that are left of the current task, many at first and then fewer; False if there are none."""
    claim = _read(control, CLAIM)
    if not _is_open(claim):
        return False
    front, back = claim & _SHORT, claim >> 16 & _SHORT
    total, chunk = _read(control, TOTAL), _read(control, CHUNK)
    count = max(1, (back - front) // (_SHARE * _read(control, THREADS)))
    begin = front if from_front else back - count
    # If this succeeds, what was read belongs together: CLAIM changes before a new description is written.
    if _swap(control, CLAIM, claim, claim + count if from_front else claim - (count << 16)):
        first, last = begin * chunk, min((begin + count) * chunk, total)
        _call_kernel(_read(control, KERNEL), _read(control, JOB), first, last)
        _add(control, DONE, last - first)
    return True


def serve(control: int, me: int, patience: int) -> None:
    """Works on whatever comes until nothing has come for a while; then the caller must sleep until it is woken."""
    parked, idle = PARKED + LINE * me, 0
    while True:
        if _take(control, False):
            idle = 0
            continue
        idle += 1
        _pause()
        if idle < patience or (idle < _BUSY_FACTOR * patience and _read(control, BUSY)):
            continue
        _write(control, parked, 1)
        # Work that came just now: no one would wake this worker for it.
        if not _is_open(_read(control, CLAIM)) or not _swap(control, parked, 1, 0):
            return
        idle = 0


def sleepers(control: int, workers: int, wanted: int) -> None:
    """Leaves in ASLEEP the workers, as bits, that sleep and may work, or are wanted in any case; the caller must wake them."""
    found = 0
    for w in range(workers if wanted or _read(control, ALONE) <= 0 else 0):
        if _swap(control, PARKED + LINE * w, 1, 0):
            found |= 1 << w
    _write(control, ASLEEP, found)


@inlined
def _post(control: int, kernel: int, job: int, total: int, chunk: int) -> None:
    """Opens a task to all who are awake."""
    number = ((_read(control, CLAIM) >> 32) + 1) & _NUMBERS
    _write(control, CLAIM, number << 32)  # none are left: the description is being rewritten
    _write(control, TOTAL, total)
    _write(control, CHUNK, chunk)
    _write(control, KERNEL, kernel)
    _write(control, JOB, job)
    _write(control, DONE, 0)
    _write(control, CLAIM, (number << 32) | ((total + chunk - 1) // chunk << 16))


@inlined
def _finish(control: int, patience: int) -> None:
    """Works on the current task until all of it is done; workers that take more than `patience` looks to do it are left out.

    `patience` 0 waits for every worker: the task is large.
    """
    while _take(control, True):
        pass
    looks, limit = 0, patience if patience else _LOOKS_BEFORE_YIELD
    while _read(control, DONE) < _read(control, TOTAL):
        _pause()
        looks += 1
        if looks > limit:
            _yield_core()
    if patience == 0:
        return
    backoff = max(_LEAST_ALONE, _read(control, BACKOFF))
    if looks > patience:
        _write(control, ALONE, backoff)
        _write(control, BACKOFF, min(2 * backoff, _MOST_ALONE))
        _write(control, BUSY, 0)
    elif backoff > _LEAST_ALONE:
        _write(control, BACKOFF, backoff - backoff // 64)


def run_tasks(control: int, table: int, count: int) -> None:
    """Runs the tasks at `table` one after the other, the larger ones together with the workers; `control` 0: there are none."""
    for record in range(table, table + 8 * RECORD * count, 8 * RECORD):
        kernel, job, parts, chunk = long_at(record), long_at(record + 8), long_at(record + 16), long_at(record + 24)
        if control == 0 or chunk == 0:
            _call_kernel(kernel, job, 0, parts)
            continue
        alone, patience = _read(control, ALONE), long_at(record + 32)
        if alone > 0 and patience:
            _write(control, ALONE, alone - 1)
            _call_kernel(kernel, job, 0, parts)
            continue
        _write(control, BUSY, 1)
        _post(control, kernel, job, parts, chunk)
        _finish(control, patience)
    if control:
        _write(control, BUSY, 0)
