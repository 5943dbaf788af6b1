"""WebGpuDevice: one wgpu device per adapter and process, with its lock, pipelines, staging memory and liveness check."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.base import Array, Device, Donor
from pumice.backends.webgpu.adapters import FEATURES, Adapter, caps_of, find_adapter, import_wgpu, narrow
from pumice.backends.webgpu.behind import Behind
from pumice.backends.webgpu.faults import Faults, broken
from pumice.backends.webgpu.flight import Flight, Staging
from pumice.backends.webgpu.memory import GRAIN, ByteSource, DeviceBuffer, Ledger, Place, rounded, spans
from pumice.core.caps import Caps
from pumice.errors import DeviceError, DeviceLost, DeviceTimeout, LimitError, OutOfMemory, PumiceError, ShaderError
from pumice.plan.plan import Access, Kernel, Plan

# Sessions keep their own pipelines alive; this many more stay for the next session that wants them.
_KEPT_PIPELINES = 1024
# Results up to this size together leave in the run's own submit, others follow in chunks; both fit any device's buffer limit.
READBACK_BYTES = 128 << 20
_FETCH_CHUNK = 64 << 20
# Uploads that the queue may hold in staging memory before we wait for it.
_UPLOAD_IN_FLIGHT = 64 << 20
# Submits without anything to read before one of them is waited for; at most twice as many are under way.
_UNREAD = 64
# How long the end of the process waits for work that has timed out on a software device.
_EXIT_SECONDS = 60.0
_SUBGROUP_PROBE = Kernel(
    "subgroup-size",
    "@group(0) @binding(0) var<storage, read_write> size: array<u32>;\n"
    "@compute @workgroup_size(128) fn main(@builtin(subgroup_size) n: u32) { size[0] = n; }\n",
    ("write",),
    0,
)

Read = tuple[Sequence[Place], int]
# A buffer of the library, an offset and the bytes to put there.
Write = tuple[Any, int, bytes]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled kernel; `handle` is for the encoding loop and lives as long as `raw`."""

    raw: Any
    handle: Any
    layout: Any


class Gpu:
    """A wgpu device and everything that sessions on it share. `lock` is held over encoding and submits, not over waits."""

    def __init__(self, adapter: Adapter) -> None:
        self.wgpu = import_wgpu()
        from pumice.backends.webgpu import encode

        self.encode = encode
        self.adapter = adapter
        self.lock = threading.RLock()
        self.lost = self._hung = False
        self.ledger = Ledger()
        self._layouts: dict[tuple[tuple[Access, ...], bool], Any] = {}
        self._pipelines: OrderedDict[str, Pipeline] = OrderedDict()
        self._buried: deque[list[DeviceBuffer]] = deque()
        self.staging = Staging(self)
        self.faults: Faults | None = None
        self._stamp = 0
        self._in_flight = 0
        self._unread = 0
        self._trail: deque[Flight] = deque()
        self.submits = 0
        # What is still to reach the queue; whoever uses the queue, or destroys a buffer, waits for it first.
        self.behind = Behind()
        # For the profiler: what the end of each phase of a run is told to, and what measuring costs here.
        self.mark: Callable[[str], None] = _no_mark
        self.overheads: dict[str, float] = {}
        with self.guard("the request for a device"):
            # Without explicit limits a device gets the defaults, not what the adapter can do.
            self.raw = adapter.raw.request_device_sync(
                label="pumice",
                required_features=[f for f in FEATURES if f in adapter.features],
                required_limits=dict(adapter.limits),
            )
            self.queue = self.raw.queue
            usage = self.wgpu.BufferUsage
            self._usage = {
                "storage": usage.STORAGE | usage.COPY_SRC | usage.COPY_DST,
                "uniform": usage.UNIFORM | usage.COPY_DST,
            }
            self._stamp_buffer = self.raw.create_buffer(size=GRAIN, usage=usage.COPY_SRC | usage.COPY_DST)
        self.mapper = encode.Mapper(self.raw._internal)
        self.caps = caps_of(adapter, self._probe_subgroup_size() if "subgroup" in adapter.features else 0)

    # -- errors -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turn wgpu's errors into ours, naming what was going on."""
        if self.lost:
            raise self._lost_error(what)
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
                raise OutOfMemory(
                    f"{self.adapter.name} has no memory left for {what}",
                    hint="close executables, use a smaller maximum for symbolic dims, or quantised weights",
                    alive=self.ledger.snapshot(),
                ) from e
            raise DeviceError(f"{self.adapter.name}: {what} failed: {text}", hint="run `pumice doctor`") from e

    def mark_lost(self, what: str) -> DeviceLost:
        """Retire this device; the next `open_device` makes a new one.

        It is not destroyed: other threads may be about to look at results that have arrived, which would abort the process.
        """
        self._retire()
        return self._lost_error(what)

    def mark_hung(self, seconds: int) -> DeviceTimeout:
        """Retire a device that does not answer: what it still does must not mix with what comes after."""
        self._retire()
        with _gpus_lock:
            first, self._hung = not self._hung, True
        if first:
            # The library waits for a device's work when the device is freed, and aborts the process when that takes long: this
            # one is kept for good.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.raw))
            if self.adapter.software:
                # A driver that computes on this machine's cores crashes when the process ends under its hands.
                atexit.register(self.encode.wait_idle_for, self.raw._internal, _EXIT_SECONDS)
        return DeviceTimeout(
            f"{self.adapter.name} did not answer within {seconds} s",
            hint="reopen() the executable; if the work really takes that long, set PUMICE_TIMEOUT",
            seconds=seconds,
        )

    def _retire(self) -> None:
        self.lost = True
        with _gpus_lock:
            if _gpus.get(self.adapter.index) is self:
                del _gpus[self.adapter.index]

    def _lost_error(self, what: str) -> DeviceLost:
        return DeviceLost(
            f"{self.adapter.name} stopped answering ({what})",
            hint="reopen() the executable or model: a new device, the same params; state that was not saved is gone",
        )

    def fault(self, point: str) -> bool:
        """Where an injected fault may strike; True if the caller is to see to it."""
        return self.faults is not None and self.faults.at(point)

    # -- memory -----------------------------------------------------------------------------------------------------
    def create_buffer(self, nbytes: int, label: str, use: str = "storage") -> DeviceBuffer:
        """A zeroed buffer of at least `nbytes`."""
        size = max(GRAIN, rounded(nbytes))
        limit = self.adapter.limits["max-buffer-size"]
        if size > limit:
            raise LimitError(
                f"the buffer {label!r} takes {size} bytes, {self.adapter.name} allows {limit}",
                hint="use smaller maxima for symbolic dims",
                name=label,
                wanted=size,
                limit=limit,
            )
        with self.guard(f"the buffer {label!r} of {size} bytes"):
            self.fault("memory")
            raw = self.raw.create_buffer(label=label, size=size, usage=self._usage[use])
        return DeviceBuffer(raw, size, label, self.ledger)

    def bury(self, buffers: list[DeviceBuffer]) -> None:
        """Take the buffers of a session that was dropped unclosed; safe from a finaliser, which may run anywhere."""
        self._buried.append(buffers)

    def settle(self) -> None:
        """Release what was buried."""
        if self._buried:
            self.behind.wait()
        while self._buried:
            buffers = self._buried.popleft()
            self.ledger.sessions -= 1
            for b in buffers:
                b.release()

    def upload(self, places: Sequence[Place], array: Array) -> int:
        """Write an array to its parts piece by piece; returns the bytes written."""
        source = ByteSource(array)
        self.behind.drain()
        self.fault("memory")
        for place, start, size in spans(places, source.nbytes):
            for at, piece in source.pieces(start, size):
                self.queue.write_buffer(place.buffer.raw, place.offset + at, piece)
                self._in_flight += piece.nbytes
                if self._in_flight >= _UPLOAD_IN_FLIGHT:
                    # The queue keeps a copy of each write until a submit has run it.
                    self.begin().wait()
        return source.nbytes

    # -- kernels ----------------------------------------------------------------------------------------------------
    def compile(self, kernels: Sequence[Kernel], *, own: bool = False) -> list[Pipeline]:
        """The kernels' pipelines, from the cache or compiled side by side; drivers release the GIL while they compile.

        `own` kernels were generated here, others get the guards that WebGPU puts around shaders from anywhere.
        """
        if self.fault("compile") and kernels:
            kernels = [broken(kernels[0]), *kernels[1:]]
        keys = [hashlib.sha256(f"{own}{k.access}{k.uniform_words > 0}{k.wgsl}".encode()).hexdigest() for k in kernels]
        with self.lock:
            found = {key: self._pipelines[key] for key in keys if key in self._pipelines}
        # Layouts are looked up here, not in the pool: the caller may hold the lock.
        missing = {
            key: (k, self._layout(k.access, k.uniform_words > 0))
            for key, k in zip(keys, kernels, strict=True)
            if key not in found
        }
        if len(missing) > 1:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                found.update(
                    zip(missing, pool.map(lambda job: self._compile(job[0], job[1], own), missing.values()), strict=True)
                )
        else:
            found.update((key, self._compile(job[0], job[1], own)) for key, job in missing.items())
        with self.lock:
            for key in keys:
                self._pipelines[key] = found[key]
                self._pipelines.move_to_end(key)
            while len(self._pipelines) > _KEPT_PIPELINES:
                self._pipelines.popitem(last=False)
        return [found[key] for key in keys]

    def _compile(self, kernel: Kernel, layout: Any, own: bool) -> Pipeline:
        if self.lost:
            raise self._lost_error(f"compiling {kernel.name}")
        try:
            if own:
                # Vulkan devices are made with robust buffer access, which bounds what a kernel can reach.
                checks = self.adapter.api != "vulkan"
                module = self.encode.own_shader_module(self.raw, kernel.name, kernel.wgsl, bounds_checks=checks)
            else:
                module = self.raw.create_shader_module(label=kernel.name, code=kernel.wgsl)
            raw = self.raw.create_compute_pipeline(
                label=kernel.name,
                layout=self.raw.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        except self.wgpu.GPUError as e:
            if "device is lost" in str(e).lower():
                raise self.mark_lost(f"compiling {kernel.name}") from e
            raise _compile_error(kernel, str(e)) from e
        return Pipeline(raw, raw._internal, layout)

    def _layout(self, access: tuple[Access, ...], uniform: bool) -> Any:
        # Explicit layouts: an automatic one drops bindings that a kernel happens not to read.
        with self.lock:
            layout = self._layouts.get((access, uniform))
            if layout is None:
                types = ["read-only-storage" if a == "read" else "storage" for a in access] + ["uniform"] * uniform
                stage = self.wgpu.ShaderStage.COMPUTE
                entries = [{"binding": i, "visibility": stage, "buffer": {"type": t}} for i, t in enumerate(types)]
                with self.guard("a bind group layout"):
                    layout = self.raw.create_bind_group_layout(entries=entries)
                self._layouts[access, uniform] = layout
            return layout

    def bind(self, pipeline: Pipeline, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> Any:
        """A bind group over (buffer, offset, size) ranges in binding order."""
        entries = [
            {"binding": i, "resource": {"buffer": b.raw, "offset": offset, "size": size}}
            for i, (b, offset, size) in enumerate(ranges)
        ]
        with self.guard(f"the bind group of {label}"):
            return self.raw.create_bind_group(label=label, layout=pipeline.layout, entries=entries)

    # -- runs -------------------------------------------------------------------------------------------------------
    def execute(
        self,
        reads: Sequence[Read] = (),
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> list[Array]:
        """One submit: `before(encoder)`, copies of `reads` (parts, bytes) to the host side, `after(encoder)`.

        Waits for the end and returns the bytes of each read; with nothing to read it only submits.
        """
        if reads:
            return self.begin(reads, before, after).wait()
        self.behind.drain()
        encoder = self._encoder()
        for record in (before, after):
            if record is not None:
                record(encoder)
        self._submit(encoder)
        self._count_unread()
        return []

    @property
    def watched(self) -> bool:
        """Whether somebody takes the times of the phases of runs."""
        return self.mark is not _no_mark

    def execute_behind(
        self,
        writes: Sequence[Write],
        reads: Sequence[Read],
        before: Callable[[Any], None],
        after: Callable[[Any], None],
    ) -> Flight | None:
        """One submit of `writes` and what `begin` would record, which this thread does not wait for; None if nothing is read.

        The library checks and translates commands when an encoder is finished, which takes as long as to record them: a second
        thread does that. What goes wrong there is raised by the flight, or by the next call that depends on it.
        """
        self.behind.make_room()
        encoder = self._encoder()
        flight = None
        if reads:
            flight = self._record_flight(encoder, reads, before, after)
            writes = [*writes, (self._stamp_buffer, 0, flight.stamp.to_bytes(4, "little"))]
        else:
            before(encoder)
            after(encoder)
        handles = [(raw._internal, offset, data) for raw, offset, data in writes]
        job = self.behind.put(partial(self._submit_written, encoder, handles, flight))
        if flight is None:
            self._count_unread()
        else:
            flight.left = job
            self.fault("flight")
        return flight

    def _submit_written(self, encoder: Any, writes: Sequence[tuple[Any, int, bytes]], flight: Flight | None) -> None:
        # Results are looked at under the mapper's lock, and a submit to a lost device would take them away meanwhile.
        with self.guard("a run"), self.mapper.lock:
            for handle, offset, data in writes:
                self.encode.write_bytes(self.queue._internal, handle, offset, data)
            self._submit(encoder)
            if flight is not None:
                flight.request()

    def _count_unread(self) -> None:
        self._unread += 1
        if self._unread % _UNREAD == 0:
            # Who never reads is never held up, and the time until the next answer would count for all that is queued.
            self._trail.append(self.begin())
            if len(self._trail) > 1:
                self._trail.popleft().wait()

    def begin(
        self,
        reads: Sequence[Read] = (),
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> Flight:
        """As `execute`, without the wait."""
        self.behind.drain()
        encoder = self._encoder()
        flight = self._record_flight(encoder, reads, before, after)
        try:
            self.queue.write_buffer(self._stamp_buffer, 0, np.array([flight.stamp], np.uint32))
            self._submit(encoder)
        except BaseException:
            self.staging.give(flight.staging)
            raise
        self._in_flight = 0
        self.fault("flight")
        flight.request()
        return flight

    def _record_flight(
        self,
        encoder: Any,
        reads: Sequence[Read],
        before: Callable[[Any], None] | None,
        after: Callable[[Any], None] | None,
    ) -> Flight:
        """What `begin` submits, and the flight that its results will be on."""
        parts, total = [], GRAIN
        for _, nbytes in reads:
            parts.append((total, nbytes))
            total += rounded(nbytes)
        staging = self.staging.take(total)
        try:
            self._stamp = self._stamp % 0xFFFFFFFF + 1
            if before is not None:
                before(encoder)
            for (places, nbytes), (offset, _) in zip(reads, parts, strict=True):
                for place, start, size in spans(places, nbytes):
                    encoder.copy_buffer_to_buffer(place.buffer.raw, place.offset, staging, offset + start, rounded(size, 4))
            if after is not None:
                after(encoder)
            encoder.copy_buffer_to_buffer(self._stamp_buffer, 0, staging, 0, 4)
        except BaseException:
            self.staging.give(staging)
            raise
        return Flight(self, staging, total, parts, self._stamp)

    def _encoder(self) -> Any:
        self.fault("submit")
        return self.raw.create_command_encoder()

    def _submit(self, encoder: Any) -> None:
        # A submit to a lost device aborts the process; `finish` raises instead, and nothing comes between the two.
        commands = encoder.finish()
        self.mark("encode")
        self.queue.submit([commands])
        self.submits += 1

    def fetch(self, places: Sequence[Place], nbytes: int) -> Array:
        """The first bytes of a value, in chunks that bound the staging memory."""
        out = np.empty(nbytes, np.uint8)
        for place, start, size in spans(places, nbytes):
            for at in range(0, size, _FETCH_CHUNK):
                n = min(_FETCH_CHUNK, size - at)
                piece = Place(place.buffer, place.offset + at, n)
                out[start + at : start + at + n] = self.execute([([piece], n)])[0]
        return out

    def _probe_subgroup_size(self) -> int:
        with self.lock:
            (pipeline,) = self.compile([_SUBGROUP_PROBE])
            buffer = self.create_buffer(GRAIN, "subgroup probe")
            try:
                with self.guard("the subgroup probe"):
                    group = self.bind(pipeline, [(buffer, 0, GRAIN)], "subgroup probe")

                    def record(encoder: Any) -> None:
                        compute = encoder.begin_compute_pass()
                        self.encode.encode_steps(compute._internal, [(pipeline.handle, group._internal, 1, 1, 1)])
                        compute.end()

                    (word,) = self.execute([([Place(buffer, 0, 4)], 4)], record)
                return int(word.view(np.uint32)[0])
            finally:
                buffer.release()


def _no_mark(name: str) -> None:
    """Phases are named to nobody while no profile is taken."""


def _compile_error(kernel: Kernel, text: str) -> ShaderError:
    at = re.search(r"wgsl:(\d+):(\d+)", text)
    reason = re.search(r"(?:error|pipeline)[:\s]+(.+)", text)
    line, column = (int(at[1]), int(at[2])) if at else (0, 0)
    source = kernel.wgsl.splitlines()[line - 1].strip() if 0 < line <= len(kernel.wgsl.splitlines()) else ""
    message = f"the kernel {kernel.name} does not compile: {reason[1].strip() if reason else ' '.join(text.split())}"
    if source:
        message += f" (line {line}: {source})"
    return ShaderError(message, hint="a bug in a lowering: report it with the WGSL", kernel=kernel.name, line=line, column=column,
                     source=source, detail=text)  # fmt: skip


_gpus: dict[int, Gpu] = {}
_gpus_lock = threading.RLock()


def gpu_of(adapter: Adapter) -> Gpu:
    """The process-wide device of an adapter; wgpu has leaked devices, so there is never a second one while it lives."""
    with _gpus_lock:
        gpu = _gpus.get(adapter.index)
        if gpu is None:
            gpu = _gpus[adapter.index] = Gpu(adapter)
        return gpu


class WebGpuDevice:
    """A WebGPU device, perhaps one that promises less than it has (`caps`), as plans for smaller targets need."""

    def __init__(self, which: str = "", caps: Caps | None = None) -> None:
        self.gpu = gpu_of(find_adapter(which))
        self.caps = self.gpu.caps if caps is None else narrow(self.gpu.caps, caps)
        self.name = self.gpu.adapter.name

    def describe(self) -> dict[str, Any]:
        """Name, API, driver, features and limits, as data."""
        about = self.gpu.adapter.describe()
        return {"backend": "webgpu", **about, "subgroup_size": self.caps.subgroup_size, "caps": self.caps.name}

    @property
    def lost(self) -> bool:
        """Whether it is known to have stopped working."""
        return self.gpu.lost

    def joins(self, other: Device) -> bool:
        """Whether the other is a handle of the same device."""
        return isinstance(other, WebGpuDevice) and other.gpu is self.gpu

    def renew(self) -> WebGpuDevice:
        """This device, or a new one on the same adapter with the same caps if it was lost."""
        if not self.gpu.lost:
            return self
        return WebGpuDevice(str(self.gpu.adapter.index), None if self.caps == self.gpu.caps else self.caps)

    def ledger(self) -> dict[str, int]:
        """Buffers, bytes and sessions alive on the device."""
        with self.gpu.lock:
            self.gpu.settle()
            return self.gpu.ledger.snapshot()

    def open(self, plan: Plan, donors: Sequence[Donor] = ()) -> Any:
        """Allocate buffers, compile kernels, upload constants, set states to their initial values."""
        from pumice.backends.webgpu.session import WebGpuSession

        return WebGpuSession(self.gpu, plan, donors)
