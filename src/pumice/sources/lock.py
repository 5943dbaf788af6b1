"""A lock between processes that dies with its holder, so that nothing is left behind by a kill."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_BUSY = {errno.EAGAIN, errno.EACCES}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}
_POLL_SECONDS = 0.1


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool | None]:
    """Hold the lock file `path` for the enclosed code.

    Yields True when held, False when another process holds it and `wait` is off, and None where the system or the
    file system has no such locks: the cache stays correct without them, as every publication is one rename, but then
    nobody knows whether a leftover folder is still in use.

    The file itself is never removed: whoever deleted it could not know that nobody has just opened it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d, exclusive(Path(d) / "a.lock") as held:
    ...     held is not False
    True
    """
    if fcntl is None:
        yield None
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _acquire(fcntl, fd, wait)
    finally:
        os.close(fd)


def _acquire(module: ModuleType, fd: int, wait: bool) -> bool | None:
    while True:
        try:
            # Polling, as a blocking flock is not interruptible by Ctrl-C in all threads.
            module.flock(fd, module.LOCK_EX | module.LOCK_NB)
            return True
        except OSError as e:
            if e.errno in _UNSUPPORTED:
                return None
            if e.errno not in _BUSY:
                raise
        if not wait:
            return False
        time.sleep(_POLL_SECONDS)
