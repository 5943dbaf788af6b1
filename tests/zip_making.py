"""Writes zips byte by byte, so that their headers can say what no zip library would write."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_HEADER = ("version", "flags", "method", "time", "date", "crc", "packed", "size", "name_length", "extra_length")
_LAYOUT = "5H3L2H"


@dataclass(frozen=True)
class Entry:
    """A stored entry as packs have them. `both`, `local` and `central` replace what its headers would say."""

    name: bytes
    content: bytes = b""
    both: Mapping[str, int] = field(default_factory=dict)
    local: Mapping[str, int] = field(default_factory=dict)
    central: Mapping[str, int] = field(default_factory=dict)
    extra: bytes = b""
    comment: bytes = b""

    def header(self, changes: Mapping[str, int]) -> bytes:
        size = len(self.content)
        said = (10, 0, 0, 0, 33, zlib.crc32(self.content), size, size, len(self.name), len(self.extra))
        values = {**dict(zip(_HEADER, said, strict=True)), **self.both, **changes}
        return struct.pack("<" + _LAYOUT, *(values[name] for name in _HEADER))


def entries(files: Mapping[str, bytes]) -> list[Entry]:
    return [Entry(name.encode(), files[name]) for name in sorted(files)]


def changed(files: Mapping[str, bytes], name: str, **changes: Any) -> list[Entry]:
    """The entries of these files, of which one has other headers."""
    return [replace(e, **changes) if e.name == name.encode() else e for e in entries(files)]


def raw_zip(
    entries: Iterable[Entry],
    *,
    before: bytes = b"",
    between: bytes = b"",
    after: bytes = b"",
    end: Mapping[str, int] | None = None,
    end_comment: bytes = b"",
    only_body_of: int | None = None,
) -> bytes:
    """A zip of these entries; `only_body_of`: all point at the content of that one."""
    body, directory = bytearray(before), bytearray()
    listed = list(entries)
    offsets: list[int] = []
    for i, entry in enumerate(listed):
        offsets.append(len(body))
        if only_body_of in (None, i):
            body += b"PK\3\4" + entry.header(entry.local) + entry.name + entry.extra + entry.content
    for i, entry in enumerate(listed):
        said = {
            "made_on": 3 << 8 | 10,
            "mode": 0o100644,
            "offset": offsets[only_body_of or 0] if only_body_of is not None else offsets[i],
        }
        changes = {k: v for k, v in entry.central.items() if k in _HEADER}
        said |= {k: v for k, v in entry.central.items() if k not in _HEADER}
        directory += b"PK\1\2" + struct.pack("<H", said["made_on"]) + entry.header(changes)
        directory += struct.pack("<3H2L", len(entry.comment), 0, 0, said["mode"] << 16, said["offset"])
        directory += entry.name + entry.extra + entry.comment
    body += between
    last = {"disk": 0, "first_disk": 0, "here": len(listed), "count": len(listed), "size": len(directory), "start": len(body)}
    last |= end or {}
    tail = b"PK\5\6" + struct.pack("<4H2LH", *last.values(), len(end_comment)) + end_comment
    return bytes(body + directory + tail + after)
