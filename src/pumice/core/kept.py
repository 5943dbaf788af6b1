"""Entries of the user's cache that can be made again: compiled kernels, plans, answers of models.

Protection: the folder and the file must belong to this user and be closed to others' writes, the file must be a plain
one, and its digest covers its name as well as its content. The name says what it was made from (sources, versions, processor),
so that an entry is never used for anything else. Machine code is as trustworthy as that folder; plans are also verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import warnings
from pathlib import Path

from pumice import config
from pumice.core.private import Untrusted, make_private, open_private
from pumice.errors import InputError, PumiceWarning

_MAX_BYTES = 1 << 28
_DIGEST_BYTES = hashlib.sha256().digest_size
_reported: set[str] = set()
_reporting = threading.Lock()


def kept_folder(name: str) -> Path | None:
    """A folder in the user's cache; None where the user has no home folder, which is reported once.

    >>> kept_folder("plans").name
    'plans'
    """
    try:
        home: Path = config.home
    except InputError as e:
        _report(e.message, e.hint)
        return None
    return home / name


def read_kept(path: Path) -> bytes | None:
    """What `keep` put into a file; None if there is none, or something else. A folder that others can write is reported once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = keep(Path(folder, "new", "a"), b"text")
    ...     Path(folder, "new", "b").write_bytes(b"something else"), read_kept(Path(folder, "new", "b"))
    ...     read_kept(Path(folder, "new", "a"))
    (14, None)
    b'text'
    """
    try:
        with open_private(path.parent) as folder:
            data = folder.read(path.name, _MAX_BYTES)
    except Untrusted as e:
        _report(e.message, e.hint)
        return None
    except OSError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if _digest(path, content) == digest else None


def keep(path: Path, content: bytes) -> bool:
    """Puts bytes into a file at once; where that is not possible, which is reported once, the next process makes them again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep(Path(folder, "new", "a"), b"text")
    True
    """
    try:
        make_private(path.parent)
        with open_private(path.parent) as folder:
            folder.write(path.name, _digest(path, content) + content)
        return True
    except Untrusted as e:
        _report(e.message, e.hint)
    except OSError as e:
        _report(f"{path.parent} cannot be written: {e.strerror or e}", "set PUMICE_HOME to a folder that can be")
    return False


def forget_oldest(folder: Path, most: int) -> None:
    """Delete all entries of a folder but the newest; what cannot be deleted stays.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for age, name in enumerate("abc"):
    ...         _ = Path(folder, name).write_bytes(b"")
    ...         os.utime(Path(folder, name), (10 - age, 10 - age))
    ...     forget_oldest(Path(folder), 2)
    ...     sorted(os.listdir(folder))
    ['a', 'b']
    """
    with contextlib.suppress(OSError):
        by_age = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        for old in by_age[most:]:
            old.unlink()


def forget_beyond(folder: Path, most_bytes: int) -> int:
    """Delete the oldest entries of a folder until the rest take at most so many bytes, and return how many they take.

    What a killed process left of a write is a file like others: it counts, and goes when it is the oldest.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for age, name in enumerate("abc"):
    ...         _ = Path(folder, name).write_bytes(b"1234")
    ...         os.utime(Path(folder, name), (10 - age, 10 - age))
    ...     forget_beyond(Path(folder), 11), sorted(os.listdir(folder))
    (8, ['a', 'b'])
    """
    found: list[tuple[int, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process deleted it meanwhile
                about = entry.stat(follow_symlinks=False)
                found.append((about.st_mtime_ns, about.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
    return total


def _digest(path: Path, content: bytes) -> bytes:
    """Digest of content, name and folder: an entry that was renamed or moved is invalid."""
    name = f"pumice {path.parent.name}/{path.name}\0".encode()
    return hashlib.sha256(name + content).digest()


def _report(what: str, hint: str) -> None:
    with _reporting:
        if what in _reported:
            return
        _reported.add(what)
    text = f"{what}. Entries are not kept there: each start makes them again; {hint}"
    warnings.warn(text, PumiceWarning, stacklevel=3)
