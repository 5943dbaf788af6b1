"""Folders that only their owner can write, and files that are read only if they are plain ones of a sensible size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pumice.core.whole_file import flush, sync
from pumice.errors import InputError

# Windows has neither: there a folder of the user's profile is closed to others by its access list.
_HAS_OWNERS = hasattr(os, "geteuid")
_HAS_DIR_FD = os.open in os.supports_dir_fd
# Opening a FIFO would wait for a writer, and a link could lead to any device.
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PRIVATE = 0o700
_OTHERS_WRITE = 0o022
_OTHERS = 0o077


class Untrusted(InputError):
    """A folder or file of a cache that somebody else could have written."""

    code = "untrusted"


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, readable by their owner only, regardless of the umask.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     make_private(Path(d, "a", "b"))
    ...     oct(Path(d, "a").stat().st_mode & 0o777)
    '0o700'
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(mode=_PRIVATE)
        except FileExistsError:
            if not path.is_dir():  # else another process was first
                raise
        else:
            path.chmod(_PRIVATE)  # a umask may take away even the owner's rights


class Folder:
    """An open folder that only its owner can write; files are reached through it, so that it cannot be swapped meanwhile."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path, self._fd = path, fd

    def read(self, name: str, limit: int, *, secret: bool = False) -> bytes:
        """The content of a plain file of the owner's, of at most `limit` bytes; a secret one must be closed to others' reads."""
        fd = self.open(name)
        try:
            if secret:
                _check_secret(self.path / name, os.fstat(fd))
            return _content(fd, self.path / name, limit)
        finally:
            os.close(fd)

    def open(self, name: str, *, append: bool = False) -> int:
        """A descriptor of a plain file of the owner's, to read it; or to append to it, where it is made if it is missing.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d, open_private(Path(d)) as folder:
        ...     fd = folder.open("a", append=True)
        ...     _ = os.write(fd, b"text")
        ...     os.close(fd)
        ...     folder.read("a", 100)
        b'text'
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
        fd = os.open(self._at(name), flags | _PLAIN, 0o600, dir_fd=self._fd)
        try:
            _check_owner(self.path / name, os.fstat(fd))
            _check_plain(self.path / name, os.fstat(fd))
            return fd
        except BaseException:
            os.close(fd)
            raise

    def write(self, name: str, content: bytes, *, durable: bool = False) -> None:
        """Replaces a file as a whole; a durable one is on the disk, under its name, when this returns."""
        fresh = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        fd = os.open(self._at(fresh), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600, dir_fd=self._fd)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                if _HAS_OWNERS:
                    os.fchmod(fd, 0o600)  # a umask may take away even the owner's rights
                if durable:
                    file.flush()
                    os.fsync(fd)
            os.replace(self._at(fresh), self._at(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            # An interrupt may come after the rename.
            with suppress(FileNotFoundError):
                os.unlink(self._at(fresh), dir_fd=self._fd)
            raise
        if durable:
            self.sync()

    def sync(self) -> None:
        """Asks the system to put the folder itself on the disk: which names it has."""
        if self._fd is None:
            sync(self.path)
        else:
            flush(self._fd)

    def names(self) -> list[str]:
        """The names in it, hidden ones too.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d, open_private(Path(d)) as folder:
        ...     folder.write("b", b"")
        ...     folder.write("a", b"")
        ...     folder.names()
        ['a', 'b']
        """
        return sorted(os.listdir(self.path if self._fd is None else self._fd))

    def remove(self, name: str) -> None:
        """Deletes a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self._fd)

    def _at(self, name: str) -> str | Path:
        return self.path / name if self._fd is None else name


@contextmanager
def open_private(path: Path) -> Iterator[Folder]:
    """A folder that must be the user's own and closed to others' writes; `Untrusted` if it is not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d, open_private(Path(d)) as folder:
    ...     folder.write("a", b"text")
    ...     folder.read("a", 100)
    b'text'
    """
    if not _HAS_DIR_FD:
        _check_owner(path, path.stat())
        yield Folder(path, None)
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(path, os.fstat(fd))
        yield Folder(path, fd)
    finally:
        os.close(fd)


def read_plain(path: Path, limit: int, *, follow: bool = True, dir_fd: int | None = None) -> bytes:
    """The content of a plain file of any owner: for data that is checked on reading.

    `follow`: whether the path may be a link. `dir_fd`: an open folder, in which the last part of the path is looked up.
    """
    flags = _PLAIN & ~getattr(os, "O_NOFOLLOW", 0) if follow else _PLAIN
    fd = os.open(path if dir_fd is None else path.name, os.O_RDONLY | flags, dir_fd=dir_fd)
    try:
        return _content(fd, path, limit)
    finally:
        os.close(fd)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if not _HAS_OWNERS:
        return
    own = "set PUMICE_HOME to a folder of your own"
    if found.st_uid != os.geteuid():
        raise Untrusted(f"{path} belongs to another user ({found.st_uid}; this one is {os.geteuid()})", hint=own, path=str(path))
    if found.st_mode & _OTHERS_WRITE:
        raise Untrusted(
            f"{path} can be written by other users (mode {stat.S_IMODE(found.st_mode):o})",
            hint=f"delete it, or `chmod go-w` it if nobody else could have changed it; or {own}",
            path=str(path),
        )


def _check_secret(path: Path, found: os.stat_result) -> None:
    if _HAS_OWNERS and found.st_mode & _OTHERS:
        raise Untrusted(
            f"{path} is a secret that other users can read (mode {stat.S_IMODE(found.st_mode):o})",
            hint="`chmod 600` it if nobody else could have read it, else make a new one",
            path=str(path),
        )


def _check_plain(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no plain file")


def _content(fd: int, path: Path, limit: int) -> bytes:
    found = os.fstat(fd)
    _check_plain(path, found)
    if found.st_size > limit:
        raise OSError(f"{path} has {found.st_size} bytes, more than {limit}")
    with open(fd, "rb", closefd=False) as file:
        return file.read(found.st_size)  # takes that much memory at once
