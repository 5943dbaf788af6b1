"""Uploads: bytes go through mapped staging memory, and their copies are recorded until something is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pumice.backends.base import Array
from pumice.backends.gpu.memory import DeviceBuffer
from pumice.backends.vulkan.commands import VulkanCommands
from pumice.backends.vulkan.memory import VulkanBuffer

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

# Staging memory is used in turns: while one is copied from, the next is written.
_CHUNK, _CHUNKS = 8 << 20, 3
_ALIGNMENT = 16


class Transfers:
    """Copies that were recorded and not submitted yet. Calls hold the device's lock."""

    def __init__(self, gpu: Vulkan) -> None:
        self._gpu = gpu
        self._commands: VulkanCommands | None = None
        # Each staging buffer, and the value of the timeline at which the device has read it.
        self._chunks: list[tuple[VulkanBuffer, int]] = []
        self._current = self._used = 0

    @property
    def pending(self) -> bool:
        """Whether something waits for a submit."""
        return self._commands is not None

    def _open(self) -> VulkanCommands:
        if self._commands is None:
            # Runs that were started before come first.
            self._gpu.send_together()
            self._commands = VulkanCommands(self._gpu)
        return self._commands

    def fill(self, buffer: DeviceBuffer) -> None:
        """Zeros into a new buffer."""
        self._open().fill(buffer.handle, buffer.nbytes)

    def write(self, buffer: DeviceBuffer, offset: int, data: Array) -> None:
        """Bytes into a buffer, before whatever is submitted next."""
        at = 0
        while at < data.size:
            staging, start = self._room()
            size = min(data.size - at, staging.nbytes - start)
            np.frombuffer(staging.view, np.uint8, count=size, offset=start)[:] = data[at : at + size]
            self._open().copy(staging.handle, start, buffer.handle, offset + at, -(-size // 4) * 4)
            self._used = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT
            at += size

    def _room(self) -> tuple[VulkanBuffer, int]:
        """A staging buffer with room, and where it begins."""
        if not self._chunks or self._used >= _CHUNK:
            self._next_chunk()
        return self._chunks[self._current][0], self._used

    def _next_chunk(self) -> None:
        gpu = self._gpu
        if self._chunks:
            self.flush()
            self._chunks[self._current] = self._chunks[self._current][0], gpu.submitted
        if len(self._chunks) < _CHUNKS:
            made = gpu.memory.create(_CHUNK, "staging", "staging", gpu.memory.unlisted)
            self._chunks.append((made, 0))
            self._current = len(self._chunks) - 1
        else:
            self._current = (self._current + 1) % _CHUNKS
            gpu.wait_for(self._chunks[self._current][1])
        self._used = 0

    def flush(self) -> None:
        """Submit what was recorded."""
        commands, self._commands = self._commands, None
        if commands is not None:
            commands.finish()
            self._gpu.submit(commands)
            self._gpu.retire(commands.free)
