"""Memory for buffers: zeroed, from a cache line on, and taken from the system only where it is touched."""

from __future__ import annotations

import mmap
import os

import numpy as np

from pumice.backends.host.memory.tiles import SLACK
from pumice.ir.registry import Array

ALIGNMENT = 64
# Bytes from which on memory comes from the system directly.
_MAPPED = 1 << 17


def aligned_bytes(size: int) -> Array:
    """Zeroed bytes that start on a cache line, with room behind them for reading past the end.

    Pages are only taken from the system once they are touched.

    >>> buffer = aligned_bytes(100)
    >>> buffer.ctypes.data % 64, len(buffer)
    (0, 100)
    """
    raw = _zeroed(size + ALIGNMENT + SLACK)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size]


def _zeroed(size: int) -> Array:
    if size < _MAPPED or os.name != "posix":
        return np.zeros(size, np.uint8)
    # Straight from the system: what the C library has in stock must be cleared, and so touched. Not in large pages, which
    # are faster to read by a few percent, but may take half a second to find.
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as e:
        raise MemoryError(f"the system has no {size} bytes") from e
    return np.frombuffer(memory, np.uint8)
