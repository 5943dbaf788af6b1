"""A reader of PNG images, so that pictures need no image package; it trusts no number in a file."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pumice.formats.weights import malformed

Array = np.ndarray[Any, Any]
_MAGIC = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_MOST_PIXELS = 1 << 26
_HINT = "save it as a PNG of 8 bits a colour, not interlaced and without a palette"


def read_png(path: Path | str) -> Array:
    """An image [height, width, 4] of red, green, blue and alpha from 0 to 1, float32; 8 bits a colour, grey or not.

    >>> import tempfile
    >>> row = zlib.compress(bytes([0, 255, 0, 128]))
    >>> def chunk(kind, data):
    ...     return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    >>> head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.png")
    ...     _ = file.write_bytes(_MAGIC + chunk(b"IHDR", head) + chunk(b"IDAT", row) + chunk(b"IEND", b""))
    ...     read_png(file).round(2).tolist()
    [[[1.0, 0.0, 0.5, 1.0]]]
    """
    path = Path(path)
    if not path.is_file():
        raise malformed(path, "is no file", hint="check the path")
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise malformed(path, "is no PNG", offset=0, hint=_HINT)
    width = height = channels = 0
    body: list[bytes] = []
    at = len(_MAGIC)
    while True:
        if at + 12 > len(data):
            raise malformed(path, "is cut off", offset=at, hint="download it again")
        length, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + length]
        if at + 12 + length > len(data) or zlib.crc32(kind + content) != struct.unpack_from(">I", data, at + 8 + length)[0]:
            raise malformed(path, f"the chunk {kind!r} is damaged", offset=at, hint="download it again")
        if kind == b"IHDR" and length == 13 and not width:
            width, height, depth, colour, packing, filters, laced = struct.unpack(">IIBBBBB", content)
            channels = _CHANNELS.get(colour, 0)
            if depth != 8 or not channels or packing or filters or laced:
                raise malformed(path, "is a PNG of a kind that is not read", offset=at, hint=_HINT)
            if not 0 < width * height <= _MOST_PIXELS:
                raise malformed(path, f"has {width}x{height} pixels; up to {_MOST_PIXELS} are read", offset=at, hint=_HINT)
        elif kind == b"IDAT" and width:
            body.append(content)
        elif kind == b"IEND":
            break
        elif kind[0] < 97:  # a capital first: no reader may pass over it
            raise malformed(path, f"has a chunk {kind!r} that is not read", offset=at, hint=_HINT)
        at += 12 + length
    pixels = _unfiltered(path, b"".join(body), width, height, channels).astype(np.float32) / 255
    colours = pixels[..., : channels - 1] if channels in (2, 4) else pixels
    alpha = pixels[..., -1:] if channels in (2, 4) else np.ones((height, width, 1), np.float32)
    return np.concatenate([np.broadcast_to(colours, (height, width, 3)), alpha], 2)


def _unfiltered(path: Path, packed: bytes, width: int, height: int, channels: int) -> Array:
    size = height * (1 + width * channels)
    try:
        # One byte more than there may be: what would unpack to far more is refused, not unpacked.
        rows = np.frombuffer(zlib.decompressobj().decompress(packed, size + 1), np.uint8)
    except zlib.error as e:
        raise malformed(path, f"its pixels are damaged: {e}", hint="download it again") from None
    if len(rows) != size or not width:
        raise malformed(path, f"has {len(rows)} bytes of pixels, not {size}", hint="download it again")
    rows = rows.reshape(height, 1 + width * channels)
    out = np.zeros((height + 1, width + 1, channels), np.uint8)  # zeros above and to the left
    for y, (kind, line) in enumerate(zip(rows[:, 0].tolist(), rows[:, 1:].reshape(height, width, channels), strict=True)):
        above, row = out[y], out[y + 1]
        if kind == 0:
            row[1:] = line
        elif kind == 1:
            row[1:] = np.cumsum(line, 0, dtype=np.uint8)
        elif kind == 2:
            row[1:] = line + above[1:]
        elif kind in (3, 4):
            _predicted(kind, line, above, row)
        else:
            raise malformed(path, f"row {y} has the filter {kind}, which PNG does not have", hint="download it again")
    return out[1:, 1:]


def _predicted(kind: int, line: Array, above: Array, row: Array) -> None:
    """The filters of which each pixel depends on that to its left: the mean of left and above, or Paeth's choice."""
    corner, top, given = above[:-1].astype(int).tolist(), above[1:].astype(int).tolist(), line.astype(int).tolist()
    left = [0] * line.shape[1]
    for x, pixel in enumerate(given):
        for c, value in enumerate(pixel):
            a, b, d = left[c], top[x][c], corner[x][c]
            if kind == 3:
                guess = (a + b) // 2
            else:
                to_a, to_b, to_d = abs(b - d), abs(a - d), abs(a + b - 2 * d)
                guess = a if to_a <= to_b and to_a <= to_d else b if to_b <= to_d else d
            pixel[c] = (value + guess) % 256
        left = pixel
    row[1:] = given
