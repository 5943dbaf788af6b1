"""Files whose bytes are checked before they are used: read chunk by chunk, each compared with its SHA-256.

What was hashed is what is used: a chunk is read once, into memory of this process, and given out only if its hash is right.
A file that changes while it is read is therefore either what it should be or refused.
"""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from pumice.core.records import dataclass
from pumice.errors import DamagedFile

Bytes = NDArray[np.uint8]

# Bytes of a chunk where nobody says: a few of them are in memory at a time, and a table of hashes stays short.
CHUNK_BYTES = 4 << 20
# Chunks that are read and hashed while another one is used.
_AHEAD = 2
DAMAGED = "the file is damaged, or not the one that was hashed: copy it again"


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """What a file must hold: `nbytes` bytes, in chunks of `size` of which the last may be shorter, and the hash of each.

    >>> table = chunk_table("w.bin", b"abcdefgh", size=4)
    >>> len(table), table.span(1), table.digests[0][:8]
    (2, (4, 8), '88d4266f')
    """

    name: str
    nbytes: int
    size: int
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.size <= 0 or self.size % 4 or self.nbytes < 0 or len(self.digests) != -(-self.nbytes // self.size):
            raise DamagedFile(
                f"{self.name}: {len(self.digests)} hashes of chunks of {self.size} bytes are not those of {self.nbytes} bytes",
                hint="chunks have a multiple of four bytes, and every byte is in one",
                file=self.name,
            )

    def __len__(self) -> int:
        return len(self.digests)

    def span(self, index: int) -> tuple[int, int]:
        """The first byte of a chunk, and the one after its last."""
        return index * self.size, min((index + 1) * self.size, self.nbytes)


def chunk_table(name: str, data: bytes, *, size: int = CHUNK_BYTES) -> ChunkTable:
    """The table of some bytes."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return ChunkTable(name, len(data), size, tuple(hashlib.sha256(part).hexdigest() for part in parts))


class ChunkHasher:
    """Hashes chunks of bytes that come in any portions, while they are written."""

    def __init__(self, size: int = CHUNK_BYTES) -> None:
        self._size, self._filled, self._current = size, 0, hashlib.sha256()
        self._digests: list[str] = []

    def update(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            part = view[: self._size - self._filled]
            self._current.update(part)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == self._size:
                self._next()

    def _next(self) -> None:
        self._digests.append(self._current.hexdigest())
        self._filled, self._current = 0, hashlib.sha256()

    def digests(self) -> list[str]:
        """The hashes of all chunks; nothing may come after this."""
        if self._filled:
            self._next()
        return self._digests


class ChunkSource(Protocol):
    """Where chunks come from. Chunks are asked for in order, by sources that can do nothing else."""

    def fill(self, buffer: memoryview, offset: int) -> int:
        """Read what is at `offset`, and give how many bytes there were: fewer than the buffer takes only at the end."""

    def size(self) -> int | None:
        """How many bytes there are, None where only reading tells."""


class FileBytes:
    """A file that stays open, so that another one under its name changes nothing."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self._name = path, name or path.name
        try:
            # Opening a named pipe would wait for a writer.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise DamagedFile(f"{self._name}: this is no regular file", hint=DAMAGED, file=self._name, path=str(path))
            self._file, self._lock = FileIO(path), Lock()
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, self._file.close)

    def fill(self, buffer: memoryview, offset: int) -> int:
        done = 0
        try:
            with self._lock:
                self._file.seek(offset)
                while done < len(buffer):
                    read = self._file.readinto(buffer[done:])
                    if not read:
                        break
                    done += read
        except OSError as error:
            raise self._unreadable(error) from error
        return done

    def size(self) -> int | None:
        return os.fstat(self._file.fileno()).st_size

    def _unreadable(self, error: Exception) -> DamagedFile:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", "") or str(error)
        return DamagedFile(
            f"{self._name}: cannot be read: {why}",
            hint="check the path and its permissions",
            file=self._name,
            path=str(self.path),
        )


class StreamBytes:
    """Bytes that can only be read from the beginning to the end, such as a download."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._at = stream, 0

    def fill(self, buffer: memoryview, offset: int) -> int:
        if offset != self._at:
            raise ValueError(f"a stream at byte {self._at} is asked for byte {offset}")
        done = 0
        while done < len(buffer):
            part = self._stream.read(len(buffer) - done)
            if not part:
                break
            buffer[done : done + len(part)] = part
            done += len(part)
        self._at += done
        return done

    def size(self) -> int | None:
        return None


class CheckedFile:
    """The chunks of one file or stream, each given out only if its SHA-256 is right.

    >>> import io
    >>> table = chunk_table("w.bin", b"abcdefgh", size=4)
    >>> [bytes(c) for c in CheckedFile(StreamBytes(io.BytesIO(b"abcdefgh")), table).chunks()]
    [b'abcd', b'efgh']
    >>> for chunk in CheckedFile(StreamBytes(io.BytesIO(b"abcdeFgh")), table).chunks():
    ...     print(bytes(chunk))
    Traceback (most recent call last):
    pumice.errors.DamagedFile: [damaged-file] w.bin: chunk 1, bytes 4 to 8, is not what was hashed
      hint: the file is damaged, or not the one that was hashed: copy it again
    """

    def __init__(self, source: ChunkSource, table: ChunkTable) -> None:
        self.source, self.table = source, table
        self._check_size()

    def chunk(self, index: int) -> Bytes:
        """A chunk, in memory of its own that nothing changes."""
        start, stop = self.table.span(index)
        data = np.empty(stop - start, np.uint8)
        read = self.source.fill(data.data, start)
        if read < stop - start:
            raise self._damaged(f"it ends at byte {start + read} of {self.table.nbytes}, in chunk {index}", index, start)
        if hashlib.sha256(data.data).hexdigest() != self.table.digests[index]:
            raise self._damaged(f"chunk {index}, bytes {start} to {stop}, is not what was hashed", index, start)
        data.flags.writeable = False
        return data

    def chunks(self) -> Iterator[Bytes]:
        """All chunks in order; that nothing comes after them is known when the last one is asked for."""
        for index in range(len(self.table)):
            if index + 1 == len(self.table):
                last = self.chunk(index)
                self._check_end()
                yield last
            else:
                yield self.chunk(index)
        if not len(self.table):
            self._check_end()

    def read(self) -> bytes:
        """All of it; for files that are small."""
        return b"".join(map(bytes, self.chunks()))

    def _check_end(self) -> None:
        self._check_size()
        if self.source.size() is None and self.source.fill(memoryview(bytearray(1)), self.table.nbytes):
            raise self._damaged(f"it has more than {self.table.nbytes} bytes", None, self.table.nbytes)

    def _check_size(self) -> None:
        size = self.source.size()
        if size is not None and size != self.table.nbytes:
            raise self._damaged(f"it has {size} bytes, not {self.table.nbytes}", None, min(size, self.table.nbytes))

    def _damaged(self, what: str, chunk: int | None, offset: int) -> DamagedFile:
        name = self.table.name
        return DamagedFile(f"{name}: {what}", hint=DAMAGED, file=name, chunk=chunk, offset=offset)


class ChunkReader:
    """Ranges of bytes of several files, by their names.

    Readers are expected to go on: while a chunk is used the next ones, in the order of the files, are read and hashed. No more
    than these are in memory.
    """

    def __init__(self, files: Sequence[CheckedFile]) -> None:
        self._files = {f.table.name: f for f in files}
        places = [(f.table.name, index) for f in files for index in range(len(f.table))]
        self._first, self._after = places[:1], dict(pairwise(places))
        self._unread = set(places)
        self._lock = Lock()
        self._held: tuple[tuple[str, int], Bytes] | None = None
        self._ahead: deque[tuple[tuple[str, int], Future[Bytes]]] = deque()
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "pumice-chunks")

    def start(self) -> None:
        """Read the first chunks now, while the caller prepares what it will do with them."""
        with self._lock:
            self._read_ahead(self._first[0] if self._first else None)

    def pieces(self, name: str, start: int, stop: int) -> Iterator[Bytes]:
        """The bytes of a file from `start` to `stop`, cut where its chunks end."""
        size = self._files[name].table.size
        while start < stop:
            index = start // size
            end = min(stop, (index + 1) * size)
            yield self._chunk((name, index))[start - index * size : end - index * size]
            start = end

    def finish(self) -> None:
        """Check what nobody has asked for: padding, and all of the files if nothing was read. No chunk is read ahead any more."""
        for place in sorted(self._unread):
            self._chunk(place)
        self.close()

    def close(self) -> None:
        """Read nothing ahead any more; chunks can still be read."""
        with self._lock:
            pool, self._pool, self._held = self._pool, None, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._ahead.clear()

    def _chunk(self, place: tuple[str, int]) -> Bytes:
        with self._lock:
            if self._held is None or self._held[0] != place:
                # The one before goes first.
                self._held = None
                found = self._read(place)
                self._unread.discard(place)
                self._held = place, found
                self._read_ahead(self._after.get(place))
            return self._held[1]

    def _read(self, place: tuple[str, int]) -> Bytes:
        while self._ahead:
            read, future = self._ahead.popleft()
            if read == place:
                return future.result()
            future.cancel()  # the caller went elsewhere
        return self._files[place[0]].chunk(place[1])

    def _read_ahead(self, place: tuple[str, int] | None) -> None:
        """Let the chunks from a place on be read, as many as may be in memory."""
        for _ in range(_AHEAD):
            if place is None or self._pool is None:
                return
            if all(read != place for read, _ in self._ahead):
                self._ahead.append((place, self._pool.submit(self._files[place[0]].chunk, place[1])))
            place = self._after.get(place)
