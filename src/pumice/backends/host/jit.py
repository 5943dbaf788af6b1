"""The numba kernels' door: imports and compiles them on first need, and says None where there is no numba."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice import config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from pumice.backends.host.native import Task
    from pumice.backends.host.team import Team

# Multiplications, or moved elements, that make it worth to share a task, and those of the smallest part of it.
_MIN_SHARED, _MIN_PART = 1 << 16, 1 << 15
_PARTS_PER_THREAD = 4
# How often a thread that is done looks whether the others are, before it takes them for stopped; a look takes a few dozen ns.
_PATIENCE, _LOOKS_PER_WORK = 400, 1 / 200
# The modules whose text decides what the compiled kernels are.
_SOURCES = ("lanes.py", "tiled.py", "formats.py", "rowops.py", "team.py", "compiled.py")


def thread_count() -> int:
    """Threads of the host backend: the switch `threads`, else the cores this process may run on.

    >>> thread_count() >= 1
    True
    """
    wanted: int = config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(wanted, cores) if wanted else cores


def available() -> bool:
    """Whether numba is installed; does not import it.

    >>> isinstance(available(), bool)
    True
    """
    return importlib.util.find_spec("numba") is not None


class Kernels:
    """The compiled kernels and the threads that share their tasks."""

    def __init__(self, compiled: ModuleType, team: Team) -> None:
        self._compiled, self._team = compiled, team
        self._made: dict[str, Any] = {}

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs tasks one after the other, once."""
        self.link(tasks)()

    def link(self, tasks: Sequence[Task]) -> Callable[[], None]:
        """A call that runs tasks one after the other, however often; the arrays must stay where they are."""
        jobs = np.array([w for t in tasks for w in t.words], np.int64)
        table = np.zeros((len(tasks), self._compiled.RECORD), np.int64)
        at, threads = jobs.ctypes.data, self._team.workers + 1
        for record, t in zip(table, tasks):
            # Not shared, a task has no chunks; shared, a few for each thread, so that nobody waits long for the last one.
            least = -(-_MIN_PART * t.parts // max(1, t.work))
            chunk = 0 if threads == 1 or t.work < _MIN_SHARED else max(1, least, t.parts // (_PARTS_PER_THREAD * threads))
            looks = _PATIENCE + _LOOKS_PER_WORK * chunk * t.work // max(1, t.parts)
            record[:] = self._kernel(t.kernel), at, t.parts, chunk if chunk < t.parts else 0, int(looks)
            at += 8 * len(t.words)
        run, place, count, shared = self._run, table.ctypes.data, len(tasks), bool(table[:, 3].any())
        keep = (tasks, jobs, table)

        def call() -> None:
            run(place, count, shared, keep)

        return call

    def _kernel(self, name: str) -> int:
        """The address of a kernel, compiled or read from the cache on first need."""
        found = self._made.get(name)
        if found is None:
            with _cache_folder():
                found = self._made[name] = self._compiled.compile_kernel(name)
        address: int = found.address
        return address

    def _run(self, table: int, count: int, shared: bool, keep: Any) -> None:
        team = self._team
        # If another thread has the workers, this one works alone.
        if not shared or not team.lock.acquire(blocking=False):
            self._compiled.run_tasks(0, 0, table, count)
            return
        try:
            team.rouse()
            self._compiled.run_tasks(team.control, team.workers, table, count)
        finally:
            team.lock.release()


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, compiled or read from the cache on the first call; None where numba cannot be used."""
    if not available():
        return None
    try:
        with _cache_folder():
            from pumice.backends.host import compiled
            from pumice.backends.host.team import Team
        if not compiled.is_supported():
            return None
    except (ImportError, RuntimeError):  # numba refuses this NumPy, or finds no folder that it may write its cache to
        return None
    return Kernels(compiled, Team(thread_count()))


@contextlib.contextmanager
def _cache_folder() -> Iterator[None]:
    """Points numba's cache at Pumice's folder while our kernels are declared, and back for everyone else's."""
    import numba

    settings: Any = numba.config  # its fields are made at run time

    before = settings.CACHE_DIR
    # numba looks at the file of a function alone when it asks whether what it has is still good; ours are made of several.
    settings.CACHE_DIR = str(Path(before or config.home / "numba") / _source_digest())
    try:
        yield
    finally:
        settings.CACHE_DIR = before


@functools.cache
def _source_digest() -> str:
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in _SOURCES)).hexdigest()[:16]
