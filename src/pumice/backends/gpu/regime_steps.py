"""RegimeSteps: the steps of one regime on a device. Pipelines and bind groups are made once, grids when sizes change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.backends.gpu.counts import CLAMP, SLOT_BYTES, Clamps, StepGroups, clamp_steps
from pumice.backends.gpu.interface import AnyPipeline, Dispatch, Gpu
from pumice.backends.gpu.memory import BufferRange, DeviceBuffer, rounded
from pumice.backends.gpu.parts import cut, first_update, with_pipelines
from pumice.backends.gpu.results import nbytes_of
from pumice.backends.gpu.uniforms import Sizes
from pumice.errors import LimitError, PlanError
from pumice.ir.types import TensorType
from pumice.plan.plan import DeviceCount, Plan, Regime, Step, fold_grid

# Where each buffer of the plan begins; None where the memory of a param or a state is gone.
Starts = Sequence[tuple[DeviceBuffer, int] | None]
# Makes a buffer that the session owns: bytes, label, use.
MakeBuffer = Callable[[int, str, str], DeviceBuffer]


class RegimeSteps:
    """What a session runs at the sizes of one regime. All calls are made under the device's lock."""

    def __init__(
        self, gpu: Gpu, plan: Plan, regime: Regime, pipelines: Mapping[int, AnyPipeline], starts: Starts, own: MakeBuffer
    ) -> None:
        self._gpu, self._plan, self.regime, self._starts = gpu, plan, regime, starts
        self.places: dict[int, tuple[BufferRange, ...]] = {}
        self._find_places()
        self._pipelines = [pipelines[s.kernel] for s in regime.steps]
        self._first_update = first_update(plan, regime)
        align = max(plan.caps.uniform_alignment, gpu.caps.uniform_alignment)
        self._limit = min(plan.caps.max_groups, gpu.caps.max_groups)
        clamps = clamp_steps(regime.steps, self._limit)
        self.sizes = Sizes((*regime.steps, *clamps.values()), plan.maxima, align)
        self._uniform = own(self.sizes.nbytes, "sizes", "uniform") if self.sizes.nbytes else None
        self._clamps = self._make_clamps(clamps, own)
        # None where the memory of a param or a state has changed: the next run binds it.
        self._groups: list[StepGroups | None] = [self._bind(i) for i in range(len(regime.steps))]
        for pair in regime.copies:
            self._check_copy(*pair)
        # The steps with work, and the same as `parts` gives them.
        self.dispatches: list[Dispatch] = []
        self._parts: dict[bool, list[list[Dispatch]]] = {}
        # The same with every pipeline spelt out, once ranges were asked for.
        self._spelt_out: list[Dispatch] = []
        # How many come before the first that updates a param or a state in place.
        self.free = 0
        # Copies to states, as (source, offset, target, offset, bytes).
        self.updates: list[tuple[Any, int, Any, int, int]] = []

    def _find_places(self) -> None:
        """Where values are; those whose buffer is gone are nowhere."""
        for v in self.regime.values.values():
            found = [(self._starts[p.buffer], p) for p in v.parts]
            ranges = tuple(BufferRange(at[0], at[1] + p.offset, p.nbytes) for at, p in found if at is not None)
            if len(ranges) == len(found):
                self.places[v.id] = ranges
            else:
                self.places.pop(v.id, None)

    def _make_clamps(self, steps: Mapping[int, Step], own: MakeBuffer) -> Clamps | None:
        """What clamps the counts of steps whose grids come from the device; None if there are none."""
        if not steps:
            return None
        (pipeline,) = self._gpu.pipelines.compile([CLAMP])
        grids = own(SLOT_BYTES * len(steps), "grids", "indirect")
        uniforms = {i: self.sizes.slot(len(self.regime.steps) + k) for k, i in enumerate(steps)}
        return Clamps(pipeline, grids, {i: s.bindings[0].value for i, s in steps.items()}, uniforms)

    def _bind(self, index: int) -> StepGroups:
        """The bind groups of a step, checked first: what WebGPU would refuse later gets a name here."""
        step, caps = self.regime.steps[index], self._gpu.caps
        ranges, use = [], dict[DeviceBuffer, bool]()
        for b in step.bindings:
            place = self.places[b.value][b.part]
            offset, size = place.binding
            if offset % caps.storage_alignment or offset + size > place.buffer.nbytes:
                raise PlanError(f"{step.label}: value %{b.value} at byte {offset} is misaligned or outside its buffer")
            if size > caps.max_binding_bytes:
                raise LimitError(f"{step.label}: value %{b.value} binds {size} bytes, the device allows {caps.max_binding_bytes}")
            writes = b.access != "read"
            if use.setdefault(place.buffer, writes) != writes:
                raise PlanError(f"{step.label} reads and writes the buffer {place.buffer.label!r} in one dispatch")
            ranges.append((place.buffer, offset, size))
        if step.uniforms and self._uniform is not None:
            ranges.append((self._uniform, *self.sizes.slot(index)))
        own = self._gpu.pipelines.bind(self._pipelines[index], ranges, step.label)
        if not isinstance(step.groups, DeviceCount):
            return StepGroups(own)
        assert self._clamps is not None and self._uniform is not None
        return StepGroups(own, *self._clamps.bind(self._gpu, index, self.places, self._uniform))

    def _check_copy(self, state: int, value: int) -> None:
        to, source = self.places[state], self.places[value]
        if len(to) != 1 or len(source) != 1:
            raise PlanError(f"the update of state %{state} from %{value} would copy sharded values")
        if to[0].buffer is source[0].buffer and to[0] != source[0]:
            raise PlanError(f"the update of state %{state} from %{value} would copy within one buffer")

    def prepare(self, env: Mapping[str, int], type_of: Callable[[int], TensorType]) -> int:
        """Bring uniforms and grids to `env` and give the bytes uploaded; nothing to do when it is the env of the last run."""
        if not self.sizes.bind(env):
            return 0
        # A failure below must not leave old grids behind for a later run of the same env.
        self.sizes.bound = False
        limit = self._limit
        dispatches: list[Dispatch] = []
        current: Any = None
        free = uploaded = 0
        for i, (step, pipeline, groups) in enumerate(zip(self.regime.steps, self._pipelines, self._groups, strict=True)):
            count = self.sizes.value(step.most_groups)
            if count <= 0:
                continue
            free += i < self._first_update
            if groups is None:
                groups = self._groups[i] = self._bind(i)
            x, y, z = fold_grid(count, limit)
            if z > limit:
                raise LimitError(f"{step.label} needs {count} workgroups, a grid holds {limit}³", wanted=count, limit=limit)
            if groups.grid is not None:
                dispatches.append((pipeline.handle, groups.own.handle, groups.grid, 0, 0))
            else:
                dispatches.append((None if pipeline is current else pipeline.handle, groups.own.handle, x, y, z))
            current = pipeline
        if self._uniform is not None:
            self._gpu.write_sizes(self._uniform, self.sizes.words.view(np.uint8))
            uploaded = self.sizes.words.nbytes
        self.dispatches, self._parts, self.free, self._spelt_out = dispatches, {}, free, []
        self.updates = self._updates_at(env, type_of)
        self.sizes.bound = True
        return uploaded

    def _updates_at(self, env: Mapping[str, int], type_of: Callable[[int], TensorType]) -> list[tuple[Any, int, Any, int, int]]:
        found = []
        for state, value in self.regime.copies:
            to, source = self.places[state][0], self.places[value][0]
            nbytes = rounded(nbytes_of(type_of(value).at(env)), 4)
            if to != source and nbytes:
                found.append((source.buffer.handle, source.offset, to.buffer.handle, to.offset, nbytes))
        return found

    def parts(self, whole_updates: bool) -> list[list[Dispatch]]:
        """The dispatches cut into submits, for a run whose results are awaited.

        With `whole_updates` all from the first one on that updates a param or a state in place are in one submit.
        """
        if whole_updates not in self._parts:
            self._parts[whole_updates] = cut(self.dispatches, self.free if whole_updates else len(self.dispatches))
        return self._parts[whole_updates]

    def between(self, start: int, end: int) -> list[Dispatch]:
        """A range of the dispatches, as a pass of its own."""
        if not self._spelt_out:
            self._spelt_out = with_pipelines(self.dispatches)
        return [*self._spelt_out[start : start + 1], *self.dispatches[start + 1 : end]]

    def steps_with_work(self) -> list[int]:
        """The numbers of the steps that run at the sizes prepared last."""
        return [i for i, s in enumerate(self.regime.steps) if self.sizes.value(s.most_groups) > 0]

    def rebind(self, moved: set[int]) -> None:
        """Some buffers of the plan begin elsewhere now: the next run makes the bind groups that name them."""
        self._find_places()
        changed = {v.id for v in self.regime.values.values() if any(p.buffer in moved for p in v.parts)}
        for i, step in enumerate(self.regime.steps):
            if any(b.value in changed for b in step.bindings):
                self._groups[i] = None
        self.forget()

    def forget(self) -> None:
        """Drop what was prepared for the last sizes; it names memory that is to change or to go."""
        self.dispatches, self._parts, self.updates, self._spelt_out = [], {}, [], []
        self.sizes.bound = False
