"""Timestamp queries of Vulkan: numbered timestamps in one pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.gpu.memory import BufferRange
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.library import ffi, make
from pumice.errors import DeviceError

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import PassStamps
    from pumice.backends.vulkan.commands import VulkanCommands
    from pumice.backends.vulkan.device import Vulkan


class VulkanQueries:
    """Implements `TimestampQueries`; it is the query set that `PassStamps` name."""

    def __init__(self, gpu: Vulkan, count: int) -> None:
        self._gpu, self.count = gpu, count
        self._written: set[int] = set()
        out = ffi().new("VkQueryPool *")
        about = make("VkQueryPoolCreateInfo", queryType=vk.QUERY_TYPE_TIMESTAMP, queryCount=count)
        gpu.call.checked("CreateQueryPool", gpu.device, about, ffi().NULL, out)
        self._pool = out[0]
        self._buffer = gpu.create_buffer(8 * count, "timestamps")

    @property
    def place(self) -> BufferRange:
        """Where the numbers are once they are resolved."""
        return BufferRange(self._buffer, 0, 8 * self.count)

    def writes(self, begin: int | None, end: int | None) -> PassStamps:
        """The timestamp argument of a pass."""
        return self, begin, end

    def record(self, commands: VulkanCommands, index: int) -> None:
        """A timestamp when all that was recorded before is done."""
        if not self._written:
            commands.reset_queries(self._pool, self.count)
        self._written.add(index)
        commands.stamp(self._pool, index)

    def write(self, commands: VulkanCommands, pass_handle: Any, index: int) -> None:
        """A timestamp between steps."""
        self.record(commands, index)

    def resolve(self, commands: VulkanCommands) -> None:
        """Move the numbers to where they can be read from."""
        if len(self._written) != self.count:  # the device would wait for the others for ever
            raise DeviceError(f"{self.count} timestamps were asked for, {len(self._written)} are written")
        commands.copy_queries(self._pool, self.count, self._buffer.handle)
        # The next use begins anew.
        self._written = set()

    def seconds(self, zero: int) -> list[float]:
        """All timestamps, once the submit that wrote them is done, counted from number `zero`."""
        raw = self._gpu.fetch([self.place], 8 * self.count).view(np.uint64)
        ticks = (raw - raw[zero]).view(np.int64)
        return [float(t) * self._gpu.timestamp_period * 1e-9 for t in ticks]

    def close(self) -> None:
        """Free the memory."""
        self._buffer.release()
        self._gpu.retire_later("DestroyQueryPool", self._pool)
