"""Device memory: buffers, the ledger that counts them, and byte spans of values in several parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.base import Array
from pumice.core.streamed import StreamedArray
from pumice.errors import DeviceError

# Bindings of vec4 arrays need whole 16-byte elements, and no buffer may be empty.
GRAIN = 16
UPLOAD_CHUNK = 32 << 20


def rounded(nbytes: int, to: int = GRAIN) -> int:
    """`nbytes` rounded up.

    >>> rounded(17), rounded(5, 4), rounded(0)
    (32, 8, 0)
    """
    return -(-nbytes // to) * to


@dataclass
class Ledger:
    """What is alive on a device because of us; back at its start when every session is closed."""

    buffers: int = 0
    buffer_bytes: int = 0
    sessions: int = 0

    def snapshot(self) -> dict[str, int]:
        return {"buffers": self.buffers, "buffer_bytes": self.buffer_bytes, "sessions": self.sessions}


class DeviceBuffer:
    """A GPU buffer; subclasses know the API. All calls are made under the device's lock.

    It has one owner, a session or a resident. A submit in flight keeps its buffers alive; only a later one must not name a
    destroyed buffer, and what is closed or released makes none.
    """

    __slots__ = ("_ledger", "alive", "handle", "label", "nbytes", "raw")

    def __init__(self, raw: Any, handle: Any, nbytes: int, label: str, ledger: Ledger) -> None:
        self.raw, self.handle, self.nbytes, self.label = raw, handle, nbytes, label
        self.alive = True
        self._ledger = ledger
        ledger.buffers += 1
        ledger.buffer_bytes += nbytes

    def release(self) -> None:
        if not self.alive:
            raise DeviceError(f"the buffer {self.label!r} is released twice")
        self.alive = False
        self._ledger.buffers -= 1
        self._ledger.buffer_bytes -= self.nbytes
        self._destroy()

    def _destroy(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Where one part of a value is."""

    buffer: DeviceBuffer
    offset: int
    nbytes: int

    @property
    def binding(self) -> tuple[int, int]:
        """Offset and size to bind: whole 16-byte elements, and never nothing. An empty part binds the buffer's head."""
        return (self.offset, rounded(self.nbytes)) if self.nbytes else (0, GRAIN)


def spans(places: Iterable[BufferRange], nbytes: int) -> Iterator[tuple[BufferRange, int, int]]:
    """(part, first byte of the value in it, bytes in it) for the first `nbytes` bytes of a value."""
    start = 0
    for place in places:
        size = min(place.nbytes, nbytes - start)
        if size > 0:
            yield place, start, size
            start += size
    if start < nbytes:
        raise DeviceError(f"a value of {nbytes} bytes has room for {start} on the device")


def sub_ranges(places: Iterable[BufferRange], start: int, nbytes: int) -> Iterator[tuple[BufferRange, int]]:
    """Bytes `start` … of a value as ranges of its parts, each with how many bytes come before it."""
    done = 0
    for place in places:
        size = min(place.nbytes - start, nbytes - done)
        if size > 0:
            yield BufferRange(place.buffer, place.offset + start, size), done
            done += size
        start = max(0, start - place.nbytes)
    if done < nbytes:
        raise DeviceError(f"{nbytes - done} bytes are beyond the end of a value on the device")


class ByteSource:
    """An array as a run of bytes that is read in pieces, so that a memory-mapped file never is in memory twice."""

    def __init__(self, array: Array | StreamedArray) -> None:
        self.nbytes = array.nbytes
        self._parts = array.pieces if isinstance(array, StreamedArray) else partial(_parts, array)

    def pieces(self, start: int, size: int) -> Iterator[tuple[int, Array]]:
        """(offset from start, bytes) in chunks that bound the queue's staging memory, the last one padded to a whole word."""
        at = 0
        for part in self._parts(start, start + size):
            yield at, _whole_words(part)
            at += part.size


def _parts(array: Array, start: int, stop: int) -> Iterator[Array]:
    """Bytes start…stop of an array."""
    flat = array.reshape(-1).view(np.uint8) if array.flags.c_contiguous and array.size else None
    for at in range(start, stop, UPLOAD_CHUNK):
        end = min(at + UPLOAD_CHUNK, stop)
        if flat is not None:
            yield flat[at:end]
        else:
            item = array.itemsize
            first = at // item
            copied = np.ascontiguousarray(array.flat[first : -(-end // item)]).view(np.uint8)
            yield copied[at - first * item : end - first * item]


def _whole_words(part: Array) -> Array:
    if part.size % 4 == 0:
        return part
    padded = np.zeros(rounded(part.size, 4), np.uint8)
    padded[: part.size] = part
    return padded
