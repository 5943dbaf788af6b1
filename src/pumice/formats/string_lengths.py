"""How long the strings of a GGUF file are, kept for its next opening: to follow them one by one takes most of its time."""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pumice.core.kept import forget_oldest, keep, kept_folder, read_kept
from pumice.formats.weights import MappedFile

# Arrays of fewer strings are read as fast.
LEAST_STRINGS = 1 << 12
# Lengths whose first two bytes are all of them: tokens and merges are far shorter.
_MOST_BYTES = 1 << 16
# Files whose lengths are kept, four bytes a string.
_KEPT = 64
_HEAD = np.dtype([("at", "<u8"), ("count", "<u8")])


class StringLengths:
    """The lengths of the strings in the large arrays of a file, by where an array begins.

    A file is identified by path, size, inode and time of change. What is kept is compared with the lengths in the file, so that
    it saves time and decides nothing.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._path: Path | None = None
        self._known: dict[int, NDArray[np.uint32]] | None = None
        self._new = False

    def bounds(self, at: int, count: int, end: int) -> array[int] | None:
        """Where each string of an array that begins at `at` ends, the beginning first; None if that is not known."""
        if count < LEAST_STRINGS:
            return None
        lengths = self._all().get(at)
        if lengths is None or len(lengths) != count:
            return None
        ends = np.empty(count + 1, np.uint64)
        ends[0] = at
        np.cumsum(lengths.astype(np.uint64) + np.uint64(8), out=ends[1:])
        ends[1:] += np.uint64(at)
        if int(ends[-1]) > end:
            return None
        data, places = np.frombuffer(self._file.data, np.uint8), ends[:-1].astype(np.int64)
        there = data[places].astype(np.uint32) | data[places + 1].astype(np.uint32) << np.uint32(8)
        if not np.array_equal(there, lengths):
            return None
        return array("Q", ends.tobytes())

    def note(self, at: int, bounds: array[int]) -> None:
        """The ends of the strings of an array that were found in the file."""
        if len(bounds) <= LEAST_STRINGS:
            return
        lengths = np.diff(np.frombuffer(bounds, np.uint64)) - np.uint64(8)
        if int(lengths.max()) < _MOST_BYTES:
            self._all()[at] = lengths.astype(np.uint32)
            self._new = True

    def keep(self) -> None:
        """To be called when all arrays are read: what is new is kept."""
        if self._new and self._path is not None and self._known:
            parts = [
                np.array([(at, len(found))], _HEAD).tobytes() + found.astype("<u4").tobytes() for at, found in self._known.items()
            ]
            if keep(self._path, b"".join(parts)):
                forget_oldest(self._path.parent, _KEPT)

    def _all(self) -> dict[int, NDArray[np.uint32]]:
        if self._known is None:
            self._known = {}
            folder = kept_folder("strings")
            if folder is not None:
                about = os.stat(self._file.path)
                facts = (os.path.realpath(self._file.path), about.st_size, about.st_mtime_ns, about.st_ino)
                self._path = folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.lengths"
                self._known = _read(read_kept(self._path) or b"")
        return self._known


def _read(body: bytes) -> dict[int, NDArray[np.uint32]]:
    found, pos = {}, 0
    while len(body) - pos >= _HEAD.itemsize:
        ((at, count),) = np.frombuffer(body, _HEAD, 1, pos).tolist()
        pos += _HEAD.itemsize
        if 4 * count > len(body) - pos:
            break
        found[at] = np.frombuffer(body, "<u4", count, pos)
        pos += 4 * count
    return found
