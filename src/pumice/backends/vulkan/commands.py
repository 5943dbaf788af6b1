"""Command buffers: steps and copies in order, with a barrier only where one touches what another has written or still reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pumice.backends.gpu.interface import Dispatch, PassStamps
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.library import ffi, make

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

# A range of a buffer: its handle, first byte and end.
Span = tuple[int, int, int]

_COMPUTE = vk.PIPELINE_STAGE_COMPUTE_SHADER_BIT
_WORK = _COMPUTE | vk.PIPELINE_STAGE_TRANSFER_BIT
_READERS = _WORK | vk.PIPELINE_STAGE_DRAW_INDIRECT_BIT
_WRITES = vk.ACCESS_SHADER_WRITE_BIT | vk.ACCESS_TRANSFER_WRITE_BIT
_ACCESSES = (
    _WRITES
    | vk.ACCESS_SHADER_READ_BIT
    | vk.ACCESS_UNIFORM_READ_BIT
    | vk.ACCESS_TRANSFER_READ_BIT
    | vk.ACCESS_INDIRECT_COMMAND_READ_BIT
)
_GRID_BYTES = 12


class Hazards:
    """What was read and written since the last barrier.

    >>> h = Hazards()
    >>> h.clash([(1, 0, 16)], [(2, 0, 16)]), h.clash([(1, 0, 16)], [(2, 16, 32)]), h.clash([(2, 8, 24)], [])
    (False, False, True)
    """

    def __init__(self) -> None:
        self._reads: dict[int, list[tuple[int, int]]] = {}
        self._writes: dict[int, list[tuple[int, int]]] = {}

    def clash(self, reads: Iterable[Span], writes: Iterable[Span]) -> bool:
        """Whether these must wait for what came before; if so, that is forgotten. Then they are remembered."""
        reads, writes = list(reads), list(writes)
        found = any(_meets(self._writes, s) for s in (*reads, *writes)) or any(_meets(self._reads, s) for s in writes)
        if found:
            self.forget()
        for spans, known in ((reads, self._reads), (writes, self._writes)):
            for buffer, start, end in spans:
                known.setdefault(buffer, []).append((start, end))
        return found

    def forget(self) -> None:
        """A barrier was recorded."""
        self._reads.clear()
        self._writes.clear()


def _meets(known: dict[int, list[tuple[int, int]]], span: Span) -> bool:
    buffer, start, end = span
    return any(a < end and start < b for a, b in known.get(buffer, ()))


class VulkanCommands:
    """One command buffer that is being recorded. It begins after everything that was submitted before. Calls hold the lock."""

    def __init__(self, gpu: Vulkan, *, once: bool = True) -> None:
        self._gpu, self._call = gpu, gpu.call
        f = ffi()
        out = f.new("VkCommandBuffer *")
        about = make("VkCommandBufferAllocateInfo", commandPool=gpu.pool, commandBufferCount=1)
        self._call.checked("AllocateCommandBuffers", gpu.device, about, out)
        self._handles = out
        self.handle = out[0]
        self._hazards = Hazards()
        self._pipeline: Any = None
        # Whether something was copied, filled or dispatched indirectly since the last barrier; and whether a barrier between
        # dispatches came since the last one between any work, so that copies do not see yet what was written before it.
        self._moved = self._narrow = False
        self.barriers = 0
        flags = vk.COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT if once else 0
        self._call.checked("BeginCommandBuffer", self.handle, make("VkCommandBufferBeginInfo", flags=flags))
        self._barrier()

    def _barrier(self) -> None:
        self._hazards.forget()
        self._record_barrier(wide=True)

    def _record_barrier(self, *, wide: bool) -> None:
        """A barrier between dispatches or, if `wide`, between any work: what waits for grids or copies takes NVIDIA's devices
        longer, which a token step of two hundred short dispatches feels."""
        self.barriers += 1
        self._moved, self._narrow = False, not wide
        stages, barrier = ((_WORK, _READERS), self._gpu.between_all) if wide else ((_COMPUTE, _COMPUTE), self._gpu.between_steps)
        self._call.CmdPipelineBarrier(self.handle, *stages, 0, 1, barrier, 0, ffi().NULL, 0, ffi().NULL)

    def _order(self, reads: Iterable[Span], writes: Iterable[Span], *, steps: bool = False) -> None:
        """A barrier, if these clash with what came before; `steps` says that they are those of a dispatch with a known grid."""
        if self._narrow and not steps:
            self._barrier()
        if self._hazards.clash(reads, writes):
            self._record_barrier(wide=self._moved or not steps)
        self._moved = self._moved or not steps

    # -- Commands of `backends.gpu` ---------------------------------------------------------------------------------
    def begin_pass(self, stamps: PassStamps | None = None) -> Any:
        """Vulkan has no passes for computing: what comes back are the timestamps to take."""
        if stamps is not None and stamps[1] is not None:
            self._barrier()
            stamps[0].record(self, stamps[1])
        return stamps

    def end_pass(self, pass_handle: Any) -> None:
        if pass_handle is not None and pass_handle[2] is not None:
            pass_handle[0].record(self, pass_handle[2])
            self._barrier()

    def steps(self, prepared: Iterable[Dispatch], stamps: PassStamps | None = None) -> None:
        """These steps; the first of them names its pipeline."""
        handle = self.begin_pass(stamps)
        self.more_steps(handle, prepared)
        self.end_pass(handle)

    def more_steps(self, pass_handle: Any, prepared: Iterable[Dispatch]) -> None:
        """Steps in an open pass."""
        for pipeline, group, x, y, z in prepared:
            if z:
                self._bind(pipeline or self._pipeline, group)
                self._call.CmdDispatch(self.handle, x, y, z)
                continue
            self._bind(x.pipeline, x.group)
            self._call.CmdDispatch(self.handle, 1, 1, 1)
            self._bind(pipeline, group, (x.buffer, x.offset, x.offset + _GRID_BYTES))
            self._call.CmdDispatchIndirect(self.handle, x.buffer, x.offset)

    def _bind(self, pipeline: Any, group: Any, *reads: Span) -> None:
        self._order((*group.reads, *reads), group.writes, steps=not reads)
        if pipeline is not self._pipeline:
            self._call.CmdBindPipeline(self.handle, vk.PIPELINE_BIND_POINT_COMPUTE, pipeline.raw)
            self._pipeline = pipeline
        self._call.CmdBindDescriptorSets(
            self.handle, vk.PIPELINE_BIND_POINT_COMPUTE, pipeline.layout.raw, 0, 1, group.sets, 0, ffi().NULL
        )

    def copy(self, source: Any, source_at: int, target: Any, target_at: int, nbytes: int) -> None:
        """A copy from buffer to buffer, given by handles."""
        self._order([(source, source_at, source_at + nbytes)], [(target, target_at, target_at + nbytes)])
        region = make("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=nbytes)
        self._call.CmdCopyBuffer(self.handle, source, target, 1, region)

    def fill(self, target: int, nbytes: int) -> None:
        """Zeros into a whole buffer."""
        self._order([], [(target, 0, nbytes)])
        self._call.CmdFillBuffer(self.handle, target, 0, nbytes // 4 * 4, 0)

    # -- timestamps -------------------------------------------------------------------------------------------------
    def reset_queries(self, pool: int, count: int) -> None:
        """Before timestamps are written anew."""
        self._call.CmdResetQueryPool(self.handle, pool, 0, count)

    def stamp(self, pool: int, index: int) -> None:
        """A timestamp when all that was recorded before is done."""
        self._call.CmdWriteTimestamp(self.handle, vk.PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool, index)

    def copy_queries(self, pool: int, count: int, target: int) -> None:
        """Timestamps as numbers in a buffer."""
        self._order([], [(target, 0, 8 * count)])
        flags = vk.QUERY_RESULT_64_BIT | vk.QUERY_RESULT_WAIT_BIT
        self._call.CmdCopyQueryPoolResults(self.handle, pool, 0, count, target, 0, 8, flags)

    def finish(self, *, host_reads: bool = False) -> VulkanCommands:
        """End recording; with `host_reads`, what was copied is there for the host when the submit is done."""
        if host_reads:
            self._call.CmdPipelineBarrier(
                self.handle,
                vk.PIPELINE_STAGE_TRANSFER_BIT,
                vk.PIPELINE_STAGE_HOST_BIT,
                0,
                1,
                self._gpu.towards_host,
                0,
                ffi().NULL,
                0,
                ffi().NULL,
            )
        self._call.checked("EndCommandBuffer", self.handle)
        return self

    def free(self) -> None:
        """Give the command buffer back, once the device is done with it."""
        self._call.FreeCommandBuffers(self._gpu.device, self._gpu.pool, 1, self._handles)


def barriers_of(gpu: Vulkan) -> tuple[Any, Any, Any]:
    """The memory barriers that are recorded: between dispatches, between any work, and from copies to the host."""
    shader = vk.ACCESS_SHADER_WRITE_BIT
    steps = make("VkMemoryBarrier", srcAccessMask=shader, dstAccessMask=shader | vk.ACCESS_SHADER_READ_BIT)
    work = make("VkMemoryBarrier", srcAccessMask=_WRITES, dstAccessMask=_ACCESSES)
    host = make("VkMemoryBarrier", srcAccessMask=vk.ACCESS_TRANSFER_WRITE_BIT, dstAccessMask=vk.ACCESS_HOST_READ_BIT)
    return steps, work, host
