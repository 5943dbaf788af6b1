"""Regions: elementwise nodes of one shape that run together, in chunks small enough for temporaries to stay in cache."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np

from pumice.backends.host.memory.arrays import CHUNK, NpDType, is_half, numel, widen
from pumice.backends.host.native.fused import is_known, native_region
from pumice.backends.host.native.kernel_tasks import Native
from pumice.backends.host.native.region_kernel import Operation
from pumice.backends.host.routines.calls import Bound
from pumice.core.records import dataclass
from pumice.ir.registry import Array

Thunk = Callable[[], None]
# Names a value of a region: a node, or the f32 twin of a node that is stored as f16 or bf16.
Name = int | tuple[str, int]
Index = tuple[int | slice, ...]
# The index into the output, one index per leaf (None: the leaf as it is), and the number of entries along the cut axis.
Chunk = tuple[Index, list[Index | None], int]
# Below this many chunks the bookkeeping costs more than the cache gives back.
_MIN_CHUNKS = 2
# Elements from which on a kernel of its own keeps the calls before and after it together, where kernels are used at all.
_LEAST_FUSED = 1 << 4


class Slots(Protocol):
    """What a region needs of the program it becomes part of: the arrays by slot, and slots for temporaries."""

    @property
    def slots(self) -> list[Any]: ...

    def temporary(self, shape: tuple[int, ...], dtype: NpDType) -> int: ...


@dataclass(frozen=True, slots=True)
class RegionLeaf:
    """A value that the region reads: its slot, shape and dtype; views may not be dense."""

    name: Name
    slot: int
    shape: tuple[int, ...]
    dtype: NpDType | None
    dense: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """`run(*operands, out)` for one node."""

    run: Callable[..., Any]
    operands: tuple[Name, ...]
    name: Name
    result: NpDType
    in_place: bool
    native: Native | None = None
    op: str = ""
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An instruction with registers: leaves first, then temporaries, -1 for the output."""

    run: Callable[..., Any]
    operands: tuple[int, ...]
    out: int
    native: Native | None


class Region:
    """Collects instructions in order, then emits the calls that run them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.leaves: list[RegionLeaf] = []
        self.instructions: list[Instruction] = []
        self._dtypes: dict[Name, NpDType | None] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._dtypes

    def dtype(self, name: Name) -> NpDType:
        """The dtype of a value in the region."""
        found = self._dtypes[name]
        assert found is not None
        return found

    def add_leaf(self, leaf: RegionLeaf) -> None:
        self.leaves.append(leaf)
        self._dtypes[leaf.name] = leaf.dtype

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        self._dtypes[instruction.name] = instruction.result

    def widened(self, name: int) -> Name:
        """The name under which a value can be computed with: its own, or that of its f32 twin."""
        if not is_half(self._dtypes[name]):
            return name
        twin = ("wide", name)
        if twin not in self:
            self.add(Instruction(widen, (name,), twin, np.dtype(np.float32), in_place=False))
        return twin

    def emit(self, program: Slots, out: int, dtype: NpDType, shared: Collection[Name] = ()) -> list[Thunk | Bound]:
        """The calls that compute the last instruction's value into the slot `out`, an array of that dtype.

        `shared` names the leaves in the memory of `out`.
        """
        placed, temporaries = self._place(dtype, shared)
        if numel(self.shape) >= _MIN_CHUNKS * CHUNK:
            run = self._chunked(program, placed, temporaries, out)
            native = self._native(dtype)
            if native is None:
                return [run]
            return [Bound(run, native, tuple(leaf.slot for leaf in self.leaves), out, heavy=True)]
        slots = tuple(leaf.slot for leaf in self.leaves)
        registers = [*slots, *(program.temporary(self.shape, d) for d in temporaries), out]
        calls = [_call(program.slots, p, registers) for p in placed]
        native = None if numel(self.shape) < _LEAST_FUSED or self._is_simple() else self._native(dtype)
        return calls if native is None else [Bound(_one_by_one(calls), native, slots, out)]

    def _is_simple(self) -> bool:
        """Whether there is a kernel for each instruction already: none has to be compiled for them together."""
        return all(i.native is not None for i in self.instructions) and all(leaf.shape == self.shape for leaf in self.leaves)

    def _native(self, dtype: NpDType) -> Native | None:
        """The region as a task for a kernel of its own; None if it has operations that kernels do not know."""
        places = {leaf.name: at for at, leaf in enumerate(self.leaves)}
        operations: list[Operation] = []
        for i in self.instructions:
            if not is_known(i.op, [self._dtypes[o] for o in i.operands], i.result):
                return None
            operations.append(Operation(i.op, tuple(places[o] for o in i.operands), i.result.name, *i.limits))
            places[i.name] = len(places)
        dtypes = [self._dtypes[leaf.name] for leaf in self.leaves]
        if self.instructions[-1].result != dtype or None in dtypes:
            return None
        return native_region([d for d in dtypes if d is not None], operations)

    def _place(self, dtype: NpDType, shared: Collection[Name]) -> tuple[list[_Placed], list[NpDType]]:
        """Instructions with registers, and the dtypes of the temporaries; registers are reused after the last reading."""
        instructions = list(self.instructions)
        last = instructions[-1]
        if last.result != dtype or (not last.in_place and any(name in shared for name in last.operands)):
            instructions.append(Instruction(_convert, (last.name,), ("stored", 0), dtype, in_place=False))
        pending = Counter(name for i in instructions for name in i.operands)
        registers: dict[Name, int] = {leaf.name: at for at, leaf in enumerate(self.leaves)}
        temporaries: list[NpDType] = []
        free: list[int] = []
        placed = []
        for i in instructions:
            operands = tuple(registers[name] for name in i.operands)
            pending.subtract(i.operands)
            done = {registers[n] for n in i.operands if not pending[n] and registers[n] >= len(self.leaves)}
            # Operands that end here give their register to the result only if the kernel may write over what it reads.
            usable = [*free, *done] if i.in_place else free
            out = -1
            if i is not instructions[-1]:
                fitting = (r for r in usable if temporaries[r - len(self.leaves)] == i.result)
                out = next(fitting, len(self.leaves) + len(temporaries))
                if out == len(self.leaves) + len(temporaries):
                    temporaries.append(i.result)
            free = [r for r in {*free, *done} if r != out]
            registers[i.name] = out
            placed.append(_Placed(i.run, operands, out, i.native))
        return placed, temporaries

    def _chunked(self, program: Slots, placed: list[_Placed], temporaries: list[NpDType], out: int) -> Thunk:
        shape, leaf_shapes = _collapse(self.shape, [leaf.shape for leaf in self.leaves], all(leaf.dense for leaf in self.leaves))
        axis, rows = _split(shape)
        chunks = _chunk_indices(shape, leaf_shapes, axis, rows)
        scratch = [program.temporary((rows, *shape[axis + 1 :]), d) for d in temporaries]
        leaves = [(leaf.slot, s) for leaf, s in zip(self.leaves, leaf_shapes)]
        steps = [(p.run, p.operands, p.out) for p in placed]
        slots = program.slots

        def run() -> None:
            arrays = [slots[slot].reshape(s) for slot, s in leaves]
            target: Array = slots[out].reshape(shape)
            whole = [slots[s] for s in scratch]
            for index, leaf_indices, count in chunks:
                registers = [a if i is None else a[i] for a, i in zip(arrays, leaf_indices)]
                registers += whole if count == rows else [s[:count] for s in whole]
                registers.append(target[index])
                for call, operands, to in steps:
                    call(*[registers[o] for o in operands], registers[to])

        return run


def _convert(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def _call(slots: list[Any], placed: _Placed, registers: list[int]) -> Thunk | Bound:
    """One instruction over slots."""
    operands, out = tuple(registers[o] for o in placed.operands), registers[placed.out]
    call = _closure(slots, placed.run, operands, out)
    return call if placed.native is None else Bound(call, placed.native, operands, out)


def _one_by_one(calls: list[Thunk | Bound]) -> Thunk:
    thunks = [c.call if isinstance(c, Bound) else c for c in calls]

    def run() -> None:
        for call in thunks:
            call()

    return run


def _closure(slots: list[Any], run: Callable[..., Any], operands: tuple[int, ...], out: int) -> Thunk:
    """The usual arities have closures of their own, as this is the hot path of small steps."""
    if len(operands) == 1:
        (a,) = operands
        return lambda: run(slots[a], slots[out])
    if len(operands) == 2:
        a, b = operands
        return lambda: run(slots[a], slots[b], slots[out])
    return lambda: run(*[slots[o] for o in operands], slots[out])


def _collapse(
    shape: tuple[int, ...], leaves: list[tuple[int, ...]], dense: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The shapes with axes merged that every leaf either has in full or broadcasts over; views keep their axes."""
    padded = [(1,) * (len(shape) - len(s)) + s for s in leaves]
    if not dense:
        return shape, padded
    kept: list[int] = []
    merged: list[list[int]] = [[] for _ in padded]
    before: list[bool] | None = None
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        full = [s[axis] == size for s in padded]
        if full == before:
            kept[-1] *= size
            for m, s in zip(merged, padded):
                m[-1] *= s[axis]
        else:
            kept.append(size)
            for m, s in zip(merged, padded):
                m.append(s[axis])
        before = full
    return tuple(kept), [tuple(m) for m in merged]


def _split(shape: tuple[int, ...]) -> tuple[int, int]:
    """The axis to cut and how many of its entries make a chunk; axes before it are walked one entry at a time."""
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        if inner * shape[axis] > CHUNK or axis == 0:
            return axis, max(1, min(shape[axis], CHUNK // inner))
        inner *= shape[axis]
    return 0, 1


def _chunk_indices(shape: tuple[int, ...], leaves: list[tuple[int, ...]], axis: int, rows: int) -> list[Chunk]:
    """All chunks of an output, cut along one axis."""
    cuts = [slice(lo, min(shape[axis], lo + rows)) for lo in range(0, shape[axis], rows)]
    chunks: list[Chunk] = []
    for lead in itertools.product(*(range(d) for d in shape[:axis])):
        for cut in cuts:
            index: Index = (*lead, cut)
            picked: list[Index | None] = []
            for s in leaves:
                if all(d == 1 for d in s[: axis + 1]) and axis == 0:
                    picked.append(None)
                    continue
                walked: list[int | slice] = [i if d > 1 else 0 for i, d in zip(lead, s)]
                picked.append((*walked, cut if s[axis] > 1 else slice(0, 1)))
            chunks.append((index, picked, cut.stop - cut.start))
    return chunks
