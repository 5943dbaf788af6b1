"""WebGpuDevice: one wgpu device per adapter and process, with its lock, pipelines, staging memory and liveness check."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import Array, Resident
from pumice.backends.gpu.adapter import FEATURES, Adapter, caps_of
from pumice.backends.gpu.device import GpuBase, GpuDevice
from pumice.backends.gpu.interface import Dispatch, Read, Record, Write
from pumice.backends.gpu.memory import GRAIN, BufferRange, ByteSource, DeviceBuffer, rounded, spans
from pumice.backends.webgpu import queries
from pumice.backends.webgpu.adapters import import_wgpu, pick_adapter
from pumice.backends.webgpu.background import BackgroundEncoder
from pumice.backends.webgpu.buffer import WebGpuBuffer
from pumice.backends.webgpu.pipelines import Pipelines
from pumice.backends.webgpu.readback import Readback, StagingPool
from pumice.core.streamed import StreamedArray
from pumice.errors import DeviceError, DeviceTimeout, PumiceError
from pumice.plan.plan import Kernel, Plan

if TYPE_CHECKING:
    from pumice.backends.webgpu.encode import Commands

# What is fetched travels in chunks that fit any device's buffer limit.

# Uploads that the queue may hold in staging memory before we wait for it.
_UPLOAD_IN_FLIGHT = 64 << 20
# Submits without readback before one of them is waited for; at most twice as many are in flight.
_UNREAD = 64
# How long the end of the process waits for work that has timed out on a software device.
_EXIT_SECONDS = 60.0
_SUBGROUP_PROBE = Kernel(
    "subgroup-size",
    "@group(0) @binding(0) var<storage, read_write> size: array<u32>;\n"
    "@compute @workgroup_size(128) fn main(@builtin(subgroup_size) n: u32) { size[0] = n; }\n",
    ("write",),
    0,
    128,
    features=("subgroups",),
    origin="generated",
)


_gpus: dict[int, WebGpu] = {}
_gpus_lock = threading.RLock()


class WebGpu(GpuBase):
    """A wgpu device and everything that sessions on it share. `lock` is held over encoding and submits, not over waits."""

    registry, registry_lock = _gpus, _gpus_lock

    def __init__(self, adapter: Adapter) -> None:
        self.wgpu = import_wgpu()
        from pumice.backends.webgpu import encode

        self.encode = encode
        super().__init__(adapter)
        self._hung = False
        self.pipelines = Pipelines(self)
        self._in_flight = 0
        # The last results that were asked for.
        self._latest: Readback | None = None
        self._unread = 0
        self._trail: deque[Readback] = deque()
        # Submits that have not reached the queue yet; code that uses the queue, or destroys a buffer, waits for them first.
        self.background = BackgroundEncoder()
        with self.guard("the request for a device"):
            # Without explicit limits a device gets the defaults, not what the adapter can do.
            self.raw = adapter.raw.request_device_sync(
                label="pumice",
                required_features=[f for f in FEATURES if f in adapter.features],
                required_limits=dict(adapter.limits),
            )
            self.queue = self.raw.queue
            self.features = frozenset(self.raw.features)
            usage = self.wgpu.BufferUsage
            self._usage = {
                "storage": usage.STORAGE | usage.COPY_SRC | usage.COPY_DST,
                "uniform": usage.UNIFORM | usage.COPY_DST,
                "indirect": usage.INDIRECT | usage.STORAGE,
            }
            self.staging = StagingPool(self)
        self.mapper = encode.Mapper(self.raw._internal)
        self.caps = caps_of(adapter, self._probe_subgroup_size() if "subgroup" in adapter.features else 0)

    # -- errors -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turn wgpu's errors into ours, naming what was going on."""
        if self.lost:
            raise self.lost_error(what)
        try:
            yield
        except PumiceError:
            raise
        except (self.wgpu.GPUError, RuntimeError, ValueError) as e:
            text = " ".join(str(e).split())
            if "device is lost" in text.lower():
                raise self.mark_lost(what) from e
            # The native library files a failed allocation under validation errors.
            if isinstance(e, self.wgpu.GPUOutOfMemoryError) or "not enough memory" in text.lower():
                raise self.out_of_memory(what) from e
            raise DeviceError(f"{self.adapter.name}: {what} failed: {text}", hint="run `pumice doctor`") from e

    def mark_hung(self, seconds: int) -> DeviceTimeout:
        """Retire a hung device: its pending work must not mix with later work."""
        self.retire_device()
        with _gpus_lock:
            first, self._hung = not self._hung, True
        if first:
            # The library waits for a device's work when the device is freed, and aborts the process when that takes long: this
            # one is kept for good.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.raw))
            if self.adapter.software:
                # A driver that computes on this machine's cores crashes when the process ends under its hands.
                atexit.register(self.encode.wait_idle_for, self.raw._internal, _EXIT_SECONDS)
        return self.timeout_error(seconds)

    # -- memory -----------------------------------------------------------------------------------------------------
    def create_buffer(self, nbytes: int, label: str, use: str = "storage") -> DeviceBuffer:
        """A zeroed buffer of at least `nbytes`."""
        size = self.buffer_size(nbytes, label)
        with self.guard(f"the buffer {label!r} of {size} bytes"):
            self.fault("memory")
            raw = self.raw.create_buffer(label=label, size=size, usage=self._usage[use])
        return WebGpuBuffer(raw, size, label, self.ledger)

    def upload(self, places: Sequence[BufferRange], array: Array | StreamedArray) -> int:
        """Write an array to its parts piece by piece; returns the bytes written."""
        source = ByteSource(array)
        self.background.drain()
        self.fault("memory")
        for place, start, size in spans(places, source.nbytes):
            for at, piece in source.pieces(start, size):
                self.write(place.buffer, place.offset + at, piece)
                self._in_flight += piece.nbytes
                if self._in_flight >= _UPLOAD_IN_FLIGHT:
                    # The queue keeps a copy of each write until a submit has run it.
                    self.begin().wait()
        return source.nbytes

    def write(self, buffer: DeviceBuffer, offset: int, data: bytes | Array) -> None:
        """Queue bytes for a buffer, written before the next submit; a multiple of four of them."""
        self.encode.write_bytes(self.queue._internal, buffer.handle, offset, data)

    def write_sizes(self, buffer: DeviceBuffer, data: Array) -> None:
        """Put uniform words into a buffer before the next submit."""
        self.background.drain()
        self.write(buffer, 0, data)

    def queries(self, count: int) -> queries.WebGpuQueries:
        """Timestamps of a submit."""
        return queries.WebGpuQueries(self, count)

    @property
    def timestamp_period(self) -> float:
        """Nanoseconds per tick of the device's clock."""
        return self.encode.timestamp_period(self.queue._internal)

    @property
    def stamps_between_steps(self) -> bool:
        """Whether timestamps can be taken inside a pass."""
        return queries.INSIDE_PASSES in self.adapter.features

    def lose(self) -> None:
        """For injected faults: the device is destroyed under our feet, and wgpu finds out."""
        self.raw.destroy()

    def refuse_memory(self) -> None:
        """For injected faults: raise what wgpu raises where there is no memory."""
        raise self.wgpu.GPUOutOfMemoryError("Not enough memory left (injected).")

    # -- runs -------------------------------------------------------------------------------------------------------
    def execute(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> list[Array]:
        """`before`, copies of `reads` (parts, bytes) to the host side, then `after`.

        Each of `before` but the last has a submit of its own, so that the device begins while the others are recorded; the
        rest is one. Waits for the end and returns the bytes of each read; with nothing to read it only submits.
        """
        if reads:
            return self.begin(reads, before, after).wait()
        self.background.drain()
        commands = self._record_ahead(before)
        if after is not None:
            after(commands)
        self._submit(commands)
        self._count_unread()
        return []

    @property
    def idle(self) -> bool:
        """Whether the device has nothing to do, as far as we know: the last results that were asked for are here."""
        return not self.background.busy and (self._latest is None or self._latest.arrived)

    def execute_in_background(
        self, writes: Sequence[Write], reads: Sequence[Read], before: Sequence[Record], after: Record
    ) -> Readback | None:
        """One submit of `writes` and what `begin` would record, which this thread does not wait for; None if nothing is read.

        The library checks and translates commands when they are finished, which takes as long as to record them: a second
        thread does that. What goes wrong there is raised by the readback, or by the next call that depends on it.
        """
        self.background.make_room()
        readback = self._plan_readback(reads) if reads else None
        try:
            commands = self._commands()
            for record in before:
                record(commands)
            if readback is None:
                after(commands)
            else:
                self._record_reads(commands, readback, reads, after)
        except BaseException:
            if readback is not None:
                self.staging.give(readback.buffer)
            raise
        job = self.background.put(partial(self._submit_written, commands, writes, readback))
        if readback is None:
            self._count_unread()
        else:
            readback.left = job
            self._latest = readback
            self.fault("readback")
        return readback

    def _submit_written(self, commands: Commands, writes: Sequence[Write], readback: Readback | None) -> None:
        # Results are looked at under the mapper's lock, and a submit to a lost device would take them away meanwhile.
        with self.guard("a run"), self.mapper.lock:
            for buffer, offset, data in writes:
                self.write(buffer, offset, data)
            self._submit(commands)
            if readback is not None:
                readback.request()

    def _count_unread(self) -> None:
        self._unread += 1
        if self._unread % _UNREAD == 0:
            # Runs without readback never wait, so the queue could grow without bound: wait for one of them now and then.
            self._trail.append(self.begin())
            if len(self._trail) > 1:
                self._trail.popleft().wait()

    def begin(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> Readback:
        """As `execute`, without the wait."""
        self.background.drain()
        # First, as it may find no memory: what has been submitted cannot be taken back.
        readback = self._plan_readback(reads)
        try:
            commands = self._record_ahead(before)
            self._record_reads(commands, readback, reads, after)
            self._submit(commands)
        except BaseException:
            self.staging.give(readback.buffer)
            raise
        self._in_flight = 0
        self._latest = readback
        self.fault("readback")
        readback.request()
        return readback

    def _plan_readback(self, reads: Sequence[Read]) -> Readback:
        parts, total = [], GRAIN
        for _, nbytes in reads:
            parts.append((total, nbytes))
            total += rounded(nbytes)
        return Readback(self, self.staging.take(total), total, parts, self.idle)

    def _record_ahead(self, parts: Sequence[Record]) -> Commands:
        """Submits all parts but the last, which is in the commands that come back."""
        for record in parts[:-1]:
            commands = self._commands()
            record(commands)
            self._submit(commands)
        commands = self._commands()
        for record in parts[-1:]:
            record(commands)
        return commands

    def _record_reads(self, commands: Commands, readback: Readback, reads: Sequence[Read], after: Record | None) -> None:
        for (places, nbytes), (offset, _) in zip(reads, readback.parts, strict=True):
            for place, start, size in spans(places, nbytes):
                commands.copy(place.buffer.handle, place.offset, readback.buffer.handle, offset + start, rounded(size, 4))
        if after is not None:
            after(commands)
        self.staging.record_stamp(commands, readback.buffer)

    def _commands(self) -> Commands:
        self.fault("submit")
        return self.encode.Commands(self.raw._internal)

    def _submit(self, commands: Commands) -> None:
        # A submit to a lost device aborts the process; `finish` raises instead, and nothing comes between the two.
        finished = commands.finish()
        self.mark("encode")
        self.encode.submit(self.queue._internal, finished)
        self.submits += 1

    def wait_recorded(self) -> None:
        """Wait until all that was recorded is submitted."""
        self.background.wait()

    def flush(self) -> None:
        """Submit uploads that wait for a submit."""
        self.queue.submit([])

    def wait_idle(self) -> None:
        """Block until all submitted work is done."""
        self.encode.wait_idle(self.raw._internal)

    def run_alone(self, dispatches: Sequence[Dispatch]) -> Callable[[], None]:
        """Record dispatches; the call that comes back submits them and waits."""
        commands = self.encode.Commands(self.raw._internal)
        commands.steps(dispatches)
        finished = commands.finish()

        def run() -> None:
            self.encode.submit(self.queue._internal, finished)
            self.wait_idle()

        return run

    def _probe_subgroup_size(self) -> int:
        with self.lock:
            (pipeline,) = self.pipelines.compile([_SUBGROUP_PROBE])
            buffer = self.create_buffer(GRAIN, "subgroup probe")
            try:
                with self.guard("the subgroup probe"):
                    group = self.pipelines.bind(pipeline, [(buffer, 0, GRAIN)], "subgroup probe")

                    steps: list[Dispatch] = [(pipeline.handle, group.handle, 1, 1, 1)]
                    (word,) = self.execute([([BufferRange(buffer, 0, 4)], 4)], [lambda commands: commands.steps(steps)])
                return int(word.view(np.uint32)[0])
            finally:
                buffer.release()


class WebGpuDevice(GpuDevice):
    """A WebGPU device, perhaps one that promises less than it has (`caps`), as plans for smaller targets need."""

    backend = "webgpu"

    @staticmethod
    def find(which: str) -> WebGpu:
        """The process-wide device of the adapter that a text picks."""
        return WebGpu.of(pick_adapter(which))

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> Any:
        """Allocate buffers, compile kernels, upload constants."""
        from pumice.backends.webgpu.session import WebGpuSession

        return WebGpuSession(self.gpu, plan, residents)
