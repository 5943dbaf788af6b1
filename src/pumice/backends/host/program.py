"""Program: a host plan bound to one set of symbol values, as slots that hold arrays and a flat list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.backends.host.calls import NpDType, numel, overlap
from pumice.backends.host.evaluate import compile_step
from pumice.errors import PlanError
from pumice.ir.graph import bind_attrs
from pumice.ir.registry import SOURCE_OPS, Array, Attrs, Packed
from pumice.ir.types import TensorType
from pumice.plan.plan import Part, Plan, Step

ALIGNMENT = 64


def aligned_bytes(size: int) -> Array:
    """Zeroed bytes that start on a cache line; pages are only taken from the system once they are touched.

    >>> buffer = aligned_bytes(100)
    >>> buffer.ctypes.data % 64, len(buffer)
    (0, 100)
    """
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size]


def storage_shape(type: TensorType) -> tuple[int, ...]:
    """The shape of the array that stores a static type: quantised rows are counted in bytes."""
    shape = type.static_shape
    return (*shape[:-1], type.dtype.nbytes(shape[-1])) if type.dtype.is_quant else shape


class Layout:
    """What a plan says about memory, worked out once per session."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.parts: dict[int, Part] = {}
        for v in plan.values.values():
            if len(v.parts) != 1:
                raise PlanError(f"value %{v.id} has {len(v.parts)} parts, a host plan keeps each value in one", value=v.id)
            self.parts[v.id] = v.parts[0]
        self.roots = {s.root: s for s in plan.steps}
        inputs = {i for i, b in enumerate(plan.buffers) if b.kind == "input"}
        self.inputs = {n.name: n.id for n in self.graph.sources("input") if n.id in self.parts}
        # Values that live in the memory of an input without being one: views that needed no step.
        self.input_views = [
            (v, next(i for i in self.inputs.values() if overlap(p, self.parts[i])))
            for v, p in self.parts.items()
            if p.buffer in inputs and self.graph.nodes[v].op != "input"
        ]
        for s in plan.steps:
            if self.parts[s.root].buffer in inputs:
                raise PlanError(f"the step {s.label!r} writes into an input", hint="the host reads inputs in place", step=s.label)

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
        updated = any(overlap(self.parts[s.root], part) and root in self.leaves(s) for s in self.plan.steps if s.root != root)
        return not updated and not any(overlap(self.parts[v], part) for v in views)


class Program:
    """A plan at one environment: everything that can be worked out before a run has been.

    `slots` hold the arrays (quantised values as `Packed`), `code` the calls in order. Scratch is assigned by offset while
    binding and attached afterwards, as one session shares one scratch buffer between its programs.
    """

    def __init__(self, layout: Layout, buffers: Sequence[Array | None], env: Mapping[str, int], outputs: Sequence[int]) -> None:
        self.layout, self.env, self.outputs = layout, env, tuple(outputs)
        self.slots: list[Any] = []
        self.scratch_bytes = 0
        self._buffers = buffers
        self._types: dict[int, TensorType] = {}
        self._slots: dict[int, int] = {}
        self._scratch: list[tuple[int, int, tuple[int, ...], NpDType]] = []
        self._used = 0
        self._inputs = [(name, self.slot(node), node, *self._storage(node)) for name, node in layout.inputs.items()]
        self._views = [(self.slot(v), self.slot(source), v, source) for v, source in layout.input_views]
        # Results that only this run's readers use are computed straight into the arrays that are handed out.
        self.fresh = [n for n in dict.fromkeys(self.outputs) if n in layout.roots and layout.is_alone(n)]
        self._fresh = [(self.slot(n), *self._storage(n)) for n in self.fresh]
        self.dynamic = {s for _, s, *_ in self._inputs} | {s for s, *_ in self._views} | {s for s, *_ in self._fresh}
        self.code: list[Callable[[], None]] = []
        for step in layout.plan.steps:
            self._used = 0
            self.code += compile_step(self, step)
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
        return found

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
            return self._wrap(node, source.attr["data"].array(dtype, shape))
        buffer = self._buffers[part.buffer]
        if buffer is None:
            return None  # an input: set by each run
        size = type.dtype.nbytes(numel(type.static_shape))
        if size > part.nbytes:
            raise PlanError(f"%{node} takes {size} bytes and has {part.nbytes}", hint="a symbol exceeds its maximum", value=node)
        return self._wrap(node, buffer[part.offset : part.offset + size].view(dtype).reshape(shape))

    def _wrap(self, node: int, array: Array) -> Any:
        type = self.type(node)
        return Packed(type.dtype, type.static_shape, array) if type.dtype.is_quant else array

    def _bind_copies(self) -> list[tuple[int, int, bool]]:
        """State updates (to, from, whether the source is itself overwritten by another of them)."""
        copies = self.layout.plan.copies
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

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """One run; `inputs` have the exact shapes and dtypes."""
        slots = self.slots
        for name, slot, node, shape, dtype in self._inputs:
            array = inputs[name]
            flags = array.flags
            if array.dtype != dtype or not (flags.c_contiguous and flags.aligned):
                array = np.array(array, dtype=dtype, order="C")
            slots[slot] = self._wrap(node, array.reshape(shape))
        for slot, source, node, of in self._views:
            shape, dtype = self._storage(node)
            start = self.layout.parts[node].offset - self.layout.parts[of].offset
            memory = _array(slots[source]).reshape(-1).view(np.uint8)[start : start + numel(shape) * dtype.itemsize]
            slots[slot] = self._wrap(node, memory.view(dtype).reshape(shape))
        for slot, shape, dtype in self._fresh:
            slots[slot] = np.empty(shape, dtype)
        try:
            for call in self.code:
                call()
            # Before the updates: an output that is a state shows the value that this run has seen.
            results = [slots[slot] if fresh else _array(slots[slot]).copy() for slot, fresh in self._results]
            self._update_states()
            return results
        finally:
            for slot in self.dynamic:
                slots[slot] = None

    def _update_states(self) -> None:
        slots = self.slots
        staged = {source: slots[source].copy() for _, source, stage in self._copies if stage}
        for state, source, _ in self._copies:
            np.copyto(slots[state], staged.get(source, slots[source]))


def _array(value: Any) -> Array:
    return value.data if isinstance(value, Packed) else value
