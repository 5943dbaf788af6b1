"""VulkanSession: a plan on a Vulkan device; runs are recorded once, and submitted again as long as their grids stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import Array, Resident
from pumice.backends.gpu.interface import Record
from pumice.backends.gpu.memory import DeviceBuffer
from pumice.backends.gpu.regime_steps import RegimeSteps, Starts
from pumice.backends.gpu.results import Results, Started
from pumice.backends.gpu.session import HASHED_BYTES, GpuSession
from pumice.backends.vulkan.commands import VulkanCommands
from pumice.backends.vulkan.memory import VulkanBuffer
from pumice.backends.vulkan.readback import parts_of, record_reads, take_out
from pumice.errors import ClosedError
from pumice.plan.plan import Plan, PlanBuffer

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

# Runs of a session that may be in flight. When all are, it waits for half of them at once: each wait costs time of its own, and
# the other half keeps the device busy meanwhile.
_SLOTS = 8
# Inputs up to this size are in mapped memory, one for each slot; larger ones are copied through staging memory.
_MAPPED_INPUT = 1 << 18
# Recorded runs that a slot keeps for each regime: runs of a few sizes may alternate.
_RECORDED = 4
_VALUE = attrgetter("value")


@dataclass(eq=False)
class Recorded:
    """A run as it was recorded, and what of: it is submitted again as long as these are the same."""

    commands: VulkanCommands
    about: tuple[Any, ...]


@dataclass(eq=False)
class Slot:
    """What one run in unread has for itself: inputs, uniforms, descriptor sets, commands and the memory for results."""

    starts: list[tuple[DeviceBuffer, int] | None]
    regimes: dict[int, RegimeSteps] = field(default_factory=dict)
    held: dict[int, bytes] = field(default_factory=dict)
    wanted: tuple[dict[str, int], list[int], Results] | None = None
    recorded: dict[int, list[Recorded]] = field(default_factory=dict)
    # The bytes of inputs that the host can write.
    mapped: dict[int, memoryview] = field(default_factory=dict)
    readback: VulkanBuffer | None = None
    # The value of the timeline at the end of its last run, and the results of that run which nobody has taken yet.
    value: int = 0
    unread: SlotReadback | None = None


class SlotReadback:
    """The results of a run that was submitted; the next run in its slot takes them out first."""

    def __init__(self, gpu: Vulkan, slot: Slot, parts: Sequence[tuple[int, int]]) -> None:
        self._gpu, self._slot, self._parts = gpu, slot, parts
        self._value = slot.value
        self._mark = gpu.mark
        self.abandoned = False
        self._found: list[Array] | None = None

    def abandon(self) -> None:
        """A current or later `wait` ends with a ClosedError; the device finishes the run."""
        self.abandoned = True

    def wait(self) -> list[Array]:
        """The bytes of each result, as new arrays."""
        if self._found is None:
            self._gpu.wait_for(self._value, lambda: self.abandoned)
            self._mark("wait")
            with self._gpu.lock:
                self.take()
            self._mark("readback")
        if self._found is None:
            raise ClosedError("the executable was closed while this run was under way", hint="wait for results first")
        return self._found

    def take(self) -> None:
        """The run is done: copy its results, once, so that the slot is free."""
        slot = self._slot
        if slot.unread is self:
            slot.unread = None
            # Without memory for results all of them are empty.
            empty = [np.empty(0, np.uint8) for _ in self._parts]
            self._found = empty if slot.readback is None else take_out(slot.readback, self._parts)


class VulkanSession(GpuSession):
    """Runs are recorded per regime and slot; a run writes inputs and sizes into mapped memory and submits what is recorded."""

    _gpu: Vulkan

    def __init__(self, gpu: Vulkan, plan: Plan, residents: Mapping[int, Resident] | None = None) -> None:
        self._slots: list[Slot] = []
        # Runs whose commands were recorded, and runs that were submitted as they were.
        self.recordings = self.replays = 0
        super().__init__(gpu, plan, residents)

    # -- slots ------------------------------------------------------------------------------------------------------
    def _make_buffer(self, buffer: PlanBuffer) -> DeviceBuffer:
        mapped = buffer.kind == "input" and buffer.nbytes <= _MAPPED_INPUT
        return self._own(buffer.nbytes, f"{buffer.kind} {buffer.name}", "input" if mapped else "storage")

    def _allocate(self, residents: Mapping[int, Resident] | None) -> None:
        super()._allocate(residents)
        self._slot = Slot(self._starts, self._regimes, self._held)
        self._slots.append(self._slot)

    def _enter_free_slot(self) -> None:
        """Go on with a slot that no run in flight uses: the current one, another one, a new one, or the oldest of all."""
        gpu = self._gpu
        with gpu.lock:
            oldest = min(self._slots, key=_VALUE)
            free = next((s for s in (self._slot, oldest) if gpu.is_done(s.value)), None)
            if free is None and len(self._slots) < _SLOTS:
                free = self._new_slot()
                self._slots.append(free)
        if free is None:
            gpu.wait_for(sorted(s.value for s in self._slots)[_SLOTS // 2 - 1])
            free = oldest
        with gpu.lock:
            if free.unread is not None:
                free.unread.take()
            if free is not self._slot:
                self._slot.held, self._slot.wanted = self._held, self._wanted
                self._slot = free
                self._starts, self._regimes, self._held, self._wanted = free.starts, free.regimes, free.held, free.wanted

    def _new_slot(self) -> Slot:
        """A slot with inputs of its own; all other memory is shared, as runs take effect one after the other."""
        starts: list[tuple[DeviceBuffer, int] | None] = list(self._slots[0].starts)
        for k, buffer in enumerate(self.plan.buffers):
            at = starts[k]
            if buffer.kind == "input" and at is not None and isinstance(at[0], VulkanBuffer) and at[0].view is not None:
                starts[k] = self._make_buffer(buffer), 0
        made = Slot(starts)
        widest = len(self.plan.regimes) - 1
        pipelines = self._compile(widest)
        made.regimes[widest] = self._steps_over(starts, widest, pipelines)
        return made

    def _steps_over(self, starts: Starts, number: int, pipelines: Mapping[int, Any]) -> RegimeSteps:
        return RegimeSteps(self._gpu, self.plan, self.plan.regimes[number], pipelines, starts, self._own)

    def _steps_at(self, env: Mapping[str, int]) -> RegimeSteps:
        # Sizes are written where a run in unread would read them.
        self._enter_free_slot()
        return super()._steps_at(env)

    def _upload_inputs(self, inputs: Sequence[tuple[int, Array]]) -> None:
        """Write inputs that are not there yet: small ones right into mapped memory."""
        mapped, held = self._slot.mapped or self._map_inputs(), self._held
        if self.skip_unchanged is False:
            super()._upload_inputs(inputs)
            return
        for node, array in inputs:
            view = mapped.get(node)
            if view is None or array.nbytes > HASHED_BYTES:
                super()._upload_inputs([(node, array)])
                continue
            content = array.tobytes()
            if held.get(node) == content:
                self._counters["uploads_skipped"] += 1
                continue
            # Unknown until it is written.
            held.pop(node, None)
            view[: len(content)] = content
            held[node] = content
            self._counters["uploads_bytes"] += len(content)

    def _map_inputs(self) -> dict[int, memoryview]:
        """Where the host can write inputs of the current slot that no step overwrites."""
        places, mapped = self._places, self._slot.mapped
        for n in self._inputs.values():
            if n.id in places and n.id not in self._overwritten:
                view = self._view(n.id)
                if view is not None:
                    mapped[n.id] = view
        return mapped

    def _view(self, node: int) -> memoryview | None:
        """The bytes of a value, if the host can reach them."""
        (place, *more) = self._places[node]
        view = place.buffer.view if isinstance(place.buffer, VulkanBuffer) else None
        return None if view is None or more else view[place.offset : place.offset + place.nbytes]

    def _upload(self, node: int, array: Array) -> None:
        view = self._view(node)
        if view is None:
            super()._upload(node, array)
            return
        if array.nbytes:
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            np.frombuffer(view, np.uint8, count=array.nbytes)[:] = content
        self._counters["uploads_bytes"] += array.nbytes

    # -- runs -------------------------------------------------------------------------------------------------------
    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Started:
        """As `run`, without waiting for the outputs, unless they are too large to leave in one piece."""
        self._check_open()
        uploads = self._check_inputs(env, inputs)
        steps = self._steps_at(env)
        gpu = self._gpu
        with gpu.lock:
            self._check_open()
            with gpu.guard("a run"):
                gpu.settle()
                results = self._results(env, outputs, steps)
                self._counters["uploads_bytes"] += steps.prepare(env, self._type)
                self._upload_inputs(uploads)
                gpu.mark("upload")
                if self._timer is not None or results.large:
                    started = self._run_once(steps, results)
                else:
                    started = self._replay(steps, results, more)
            self._counters["dispatches"] += len(steps.dispatches)
            self._counters["readback_bytes"] += results.nbytes
            # Runs that wait for more are counted with those that they leave with.
            self._counters["submits"] += self._slot.value <= gpu.submitted
        return started

    def _replay(self, steps: RegimeSteps, results: Results, more: bool) -> Started:
        """Submit the run as it is recorded, or record it first."""
        gpu, slot = self._gpu, self._slot
        parts, total = parts_of(results.reads)
        if total and (slot.readback is None or slot.readback.nbytes < total):
            larger = gpu.staging.take(total)
            if slot.readback is not None:
                gpu.staging.give(slot.readback)
            slot.readback = larger
        recorded = self._recorded(steps, results, parts)
        gpu.mark("encode")
        slot.value = gpu.submit(recorded.commands, more=more)
        if not results.types:
            return Started(results, None, {})
        gpu.fault("readback")
        slot.unread = SlotReadback(gpu, slot, parts)
        return Started(results, slot.unread, {})

    def _recorded(self, steps: RegimeSteps, results: Results, parts: Sequence[tuple[int, int]]) -> Recorded:
        slot = self._slot
        about = (steps.dispatches, results.reads, steps.updates, slot.readback if results.reads else None)
        kept = slot.recorded.setdefault(id(steps), [])
        found = next((r for r in kept if r.about == about), None)
        if found is None:
            found = Recorded(self._record(steps, results, parts), about)
            self.recordings += 1
            kept.append(found)
            if len(kept) > _RECORDED:
                # No run of this slot is in flight.
                kept.pop(0).commands.free()
        else:
            self.replays += 1
        return found

    def _record(self, steps: RegimeSteps, results: Results, parts: Sequence[tuple[int, int]]) -> VulkanCommands:
        readback = self._slot.readback

        def record(commands: VulkanCommands) -> None:
            commands.steps(steps.dispatches)
            if results.reads and readback is not None:
                record_reads(commands, results.reads, parts, readback)
            # Outputs leave before the updates: an output that is a state shows the value from before the run.
            self._record_updates(steps, commands)

        return self._gpu.record([record], host_reads=bool(results.reads), once=False)

    def _record_updates(self, steps: RegimeSteps, commands: VulkanCommands) -> None:
        for update in steps.updates:
            commands.copy(*update)
        if self._timer is not None:
            self._timer.finish(commands)

    def _run_once(self, steps: RegimeSteps, results: Results) -> Started:
        """A run that is measured, or whose outputs leave in pieces."""
        gpu = self._gpu
        after = partial(self._record_updates, steps)
        updates = None if results.large else after
        record: Record = partial(VulkanCommands.steps, prepared=steps.dispatches)
        if self._timer is not None:
            record = partial(self._timer.encode, dispatches=steps.dispatches)
        readback = gpu.begin(results.reads, [record], updates) if results.reads else None
        if readback is None:
            gpu.execute((), [record], updates)
        found = {i: self._fetch(places, nbytes) for i, (places, nbytes) in results.large.items()}
        if updates is None:
            gpu.execute((), [after])
            self._counters["submits"] += 1
        self._slot.value = gpu.submitted
        return Started(results, readback, found)

    # -- memory that changes ----------------------------------------------------------------------------------------
    def rebind(self, residents: Mapping[int, Resident | None]) -> None:
        """Use other memory for some params and states; the next runs record anew."""
        with self._gpu.lock:
            if self._closed:
                return
            current = self._slot
            for slot in self._slots:
                if slot is not current:
                    self._starts, self._regimes = slot.starts, slot.regimes
                    super().rebind(residents)
                    slot.wanted = None
            self._starts, self._regimes = current.starts, current.regimes
            super().rebind(residents)
            self._drop_recorded()

    def _drop_recorded(self) -> None:
        for slot in self._slots:
            for runs in slot.recorded.values():
                for run in runs:
                    self._gpu.retire(run.commands.free)
            slot.recorded.clear()

    def fill_buffer(self, index: int, word: int) -> None:
        """Fill a buffer of the plan with one 32-bit word: poison that shows reads of what was never written."""
        super().fill_buffer(index, word)
        # Inputs are written without the queue.
        for slot in self._slots:
            slot.held.clear()
        self._gpu.wait_idle()

    def _release(self) -> None:
        gpu = self._gpu
        self._drop_recorded()
        for slot in self._slots:
            if slot.unread is not None and not gpu.lost:
                self._finish(slot.unread, slot)
            slot.unread = None
            if slot.readback is not None:
                slot.readback.release()
                slot.readback = None
            slot.regimes.clear()
            slot.held.clear()
            slot.mapped.clear()
        self._slots.clear()
        super()._release()

    def _finish(self, unread: SlotReadback, slot: Slot) -> None:
        """Results that someone may still want are taken before their memory goes."""
        if not unread.abandoned:
            self._gpu.wait_for(slot.value)
        # A run that is done has its results, even if its caller has given it up meanwhile.
        if self._gpu.is_done(slot.value):
            unread.take()
