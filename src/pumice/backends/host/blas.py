"""Matrix products through NumPy's BLAS, small ones on one thread.

OpenBLAS shares out every product of more than a quarter of a million multiplications and waits for all its threads, also for
one that the system has just taken the core from: a training step of many small products then mostly waits.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pumice.ir.registry import Array

# Multiplications below which sharing out saves less than waiting costs.
_SMALL = 1 << 23
_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")


def matmul(x: Array, y: Array, out: Array | None = None) -> Array:
    """np.matmul.

    >>> matmul(np.ones((2, 3)), np.ones((3, 4)))[1, 3].item()
    3.0
    """
    threads = _threads()
    if threads is None or _multiplications(x, y) >= _SMALL:
        return np.matmul(x, y, out=out)
    set_threads, usual = threads
    set_threads(1)
    try:
        return np.matmul(x, y, out=out)
    finally:
        # Not what was set before: another thread may be in here too.
        set_threads(usual)


def _multiplications(x: Array, y: Array) -> int:
    """Of one product of two matrices; a batch is a loop over such."""
    return int(math.prod(x.shape[-2:]) * (y.shape[-1] if y.ndim > 1 else 1))


@functools.cache
def _threads() -> tuple[Callable[[int], None], int] | None:
    """How to set the number of BLAS threads, and how many there are; None if there is no choice, or NumPy has another BLAS."""
    folder = Path(np.__file__).parent
    for path in [*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")]:
        try:
            library = ctypes.PyDLL(str(path))  # these calls are too short to let other threads run meanwhile
        except OSError:
            continue
        for prefix, suffix in ((p, s) for p in _PREFIXES for s in _SUFFIXES):
            setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            if setter is not None and getter is not None:
                count = int(getter())
                return (setter, count) if count > 1 else None
    return None
