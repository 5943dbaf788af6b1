"""Reads a pack, folder or zip, once into memory, and writes zips whose bytes depend on nothing but the files.

A zip is read only in the form that `write_zip` gives: stored entries in the order of their names, nothing before, between or
after them. Every byte of it then has one meaning, which is checked by writing it again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pumice.core.private import read_plain
from pumice.packs.errors import InvalidManifest, KernelNotFound, UnsafePack
from pumice.packs.json_text import MAX_BYTES as MAX_MANIFEST_BYTES
from pumice.packs.paths import MANIFEST, MAX_FOLDERS, SIGNATURE, clash, path_problem

MAX_FILES = 512
MAX_FILE_BYTES = 16 << 20
MAX_PACK_BYTES = 64 << 20
_MAX_SIGNATURE_BYTES = 1024
# Headers are 30 + 46 bytes and the name twice.
_MAX_ZIP_BYTES = MAX_PACK_BYTES + MAX_FILES * 1024

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_VERSION = 10  # what stored entries need
_MADE_ON_UNIX = 3 << 8 | _VERSION
_DATE = 1 << 5 | 1  # 1 January 1980, at 00:00
_MODE = (stat.S_IFREG | 0o644) << 16
_REBUILD = "build it with `pumice pack build`"


@dataclass(frozen=True)
class PackFiles:
    """The bytes of a pack, unverified; `files` has all but the manifest and its signature.

    >>> pack = PackFiles(b"{}", None, {})
    >>> pack.digest[:8], list(pack.entries)
    ('44136fa3', ['kernels.json'])
    """

    manifest: bytes
    signature: bytes | None
    files: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the manifest, in hex; it names every other file by its hash, and so the whole pack."""
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def entries(self) -> dict[str, bytes]:
        """Every file of the pack, as `write_zip` takes them."""
        signed = {} if self.signature is None else {SIGNATURE: self.signature}
        return {MANIFEST: self.manifest, **signed, **self.files}


def read_pack(path: Path) -> PackFiles:
    """The files of a pack in a folder or zip, each read once; nothing of them is parsed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.zip")
    ...     _ = file.write_bytes(write_zip({"kernels.json": b"{}", "LICENSE": b"MIT"}))
    ...     read_pack(file).files
    {'LICENSE': b'MIT'}
    """
    try:
        if path.is_dir():
            return _pack(_read_folder(path), path)
        data = read_plain(path, _MAX_ZIP_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise KernelNotFound(f"there is no pack at {_shown(path)}", hint="give a folder or a zip file", path=str(path)) from None
    except OSError as error:
        raise _unsafe(path, f"it cannot be read: {error.strerror or error}") from None
    return parse_zip(data, path)


def parse_zip(data: bytes, path: Path = Path("the zip")) -> PackFiles:
    """The files of a pack in a zip that was read already; `path` is what errors name.

    >>> parse_zip(write_zip({"kernels.json": b"{}"}) + b"more")
    Traceback (most recent call last):
    pumice.packs.errors.UnsafePack: [unsafe-pack] the zip: there is no end record at its end, or a comment after it
      hint: build it with `pumice pack build`
    """
    return _pack(_read_zip(data, path), path)


def write_zip(files: Mapping[str, bytes]) -> bytes:
    """A zip with these files, stored: the same files give the same bytes, whatever the system, order and versions.

    >>> write_zip({"b": b"2", "a": b"1"}) == write_zip({"a": b"1", "b": b"2"})
    True
    """
    _check_entries(files, Path("the pack"))
    body, directory = bytearray(), bytearray()
    for name in sorted(files):
        content, encoded = files[name], name.encode("ascii")
        common = (_VERSION, 0, 0, 0, _DATE, zlib.crc32(content), len(content), len(content), len(encoded), 0)
        directory += _CENTRAL.pack(b"PK\1\2", _MADE_ON_UNIX, *common, 0, 0, 0, _MODE, len(body)) + encoded
        body += _LOCAL.pack(b"PK\3\4", *common) + encoded + content
    end = _END.pack(b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(body), 0)
    return bytes(body + directory + end)


def _pack(found: dict[str, bytes], path: Path) -> PackFiles:
    manifest, signature = found.pop(MANIFEST, None), found.pop(SIGNATURE, None)
    if manifest is None:
        raise InvalidManifest(f"{_shown(path)} has no {MANIFEST}, so it is no pack", hint=_REBUILD, path=str(path))
    return PackFiles(manifest, signature, found)


# --- zip ---


def _read_zip(data: bytes, path: Path) -> dict[str, bytes]:
    if len(data) > _MAX_ZIP_BYTES:
        raise _unsafe(path, f"it has {len(data)} bytes, more than {_MAX_ZIP_BYTES}")
    found: dict[str, bytes] = {}
    for name, offset, size in _directory(data, path):
        if name in found:
            raise _unsafe(path, f"it has {_shown(name)} twice", name)
        begin = offset + _LOCAL.size + len(name)
        if begin + size > len(data):
            raise _unsafe(path, f"{_shown(name)} reaches beyond the end of the zip", name)
        found[name] = data[begin : begin + size]
    _check_entries(found, path)
    # Whatever else the zip says, in either of its headers or between its entries, would make these bytes differ.
    if write_zip(found) != data:
        raise _unsafe(path, "it is not in canonical form: its headers disagree, or it has data that belongs to no entry")
    return found


def _directory(data: bytes, path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each entry, from the central directory; reasons to refuse one that can be named are."""
    end = len(data) - _END.size
    if end < 0 or data[end : end + 4] != b"PK\5\6":
        raise _unsafe(path, "there is no end record at its end, or a comment after it")
    _, disk, first_disk, here, count, size, start, _ = _END.unpack_from(data, end)
    if disk or first_disk or here != count:
        raise _unsafe(path, "it is one of several parts")
    if count > MAX_FILES:
        raise _unsafe(path, f"it has {count} entries, more than {MAX_FILES}")
    if start + size != end:
        raise _unsafe(path, "its directory is not where its end record says")
    total, at = 0, start
    for _ in range(count):
        if at + _CENTRAL.size > end or data[at : at + 4] != b"PK\1\2":
            raise _unsafe(path, "its directory is cut off or damaged")
        head = _CENTRAL.unpack_from(data, at)
        flags, method, packed, plain, long, extra, comment, mode, offset = *head[3:5], *head[8:13], *head[15:]
        at += _CENTRAL.size + long
        name = data[at - long : at].decode("utf-8", "backslashreplace")
        if at > end:
            raise _unsafe(path, "its directory is cut off or damaged")
        if problem := path_problem(name):
            raise _unsafe(path, f"the name {_shown(name)} {problem}", name)
        if stat.S_IFMT(mode >> 16) not in (0, stat.S_IFREG):
            raise _unsafe(path, f"{name} is a {'link' if stat.S_ISLNK(mode >> 16) else 'special file'}", name)
        if flags & 0x41:
            raise _unsafe(path, f"{name} is encrypted", name)
        if method or packed != plain:
            raise _unsafe(path, f"{name} is compressed; packs store their files as they are", name)
        if flags or extra or comment:
            raise _unsafe(path, f"{name} has flags, extra fields or a comment", name)
        total += plain
        if total > min(len(data), MAX_PACK_BYTES):
            raise _unsafe(path, f"its files have more bytes than the zip, or more than {MAX_PACK_BYTES}", name)
        yield name, offset, plain
    if at != end:
        raise _unsafe(path, "its directory has data after its last entry")


# --- folders ---


def _read_folder(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if os.open in os.supports_dir_fd else None
    try:
        _read_into(found, path, fd, "", path)
    finally:
        if fd is not None:
            os.close(fd)
    _check_entries(found, path)
    return found


def _read_into(found: dict[str, bytes], folder: Path, fd: int | None, prefix: str, pack: Path) -> None:
    """Reads what is in an open folder. Names are looked up in it, so that no part of the path can be swapped for a link."""
    with os.scandir(folder if fd is None else fd) as entries:
        names = [entry.name for _, entry in zip(range(MAX_FILES + 1), entries)]
    if not names:
        raise _unsafe(pack, f"the folder {prefix or '.'} is empty")
    for name in sorted(names):
        inside = prefix + name
        if problem := path_problem(inside):
            raise _unsafe(pack, f"the name {_shown(inside)} {problem}", inside)
        try:
            mode = os.stat(folder / name if fd is None else name, dir_fd=fd, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                _enter(found, folder / name, fd, inside, pack)
            elif stat.S_ISREG(mode):
                found[inside] = read_plain(folder / name, MAX_FILE_BYTES, follow=False, dir_fd=fd)
            else:
                raise _unsafe(pack, f"{inside} is a {'link' if stat.S_ISLNK(mode) else 'special file'}", inside)
        except OSError as error:
            swapped = error.errno in (errno.ELOOP, errno.ENOTDIR)
            raise _unsafe(pack, f"{inside}: {'is a link' if swapped else error.strerror or error}", inside) from None
        if len(found) > MAX_FILES:
            raise _unsafe(pack, f"it has more than {MAX_FILES} files")
        if sum(map(len, found.values())) > MAX_PACK_BYTES:
            raise _unsafe(pack, f"its files have more than {MAX_PACK_BYTES} bytes")


def _enter(found: dict[str, bytes], folder: Path, parent: int | None, inside: str, pack: Path) -> None:
    if inside.count("/") >= MAX_FOLDERS:
        raise _unsafe(pack, f"{inside} is more than {MAX_FOLDERS} folders deep", inside)
    fd = None
    if parent is not None:
        fd = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _read_into(found, folder, fd, inside + "/", pack)
    finally:
        if fd is not None:
            os.close(fd)


# --- both ---


def _check_entries(files: Mapping[str, bytes], path: Path) -> None:
    """Names, sizes and numbers, for reading and writing alike."""
    if len(files) > MAX_FILES:
        raise _unsafe(path, f"it has {len(files)} files, more than {MAX_FILES}")
    for name, content in files.items():
        if problem := path_problem(name):
            raise _unsafe(path, f"the name {_shown(name)} {problem}", name)
        limit = {MANIFEST: MAX_MANIFEST_BYTES, SIGNATURE: _MAX_SIGNATURE_BYTES}.get(name, MAX_FILE_BYTES)
        if len(content) > limit:
            raise _unsafe(path, f"{name} has {len(content)} bytes, more than {limit}", name)
    if sum(map(len, files.values())) > MAX_PACK_BYTES:
        raise _unsafe(path, f"its files have more than {MAX_PACK_BYTES} bytes")
    if pair := clash(files):
        raise _unsafe(path, f"{pair} are one name where case does not matter, or one is the other's folder")


def _shown(name: str | Path) -> str:
    text = str(name)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 120 else text[:117] + "…"


def _unsafe(path: Path, why: str, name: str = "") -> UnsafePack:
    return UnsafePack(f"{_shown(path)}: {why}", hint=_REBUILD, path=str(path), **({"entry": name} if name else {}))
