"""The hot path over wgpu-native's own C handles: encode prepared steps, map a buffer, wait.

The wrapper's checks cost several microseconds a dispatch, so this file calls the library below it. It is the only file that
does, and it fits wgpu 0.32 (webgpu.h of wgpu-native 29), which the project pins. Errors of raw calls surface at `finish()`
of the command encoder, which goes through the wrapper; what they could be is checked before, by the plan verifier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wgpu.backends.wgpu_native import ffi, lib

# (pipeline or None when the previous one stays, bind group, x, y, z); the handles' owners must outlive the submit.
Dispatch = tuple[Any, Any, int, int, int]

_NULL = ffi.NULL
_set_pipeline = lib.wgpuComputePassEncoderSetPipeline
_set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
_dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
# A blocking poll returns when the queue is idle, so a callback that has not come after this many never will.
_POLLS = 1000


def encode_steps(pass_handle: Any, prepared: Iterable[Dispatch]) -> None:
    """Encode every dispatch into the open compute pass `pass_handle` (the `_internal` of the wrapper's pass)."""
    for pipeline, group, x, y, z in prepared:
        if pipeline is not None:
            _set_pipeline(pass_handle, pipeline)
        _set_bind_group(pass_handle, 0, group, 0, _NULL)
        _dispatch(pass_handle, x, y, z)


def wait_idle(device_handle: Any) -> None:
    """Block until all submitted work is done, so that the queue's staging memory is free again."""
    lib.wgpuDevicePoll(device_handle, True, _NULL)


class Mapper:
    """Maps buffers for reading on the calling thread.

    The wrapper hands the waiting to a second thread, whose wake-ups cost more than a small run takes. One call at a time:
    the device's lock sees to that.
    """

    def __init__(self, device_handle: Any) -> None:
        self._device = device_handle
        self._status: list[int] = []
        status = self._status

        def done(code: int, message: Any, user1: Any, user2: Any) -> None:
            status.append(code)

        # The library keeps only the address, so the callback must live as long as this object.
        self._callback = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", done)
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = self._callback

    def map(self, buffer_handle: Any, nbytes: int) -> memoryview | None:
        """The first `nbytes` of a MAP_READ buffer once earlier submits are done; None if the device does not answer."""
        self._status.clear()
        lib.wgpuBufferMapAsync(buffer_handle, lib.WGPUMapMode_Read, 0, nbytes, self._info[0])
        for _ in range(_POLLS):
            if self._status:
                break
            lib.wgpuDevicePoll(self._device, True, _NULL)
        if self._status != [lib.WGPUMapAsyncStatus_Success]:
            return None
        return memoryview(ffi.buffer(lib.wgpuBufferGetConstMappedRange(buffer_handle, 0, nbytes), nbytes))

    def unmap(self, buffer_handle: Any) -> None:
        """Give the mapped range back; views of it must be gone."""
        lib.wgpuBufferUnmap(buffer_handle)
