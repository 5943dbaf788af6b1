"""Timestamp queries of WebGPU: numbered timestamps over as many query sets as they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.gpu.memory import BufferRange
from pumice.backends.webgpu.buffer import WebGpuBuffer
from pumice.errors import DeviceError

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import PassStamps
    from pumice.backends.webgpu.device import WebGpu
    from pumice.backends.webgpu.encode import Commands

INSIDE_PASSES = "timestamp-query-inside-passes"
# What WebGPU allows a query set to hold.
_SET_SIZE = 4096


class WebGpuQueries:
    """Numbered timestamps over as many query sets as they need."""

    def __init__(self, gpu: WebGpu, count: int) -> None:
        self._gpu, self.count = gpu, count
        self._written: set[int] = set()
        sizes = [min(_SET_SIZE, count - at) for at in range(0, count, _SET_SIZE)]
        usage = gpu.wgpu.BufferUsage
        self._sets = [gpu.raw.create_query_set(type="timestamp", count=size) for size in sizes]
        raw = gpu.raw.create_buffer(
            label="pumice timestamps", size=8 * count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC | usage.COPY_DST
        )
        self._buffer = WebGpuBuffer(raw, 8 * count, "timestamps", gpu.ledger)

    @property
    def place(self) -> BufferRange:
        """Where the numbers are once they are resolved."""
        return BufferRange(self._buffer, 0, 8 * self.count)

    def writes(self, begin: int | None, end: int | None) -> PassStamps:
        """The timestamp argument of a pass; both are in one query set."""
        index = begin if begin is not None else end
        assert index is not None
        self._written |= {i for i in (begin, end) if i is not None}
        begin, end = (None if i is None else i % _SET_SIZE for i in (begin, end))
        return self._sets[index // _SET_SIZE]._internal, begin, end

    def write(self, commands: Commands, pass_handle: Any, index: int) -> None:
        """A timestamp inside an open pass."""
        self._written.add(index)
        self._gpu.encode.write_timestamp(pass_handle, self._sets[index // _SET_SIZE]._internal, index % _SET_SIZE)

    def resolve(self, commands: Commands) -> None:
        """Move the numbers to where they can be read from."""
        if len(self._written) != self.count:  # the device would wait for the others for ever
            raise DeviceError(f"{self.count} timestamps were asked for, {len(self._written)} are written")
        for k, s in enumerate(self._sets):
            count = min(_SET_SIZE, self.count - k * _SET_SIZE)
            commands.resolve(s._internal, count, self._buffer.handle, 8 * k * _SET_SIZE)

    def seconds(self, zero: int) -> list[float]:
        """All timestamps, once the submit that wrote them is done, counted from number `zero`."""
        raw = self._gpu.fetch([self.place], 8 * self.count).view(np.uint64)
        ticks = (raw - raw[zero]).view(np.int64)
        period = self._gpu.timestamp_period
        return [float(t) * period * 1e-9 for t in ticks]

    def close(self) -> None:
        """Free the memory; the sets go with the last reference."""
        self._buffer.release()
        for s in self._sets:
            s.destroy()
