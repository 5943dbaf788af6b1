"""The numba kernels' door: imports and compiles them on first need, and says None where there is no numba."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
from typing import TYPE_CHECKING, Any

from pumice import config
from pumice.ir.registry import Array

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_KINDS = {"q4_0": 0, "q4_1": 1, "q8_0": 2}


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
    """The compiled kernels; calls take turns, as numba's simplest thread pool may not be entered twice at once."""

    def __init__(self, compiled: ModuleType, threads: int) -> None:
        self._compiled, self._threads = compiled, threads
        self._lock = threading.Lock()

    def qmatvec(self, dtype: str, x: Array, w: Array, out: Array) -> None:
        """out [M, N] = x [M, K] times the transpose of packed w [N, row bytes]; all dense, x and out float32."""
        with self._lock:
            self._compiled.set_threads(self._threads)
            self._compiled.qmatvec(_KINDS[dtype], x, w, out)

    def unpack_rows(self, dtype: str, w: Array, out: Array) -> None:
        """Packed rows [N, row bytes] as float32 [N, K]."""
        with self._lock:
            self._compiled.set_threads(self._threads)
            self._compiled.unpack_rows(_KINDS[dtype], w, out)


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, compiled or read from the cache on the first call; None where numba cannot be used."""
    if not available():
        return None
    try:
        with _cache_folder():
            from pumice.backends.host import compiled
    except ImportError:
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
