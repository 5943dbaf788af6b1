"""Readbacks: submits whose results are copied to the host, and the pool of staging buffers that receive them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import Array
from pumice.errors import ClosedError

if TYPE_CHECKING:
    from pumice.backends.webgpu.background import EncodeJob
    from pumice.backends.webgpu.device import WebGpu
    from pumice.backends.webgpu.encode import Commands

# Free buffers that the pool keeps; more are in use only while several runs are in flight.
_KEPT = 4
# Liveness words, one per readback.
_STAMPS = 256


@dataclass(frozen=True)
class _Polling:
    """How a wait polls: continuously at first, then at intervals proportional to the time waited."""

    eager_seconds: float
    share: float
    longest_sleep: float


_POLL = _Polling(200e-6, 0.1, 1e-3)
# For the only readback in flight on a hardware GPU: poll eagerly, as most likely nothing else is waited for.
_POLL_EAGERLY = _Polling(3e-3, 0.02, 200e-6)


class StagingBuffer:
    """A buffer that receives results, and the index of its last liveness word."""

    __slots__ = ("handle", "index", "raw", "size")

    def __init__(self, raw: Any, size: int) -> None:
        self.raw, self.handle, self.size, self.index = raw, raw._internal, size, -1


class StagingPool:
    """Buffers that the host can map, by size; powers of two, so that they fit again.

    A lost device looks alive by specification, so a liveness word is copied along with the results: if it is wrong, so are
    they. All words are on the device from the start, and each readback takes another one than the last in its buffer had.
    """

    def __init__(self, gpu: WebGpu) -> None:
        self._gpu = gpu
        self._free: list[StagingBuffer] = []
        # Spread over all words: nothing that memory is likely to hold.
        self._words: Array = np.arange(1, _STAMPS + 1, dtype=np.uint32) * np.uint32(2654435761)
        usage = gpu.wgpu.BufferUsage
        self._stamps = gpu.raw.create_buffer(size=self._words.nbytes, usage=usage.COPY_SRC | usage.COPY_DST)
        gpu.queue.write_buffer(self._stamps, 0, self._words)

    def take(self, nbytes: int) -> StagingBuffer:
        """A buffer of at least `nbytes`; until it is unmapped no submit may name it, so it leaves the pool."""
        fitting = [b for b in self._free if b.size >= nbytes]
        if fitting:
            found = min(fitting, key=lambda b: b.size)
            self._free.remove(found)
            return found
        gpu = self._gpu
        with gpu.guard("the memory that results arrive in"):
            gpu.fault("memory")
            usage = gpu.wgpu.BufferUsage.MAP_READ | gpu.wgpu.BufferUsage.COPY_DST
            size = max(1 << 16, 1 << (nbytes - 1).bit_length())
            return StagingBuffer(gpu.raw.create_buffer(label="pumice staging", size=size, usage=usage), size)

    def give(self, buffer: StagingBuffer) -> None:
        """Take an unmapped buffer back; of too many the largest is dropped, as large runs are rare."""
        self._free.append(buffer)
        if len(self._free) > _KEPT:
            self._free.remove(max(self._free, key=lambda b: b.size))

    def record_stamp(self, commands: Commands, buffer: StagingBuffer) -> None:
        """Copies a new liveness word to the first word of the buffer, after everything recorded before."""
        buffer.index = (buffer.index + 1) % _STAMPS
        commands.copy(self._stamps._internal, 4 * buffer.index, buffer.handle, 0, 4)

    def stamp(self, buffer: StagingBuffer) -> int:
        """The liveness word that is expected."""
        return int(self._words[buffer.index])


class Readback:
    """Results in flight: `parts` of (offset, bytes) in a buffer, of which the first `total` bytes count."""

    def __init__(self, gpu: WebGpu, buffer: StagingBuffer, total: int, parts: Sequence[tuple[int, int]], alone: bool) -> None:
        self._gpu, self.buffer, self._total, self.parts = gpu, buffer, total, parts
        self._mark = gpu.mark
        self._polling = _POLL_EAGERLY if alone and not gpu.adapter.software else _POLL
        self._abandoned = False
        # Whether the results have arrived.
        self.arrived = False
        self._ticket = 0
        # With the background encoder: done when the submit was sent and the results were requested.
        self.left: EncodeJob | None = None

    def request(self) -> None:
        """Request the results, once the submit was sent."""
        self._ticket = self._gpu.mapper.request(self.buffer.handle, self._total)

    def abandon(self) -> None:
        """A current or later `wait` ends with a ClosedError; the device finishes the submit."""
        self._abandoned = True

    def wait(self) -> list[Array]:
        """The bytes of each part, as new arrays; call it once. Needs no lock, so that other threads can submit meanwhile."""
        if self.left is not None:
            self.left.result()
        gpu, ticket = self._gpu, self._ticket
        try:
            mapped = self._poll()
        except BaseException:
            # The buffer may yet be mapped, so it does not go back to the pool.
            gpu.mapper.forget(ticket)
            raise
        self.arrived = True
        self._mark("wait")
        if not mapped:
            raise gpu.mark_lost("results could not be mapped")
        wanted = gpu.staging.stamp(self.buffer)
        with gpu.lock, gpu.guard("reading results"), gpu.mapper.lock:
            view = gpu.mapper.view(gpu.queue._internal, self.buffer.handle, self._total)
            stamp = int.from_bytes(view[:4], "little")
            results = [np.array(np.frombuffer(view, np.uint8, count=n, offset=at)) for at, n in self.parts]
            gpu.mapper.unmap(view, self.buffer.handle)
            gpu.staging.give(self.buffer)
        self._mark("readback")
        if stamp != wanted:
            raise gpu.mark_lost(f"the liveness word came back as {stamp}, not {wanted}")
        return results

    def _poll(self) -> bool:
        gpu, mapper, polling, limit = self._gpu, self._gpu.mapper, self._polling, self._gpu.wait_limit
        late = gpu.fault("wait")
        started = time.perf_counter()
        while True:
            found = None if late else mapper.poll(self._ticket)
            if found is not None:
                return found
            if self._abandoned:
                raise ClosedError("the executable was closed while this run was under way", hint="wait for results first")
            waited = time.perf_counter() - started
            if late or waited > limit:
                raise gpu.mark_hung(limit)
            if gpu.lost:
                return False
            # A blocking wait cannot be given a limit, and keeps other threads from submitting.
            # A sleep of 0, some 50 µs on many systems, releases the GIL to threads that record meanwhile.
            time.sleep(min(waited * polling.share, polling.longest_sleep) if waited > polling.eager_seconds else 0)
