"""SHA-256 of large files, cached under the user's home: a file that has not changed since is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pumice.core.kept import keep, kept_folder, read_kept
from pumice.core.records import dataclass
from pumice.errors import InputError
from pumice.sources.files import CHUNK

Report = Callable[[int, int], None]

# File systems tick at most this coarsely: a file written within a tick of its hashing could change again and look the same.
_TICK_NS = 2 * 10**9


class FileChanged(InputError):
    """A file that is no longer the one that was opened."""

    code = "file-changed"


@dataclass(frozen=True)
class FileIdentity:
    """Which file a path named at one moment: a write, or another file under the same path, changes something of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights")
    ...     _ = path.write_bytes(b"1")
    ...     before = FileIdentity.of(path)
    ...     _ = path.write_bytes(b"22")
    ...     before.bytes, FileIdentity.of(path) == before
    (1, False)
    """

    path: str
    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @staticmethod
    def of(path: Path | str, fd: int | None = None) -> FileIdentity:
        """The file at a path, or the open one with that descriptor."""
        try:
            about = os.stat(path) if fd is None else os.fstat(fd)
        except OSError as e:
            raise InputError(f"{path} cannot be read: {e.strerror}", hint="check the path", path=str(path)) from None
        where = os.path.realpath(path)
        return FileIdentity(where, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_dev)


_known: dict[FileIdentity, str] = {}


def file_digest(file: FileIdentity | Path | str, report: Report | None = None) -> str:
    """The SHA-256 of a file in hex; `report` is called with the bytes read and their total while it is computed.

    With the identity that the file had when it was opened, a file that has changed since is refused: FileChanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights")
    ...     _ = path.write_bytes(b"abc")
    ...     file_digest(path)[:16]
    'ba7816bf8f01cfea'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights")
    ...     _ = path.write_bytes(b"abc")
    ...     opened = FileIdentity.of(path)
    ...     _ = path.write_bytes(b"changed")
    ...     file_digest(opened)
    Traceback (most recent call last):
    pumice.sources.digests.FileChanged: [file-changed] ...weights has changed since it was opened
      hint: load it again
    """
    wanted = file if isinstance(file, FileIdentity) else FileIdentity.of(file)
    if FileIdentity.of(wanted.path) != wanted:
        raise _changed(wanted)
    found = _known.get(wanted) or _read_cached(wanted)
    if found is None:
        found = _hash(wanted, report)
        if time.time_ns() - max(wanted.mtime_ns, wanted.ctime_ns) > _TICK_NS:
            _known[wanted] = found
            _write_cached(wanted, found)
    else:
        _known[wanted] = found
    return found


def _changed(file: FileIdentity) -> FileChanged:
    return FileChanged(f"{file.path} has changed since it was opened", hint="load it again", path=file.path)


def _hash(file: FileIdentity, report: Report | None) -> str:
    found, done = hashlib.sha256(), 0
    try:
        with open(file.path, "rb", buffering=0) as f:
            if FileIdentity.of(file.path, f.fileno()) != file:
                raise _changed(file)
            buffer = memoryview(bytearray(4 * CHUNK))
            while done <= file.bytes and (count := f.readinto(buffer)):  # one that grows all the time would have no end
                found.update(buffer[:count])
                done += count
                if report is not None:
                    report(done, file.bytes)
            if FileIdentity.of(file.path, f.fileno()) != file:
                raise _changed(file)
    except OSError as e:
        raise InputError(f"{file.path} cannot be read: {e.strerror}", hint="check the disk", path=file.path) from None
    return found.hexdigest()


def _entry(file: FileIdentity) -> Path | None:
    folder = kept_folder("digests")
    return None if folder is None else folder / f"{hashlib.sha256(os.fsencode(file.path)).hexdigest()[:32]}.json"


def _read_cached(file: FileIdentity) -> str | None:
    entry = _entry(file)
    content = None if entry is None else read_kept(entry)
    if content is None:
        return None
    known = json.loads(content)
    digest: str = known.pop("sha256")
    return digest if known == asdict(file) else None


def _write_cached(file: FileIdentity, digest: str) -> None:
    entry = _entry(file)
    if entry is not None:
        keep(entry, json.dumps(asdict(file) | {"sha256": digest}).encode())
