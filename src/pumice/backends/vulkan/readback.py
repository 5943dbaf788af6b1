"""Results that come back to the host: mapped memory that receives them, and the wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pumice.backends.base import Array
from pumice.backends.gpu.interface import Read
from pumice.backends.gpu.memory import rounded, spans
from pumice.backends.vulkan.commands import VulkanCommands
from pumice.backends.vulkan.memory import VulkanBuffer

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

# Free buffers that the pool keeps.
_KEPT = 4
_LEAST = 1 << 16


class ReadbackPool:
    """Buffers that results arrive in; powers of two, so that they fit again. Calls hold the device's lock."""

    def __init__(self, gpu: Vulkan) -> None:
        self._gpu = gpu
        self._free: list[VulkanBuffer] = []

    def take(self, nbytes: int) -> VulkanBuffer:
        """A buffer of at least `nbytes`."""
        fitting = [b for b in self._free if b.nbytes >= nbytes]
        if fitting:
            found = min(fitting, key=lambda b: b.nbytes)
            self._free.remove(found)
            return found
        with self._gpu.guard("the memory that results arrive in"):
            self._gpu.fault("memory")
            size = max(_LEAST, 1 << (max(1, nbytes) - 1).bit_length())
            return self._gpu.memory.create(size, "readback", "readback", self._gpu.memory.unlisted)

    def give(self, buffer: VulkanBuffer) -> None:
        """Take a buffer back; of too many the largest goes, as large runs are rare."""
        self._free.append(buffer)
        if len(self._free) > _KEPT:
            largest = max(self._free, key=lambda b: b.nbytes)
            self._free.remove(largest)
            largest.release()


def parts_of(reads: Sequence[Read]) -> tuple[list[tuple[int, int]], int]:
    """Where each read arrives as (offset, bytes), and the bytes of all."""
    parts, total = [], 0
    for _, nbytes in reads:
        parts.append((total, nbytes))
        total += rounded(nbytes)
    return parts, total


def record_reads(commands: VulkanCommands, reads: Sequence[Read], parts: Sequence[tuple[int, int]], target: VulkanBuffer) -> None:
    """Copies of what is read to where it arrives."""
    for (places, nbytes), (offset, _) in zip(reads, parts, strict=True):
        for place, start, size in spans(places, nbytes):
            commands.copy(place.buffer.handle, place.offset, target.handle, offset + start, rounded(size, 4))


def take_out(buffer: VulkanBuffer, parts: Sequence[tuple[int, int]]) -> list[Array]:
    """The bytes that have arrived, as new arrays."""
    return [np.array(np.frombuffer(buffer.view, np.uint8, count=n, offset=at)) for at, n in parts]


class VulkanReadback:
    """Results of one submit in flight."""

    def __init__(self, gpu: Vulkan, buffer: VulkanBuffer, parts: Sequence[tuple[int, int]], value: int) -> None:
        self._gpu, self._buffer, self._parts, self._value = gpu, buffer, parts, value
        self._mark = gpu.mark
        self._abandoned = False

    def abandon(self) -> None:
        """A current or later `wait` ends with a ClosedError; the device finishes the submit."""
        self._abandoned = True

    def wait(self) -> list[Array]:
        """The bytes of each part, as new arrays; call it once."""
        gpu = self._gpu
        gpu.wait_for(self._value, lambda: self._abandoned)
        self._mark("wait")
        with gpu.lock:
            results = take_out(self._buffer, self._parts)
            gpu.staging.give(self._buffer)
        self._mark("readback")
        return results
