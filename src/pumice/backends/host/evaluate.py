"""Compiles one step of a host plan to calls over slots: routines one by one, elementwise nodes as fused regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.host.memory.arrays import NpDType, is_half, numel, overlap, widen
from pumice.backends.host.routines.calls import Bound, HostRoutine, NodeCall
from pumice.backends.host.routines.finishing import Factor, ending_of, factor_region
from pumice.backends.host.routines.region import Instruction, Name, Region, RegionLeaf
from pumice.backends.host.routines.scalars import bind_scalar
from pumice.backends.host.routines.table import bind_routine
from pumice.core.records import dataclass
from pumice.ir.pack_kernels import PREFIX
from pumice.ir.registry import get_op
from pumice.plan.plan import Part, Step

if TYPE_CHECKING:
    from pumice.backends.host.program import Program

Thunk = Callable[[], None]
Code = list[Thunk | Bound]
_F32: NpDType = np.dtype(np.float32)


def compile_step(program: Program, step: Step) -> Code:
    """The calls that compute a step's nodes and store its root."""
    return _Compiler(program, step).compile()


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value that is in memory: its slot, the dtype of the array there (None: packed) and whether it is dense."""

    slot: int
    dtype: NpDType | None
    dense: bool = True


class _Compiler:
    def __init__(self, program: Program, step: Step) -> None:
        self.program, self.step, self.graph = program, step, program.layout.graph
        self.nodes = [n for n in step.nodes if self.graph.nodes[n].op != "constant"]
        self.root = step.root
        self.stored = program.layout.stored(step)
        self.code: Code = []
        self.loose: list[int] = []
        self.values: dict[int, _Operand] = {}
        self.wide: dict[int, _Operand] = {}
        self.target = program.slot(self.root)
        self.target_dtype = program.type(self.root).dtype.np
        self.readers: dict[int, list[int]] = {}
        for n in self.nodes:
            for arg in self.graph.nodes[n].args:
                self.readers.setdefault(arg, []).append(n)
        self.heads = self._group()
        inside = set(self.nodes)
        self.shared = [leaf for leaf in self.readers if leaf not in inside and self._shares_memory(leaf)]
        self.lent: list[int] = []
        # Routines whose results wait in the target, and can be finished as they are stored: their calls, and their operands.
        self.waiting: dict[int, tuple[Thunk | Bound, HostRoutine, Sequence[int | None]]] = {}

    def compile(self) -> Code:
        for n in self.nodes:
            if self.heads[n] != n or self.graph.nodes[n].op == "result":
                continue
            if self._is_scalar(n):
                self._emit_region(n)
            elif self.graph.nodes[n].further:
                self._emit_results(n)
            else:
                self._emit_routine(n)
        if self.loose:
            self.code.append(self._drop())
        return self.code

    # --- structure ---

    def _is_scalar(self, n: int) -> bool:
        return get_op(self.graph.nodes[n].op).is_elementwise and not self._is_packs(n)

    def _is_packs(self, n: int) -> bool:
        """Whether a kernel of a pack computes a node."""
        return n == self.step.anchor and self.step.variant.startswith(PREFIX)

    def _shape(self, n: int) -> tuple[int, ...]:
        return self.program.type(n).static_shape

    def _group(self) -> dict[int, int]:
        """For each node the head of its region: the one node of it that is written to memory.

        A scalar node joins the region of its readers if they are all in one region and have its shape; otherwise it heads
        a region of its own. Every other node stands alone.
        """
        heads: dict[int, int] = {}
        for n in reversed(self.nodes):
            joined = {heads[r] if self._is_scalar(r) and self._shape(r) == self._shape(n) else n for r in self.readers.get(n, [])}
            alone = n == self.root or not self._is_scalar(n) or len(joined) != 1
            heads[n] = n if alone else joined.pop()
        return heads

    def _shares_memory(self, leaf: int) -> bool:
        mine, other = [self._part(n) for n in self.stored], self._part(leaf)
        return other is not None and any(part is not None and overlap(part, other) for part in mine)

    def _part(self, node: int) -> Part | None:
        return self.program.layout.parts.get(node)

    def _operand(self, node: int) -> _Operand:
        found = self.values.get(node)
        if found is None:
            dtype = self.program.type(node).dtype
            found = self.values[node] = _Operand(self.program.slot(node), None if dtype.is_quant else dtype.np)
        return found

    def _store(self, slot: int, to: int | None = None) -> None:
        """Copies a computed slot to the step's target, or another one, rounding or wrapping as the dtype needs."""
        slots, target = self.program.slots, self.target if to is None else to
        self.code.append(lambda: np.copyto(slots[target], slots[slot], casting="unsafe"))

    def _drop(self) -> Thunk:
        slots, loose = self.program.slots, tuple(self.loose)

        def drop() -> None:
            for slot in loose:
                slots[slot] = None

        return drop

    # --- regions ---

    def _emit_region(self, head: int) -> None:
        members = [n for n in self.nodes if self.heads[n] == head]
        shape = self._shape(head)
        region = Region(shape)
        for n in members:
            node = self.graph.nodes[n]
            dtypes = tuple(region.dtype(a) if a in region else self._operand(a).dtype for a in node.args)
            call = self._call(n, dtypes)
            kernel = bind_scalar(call)
            names = []
            for arg in node.args:
                if arg not in region:
                    operand = self._operand(arg)
                    region.add_leaf(RegionLeaf(arg, operand.slot, self._shape(arg), operand.dtype, operand.dense))
                names.append(arg if kernel.raw else region.widened(arg))
            limits = (call.attrs.get("lo"), call.attrs.get("hi"))
            region.add(Instruction(kernel.run, tuple(names), n, kernel.result, kernel.in_place, kernel.native, node.op, limits))
        if head == self.root and self._end_routine(region):
            return
        if head == self.root and self._may_write_target(set(members)):
            self.code += region.emit(self.program, self.target, self.target_dtype, (*self.shared, *self.lent))
            return
        dtype = self.target_dtype if head == self.root else region.dtype(head)
        slot = self.program.temporary(shape, dtype)
        self.code += region.emit(self.program, slot, dtype)
        self.values[head] = _Operand(slot, dtype)
        if head == self.root:
            self._store(slot)

    def _end_routine(self, region: Region) -> bool:
        """Has the routine whose result waits in the target do all that the region does; whether it can."""
        if len(self.waiting) != 1:
            return False
        ((n, (thunk, routine, args)),) = self.waiting.items()
        ending = ending_of(region, n)
        if ending is None or routine.ending is None or (ending.other is not None and not ending.other.dense):
            return False
        scales = ending.scale is not None or ending.shift is not None
        ended, leaves = routine.ending(scales, ending.low, ending.high), {leaf.name: leaf for leaf in region.leaves}
        if ended is None:
            return False
        slots = [None if f is None else self._emit_factor(f, leaves, region.shape) for f in (ending.scale, ending.shift)]
        slots.append(None if ending.other is None else ending.other.slot)
        # The routine comes last, as the numbers of channels may be computed after the place where it stood.
        self.code.remove(thunk)
        self.code.append(self._thunk(ended, [*args, *slots], self.target))
        return True

    def _emit_factor(self, factor: Factor, leaves: Mapping[Name, RegionLeaf], full: tuple[int, ...]) -> int:
        """The slot of a number of each channel."""
        shape = (1, full[1], *(1,) * (len(full) - 2))
        leaf = leaves.get(factor.leaf)
        if leaf is not None and numel(leaf.shape) == full[1]:
            return leaf.slot
        slot = self.program.temporary(shape, _F32)
        if leaf is not None:
            slots, source = self.program.slots, leaf.slot
            self.code.append(lambda: np.copyto(slots[slot], slots[source]))
        else:
            self.code += factor_region(factor, leaves, shape).emit(self.program, slot, _F32)
        return slot

    def _may_write_target(self, members: set[int]) -> bool:
        """Whether a region may write the target while it reads: each value there is read at the index that is written."""
        for leaf in self.shared:
            same = self._part(leaf) == self._part(self.root) and self.program.type(leaf) == self.program.type(self.root)
            if not same or not members.issuperset(self.readers[leaf]):
                return False
        return True

    # --- routines ---

    def _call(self, n: int, dtypes: tuple[NpDType | None, ...], in_place: bool = False) -> NodeCall:
        node, program = self.graph.nodes[n], self.program
        ins = tuple(None if i is None else program.type(i) for i in node.inputs)
        target = self.target_dtype if n == self.root else None
        if len(dtypes) != len(ins):  # optional operands that are absent
            given = iter(dtypes)
            dtypes = tuple(None if i is None else next(given) for i in node.inputs)
        return NodeCall(get_op(node.op), program.attrs(n), ins, program.type(n), dtypes, target, in_place)

    def _bind(self, n: int, call: NodeCall) -> HostRoutine:
        if not self._is_packs(n):
            return bind_routine(call)
        from pumice.backends.host.routines.packs import bind_pack

        return bind_pack(self.step.variant, call)

    def _emit_routine(self, n: int) -> None:
        node = self.graph.nodes[n]
        in_place = n == self.root and get_op(node.op).traits.in_place is not None and self._updates_in_place(n)
        routine = self._bind(n, self._call(n, tuple(self._operand(a).dtype for a in node.args), in_place))
        operands = [None if i is None else self._ready(i, routine) for i in node.inputs]
        args = [None if o is None else o.slot for o in operands]
        if n != self.root:
            self.values[n] = self._emit_inner(n, routine, args)
        elif not routine.writes:
            self._store_result(routine, args)
        elif in_place or (routine.result == self.target_dtype and not self.shared):
            self.code.append(self._thunk(routine, args, self.target))
        else:
            slot = self.program.temporary(self._shape(n), routine.result)
            self.code.append(self._thunk(routine, args, slot))
            self._store(slot)

    def _emit_results(self, n: int) -> None:
        """A node with several results: each into its place, into scratch if the step goes on with it, or left out."""
        node, program = self.graph.nodes[n], self.program
        # What stands for each result in this step.
        names: list[int | None] = [n, *[None] * len(node.further)]
        for r in self.readers.get(n, ()):
            if self.graph.nodes[r].op == "result":
                names[self.graph.nodes[r].attr["index"]] = r
        if n not in self.stored and all(self.graph.nodes[r].op == "result" for r in self.readers.get(n, ())):
            names[0] = None
        dtypes = tuple(self._operand(a).dtype for a in node.args)
        further = tuple(t.at(program.env) for t in node.further)
        call = replace(self._call(n, dtypes), further=further, wanted=tuple(name is not None for name in names))
        routine = self._bind(n, call)
        args = [None if i is None else self._ready(i, routine).slot for i in node.inputs]
        outs: list[int | None] = []
        copies: list[tuple[int, int]] = []
        for name, type in zip(names, call.outs, strict=True):
            dtype = type.dtype.np if routine.stored else type.dtype.compute_np
            place = None if name is None or name not in self.stored else program.slot(name)
            direct = place is not None and not self.shared and dtype == type.dtype.np
            if name is None and not routine.needs_all:
                outs.append(None)
                continue
            slot = place if direct and place is not None else program.temporary(type.static_shape, dtype)
            outs.append(slot)
            if name is not None:
                self.values[name] = _Operand(slot, dtype)
            if place is not None and not direct:
                copies.append((slot, place))
        self.code.append(self._thunk(routine, args, tuple(outs)))
        for slot, place in copies:
            self._store(slot, place)

    def _updates_in_place(self, n: int) -> bool:
        """Whether the result takes the place of the first operand, which nothing else in the step reads."""
        first = self.graph.nodes[n].args[0]
        same = first in self.shared and self._part(first) == self._part(n)
        return same and self.shared == [first] and self.readers[first] == [n]

    def _ready(self, node: int, routine: HostRoutine) -> _Operand:
        operand = self._operand(node)
        if routine.raw or not is_half(operand.dtype):
            return operand
        found = self.wide.get(node)
        if found is None:
            slots, source = self.program.slots, operand.slot
            slot = self.program.temporary(self._shape(node), _F32)
            self.code.append(lambda: _discard(widen(slots[source], slots[slot])))
            found = self.wide[node] = _Operand(slot, _F32)
        return found

    def _emit_inner(self, n: int, routine: HostRoutine, args: Sequence[int | None]) -> _Operand:
        """A value that stays inside the step."""
        program = self.program
        if routine.writes:
            lends = self._may_borrow_target(n, routine)
            slot = self.target if lends else program.temporary(self._shape(n), routine.result)
            thunk = self._thunk(routine, args, slot)
            if lends:
                self.lent.append(n)
                if routine.ending is not None:
                    self.waiting[n] = thunk, routine, args
            self.code.append(thunk)
            return _Operand(slot, routine.result)
        slot, run, slots = program.add(), routine.run, program.slots
        if routine.view and args[0] is not None and slots[args[0]] is not None and args[0] not in program.dynamic:
            # A view of memory that stays where it is is made once, here; reshaping a strided view is a copy, though.
            view = run([slots[args[0]]], None)
            if np.may_share_memory(view, slots[args[0]]):
                slots[slot] = view
                program.note_view(slot, args[0])
                return _Operand(slot, routine.result, dense=False)

        if not args and program.is_small(n):
            # Nothing is read: the same in every run.
            slots[slot] = run([], None)
            return _Operand(slot, routine.result, dense=False)

        def call() -> None:
            slots[slot] = run([None if a is None else slots[a] for a in args], None)

        self.code.append(call)
        self.loose.append(slot)
        return _Operand(slot, routine.result, dense=False)

    def _may_borrow_target(self, n: int, routine: HostRoutine) -> bool:
        """Whether a routine's result may wait in the step's target for the elementwise nodes that finish it there."""
        if self.lent or self.shared or routine.result != self.target_dtype or self._shape(n) != self._shape(self.root):
            return False
        return self._is_scalar(self.root) and all(self.heads[r] == self.root for r in self.readers[n])

    def _thunk(self, routine: HostRoutine, args: Sequence[int | None], out: int | tuple[int | None, ...]) -> Thunk | Bound:
        slots, run = self.program.slots, routine.run

        def call() -> None:
            to = slots[out] if isinstance(out, int) else tuple(None if o is None else slots[o] for o in out)
            run([None if a is None else slots[a] for a in args], to)

        if routine.native is None:
            return call
        return Bound(call, routine.native, tuple(args), out, routine.heavy, routine.keeping, routine.work, routine.kept)

    def _store_result(self, routine: HostRoutine, args: Sequence[int | None]) -> None:
        slots, run, target = self.program.slots, routine.run, self.target

        def call() -> None:
            np.copyto(slots[target], run([None if a is None else slots[a] for a in args], None), casting="unsafe")

        self.code.append(call)


def _discard(value: Any) -> None:
    return None
