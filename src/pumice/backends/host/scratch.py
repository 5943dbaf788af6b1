"""Memory that routines use while they run, kept for the next call."""

from __future__ import annotations

import threading

import numpy as np

from pumice.ir.registry import Array

_local = threading.local()


def scratch(name: str, elements: int) -> Array:
    """A float32 array kept for this thread: fresh large allocations would fault in every page on every call."""
    found: Array | None = getattr(_local, name, None)
    if found is None or found.size < elements:
        found = np.empty(elements, np.float32)
        setattr(_local, name, found)
    return found[:elements]
