"""The hot path over wgpu-native's own C handles: record and submit prepared steps, write and map buffers, wait.

The wrapper's checks cost several microseconds a dispatch, so this file calls the library below it. It is the only file that
does, and it fits wgpu 0.32 (webgpu.h of wgpu-native 29), which the project pins. Errors of what is recorded are raised when
the commands are finished; what they could be is checked before, by the plan verifier.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from wgpu.backends.wgpu_native import ffi, lib
from wgpu.backends.wgpu_native._api import GPUShaderModule, libf, new_struct_p, to_c_string_view

from pumice.backends.base import Array
from pumice.backends.gpu.interface import Dispatch, IndirectGrid, PassStamps

_NULL = ffi.NULL
_NOTHING = ffi.new("uint8_t[4]")
_set_pipeline = lib.wgpuComputePassEncoderSetPipeline
_set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
_dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
_dispatch_indirect = lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect


def encode_steps(pass_handle: Any, prepared: Iterable[Dispatch]) -> None:
    """Encode every dispatch into the open compute pass `pass_handle`."""
    for pipeline, group, x, y, z in prepared:
        if not z:
            _encode_indirect(pass_handle, pipeline, group, x)
            continue
        if pipeline is not None:
            _set_pipeline(pass_handle, pipeline)
        _set_bind_group(pass_handle, 0, group, 0, _NULL)
        _dispatch(pass_handle, x, y, z)


def _encode_indirect(pass_handle: Any, pipeline: Any, group: Any, grid: IndirectGrid) -> None:
    _set_pipeline(pass_handle, grid.pipeline)
    _set_bind_group(pass_handle, 0, grid.group, 0, _NULL)
    _dispatch(pass_handle, 1, 1, 1)
    _set_pipeline(pass_handle, pipeline)
    _set_bind_group(pass_handle, 0, group, 0, _NULL)
    _dispatch_indirect(pass_handle, grid.buffer, grid.offset)


class Commands:
    """What one submit is to do, recorded in order. The objects behind all handles must outlive the submit."""

    __slots__ = ("_handle",)

    def __init__(self, device_handle: Any) -> None:
        self._handle = ffi.gc(libf.wgpuDeviceCreateCommandEncoder(device_handle, _NULL), lib.wgpuCommandEncoderRelease)

    def begin_pass(self, stamps: PassStamps | None = None) -> Any:
        """The handle of a new compute pass, which is open until `end_pass`."""
        about = _NULL
        if stamps is not None:
            writes, about = ffi.new("WGPUPassTimestampWrites *"), ffi.new("WGPUComputePassDescriptor *")
            none = lib.WGPU_QUERY_SET_INDEX_UNDEFINED
            writes.querySet, begin, end = stamps
            writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = (none if i is None else i for i in (begin, end))
            about.timestampWrites = writes
        return ffi.gc(lib.wgpuCommandEncoderBeginComputePass(self._handle, about), lib.wgpuComputePassEncoderRelease)

    def end_pass(self, pass_handle: Any) -> None:
        lib.wgpuComputePassEncoderEnd(pass_handle)

    def steps(self, prepared: Iterable[Dispatch], stamps: PassStamps | None = None) -> None:
        """A pass of these steps; the first of them names its pipeline."""
        handle = self.begin_pass(stamps)
        encode_steps(handle, prepared)
        self.end_pass(handle)

    def more_steps(self, pass_handle: Any, prepared: Iterable[Dispatch]) -> None:
        """Steps in an open pass."""
        encode_steps(pass_handle, prepared)

    def copy(self, source: Any, source_at: int, target: Any, target_at: int, nbytes: int) -> None:
        """A copy from buffer to buffer, given by handles; all numbers are multiples of four."""
        lib.wgpuCommandEncoderCopyBufferToBuffer(self._handle, source, source_at, target, target_at, nbytes)

    def resolve(self, set_handle: Any, count: int, target: Any, target_at: int) -> None:
        """The first timestamps of a query set as numbers in a buffer."""
        lib.wgpuCommandEncoderResolveQuerySet(self._handle, set_handle, 0, count, target, target_at)

    def finish(self) -> Any:
        """Check and translate what was recorded, for `submit`; raises the wrapper's error for what is wrong with it."""
        return ffi.gc(libf.wgpuCommandEncoderFinish(self._handle, _NULL), lib.wgpuCommandBufferRelease)


def submit(queue_handle: Any, finished: Any) -> None:
    """Send finished commands to the device."""
    libf.wgpuQueueSubmit(queue_handle, 1, ffi.new("WGPUCommandBuffer[1]", [finished]))


def own_shader_module(device: Any, label: str, wgsl: str, *, bounds_checks: bool) -> Any:
    """A shader module of a kernel that this process generated and verified itself.

    The library guards shaders from anywhere: it counts the rounds of every loop, and clamps every index into workgroup
    memory. Loops of ours end, so that they go without; indices do where the API below bounds accesses to buffers itself.
    """
    source = new_struct_p("WGPUShaderSourceWGSL *", code=to_c_string_view(wgsl))
    source[0].chain.next = _NULL
    source[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    chain = ffi.cast("WGPUChainedStruct *", source)
    descriptor = new_struct_p("WGPUShaderModuleDescriptor *", nextInChain=chain, label=to_c_string_view(label))
    checks = lib.WGPUShaderRuntimeChecks_BoundsChecks if bounds_checks else lib.WGPUShaderRuntimeChecks_None
    return GPUShaderModule(label, libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, checks), device)


def write_bytes(queue_handle: Any, buffer_handle: Any, offset: int, data: bytes | Array) -> None:
    """Put bytes into a buffer before the next submit; their number is a multiple of four. They are copied at once."""
    libf.wgpuQueueWriteBuffer(queue_handle, buffer_handle, offset, ffi.from_buffer(data), len(data))


def write_timestamp(pass_handle: Any, set_handle: Any, index: int) -> None:
    """A timestamp in an open compute pass, taken when all that was encoded before it is done."""
    lib.wgpuComputePassEncoderWriteTimestamp(pass_handle, set_handle, index)


def timestamp_period(queue_handle: Any) -> float:
    """Nanoseconds per tick of the device's clock."""
    return float(lib.wgpuQueueGetTimestampPeriod(queue_handle))


def check_alive(queue_handle: Any, buffer_handle: Any) -> None:
    """Raise the wrapper's error if the device is lost; a write of no bytes is the cheapest call that looks."""
    libf.wgpuQueueWriteBuffer(queue_handle, buffer_handle, 0, _NOTHING, 0)


def wait_idle(device_handle: Any) -> None:
    """Block until all submitted work is done, so that the queue's staging memory is free again."""
    lib.wgpuDevicePoll(device_handle, True, _NULL)


def wait_idle_for(device_handle: Any, seconds: float) -> bool:
    """As `wait_idle`, but no longer than that; whether the device is idle."""
    end = time.monotonic() + seconds
    # The library sets one byte of what the header says are four.
    while not lib.wgpuDevicePoll(device_handle, False, _NULL) & 0xFF:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Mapper:
    """Maps buffers for reading, any number at a time, and asks the device for news on the calling thread.

    The wrapper hands the waiting to a second thread, whose wake-ups cost more than a small run takes.
    """

    def __init__(self, device_handle: Any) -> None:
        self._device = device_handle
        self._next = 0
        # Held while results are looked at, by polls, and by submits of other threads than the one that reads.
        self.lock = threading.Lock()
        # The outcome of each request that is still waited for.
        self._status: dict[int, int | None] = {}
        status = self._status

        def done(code: int, message: Any, user1: Any, user2: Any) -> None:
            ticket = int(ffi.cast("uintptr_t", user1))
            if ticket in status:
                status[ticket] = code

        self._interrupts: list[BaseException] = []
        interrupts = self._interrupts

        def interrupted(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            # An interrupt cannot leave through the library: the answer is noted all the same, and `poll` raises it.
            found = trace.tb_frame.f_locals
            status[int(ffi.cast("uintptr_t", found["user1"]))] = found["code"]
            interrupts.append(error)

        # The library keeps only the address, so the callback must live as long as the device: one for all requests.
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._callback = ffi.callback(kind, done, onerror=interrupted)
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = self._callback

    def request(self, buffer_handle: Any, nbytes: int) -> int:
        """Ask for the first `nbytes` of a MAP_READ buffer once earlier submits are done; under the device's lock."""
        self._next += 1
        ticket = self._next
        self._status[ticket] = None
        self._info.userdata1 = ffi.cast("void *", ticket)
        lib.wgpuBufferMapAsync(buffer_handle, lib.WGPUMapMode_Read, 0, nbytes, self._info[0])
        return ticket

    def poll(self, ticket: int) -> bool | None:
        """Whether the buffer is mapped (True) or never will be (False); None while the device has not answered."""
        with self.lock:
            lib.wgpuDevicePoll(self._device, False, _NULL)
        if self._interrupts:
            raise self._interrupts.pop()
        code = self._status[ticket]
        if code is None:
            return None
        del self._status[ticket]
        return bool(code == lib.WGPUMapAsyncStatus_Success)

    def forget(self, ticket: int) -> None:
        """Drop a request that is no longer waited for."""
        self._status.pop(ticket, None)

    def view(self, queue_handle: Any, buffer_handle: Any, nbytes: int) -> memoryview:
        """The bytes of a mapped buffer, until `unmap`; between the two the caller holds the device's lock and this one's.

        A lost device takes its buffers along, mapped ones too, and a look at one of those would abort the process. It does so
        when it is polled or submitted to: the device's lock covers submits, and polls wait for this one.
        """
        check_alive(queue_handle, buffer_handle)
        return memoryview(ffi.buffer(lib.wgpuBufferGetConstMappedRange(buffer_handle, 0, nbytes), nbytes))

    def unmap(self, view: memoryview, buffer_handle: Any) -> None:
        """Give a mapped buffer back to the device; other views of it must be gone."""
        view.release()
        lib.wgpuBufferUnmap(buffer_handle)
