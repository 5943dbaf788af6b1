"""Frames between the API process and its workers: four bytes of length, then one JSON object."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from pumice.errors import FormatError

Frame = dict[str, Any]

_LENGTH = struct.Struct(">I")
# Larger than any request that the API process lets in, small enough that a damaged length is noticed at once.
MOST_BYTES = 1 << 28


def pack(frame: Frame) -> bytes:
    """The bytes of a frame.

    >>> pack({"id": 1})[3:]
    b'\\t{"id": 1}'
    """
    body = json.dumps(frame).encode()
    if len(body) > MOST_BYTES:
        raise FormatError(f"a frame of {len(body)} bytes is larger than {MOST_BYTES}", hint="send it in pieces")
    return _LENGTH.pack(len(body)) + body


async def receive(stream: asyncio.StreamReader) -> Frame | None:
    """The next frame; None where the other side has ended, even in the middle of one.

    >>> async def both():
    ...     stream = asyncio.StreamReader()
    ...     stream.feed_data(pack({"id": 1}) + pack({"id": 2})[:7])
    ...     stream.feed_eof()
    ...     return await receive(stream), await receive(stream)
    >>> asyncio.run(both())
    ({'id': 1}, None)
    """
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        if length > MOST_BYTES:
            raise FormatError(f"a frame says that it has {length} bytes", hint="the other side is not a worker of this version")
        found = json.loads(await stream.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    if not isinstance(found, dict):
        raise FormatError("a frame holds no object", hint="the other side is not a worker of this version")
    return found
