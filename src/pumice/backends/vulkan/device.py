"""VulkanDevice: one logical device per adapter and process, with its queue, its timeline, memory and pipelines."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.backends.base import Array, Resident
from pumice.backends.gpu.adapter import Adapter, caps_of
from pumice.backends.gpu.device import GpuBase, GpuDevice
from pumice.backends.gpu.interface import Dispatch, Read, Record
from pumice.backends.gpu.memory import BufferRange, ByteSource, DeviceBuffer, spans
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.adapters import EXTENSIONS, DriverFacts, feature_chain, pick_adapter
from pumice.backends.vulkan.commands import VulkanCommands, barriers_of
from pumice.backends.vulkan.library import VulkanError, ffi, load, make
from pumice.backends.vulkan.memory import DeviceMemory
from pumice.backends.vulkan.pipelines import VulkanPipelines
from pumice.backends.vulkan.queries import VulkanQueries
from pumice.backends.vulkan.readback import ReadbackPool, VulkanReadback, parts_of, record_reads
from pumice.backends.vulkan.timeline import Timeline
from pumice.backends.vulkan.transfers import Transfers
from pumice.core.streamed import StreamedArray
from pumice.errors import ClosedError, DeviceError, DeviceTimeout, PumiceError
from pumice.plan.plan import Plan

_FULL = (vk.ERROR_OUT_OF_DEVICE_MEMORY, vk.ERROR_OUT_OF_HOST_MEMORY, vk.ERROR_OUT_OF_POOL_MEMORY, vk.ERROR_TOO_MANY_OBJECTS)
# A wait looks up this often, for interrupts, closed executables and its time limit.
_LOOK_NANOSECONDS = 20_000_000
# Runs that are submitted together at most.
_TOGETHER = 4
# Submits that may be in flight before one is waited for, and how many are then left.
_MOST_IN_FLIGHT, _LEFT_IN_FLIGHT = 256, 128
# How long the end of the process waits for work.
_EXIT_SECONDS = 60.0

_gpus: dict[int, Vulkan] = {}
_gpus_lock = threading.RLock()


class Vulkan(GpuBase):
    """A logical device and everything that sessions on it share. `lock` is held over recording and submits, not over waits."""

    registry, registry_lock = _gpus, _gpus_lock

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self.facts: DriverFacts = adapter.raw
        self.features = adapter.features
        self.instance = load()
        self._gone = self._hung = self._drained = False
        # The value that the timeline has when all that was submitted is done.
        self.submitted = 0
        # Commands that wait for the next ones, to be submitted with them: before the uploads that are pending, if there are any.
        self._unsent: list[VulkanCommands] = []
        # What is freed when the timeline has reached a value, and what finalisers have dropped.
        self._retired: deque[tuple[int, Callable[[], None]]] = deque()
        self._dropped: deque[tuple[str, Any]] = deque()
        with self.guard("the request for a device"):
            self._make_device()
            self.memory = DeviceMemory(self)
        self.between_steps, self.between_all, self.towards_host = barriers_of(self)
        self.transfers = Transfers(self)
        self.staging = ReadbackPool(self)
        self.pipelines = VulkanPipelines(self)
        self.caps = caps_of(adapter, self.facts.subgroup_size if "subgroup" in adapter.features else 0)
        atexit.register(_wait_at_exit, weakref.ref(self))

    def _make_device(self) -> None:
        f, facts = ffi(), self.facts
        priority = f.new("float[]", [1.0])
        queue = make("VkDeviceQueueCreateInfo", queueFamilyIndex=facts.family, queueCount=1, pQueuePriorities=priority)
        features = feature_chain(facts.extensions, facts.enabled)
        names = [f.new("char[]", name.encode()) for name in EXTENSIONS if name in facts.extensions]
        listed = f.new("char *[]", names or 1)
        about = make(
            "VkDeviceCreateInfo",
            pNext=features["VkPhysicalDeviceFeatures2"],
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=listed,
        )
        out = f.new("VkDevice *")
        self.instance.functions.checked("CreateDevice", facts.handle, about, f.NULL, out)
        self.device = out[0]
        self.call = self.instance.device_functions(self.device)
        found = f.new("VkQueue *")
        self.call.GetDeviceQueue(self.device, facts.family, 0, found)
        self.queue = found[0]
        pool = f.new("VkCommandPool *")
        flags = vk.COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
        self.call.checked(
            "CreateCommandPool",
            self.device,
            make("VkCommandPoolCreateInfo", flags=flags, queueFamilyIndex=facts.family),
            f.NULL,
            pool,
        )
        self.pool = pool[0]
        self._timeline = Timeline(self.call, self.device)
        # One description serves all submits, which hold the lock: only the commands and the value change.
        self._value = f.new("uint64_t *")
        self._buffers = f.new("VkCommandBuffer[]", _TOGETHER)
        self._signal = make("VkTimelineSemaphoreSubmitInfo", signalSemaphoreValueCount=1, pSignalSemaphoreValues=self._value)
        self._submit = make(
            "VkSubmitInfo",
            pNext=self._signal,
            pCommandBuffers=self._buffers,
            signalSemaphoreCount=1,
            pSignalSemaphores=self._timeline.semaphores,
        )

    # -- errors -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turn Vulkan's errors into ours, naming what was going on."""
        if self.lost:
            raise self.lost_error(what)
        try:
            yield
        except PumiceError:
            raise
        except VulkanError as e:
            if e.result == vk.ERROR_DEVICE_LOST:
                raise self.mark_lost(what) from e
            if e.result in _FULL:
                raise self.out_of_memory(what) from e
            raise DeviceError(f"{self.adapter.name}: {what} failed: {e}", hint="run `pumice doctor`") from e

    def mark_hung(self, seconds: int) -> DeviceTimeout:
        """Retire a hung device: its pending work must not mix with later work."""
        self.retire_device()
        self._hung = True
        return self.timeout_error(seconds)

    def lose(self) -> None:
        """For injected faults: every call that could report the loss of the device does from now on."""
        self._gone = True

    def refuse_memory(self) -> None:
        """For injected faults: raise what Vulkan reports where there is no memory."""
        raise VulkanError("vkAllocateMemory", vk.ERROR_OUT_OF_DEVICE_MEMORY)

    # -- memory -----------------------------------------------------------------------------------------------------
    def create_buffer(self, nbytes: int, label: str, use: str = "storage") -> DeviceBuffer:
        """A zeroed buffer of at least `nbytes`."""
        size = self.buffer_size(nbytes, label)
        with self.guard(f"the buffer {label!r} of {size} bytes"):
            self.settle()
            self.fault("memory")
            try:
                made = self.memory.create(size, label, use, self.ledger)
            except VulkanError as e:
                if e.result not in _FULL or not self._retired:
                    raise
                # Some memory is only waiting for work in flight.
                self.wait_idle()
                self._collect()
                made = self.memory.create(size, label, use, self.ledger)
            if made.view is None:
                self.transfers.fill(made)
            else:
                np.frombuffer(made.view, np.uint8)[:] = 0
        return made

    def retire(self, free: Callable[[], None]) -> None:
        """Call `free` when all that may use a thing is done; under the lock."""
        self._retired.append((self.submitted + (self.transfers.pending or bool(self._unsent)), free))

    def retire_later(self, call: str, thing: Any) -> None:
        """As `retire` for an object that nothing refers to any more; safe from a finaliser, which may run anywhere."""
        self._dropped.append((call, thing))

    def settle(self) -> None:
        """Release what was let go, and free what the device is done with."""
        super().settle()
        while self._dropped:
            call, thing = self._dropped.popleft()
            if call:
                self.retire(lambda call=call, thing=thing: getattr(self.call, call)(self.device, thing, ffi().NULL))  # type: ignore[misc]
            else:
                pipelines, pool, sets = thing
                self.retire(lambda p=pipelines, pool=pool, sets=sets: p.give(pool, sets))  # type: ignore[misc]
        self._collect()

    def _collect(self) -> None:
        if not self._retired or self._hung:
            return
        if self.lost and not self._drained:
            # What the driver has lost may be freed; where the loss is only simulated, work is still in flight.
            self.call.DeviceWaitIdle(self.device)
            self._drained = True
        done = self.submitted + 1 if self.lost else self._timeline.read()
        while self._retired and self._retired[0][0] <= done:
            self._retired.popleft()[1]()

    def wait_recorded(self) -> None:
        """Submit what waits for more; if that fails the device is lost, which its next use reports."""
        with contextlib.suppress(PumiceError):
            self.send_together()

    def upload(self, places: Sequence[BufferRange], array: Array | StreamedArray) -> int:
        """Write an array to its parts piece by piece; returns the bytes written."""
        source = ByteSource(array)
        self.fault("memory")
        for place, start, size in spans(places, source.nbytes):
            for at, piece in source.pieces(start, size):
                self.transfers.write(place.buffer, place.offset + at, piece)
        return source.nbytes

    def write_sizes(self, buffer: DeviceBuffer, data: Array) -> None:
        """Put uniform words into mapped memory; no run that reads them is in flight."""
        np.frombuffer(buffer.view, np.uint8, count=data.size)[:] = data  # type: ignore[attr-defined]

    def queries(self, count: int) -> VulkanQueries:
        """Timestamps of a submit."""
        return VulkanQueries(self, count)

    @property
    def timestamp_period(self) -> float:
        """Nanoseconds per tick of the device's clock."""
        return self.facts.timestamp_period

    @property
    def stamps_between_steps(self) -> bool:
        """Whether timestamps can be taken between steps."""
        return "timestamp-query" in self.features

    # -- the queue --------------------------------------------------------------------------------------------------
    def submit(self, commands: VulkanCommands, *, more: bool = False) -> int:
        """Send finished commands; the value that the timeline has when they are done. Pending uploads go first.

        With `more` they wait for the next ones, to be submitted with them, as long as the device is busy.
        """
        self.transfers.flush()
        self.fault("submit")
        if self._gone:
            raise VulkanError("vkQueueSubmit", vk.ERROR_DEVICE_LOST)
        if more and len(self._unsent) + 1 < _TOGETHER and not self.is_done(self.submitted):
            self._unsent.append(commands)
            return self.submitted + 1
        if self._unsent:
            self._unsent.append(commands)
            self.send_together()
        else:
            self._send_now([commands])
        return self.submitted

    def send_together(self) -> None:
        """Submit what waits for more; under the lock."""
        # After an interrupt none of them is submitted twice.
        unsent, self._unsent = self._unsent, []
        if unsent and not self.lost:
            try:
                self._send_now(unsent)
            except VulkanError as e:
                # Their runs were taken already: nobody can say what states hold.
                raise self.mark_lost("runs that were submitted together") from e

    def _send_now(self, group: Sequence[VulkanCommands]) -> None:
        for i, commands in enumerate(group):
            self._buffers[i] = commands.handle
        self._submit.commandBufferCount = len(group)
        value = self._value[0] = self.submitted + 1
        # Counted first: after an interrupt no value is signalled twice.
        self.submitted = int(value)
        try:
            self.call.checked("QueueSubmit", self.queue, 1, self._submit, 0)
        except VulkanError:
            self.submitted -= 1
            raise
        self.submits += 1
        if self.submitted % _LEFT_IN_FLIGHT == 0 and self.submitted - self._timeline.read() > _MOST_IN_FLIGHT:
            self.wait_for(self.submitted - _LEFT_IN_FLIGHT)

    def flush(self) -> None:
        """Submit what waits for a submit: uploads, or runs that wait for more."""
        self.transfers.flush()
        self.send_together()

    def is_done(self, value: int) -> bool:
        """Whether the timeline has reached a value."""
        return not self._gone and self._timeline.has_reached(value)

    def wait_for(self, value: int, abandoned: Callable[[], bool] = lambda: False) -> None:
        """Wait until the timeline has a value. Needs no lock, so that other threads can submit meanwhile."""
        if value > self.submitted:
            with self.lock, self.guard("a submit"):
                self.flush()
        late = self.fault("wait")
        began = time.perf_counter()
        while not late:
            result = vk.ERROR_DEVICE_LOST if self._gone else self._timeline.wait(value, _LOOK_NANOSECONDS)
            if result == vk.SUCCESS:
                return
            if abandoned():
                raise ClosedError("the executable was closed while this run was under way", hint="wait for results first")
            if result < 0:
                with self.guard("waiting for results"):
                    raise VulkanError("vkWaitSemaphores", result)
            if self.lost:
                raise self.lost_error("waiting for results")
            late = time.perf_counter() - began > self.wait_limit
        raise self.mark_hung(self.wait_limit)

    def wait_idle(self) -> None:
        """Block until all submitted work is done."""
        self.flush()
        self.wait_for(self.submitted)

    def wait_exit(self) -> None:
        """The end of the process: a driver that computes on this machine's cores crashes when they go under its hands."""
        end = time.monotonic() + _EXIT_SECONDS
        while not self.lost and not self._timeline.has_reached(self.submitted) and time.monotonic() < end:
            time.sleep(0.005)

    # -- runs -------------------------------------------------------------------------------------------------------
    def execute(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> list[Array]:
        """`before`, copies of `reads` to the host, then `after`, in one submit; with something to read it waits for the end."""
        if reads:
            return self.begin(reads, before, after).wait()
        self._send([*before, *([] if after is None else [after])])
        return []

    def begin(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> VulkanReadback:
        """As `execute`, without the wait."""
        parts, total = parts_of(reads)
        buffer = self.staging.take(total)

        def copy(commands: VulkanCommands) -> None:
            record_reads(commands, reads, parts, buffer)

        try:
            value = self._send([*before, copy, *([] if after is None else [after])], host_reads=True)
        except BaseException:
            self.staging.give(buffer)
            raise
        self.fault("readback")
        return VulkanReadback(self, buffer, parts, value)

    def _send(self, records: Sequence[Record], *, host_reads: bool = False) -> int:
        self.settle()
        commands = self.record(records, host_reads=host_reads)
        try:
            self.mark("encode")
            return self.submit(commands)
        finally:
            self.retire(commands.free)

    def record(self, records: Sequence[Record], *, host_reads: bool = False, once: bool = True) -> VulkanCommands:
        """A command buffer with what the records add."""
        commands = VulkanCommands(self, once=once)
        try:
            for add in records:
                add(commands)
            return commands.finish(host_reads=host_reads)
        except BaseException:
            commands.free()
            raise

    def run_alone(self, dispatches: Sequence[Dispatch]) -> Callable[[], None]:
        """Record dispatches; the call that comes back submits them and waits."""
        commands = self.record([lambda commands: commands.steps(dispatches)])

        def run() -> None:
            try:
                self.wait_for(self.submit(commands))
            finally:
                self.retire(commands.free)

        return run


def _wait_at_exit(gpu: weakref.ref[Vulkan]) -> None:
    found = gpu()
    if found is not None:
        with contextlib.suppress(Exception):
            found.wait_exit()


class VulkanDevice(GpuDevice):
    """A Vulkan device, perhaps one that promises less than it has (`caps`), as plans for smaller targets need."""

    backend = "vulkan"

    @staticmethod
    def find(which: str) -> Vulkan:
        """The process-wide device of the adapter that a text picks."""
        return Vulkan.of(pick_adapter(which))

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> Any:
        """Allocate buffers, compile kernels, upload constants."""
        from pumice.backends.vulkan.session import VulkanSession

        return VulkanSession(self.gpu, plan, residents)
