"""The timeline of a device: a number that grows as the device is done with submits, and the wait for it."""

from __future__ import annotations

import threading
from typing import Any

from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.library import Functions, ffi, make


class _WaitInfo(threading.local):
    """What describes a wait; each thread has its own, as several may wait at once."""

    def __init__(self, semaphores: Any) -> None:
        self.value = ffi().new("uint64_t *")
        self.raw = make("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=semaphores, pValues=self.value)


class Timeline:
    """A timeline semaphore. Its structs are made once, and what it is known to have reached is not asked for again."""

    def __init__(self, call: Functions, device: Any) -> None:
        self._call, self._device = call, device
        # The array of one semaphore, as submits and waits take it.
        self.semaphores = ffi().new("VkSemaphore *")
        kind = make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.SEMAPHORE_TYPE_TIMELINE)
        call.checked("CreateSemaphore", device, make("VkSemaphoreCreateInfo", pNext=kind), ffi().NULL, self.semaphores)
        self._wait_info = _WaitInfo(self.semaphores)
        # Threads may write it at the same time: whatever is in it was its value once.
        self._counter = ffi().new("uint64_t *")
        self._reached = 0

    def read(self) -> int:
        """Its value now."""
        self._call.checked("GetSemaphoreCounterValue", self._device, self.semaphores[0], self._counter)
        self._reached = int(self._counter[0])
        return self._reached

    def has_reached(self, value: int) -> bool:
        """Whether its value is at least that."""
        return value <= self._reached or value <= self.read()

    def wait(self, value: int, nanoseconds: int) -> int:
        """Wait until it has a value, or for so long; Vulkan's result."""
        if value <= self._reached:
            return vk.SUCCESS
        info = self._wait_info
        info.value[0] = value
        result: int = self._call.WaitSemaphores(self._device, info.raw, nanoseconds)
        if result == vk.SUCCESS:
            self._reached = max(value, self._reached)
        return result
