"""File functions of the cache: hashing, flushing to disk, recognising weights, and typed disk errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from pumice.core.records import dataclass
from pumice.core.whole_file import sync, write_whole
from pumice.errors import InputError
from pumice.sources.errors import NoSpace

CHUNK = 1 << 18
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a model: its path below the model's folder; `sha256` is None for a user's own file that was not hashed."""

    path: str
    size: int
    sha256: str | None


def size_text(nbytes: int) -> str:
    """A size for people.

    >>> size_text(98362432), size_text(10)
    ('93.8 MiB', '10 B')
    """
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.3g} {unit}"
    return f"{nbytes} B"


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def hash_files(folder: Path, names: Iterable[str]) -> tuple[FileInfo, ...]:
    """The named files below a folder, hashed."""
    return tuple(FileInfo(n, (folder / n).stat().st_size, file_sha256(folder / n)) for n in sorted(names))


def file_git_id(path: Path) -> str:
    """The id that git gives a file's content, which is all the hub knows of small files."""
    with path.open("rb") as f:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync_tree(folder: Path) -> None:
    """`sync` for a folder and all below it."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def write_json(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n", durable=True)


def tree_bytes(folder: Path) -> int:
    """The bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def need_space(folder: Path, nbytes: int) -> None:
    """Refuse early what the disk cannot hold, rather than fill it first."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise NoSpace(
            f"{size_text(nbytes)} are needed in {folder}, {size_text(free)} are free",
            hint="free some space, or set PUMICE_HOME to a folder on another disk",
            needed=nbytes,
            free=free,
        )


@contextmanager
def disk_errors(home: Path) -> Iterator[None]:
    """Turns errors of the cache's disk into ones that say what to do; other errors pass."""
    try:
        yield
    except OSError as e:
        hint = "set PUMICE_HOME to another folder"
        if e.errno in _FULL:
            raise NoSpace(f"the disk of {home} is full", hint=f"free some space, or {hint}", path=str(home)) from e
        # Below /proc, for one, a folder that cannot be made is reported as one that is not there.
        if e.errno in _DENIED or (e.errno == errno.ENOENT and not home.is_dir()):
            path = str(e.filename or home)
            raise InputError(f"cannot write to {path}: {e.strerror}", hint=hint, path=path) from e
        raise


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, and not the network, is at fault."""
    return error.errno in _FULL


def split_parts(name: str) -> list[str]:
    """The names of all parts of a split GGUF file, or the name alone.

    >>> split_parts("m-00001-of-00002.gguf")
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    match = _SPLIT.search(name)
    if not match:
        return [name]
    return [f"{name[: match.start()]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1)]


def weights_among(names: Iterable[str]) -> list[str]:
    """The loadable models among the files of an archive or folder: GGUF files, and folders with safetensors in them.

    Only the first part of a split file counts, and no folder inside one that counts already.

    >>> weights_among(["a/model.safetensors", "a/2_Dense/model.safetensors", "b/x.gguf", "b/__init__.py"])
    ['a', 'b/x.gguf']
    """
    found: list[str] = []
    folders: list[PurePosixPath] = []
    for path in sorted((PurePosixPath(n) for n in names), key=lambda p: (len(p.parts), p)):
        if path.suffix.lower() == ".gguf":
            if split_parts(path.name)[0] == path.name:
                found.append(str(path))
        elif path.suffix == ".safetensors" and not any(f in path.parents for f in folders):
            folders.append(path.parent)
    return sorted([*found, *map(str, folders)])
