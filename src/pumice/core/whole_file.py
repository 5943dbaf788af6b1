"""Files that are replaced as a whole, and what a user may name instead of a file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_DEVICES = ("/dev/", "/proc/")


@contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write; when the block ends well it takes the place of `path`: readers see the old one or the whole new one.

    What is no plain file (a pipe, a terminal, /dev/stdout) is written to, never replaced; of a link the target is. A durable file
    is on the disk when the block is over. `mode` are the rights of a new file, before the umask.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     file = Path(d, "a")
    ...     for text in b"old", b"new":
    ...         with replacing(file) as out:
    ...             _ = out.write(text)
    ...     file.read_bytes(), os.listdir(d)
    (b'new', ['a'])
    """
    if is_stream(path):
        with open(path, "ab") as file:
            yield file
        return
    # Links above the file need not be followed, which would ask for every folder on the way.
    target = os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path)
    folder, name = os.path.split(target)
    # Short, as names have a limit, and hidden: it is not there for readers.
    part = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(target).st_mode)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come after the rename
            os.unlink(part)
        raise
    if durable:
        sync(Path(folder))


def write_whole(path: str | os.PathLike[str], content: bytes | str, *, durable: bool = False, mode: int = 0o666) -> None:
    """Replaces a file by other content, as a whole."""
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path names something that is written to and cannot be replaced: a device, a pipe, an open file of a process.

    >>> is_stream(os.devnull), is_stream("new.txt")
    (True, False)
    """
    if os.name == "nt":
        return os.path.basename(path).lower() in ("nul", "con")
    if os.path.abspath(path).startswith(_DEVICES):
        return True
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)


def sync(path: Path) -> None:
    """Ask the system to put a file or folder on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        flush(fd)
    finally:
        os.close(fd)


def flush(fd: int) -> None:
    """The same for an open one."""
    try:
        os.fsync(fd)
    except OSError as e:
        # Some file systems cannot flush a folder; the rename is still atomic there.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
