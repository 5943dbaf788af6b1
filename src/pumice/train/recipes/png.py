"""A small PNG writer, so that results need no image package."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_png(path: Path, image: NDArray[Any]) -> None:
    """Write an image [height, width, 3] of colours from 0 to 1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_png(Path(folder, "a.png"), np.zeros((2, 3, 3)))
    ...     Path(folder, "a.png").read_bytes()[:4]
    b'\\x89PNG'
    """
    path.write_bytes(png_bytes(image))


def png_bytes(image: NDArray[Any], level: int = 9) -> bytes:
    """The same as the bytes of a file; `level` of compression, from 1, which is fast, to 9.

    >>> len(png_bytes(np.zeros((2, 3, 3)))) > 50
    True
    """
    height, width = image.shape[:2]
    pixels = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8).reshape(height, width * 3)
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # each row begins with its filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), level)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
