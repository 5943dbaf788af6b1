"""Memory of a Vulkan device: large blocks that buffers share, within the budget that the driver grants."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumice.backends.gpu.memory import DeviceBuffer, Ledger
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.adapters import MEMORY_BUDGET
from pumice.backends.vulkan.library import VulkanError, ffi, make

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

_LOCAL = vk.MEMORY_PROPERTY_DEVICE_LOCAL_BIT
_MAPPED = vk.MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.MEMORY_PROPERTY_HOST_COHERENT_BIT
_CACHED = vk.MEMORY_PROPERTY_HOST_CACHED_BIT
# What each kind of memory should be, best first.
_KINDS = {
    "device": (_LOCAL, 0),
    "mapped": (_LOCAL | _MAPPED, _MAPPED),
    "readback": (_MAPPED | _CACHED, _MAPPED),
}
# The kind of memory and the usage of buffers by what they are for.
_TRANSFER = vk.BUFFER_USAGE_TRANSFER_SRC_BIT | vk.BUFFER_USAGE_TRANSFER_DST_BIT
_STORAGE = vk.BUFFER_USAGE_STORAGE_BUFFER_BIT
_USES = {
    "storage": ("device", _STORAGE | _TRANSFER),
    "indirect": ("device", _STORAGE | _TRANSFER | vk.BUFFER_USAGE_INDIRECT_BUFFER_BIT),
    "uniform": ("mapped", vk.BUFFER_USAGE_UNIFORM_BUFFER_BIT | _TRANSFER),
    "input": ("mapped", _STORAGE | _TRANSFER),
    "staging": ("mapped", _TRANSFER),
    "readback": ("readback", _TRANSFER),
}
# Buffers share blocks of this size; one of half of it and more has a block alone.
_BLOCK = {"device": 64 << 20, "mapped": 4 << 20, "readback": 4 << 20}
# Where the driver does not say how much there is for us, this share of a heap.
_HEAP_SHARE = 0.9


@dataclass(eq=False)
class MemoryBlock:
    """A piece of the device's memory; `free` are (offset, bytes) in order, neighbours joined."""

    memory: int
    nbytes: int
    type_index: int
    kind: str
    view: Any
    free: list[tuple[int, int]]

    def take(self, nbytes: int, alignment: int) -> int | None:
        """The offset of that many bytes, or None."""
        for k, (at, room) in enumerate(self.free):
            start = -(-at // alignment) * alignment
            if start + nbytes <= at + room:
                self.free[k : k + 1] = [
                    piece for piece in ((at, start - at), (start + nbytes, at + room - start - nbytes)) if piece[1]
                ]
                return start
        return None

    def give(self, at: int, nbytes: int) -> None:
        """Take bytes back.

        >>> b = MemoryBlock(0, 64, 0, "device", None, [(0, 64)])
        >>> b.take(16, 16), b.take(16, 16), b.free
        (0, 16, [(32, 32)])
        >>> b.give(0, 16); b.give(16, 16); b.free
        [(0, 64)]
        """
        insort(self.free, (at, nbytes))
        joined: list[tuple[int, int]] = []
        for start, room in self.free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + room
            else:
                joined.append((start, room))
        self.free = joined


class VulkanBuffer(DeviceBuffer):
    """A buffer in a block; `handle` is the VkBuffer, `view` its bytes where the host can reach them."""

    __slots__ = ("at", "block", "gpu", "size", "view")

    def __init__(
        self, gpu: Vulkan, handle: int, block: MemoryBlock, place: tuple[int, int], nbytes: int, label: str, ledger: Ledger
    ) -> None:
        super().__init__(None, handle, nbytes, label, ledger)
        self.gpu, self.block, (self.at, self.size) = gpu, block, place
        self.view: Any = None if block.view is None else block.view[self.at : self.at + nbytes]

    def _destroy(self) -> None:
        # Work in flight may use it.
        self.view = None
        self.gpu.retire(self.free)

    def free(self) -> None:
        """Give the memory back, once the device is done with it."""
        self.gpu.call.DestroyBuffer(self.gpu.device, self.handle, ffi().NULL)
        self.gpu.memory.give(self.block, self.at, self.size)


class DeviceMemory:
    """The blocks of a device."""

    def __init__(self, gpu: Vulkan) -> None:
        self._gpu = gpu
        self._blocks: list[MemoryBlock] = []
        about = make("VkPhysicalDeviceMemoryProperties2")
        gpu.instance.functions.GetPhysicalDeviceMemoryProperties2(gpu.facts.handle, about)
        found = about.memoryProperties
        self._types = [(t.propertyFlags, t.heapIndex) for t in found.memoryTypes[0 : found.memoryTypeCount]]
        self._heaps = [h.size for h in found.memoryHeaps[0 : found.memoryHeapCount]]
        # Scratch of ours, and not counted by sessions: staging and readback memory.
        self.unlisted = Ledger()

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return sum(b.nbytes for b in self._blocks)

    def create(self, nbytes: int, label: str, use: str, ledger: Ledger) -> VulkanBuffer:
        """A buffer whose content is undefined."""
        gpu, f = self._gpu, ffi()
        kind, usage = _USES[use]
        out = f.new("VkBuffer *")
        gpu.call.checked("CreateBuffer", gpu.device, make("VkBufferCreateInfo", size=nbytes, usage=usage), f.NULL, out)
        handle = out[0]
        try:
            needs = f.new("VkMemoryRequirements *")
            gpu.call.GetBufferMemoryRequirements(gpu.device, handle, needs)
            block, at = self._place(needs.size, needs.alignment, needs.memoryTypeBits, kind)
            try:
                gpu.call.checked("BindBufferMemory", gpu.device, handle, block.memory, at)
            except VulkanError:
                self.give(block, at, needs.size)
                raise
        except BaseException:
            gpu.call.DestroyBuffer(gpu.device, handle, f.NULL)
            raise
        return VulkanBuffer(gpu, handle, block, (at, needs.size), nbytes, label, ledger)

    def _place(self, nbytes: int, alignment: int, types: int, kind: str) -> tuple[MemoryBlock, int]:
        for block in self._blocks:
            if block.kind == kind and types >> block.type_index & 1:
                at = block.take(nbytes, alignment)
                if at is not None:
                    return block, at
        size = _BLOCK[kind] if nbytes < _BLOCK[kind] // 2 else nbytes
        block = self._new_block(size, types, kind)
        at = block.take(nbytes, alignment)
        assert at is not None
        return block, at

    def _new_block(self, size: int, types: int, kind: str) -> MemoryBlock:
        gpu, f = self._gpu, ffi()
        result = vk.ERROR_OUT_OF_DEVICE_MEMORY
        for wanted in _KINDS[kind]:
            for index, (flags, heap) in enumerate(self._types):
                if not types >> index & 1 or flags & wanted != wanted or self._room(heap) < size:
                    continue
                out = f.new("VkDeviceMemory *")
                about = make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index)
                result = gpu.call.AllocateMemory(gpu.device, about, f.NULL, out)
                if result >= 0:
                    return self._keep(MemoryBlock(out[0], size, index, kind, None, [(0, size)]))
        raise VulkanError("vkAllocateMemory", result)

    def _keep(self, block: MemoryBlock) -> MemoryBlock:
        gpu, f = self._gpu, ffi()
        if block.kind != "device":
            at = f.new("void **")
            try:
                gpu.call.checked("MapMemory", gpu.device, block.memory, 0, block.nbytes, 0, at)
            except VulkanError:
                gpu.call.FreeMemory(gpu.device, block.memory, f.NULL)
                raise
            block.view = memoryview(f.buffer(at[0], block.nbytes))
        self._blocks.append(block)
        return block

    def _room(self, heap: int) -> int:
        """The bytes that may still be taken from a heap."""
        gpu = self._gpu
        used = sum(b.nbytes for b in self._blocks if self._types[b.type_index][1] == heap)
        if MEMORY_BUDGET not in gpu.facts.extensions:
            return int(self._heaps[heap] * _HEAP_SHARE) - used
        budget = make("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        about = make("VkPhysicalDeviceMemoryProperties2", pNext=budget)
        gpu.instance.functions.GetPhysicalDeviceMemoryProperties2(gpu.facts.handle, about)
        return int(budget.heapBudget[heap] - budget.heapUsage[heap])

    def give(self, block: MemoryBlock, at: int, nbytes: int) -> None:
        """Take a buffer's bytes back; a block that is empty goes, except the last shared one of its kind."""
        block.give(at, nbytes)
        if block.free != [(0, block.nbytes)]:
            return
        alike = [b for b in self._blocks if b.kind == block.kind and b.nbytes == _BLOCK[b.kind]]
        if block in alike and len(alike) == 1:
            return
        self._blocks.remove(block)
        block.view = None
        self._gpu.call.FreeMemory(self._gpu.device, block.memory, ffi().NULL)
