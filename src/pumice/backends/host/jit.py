"""The numba kernels' door: imports and compiles them on first need, and says None where there is no numba."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pumice import config
from pumice.ir.registry import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

# Multiplications, or unpacked elements, that make waking another thread worth it.
_MIN_WORK = 1 << 16


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
    """The compiled kernels, with rows of the weight shared out to threads.

    The threads are Python's, not numba's: numba's pools spin against BLAS threads, or may not be entered twice at once,
    or do not survive a fork. The kernels hold no lock of the interpreter, so Python's threads serve as well.
    """

    def __init__(self, compiled: ModuleType, threads: int) -> None:
        self._compiled, self._threads = compiled, threads

    def qmatvec(self, dtype: str, x: Array, w: Array, out: Array) -> None:
        """out [M, N] = x [M, K] times the transpose of packed w [N, row bytes]; all dense, x and out float32."""
        kernel, kind = self._compiled.qmatvec, self._compiled.KINDS[dtype]
        self._share(lambda first, last: kernel(kind, x, w, out, first, last), len(w), x.size)

    def unpack_rows(self, dtype: str, w: Array, out: Array) -> None:
        """Packed rows [N, row bytes] as float32 [N, K]."""
        kernel, kind = self._compiled.unpack_rows, self._compiled.KINDS[dtype]
        self._share(lambda first, last: kernel(kind, w, out, first, last), len(w), out.shape[1])

    def _share(self, work: Callable[[int, int], None], rows: int, work_per_row: int) -> None:
        """Calls `work(first, last)` for ranges that make up all rows, one of them in this thread."""
        parts = max(1, min(self._threads, rows * work_per_row // _MIN_WORK))
        cuts = [rows * p // parts for p in range(parts + 1)]
        pending = [_workers(os.getpid(), self._threads).submit(work, cuts[p], cuts[p + 1]) for p in range(1, parts)]
        try:
            work(cuts[0], cuts[1])
        finally:
            for p in pending:
                p.result()


@functools.cache
def _workers(process: int, threads: int) -> ThreadPoolExecutor:
    """Worker threads of a process: a fork has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="pumice-host")


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, compiled or read from the cache on the first call; None where numba cannot be used."""
    if not available():
        return None
    try:
        with _cache_folder():
            from pumice.backends.host import compiled
    except (ImportError, RuntimeError):  # numba refuses this NumPy, or finds no folder that it may write its cache to
        return None
    return Kernels(compiled, thread_count())


@contextlib.contextmanager
def _cache_folder() -> Iterator[None]:
    """Points numba's cache at Pumice's folder while our kernels are declared, and back for everyone else's."""
    import numba

    settings: Any = numba.config  # its fields are made at run time

    before = settings.CACHE_DIR
    if not before:
        settings.CACHE_DIR = str(config.home / "numba")
    try:
        yield
    finally:
        settings.CACHE_DIR = before
