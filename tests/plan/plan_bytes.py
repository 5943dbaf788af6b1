"""Plan files taken apart and put together again with a right hash, as somebody who means harm would."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any


def opened(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the blobs of a good file."""
    (size,) = struct.unpack_from("<I", data, 12)
    header = json.loads(data[16 : 16 + size])
    at, blobs = 16 + size + -size % 8, []
    for n in header["blobs"]:
        blobs.append(data[at : at + n])
        at += n + -n % 8
    return header, blobs


def sealed(header: Any, blobs: list[bytes], *, version: int = 1) -> bytes:
    """A file of any header, in canonical form."""
    return sealed_text(json.dumps(header, sort_keys=True, separators=(",", ":")).encode(), blobs, version=version)


def sealed_text(text: bytes, blobs: list[bytes], *, version: int = 1) -> bytes:
    """A file of any header text."""
    body = b"\x93PUMPLAN" + struct.pack("<II", version, len(text))
    for piece in (text, *blobs):
        body += piece + bytes(-len(piece) % 8)
    return hashed(body)


def hashed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def last(header: dict[str, Any]) -> dict[str, Any]:
    """The widest regime of a header."""
    found: dict[str, Any] = header["regimes"][-1]
    return found
