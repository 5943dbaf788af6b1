"""Program: a host plan bound to one set of symbol values, as slots that hold arrays and a flat list of calls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.base import Pacer
from pumice.backends.host.evaluate import Code, Thunk, compile_step
from pumice.backends.host.memory.arrays import NpDType, numel, overlap
from pumice.backends.host.memory.buffers import ALIGNMENT
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import dense, jit
from pumice.backends.host.native.kernel_tasks import Task
from pumice.backends.host.prepacked import MOST_BYTES, Form, Holder, held
from pumice.backends.host.routines.calls import Bound
from pumice.core.dims import evaluate
from pumice.errors import PlanError
from pumice.ir.graph import bind_attrs
from pumice.ir.registry import SOURCE_OPS, Array, Attrs
from pumice.ir.types import TensorType
from pumice.plan.plan import DeviceCount, Part, Plan, Regime, Step

# Linked ranges that a program keeps: their borders repeat once a pacer has found its sizes.
_RANGES = 256
# Outputs and inputs up to these sizes, images among them, are copied: compiled calls know arrays by their place in memory.
_SMALL, _SMALL_INPUT = 1 << 16, 1 << 20


def storage_shape(type: TensorType) -> tuple[int, ...]:
    """The shape of the array that stores a static type: quantised rows are counted in bytes."""
    shape = type.static_shape
    return (*shape[:-1], type.dtype.nbytes(shape[-1])) if type.dtype.is_quant else shape


class ProgramLayout:
    """What a regime of a plan says about memory, worked out once per session."""

    def __init__(self, plan: Plan, regime: Regime) -> None:
        self.regime, self.graph = regime, plan.graph
        self.parts: dict[int, Part] = {}
        for v in regime.values.values():
            if len(v.parts) != 1:
                raise PlanError(f"value %{v.id} has {len(v.parts)} parts, a host plan keeps each value in one", value=v.id)
            self.parts[v.id] = v.parts[0]
        self.roots = {n: s for s in regime.steps for n in self.stored(s)}
        # Buffers that runs write.
        self.written = {self.parts[n].buffer for n in (*self.roots, *(to for to, _ in regime.copies))}
        # The steps before the first that updates a param or a state in place.
        kept = {i for i, b in enumerate(plan.buffers) if b.kind in ("param", "state")}
        updates = (i for i, s in enumerate(regime.steps) if any(self.parts[n].buffer in kept for n in self.stored(s)))
        self.free = next(updates, len(regime.steps))
        inputs = {i for i, b in enumerate(plan.buffers) if b.kind == "input"}
        self.inputs = {n.name: n.id for n in self.graph.sources("input") if n.id in self.parts}
        # Values that live in the memory of an input without being one: views that needed no step.
        self.input_views = [
            (v, next(i for i in self.inputs.values() if overlap(p, self.parts[i])))
            for v, p in self.parts.items()
            if p.buffer in inputs and self.graph.nodes[v].op != "input"
        ]
        for s in regime.steps:
            if any(self.parts[n].buffer in inputs for n in self.stored(s)):
                raise PlanError(f"the step {s.label!r} writes into an input", hint="the host reads inputs in place", step=s.label)

    def stored(self, step: Step) -> tuple[int, ...]:
        """The values that a step stores: its root, and what it writes beside it."""
        return tuple(dict.fromkeys((step.root, *(b.value for b in step.bindings if b.access == "write"))))

    def leaves(self, step: Step) -> list[int]:
        """The stored values that a step reads, in the order of first use."""
        inside = set(step.nodes)
        args = (a for n in step.nodes for a in self.graph.nodes[n].args)
        return list(dict.fromkeys(a for a in args if a not in inside))

    def is_alone(self, root: int) -> bool:
        """Whether nothing but one step and its readers depends on where `root` lives, so that it may live elsewhere."""
        part = self.parts[root]
        if any(leaf in self.parts and overlap(self.parts[leaf], part) for leaf in self.leaves(self.roots[root])):
            return False
        views = (v for v in self.parts if v not in self.roots and self.graph.nodes[v].op not in SOURCE_OPS)
        others = ((n, s) for n, s in self.roots.items() if n != root)
        updated = any(overlap(self.parts[n], part) and root in self.leaves(s) for n, s in others)
        return not updated and not any(overlap(self.parts[v], part) for v in views)


class Program:
    """A plan at one environment: everything that can be worked out before a run has been.

    `slots` hold the arrays (quantised values as `Tiles`), `code` the calls in order. Scratch is assigned by offset while
    binding and attached afterwards, as one session shares one scratch buffer between its programs.
    """

    def __init__(
        self,
        layout: ProgramLayout,
        buffers: Sequence[Array | None],
        env: Mapping[str, int],
        outputs: Sequence[int],
        holders: Mapping[int, Holder],
    ) -> None:
        self.layout, self.env, self.outputs = layout, env, tuple(outputs)
        self.slots: list[Any] = []
        self.scratch_bytes = 0
        self._buffers, self._holders = buffers, holders
        # Slots whose memory only changes when a param is written, and what holds its packed copy.
        self._resident: dict[int, Holder] = {}
        self._forms: dict[int, Form] = {}
        self._types: dict[int, TensorType] = {}
        self._slots: dict[int, int] = {}
        self._scratch: list[tuple[int, int, tuple[int, ...], NpDType]] = []
        self._used = 0
        self._inputs = [(name, self.slot(node), node, *self._storage(node)) for name, node in layout.inputs.items()]
        for _, slot, node, shape, dtype in self._inputs:
            if self.is_small(node, _SMALL_INPUT):
                self.slots[slot] = np.empty(shape, dtype)
        views = [(self.slot(v), self.slot(source), v, source) for v, source in layout.input_views]
        for view in views:
            if self.slots[view[1]] is not None:
                self._set_view(*view)
        self._views = [view for view in views if self.slots[view[0]] is None]
        # Results that only this run's readers use are computed straight into the arrays that are handed out.
        alone = [n for n in dict.fromkeys(self.outputs) if n in layout.roots and layout.is_alone(n)]
        self.fresh = [n for n in alone if not self.is_small(n)]
        self._fresh = [(self.slot(n), *self._storage(n)) for n in self.fresh]
        self.dynamic = {i[1] for i in self._inputs if self.slots[i[1]] is None}
        self.dynamic |= {v[0] for v in self._views} | {f[0] for f in self._fresh}
        self.code: Code = []
        self._ends: list[int] = []
        for step in layout.regime.steps:
            self._used = 0
            code = compile_step(self, step)
            self.code += [self._counted(step.groups, code)] if isinstance(step.groups, DeviceCount) else code
            self._ends.append(len(self.code))
        self._copies = self._bind_copies()
        self._results = [(self.slot(n), n in self.fresh and n not in self.outputs[:i]) for i, n in enumerate(self.outputs)]

    # --- what steps are compiled with ---

    def type(self, node: int) -> TensorType:
        """The static type of a node."""
        found = self._types.get(node)
        if found is None:
            type = self.layout.graph.nodes[node].type
            found = self._types[node] = type if type.is_static else type.at(self.env)
        return found

    def attrs(self, node: int) -> Attrs:
        """The node's attributes with symbols bound."""
        return bind_attrs(self.layout.graph.nodes[node].attr, self.env)

    def slot(self, node: int) -> int:
        """The slot of a stored value."""
        found = self._slots.get(node)
        if found is None:
            found = self._slots[node] = self.add(self._stored(node))
            part = self.layout.parts.get(node)
            if part is not None and part.buffer in self._holders:
                self._resident[found] = self._holders[part.buffer]
        return found

    def note_view(self, slot: int, source: int) -> None:
        """To be called for a slot that will always show the memory of another one."""
        if source in self._resident:
            self._resident[slot] = self._resident[source]

    def add(self, value: Any = None) -> int:
        """A new slot."""
        self.slots.append(value)
        return len(self.slots) - 1

    def temporary(self, shape: tuple[int, ...], dtype: NpDType) -> int:
        """A slot over scratch memory; it is the step's own until the step ends."""
        slot = self.add()
        self._scratch.append((slot, self._used, shape, dtype))
        size = numel(shape) * dtype.itemsize
        self._used += size + -size % ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, self._used)
        return slot

    def _storage(self, node: int) -> tuple[tuple[int, ...], NpDType]:
        type = self.type(node)
        return storage_shape(type), type.dtype.np

    def _stored(self, node: int) -> Any:
        type = self.type(node)
        shape, dtype = self._storage(node)
        part = self.layout.parts.get(node)
        if part is None:
            source = self.layout.graph.nodes[node]
            if source.op != "constant":
                raise PlanError(f"the value %{node} ({source.op}) is read and stored nowhere", value=node)
            data = source.attr["data"].array(dtype, shape)
            return Tiles.of(type.dtype, type.static_shape, data) if type.dtype.is_quant else data
        buffer = self._buffers[part.buffer]
        if buffer is None:
            return None  # an input: set by each run
        size = type.dtype.nbytes(numel(type.static_shape))
        if size > part.nbytes:
            raise PlanError(f"%{node} takes {size} bytes and has {part.nbytes}", hint="a symbol exceeds its maximum", value=node)
        memory = buffer[part.offset : part.offset + size]
        return Tiles(type.dtype, type.static_shape, memory) if type.dtype.is_quant else memory.view(dtype).reshape(shape)

    def _counted(self, count: DeviceCount, code: Code) -> Thunk:
        """The calls of a step that runs only if a word in memory, read when its turn comes, is not 0."""
        slot, most = self.slot(count.value), evaluate(count.most, self.env)
        calls = [c.call if isinstance(c, Bound) else c for c in code]

        def run() -> None:
            word = self.slots[slot].reshape(-1)[count.word]
            if count.clamp(int(word), most):
                for call in calls:
                    call()

        return run

    def _bind_copies(self) -> list[tuple[int, int, bool]]:
        """State updates (to, from, whether the source is itself overwritten by another of them)."""
        copies = self.layout.regime.copies
        parts = self.layout.parts
        written = [parts[state] for state, _ in copies]
        out = []
        for state, value in copies:
            staged = any(overlap(w, parts[value]) for w in written if w != parts[state]) if value in parts else False
            out.append((self.slot(state), self.slot(value), staged))
        return out

    # --- running ---

    def attach(self, scratch: Array) -> None:
        """Sets the scratch memory, at least `scratch_bytes` long."""
        for slot, offset, shape, dtype in self._scratch:
            size = numel(shape) * dtype.itemsize
            self.slots[slot] = scratch[offset : offset + size].view(dtype).reshape(shape)
        self._calls = self._link(self.code)
        self._calls_of: list[list[Callable[[], Any]]] | None = None
        # The calls of ranges that were run, by their first step and the one after the last.
        self._linked: dict[tuple[int, int], list[Callable[[], Any]]] = {}

    def _by_step(self) -> list[list[Callable[[], Any]]]:
        """The calls of each step apart, for measuring."""
        if self._calls_of is None:
            self._calls_of = [self._link(self.code[a:b]) for a, b in itertools.pairwise([0, *self._ends])]
        return self._calls_of

    def _link(self, code: Code) -> list[Callable[[], Any]]:
        """The calls to make, now that all arrays that stay have their places: those with compiled kernels joined to one."""
        kernels = jit.kernels() if _is_heavy(self.code) else None
        calls: list[Callable[[], Any]] = []
        tasks: list[Task] = []
        for c in code:
            found = self._tasks(c) if kernels is not None and isinstance(c, Bound) else None
            if found is not None:
                tasks += found
                continue
            if kernels is not None and tasks:
                calls.append(kernels.link(tasks))
                tasks = []
            calls.append(c.call if isinstance(c, Bound) else c)
        return [*calls, kernels.link(tasks)] if kernels is not None and tasks else calls

    def _tasks(self, bound: Bound) -> list[Task] | None:
        outs = bound.out if isinstance(bound.out, tuple) else (bound.out,)
        slots = [s for s in (*bound.args, *outs) if s is not None]
        if any(s in self.dynamic or self.slots[s] is None for s in slots):
            return None
        operands, arrays = ([None if s is None else self.slots[s] for s in some] for some in (bound.args, outs))
        out: Any = tuple(arrays) if isinstance(bound.out, tuple) else arrays[0]
        kept = None if bound.keeping is None else bound.args[bound.kept]
        holder = None if kept is None else self._resident.get(kept)
        if bound.keeping is None or holder is None:
            return bound.native(operands, out)
        return bound.keeping(operands, out, partial(self._form, holder))

    def _form(self, holder: Holder, operand: Array, packing: dense.Packing | None = None) -> Form | None:
        """The packed copy of an operand that is part of a param."""
        found = holder.form(operand, MOST_BYTES - held(self._holders.values()), packing)
        if found is not None:
            self._forms[id(found)] = found
        return found

    def is_small(self, node: int, most: int = _SMALL) -> bool:
        """Whether a value is so small that its array is kept: inputs and outputs are copied, and have the same in every run."""
        type = self.type(node)
        return not type.dtype.is_quant and type.dtype.nbytes(numel(type.static_shape)) <= most

    def _set_view(self, slot: int, source: int, node: int, of: int) -> None:
        """Gives a value in the memory of an input its array."""
        shape, dtype = self._storage(node)
        start = self.layout.parts[node].offset - self.layout.parts[of].offset
        memory = self.slots[source].reshape(-1).view(np.uint8)[start : start + numel(shape) * dtype.itemsize]
        self.slots[slot] = memory.view(dtype).reshape(shape)

    def run(
        self, inputs: Mapping[str, Array], after_step: Callable[[], None] | None = None, pacer: Pacer | None = None
    ) -> list[Array]:
        """One run; `inputs` have the exact shapes and dtypes. `after_step` is called before the first and after each step.

        With a pacer the steps run in ranges.
        """
        slots = self.slots
        for form in self._forms.values():
            form.refresh()
        for name, slot, node, shape, dtype in self._inputs:
            array = inputs[name]
            if slot not in self.dynamic:
                np.copyto(slots[slot], array.reshape(shape), casting="unsafe")
                continue
            flags = array.flags
            if array.dtype != dtype or not (flags.c_contiguous and flags.aligned):
                array = np.array(array, dtype=dtype, order="C")
            type = self.type(node)
            slots[slot] = Tiles.of(type.dtype, type.static_shape, array) if type.dtype.is_quant else array.reshape(shape)
        for view in self._views:
            self._set_view(*view)
        for slot, shape, dtype in self._fresh:
            slots[slot] = np.empty(shape, dtype)
        try:
            if pacer is not None:
                self._run_paced(pacer)
            elif after_step is None:
                for call in self._calls:
                    call()
            else:
                by_step = self._by_step()
                after_step()
                for calls in by_step:
                    for call in calls:
                        call()
                    after_step()
            # Before the updates: an output that is a state shows the value that this run has seen.
            results = [slots[slot] if fresh else _copy(slots[slot]) for slot, fresh in self._results]
            self._update_states()
            return results
        finally:
            for slot in self.dynamic:
                slots[slot] = None

    def _run_paced(self, pacer: Pacer) -> None:
        """The steps in ranges. Once a param or a state was updated in place, all of them run, whatever happens in between."""
        from pumice.routes.adaptive import HOST_WORK  # most runs are not paced

        total, done = max(1, len(self._ends)), 0  # a run without steps still copies
        try:
            while done < total:
                end = done + pacer.take(total, done)
                if not done < end <= total:
                    raise PlanError(f"the pacer takes {end - done} steps, {total - done} are left")
                began, start, done = time.perf_counter(), done, end
                self._run_range(start, end)
                pacer.completed(time.perf_counter() - began, HOST_WORK)
        except BaseException:
            if self.layout.free < min(done, len(self._ends)):
                if done < total:
                    self._run_range(done, total)
                self._update_states()
            raise

    def _run_range(self, start: int, end: int) -> None:
        calls = self._linked.get((start, end))
        if calls is None:
            # Linked when it comes again: a pacer that still looks for its sizes has other borders each time.
            by_step = self._by_step()
            calls = [call for step in by_step[start:end] for call in step]
            if len(self._linked) >= _RANGES:
                self._linked.pop(next(iter(self._linked)))
            self._linked[start, end] = []
        elif not calls and end <= len(self._ends):
            calls = self._linked[start, end] = self._link(self.code[self._ends[start - 1] if start else 0 : self._ends[end - 1]])
        # Integer wrap-around, infinities and NaN are results here, not accidents to report.
        with np.errstate(all="ignore"):
            left = iter(calls)
            try:
                for call in left:
                    call()
            except KeyboardInterrupt:
                if self.layout.free < end:  # an update in place may be done, and must not be done twice
                    for call in left:
                        call()
                raise

    def _update_states(self) -> None:
        slots = self.slots
        staged = {source: slots[source].copy() for _, source, stage in self._copies if stage}
        for state, source, _ in self._copies:
            np.copyto(slots[state], staged.get(source, slots[source]))


def _is_heavy(code: Code) -> bool:
    """Whether the compiled kernels are worth the time that they take to load."""
    bound = [c for c in code if isinstance(c, Bound)]
    return any(c.heavy for c in bound) or dense.is_worth_loading(sum(c.work for c in bound))


def _copy(value: Any) -> Array:
    return value.original() if isinstance(value, Tiles) else value.copy()
