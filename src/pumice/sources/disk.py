"""Errors of writing results to a disk: checkpoints, reports, bundles."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pumice.errors import DiskFull, InputError
from pumice.sources.files import size_text

# RLIMIT_FSIZE and a file system's largest file end a write the same way as a full disk.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turns errors of writing `path` into ones that say what to do; `needed` is its size, where that is known.

    >>> with disk_errors(Path("log.jsonl")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    pumice.errors.DiskFull: [disk-full] the disk is full, log.jsonl was not written: No space left on device
      hint: free some space, or write to another disk
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _FULL:
            size = f" ({size_text(needed)})" if needed else ""
            raise DiskFull(
                f"the disk is full, {path}{size} was not written: {why}",
                hint="free some space, or write to another disk",
                path=str(path),
                needed=needed,
            ) from error
        hint = "check the folder and its permissions"
        raise InputError(f"cannot write to {path}: {why}", hint=hint, path=str(path)) from error
