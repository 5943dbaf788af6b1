"""Loads compiled kernels lazily; None without numba."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.host.memory.scratch import ScratchPool, prepare_work, work_bytes
from pumice.backends.host.native import levels
from pumice.backends.host.native.kernel_tasks import joined
from pumice.backends.host.threads.pool import RECORD, ThreadPool, compiled_at
from pumice.backends.libraries import load_failure
from pumice.core.threads import thread_count
from pumice.errors import PumiceWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pumice.backends.host.native.kernel_tasks import Task
    from pumice.backends.host.native.levels import Level
    from pumice.backends.host.native.machine_code import MachineCode, Report

# Multiplications, or moved elements, that make it worth to share a task, and those of the smallest chunk of it. Threads take many
# chunks at a time until few are left.
_MIN_SHARED, _MIN_CHUNK = 1 << 16, 1 << 15
_CHUNKS_PER_THREAD = 16
# How often a thread that is done looks whether the others are, before it takes them for stopped; a look takes a few dozen ns.
# Interrupts and other virtual machines on the same cores stop a thread for up to some hundred µs: waiting costs less
# than to go on alone. A program that has taken the core keeps it for milliseconds.
_PATIENCE, _LOOKS_PER_WORK = 20_000, 1 / 200
# A task of so much work, about 100 µs, is shared in any case: to wait for a thread that comes late costs less than to do without.
_LARGE = 1 << 23
# Work after which a call returns to Python, about 15 ms: a worker that has gone to sleep, as other programs had its core, is only
# woken from there, and would miss the rest of a prompt.
_MOST_WORK = 1 << 32
# What Python calls itself.
_SHARING = ("serve", "sleepers", "run_tasks")


@functools.cache
def available() -> bool:
    """Whether numba is installed; does not import it.

    >>> isinstance(available(), bool)
    True
    """
    return sys.modules.get("numba") is not None or importlib.util.find_spec("numba") is not None


class Kernels:
    """The compiled kernels and the threads that share their tasks."""

    def __init__(self, code: MachineCode, threads: int) -> None:
        serve, sleepers, self._run_tasks = (compiled_at(code.address(n)) for n in _SHARING)
        self._code, self._pool = code, ThreadPool(threads, serve, sleepers)
        self._scratch = ScratchPool()
        self.is_wide = code.level.is_wide

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs tasks one after the other, once."""
        self.link(tasks)()

    def link(self, tasks: Sequence[Task]) -> Callable[[], None]:
        """A call that runs tasks one after the other, however often; the arrays must stay where they are."""
        tasks = joined(tasks)
        # Before the words of each task is the address of its work memory.
        jobs = np.array([w for t in tasks for w in (0, *t.words)], np.int64)
        table = np.zeros((len(tasks), RECORD), np.int64)
        at, threads = jobs.ctypes.data, self._pool.workers + 1
        for record, t in zip(table, tasks):
            chunk = _chunk(t.parts, t.work, threads)
            taken = max(chunk, t.parts // (2 * threads))
            looks = 0 if t.work >= _LARGE else _PATIENCE + _LOOKS_PER_WORK * taken * t.work // max(1, t.parts)
            record[:] = self._code.address(t.kernel, t.code), at + 8, t.parts, chunk, int(looks)
            at += 8 * (1 + len(t.words))
        run, keep = self._run, (tasks, jobs, table)
        ranges = [(table[a:b], tasks[a:b]) for a, b in _ranges([t.work for t in tasks])]
        parts = [
            (records.ctypes.data, len(some), bool(records[:, 3].any()), any(t.work >= _LARGE for t in some))
            for records, some in ranges
        ]
        ends = np.cumsum([1 + len(t.words) for t in tasks])
        borrowed = np.array([end - 1 for t, end in zip(tasks, ends) if t.scratch], np.int64)
        working = np.array([end - len(t.words) - 1 for t, end in zip(tasks, ends) if t.each], np.int64)
        each, size = max((t.each for t in tasks), default=0), max((t.scratch for t in tasks), default=0)
        work = work_bytes(threads, each)

        def call() -> None:
            for part in parts:
                run(*part, keep)

        def call_with_scratch() -> None:
            memory = self._scratch.take(work + size)
            jobs[borrowed] = memory.ctypes.data + work
            jobs[working] = memory.ctypes.data
            try:
                if work:
                    prepare_work(memory, threads, each)
                call()
            finally:
                self._scratch.give(memory)

        return call_with_scratch if work + size else call

    def _run(self, table: int, count: int, shared: bool, wanted: bool, keep: Any) -> None:
        pool = self._pool
        # If another thread has the workers, this one works alone. One that takes them between these two lines is waited for:
        # a lock that was tried for would have to be released by code that an interrupt can skip.
        if not shared or pool.lock.locked():
            self._run_tasks(0, table, count)
            return
        with pool.lock:
            pool.rouse(wanted)
            self._run_tasks(pool.control, table, count)


def _chunk(parts: int, work: int, threads: int) -> int:
    """How many parts of a task are a chunk; 0 if one thread does it all.

    There are as many chunks for each thread, or so many that it matters little.

    >>> _chunk(128, 3 * _MIN_CHUNK, 2), _chunk(128, _MIN_CHUNK, 2), _chunk(49, 1 << 30, 2), _chunk(640, 1 << 30, 2)
    (64, 0, 1, 20)
    """
    if threads == 1 or work < _MIN_SHARED:
        return 0
    count = min(parts, work // _MIN_CHUNK, _CHUNKS_PER_THREAD * threads)
    if count > threads:
        count -= count % threads
    chunk = max(1, parts // max(1, count))
    return chunk if chunk < parts else 0


def _ranges(works: Sequence[int]) -> list[tuple[int, int]]:
    """Tasks that run in one call, as the first and the one after the last.

    >>> _ranges([_MOST_WORK, 1, 1])
    [(0, 1), (1, 3)]
    """
    found, first, total = [], 0, 0
    for i, work in enumerate(works):
        total += work
        if total >= _MOST_WORK or i + 1 == len(works):
            found.append((first, i + 1))
            first, total = i + 1, 0
    return found


_listeners: list[Callable[[], None]] = []


@contextlib.contextmanager
def report_compilation(report: Callable[[int], None]) -> Iterator[None]:
    """Calls `report` before each kernel that is compiled on first need, with the number of those before it.

    >>> with report_compilation(print):
    ...     pass
    """
    counter = itertools.count()

    def listener() -> None:
        report(next(counter))

    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _before_compiling() -> None:
    for listener in tuple(_listeners):
        listener()


@functools.cache
def _machine_code() -> MachineCode | None:
    if not available():
        levels.check_name()
        return None
    try:
        from pumice.backends.host.native.machine_code import MachineCode

        return MachineCode(_before_compiling)
    except (ImportError, OSError, RuntimeError, MemoryError) as e:
        # A broken installation, no memory for it, or a processor that the kernels cannot use.
        why, hint = load_failure(e, "reinstall numba and llvmlite: pip install --force-reinstall 'pumice[cpu]'")
        text = f"the compiled kernels do not load: {why}. The host runs without them, several times slower; {hint}"
        warnings.warn(text, PumiceWarning, stacklevel=2)
        return None


def level() -> Level | None:
    """What the kernels are compiled for; None where they cannot be used.

    >>> level() in (None, levels.current())
    True
    """
    code = _machine_code()
    return None if code is None else code.level


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, loaded on the first call; None where they cannot be used."""
    with _loading:
        return _only_kernels()


@functools.cache
def _only_kernels() -> Kernels | None:
    """The one object of this process: two threads may want it for the first time at once, and it starts threads."""
    code = _machine_code()
    try:
        return None if code is None else Kernels(code, thread_count())
    except ImportError:  # numba refuses this NumPy
        return None


_loading = threading.RLock()


def loaded() -> Kernels | None:
    """The kernels if something has loaded them; does not load them.

    >>> loaded() in (None, kernels())
    True
    """
    return kernels() if kernels.cache_info().currsize else None


def prepare(names: Sequence[str], report: Report | None = None) -> None:
    """Has kernels compiled that will be needed, unless they are in the cache; `report` gets how many of them are done.

    >>> prepare([])
    """
    code = _machine_code() if names else None
    if code is None:
        return
    with contextlib.suppress(ImportError):  # as above; what runs without kernels says so itself
        code.prepare([*_SHARING, *names], report)
