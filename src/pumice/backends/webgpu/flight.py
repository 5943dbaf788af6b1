"""Flights: submits whose results are on their way to the host, and the pool of memory in which they arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice import config
from pumice.backends.base import Array
from pumice.errors import ClosedError

if TYPE_CHECKING:
    from pumice.backends.webgpu.device import Gpu

# Free buffers that the pool keeps; more of them are in use only while several runs are under way.
_KEPT = 4
# A wait asks again and again at first, which is what short runs need, then at intervals that stay small beside the whole wait.
_EAGER_SECONDS = 200e-6
_SHARE, _LONGEST_SLEEP = 0.1, 1e-3


class Staging:
    """Buffers that the host can map, by size; powers of two, so that they fit again."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._free: list[Any] = []

    def take(self, nbytes: int) -> Any:
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
            return gpu.raw.create_buffer(label="pumice staging", size=size, usage=usage)

    def give(self, buffer: Any) -> None:
        """Take an unmapped buffer back; the largest of too many go, as they came from the rarest runs."""
        self._free.append(buffer)
        if len(self._free) > _KEPT:
            self._free.remove(max(self._free, key=lambda b: b.size))


class Flight:
    """One submit whose results are to come.

    A lost device looks alive by specification, so a number that is new for each flight makes the same way as the results:
    if it does not arrive, neither did they.
    """

    def __init__(self, gpu: Gpu, staging: Any, total: int, parts: Sequence[tuple[int, int]], stamp: int) -> None:
        self._gpu, self.staging, self._total, self._parts, self.stamp = gpu, staging, total, parts, stamp
        self._mark = gpu.mark
        self._abandoned = False
        self._ticket = 0
        # Done when the submit has left and the results are asked for, where another thread sees to that.
        self.left: Future[None] | None = None

    def request(self) -> None:
        """Ask for the results, once the submit has left."""
        self._ticket = self._gpu.mapper.request(self.staging._internal, self._total)

    def abandon(self) -> None:
        """A `wait` that is under way, or comes later, ends with a ClosedError; the device finishes what it has begun."""
        self._abandoned = True

    def wait(self) -> list[Array]:
        """The bytes of each part, fresh; to be called once. Needs no lock, so that others can submit meanwhile."""
        if self.left is not None:
            self.left.result()
        gpu, ticket = self._gpu, self._ticket
        try:
            mapped = self._poll()
        except BaseException:
            # The buffer may yet be mapped, so it does not go back to the pool.
            gpu.mapper.forget(ticket)
            raise
        self._mark("wait")
        if not mapped:
            raise gpu.mark_lost("results could not be mapped")
        with gpu.lock, gpu.guard("reading results"):
            with gpu.mapper.mapped(gpu.queue._internal, self.staging._internal, self._total) as view:
                stamp = int.from_bytes(view[:4], "little")
                results = [np.array(np.frombuffer(view, np.uint8, count=n, offset=at)) for at, n in self._parts]
            gpu.staging.give(self.staging)
        self._mark("readback")
        if stamp != self.stamp:
            raise gpu.mark_lost(f"the liveness word came back as {stamp}, not {self.stamp}")
        return results

    def _poll(self) -> bool:
        gpu, mapper, limit = self._gpu, self._gpu.mapper, config.timeout
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
            time.sleep(min(waited * _SHARE, _LONGEST_SLEEP) if waited > _EAGER_SECONDS else 0)
