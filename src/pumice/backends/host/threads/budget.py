"""How many threads the host backend has."""

from __future__ import annotations

import os

from pumice import config


def thread_count() -> int:
    """Threads of the host backend: the switch `threads`, else the cores this process may run on.

    >>> thread_count() >= 1
    True
    """
    wanted: int = config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(wanted, cores) if wanted else cores
