"""How many threads computations on this machine's processor may use."""

from __future__ import annotations

import os

from pumice import config


def thread_count() -> int:
    """The switch `threads`, else the cores this process may run on.

    >>> thread_count() >= 1
    True
    """
    wanted: int = config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(wanted, cores) if wanted else cores
