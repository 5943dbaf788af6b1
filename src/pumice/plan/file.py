"""Plan files: magic, version, a JSON header, blobs, and a SHA-256 of all of it; written and read without a device."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

from pumice.core.collection import without_collection
from pumice.core.json_file import canonical
from pumice.core.whole_file import write_whole
from pumice.errors import FormatError, InputError
from pumice.formats.weights import malformed
from pumice.plan.file_check import check_structure
from pumice.plan.file_read import decode
from pumice.plan.file_write import encode
from pumice.plan.plan import Plan

MAGIC = b"\x93PUMPLAN"
VERSION = 1
# Bounds that no real plan comes near: bytes and parts of the header, which take far more room as Python objects.
MAX_HEADER = 64 << 20
MAX_PARTS = 1 << 21
_FRAME = struct.Struct("<8sII")
_ALIGNMENT = 8
_DIGEST = 32
_SHOWN = 500
_AGAIN = "the file is damaged: copy it again, or save the plan again"


def plan_to_bytes(plan: Plan) -> bytes:
    """The file of a plan; equal plans give equal bytes."""
    check_structure(plan)
    encoded = encode(plan)
    text = canonical(encoded.header).encode()
    pieces = [_FRAME.pack(MAGIC, VERSION, len(text)), text, *_padding(len(text))]
    for blob in encoded.blobs:
        pieces += [blob, *_padding(len(blob))]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return b"".join([*pieces, digest.digest()])


def _padding(size: int) -> list[bytes]:
    return [bytes(-size % _ALIGNMENT)]


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the file of a plan; readers of `path` see the old file or the whole new one."""
    target, data = Path(path), plan_to_bytes(plan)
    try:
        write_whole(target, data)
    except OSError as e:
        raise InputError(
            f"the plan cannot be written to {target}: {e.strerror or e}", hint="check the folder and its space", path=str(target)
        ) from e


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file."""
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):  # /dev/zero never ends
            raise malformed(Path(path), "is no plain file", hint="name the file of a plan")
        data = Path(path).read_bytes()
    except OSError as e:
        raise malformed(Path(path), f"cannot be read: {e.strerror or e}", hint="check the path and its permissions") from e
    return plan_from_bytes(data, Path(path))


@without_collection
def plan_from_bytes(data: bytes, path: Path = Path("plan")) -> Plan:
    """The plan in the bytes of a file; `path` names them in errors."""
    header, blobs = _open(data, path)
    try:
        return decode(header, blobs)
    except FormatError as e:
        # The message may repeat labels and names of the file: no terminal escapes, and no more than a few lines.
        what = e.message if e.message.isprintable() else repr(e.message)[1:-1]
        what = what if len(what) <= _SHOWN else what[:_SHOWN] + "…"
        hint = e.hint or "the file was not written by Pumice: save the plan again"
        raise malformed(path, what, hint=hint, **e.fields) from e


def plan_digest(data: bytes) -> str:
    """The SHA-256 that closes a plan file, in hex."""
    return data[-_DIGEST:].hex()


def _open(data: bytes, path: Path) -> tuple[Any, list[bytes]]:
    """The header and blobs of a file whose hash is right."""
    if data[: len(MAGIC)] != MAGIC:
        raise malformed(path, "this is no plan file", offset=0, hint="give a file that Plan.save wrote")
    if len(data) < _FRAME.size + _DIGEST:
        raise malformed(path, f"it ends after {len(data)} bytes", offset=len(data), hint=_AGAIN)
    if hashlib.sha256(memoryview(data)[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise malformed(path, "its SHA-256 is not that of its contents", offset=len(data) - _DIGEST, hint=_AGAIN)
    _, version, size = _FRAME.unpack_from(data)
    if version != VERSION:
        newer = f"made by a newer Pumice: its version is {version}, this one reads {VERSION}"
        what = newer if version > VERSION else f"there is no version {version} of plan files"
        raise malformed(path, what, offset=8, hint="upgrade pumice, or save the plan with this one", version=version)
    end = len(data) - _DIGEST
    if size > min(MAX_HEADER, end - _FRAME.size):
        raise malformed(path, f"a header of {size} bytes does not fit", offset=12, hint=_AGAIN)
    text = data[_FRAME.size : _FRAME.size + size]
    header = _parse(text, path)
    return header, _blobs(data, header, _FRAME.size + size, end, path)


def _parse(text: bytes, path: Path) -> Any:
    if len(text) > MAX_PARTS and sum(text.count(mark) for mark in (b",", b"[", b"{")) > MAX_PARTS:
        raise malformed(path, f"a header of more than {MAX_PARTS} parts", offset=_FRAME.size, hint=_AGAIN)
    try:
        written = text.decode()
        header = json.loads(written)
        same = canonical(header) == written
    except (ValueError, RecursionError) as e:
        raise malformed(path, "its header is no JSON", offset=_FRAME.size, hint=_AGAIN) from e
    if not same:
        raise malformed(path, "its header is not in canonical form", offset=_FRAME.size, hint=_AGAIN)
    return header


def _blobs(data: bytes, header: Any, start: int, end: int, path: Path) -> list[bytes]:
    sizes = header.get("blobs") if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(type(n) is int and 0 <= n <= end for n in sizes):
        raise malformed(path, "blobs: an array of sizes is expected", offset=_FRAME.size, hint=_AGAIN)
    found = []
    at = _skip(data, start, start - _FRAME.size, end, path)
    for n in sizes:
        if at + n > end:
            raise malformed(path, f"a blob of {n} bytes reaches beyond the file", offset=at, hint=_AGAIN)
        found.append(data[at : at + n])
        at = _skip(data, at + n, n, end, path)
    if at != end:
        raise malformed(path, f"{end - at} bytes follow the last blob", offset=at, hint=_AGAIN)
    return found


def _skip(data: bytes, at: int, size: int, end: int, path: Path) -> int:
    """The place after the padding behind something of `size` bytes that ends at `at`."""
    pad = -size % _ALIGNMENT
    if at + pad > end or data[at : at + pad] != bytes(pad):
        raise malformed(path, "the padding is missing or not zero", offset=at, hint=_AGAIN)
    return at + pad
