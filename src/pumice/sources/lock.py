"""A lock between processes that dies with its holder, so that nothing is left behind by a kill."""

from __future__ import annotations

import errno
import io
import os
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_BUSY = {errno.EAGAIN, errno.EACCES}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}
_POLL_SECONDS = 0.1
# Lock files that are open in this process.
_files: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


class _Close:
    """`__exit__` by the file's own method, which closes it: an interrupt comes before or after that, and not into Python code."""

    def __get__(self, held: exclusive | None, owner: type) -> Any:
        return self if held is None else held._file.__exit__

    def __call__(self, held: exclusive, *error: object) -> None:
        held._file.__exit__(*error)


class exclusive:
    """Hold the lock file `path` for the enclosed code.

    Gives True when held, False when another process holds it and `wait` is off, and None where the system or the
    file system has no such locks: the cache stays correct without them, as every publication is one rename, but then
    a leftover folder may still be in use.

    The file itself is never removed: another process may just have opened it. A fork holds none of its
    parent's locks.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d, exclusive(Path(d) / "a.lock") as held:
    ...     held is not False
    True
    """

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        # Opened here: `with` looks up `__exit__` before it calls `__enter__`.
        self._file: Any = nullcontext() if fcntl is None else io.FileIO(path, "a+", opener=_open)
        self._wait = wait
        if isinstance(self._file, io.FileIO):
            _files.add(self._file)

    def __enter__(self) -> bool | None:
        if fcntl is None:
            return None
        try:
            return _acquire(fcntl, self._file.fileno(), self._wait)
        except BaseException:
            self._file.close()
            raise

    __exit__: Any = _Close()


def _close_in_fork() -> None:
    """A fork has copies of the descriptors: a lock that another thread held would stay held until the fork ends."""
    for file in list(_files):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


def _open(path: str, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


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
