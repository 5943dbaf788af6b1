"""Memory planning: sources get buffers of their own, everything in between shares arenas by lifetime."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from pumice.core.caps import Caps
from pumice.errors import LimitError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import RESIDENT_OPS
from pumice.kernels.context import LowerContext
from pumice.plan.plan import BufferKind, Part, PlanBuffer, Step, Value
from pumice.plan.regimes import StepSchedule

_SMALLEST = 16  # bytes; WebGPU refuses empty bindings


@dataclass
class _Arena:
    """One buffer that values share; `taken` holds (offset, end, last step)."""

    taken: list[tuple[int, int, int]] = field(default_factory=list)
    nbytes: int = 0

    def place(self, first: int, nbytes: int, alignment: int) -> int:
        """The lowest offset that is free from the first step of a value on; values come in the order of their first steps."""
        # What ended before this one began is in no later one's way either; all others are there when this one is.
        self.taken = sorted([t for t in self.taken if t[2] >= first])
        at = 0
        for start, end, _ in self.taken:
            if at + nbytes <= start:
                break
            at = max(at, align(end, alignment))
        return at


def align(n: int, alignment: int) -> int:
    """n rounded up to a multiple of alignment.

    >>> align(5, 4), align(8, 4)
    (8, 8)
    """
    return -(-n // alignment) * alignment


class MemoryPlanner:
    """Assigns every value of some schedules of one graph to a part of a buffer.

    Sources have one place for all. Activations are placed per schedule, in the same arenas: an arena is
    as large as the schedule that needs most of it.
    """

    def __init__(self, graph: Graph, caps: Caps, *, arena: bool, guard: int) -> None:
        self.graph, self.caps = graph, caps
        self.arena, self.guard = arena, guard
        self.buffers: list[PlanBuffer] = []
        self._arena_bytes: list[int] = []
        # By arena, offset and bytes: layers have the same, and so have schedules.
        self._parts: dict[tuple[int, int, int], tuple[Part]] = {}

    def plan(self, schedules: Sequence[StepSchedule]) -> tuple[tuple[PlanBuffer, ...], list[dict[int, Value]]]:
        """Buffers, and the values of each schedule; the last one is for all sizes."""
        used = {b.value for schedule in schedules for s in schedule.steps for b in s.bindings}
        sources = self._sources(schedules[-1].ctx, used)
        first_arena = len(self.buffers)
        # The widest first: the others find its arenas large enough.
        found = [self._activations(schedule, sources, first_arena) for schedule in reversed(schedules)]
        for k, nbytes in enumerate(self._arena_bytes):
            self._buffer("arena", nbytes, f"arena {k}")
        return tuple(self.buffers), found[::-1]

    def _activations(self, schedule: StepSchedule, sources: Mapping[int, Value], first_arena: int) -> dict[int, Value]:
        """The sources and everything else that the steps of a schedule bind."""
        steps, aliases, values = schedule.steps, schedule.aliases, dict(sources)
        lifetimes = value_lifetimes(self.graph, steps)
        # A result that no step writes has no elements, and still needs a place.
        for root in self.graph.roots:
            if root not in values and root not in lifetimes and root not in aliases:
                lifetimes[root] = (len(steps), len(steps))
        for value, state in aliases.items():
            values[value] = Value(value, schedule.ctx.type(value), values[state].parts)
            lifetimes.pop(value, None)
        conflicts = _conflicts(steps, lifetimes) if self.caps.exclusive_writes else {}
        for value, place in self._place(schedule.ctx, lifetimes, conflicts).items():
            parts = self._parts.get(place)
            if parts is None:
                k, offset, nbytes = place
                parts = self._parts[place] = (Part(first_arena + k, offset, nbytes),)
            values[value] = Value(value, schedule.ctx.type(value), parts)
        return values

    def nbytes(self, ctx: LowerContext, value: int) -> int:
        """Bytes to reserve: whole vectors of four words, which kernels load at once, never nothing, plus the guard zone."""
        nbytes = ctx.nbytes(value)
        limit = min(self.caps.max_binding_bytes, self.caps.max_buffer_bytes)
        if nbytes > limit:
            ctx.part_elements(value)  # raises for everything but params, naming the tensor and the limit
        return max(_SMALLEST, align(nbytes, _SMALLEST)) + self.guard

    def _buffer(self, kind: BufferKind, nbytes: int, name: str) -> int:
        if nbytes > self.caps.max_buffer_bytes:
            raise LimitError(
                f"the {kind} {name} takes {nbytes} bytes, a buffer on {self.caps.name} holds {self.caps.max_buffer_bytes}",
                tensor=name,
                nbytes=nbytes,
                limit=self.caps.max_buffer_bytes,
            )
        self.buffers.append(PlanBuffer(kind, nbytes, name))
        return len(self.buffers) - 1

    def _sources(self, ctx: LowerContext, used: set[int]) -> dict[int, Value]:
        """Inputs, params and states each in a buffer of their own (params in row shards if they must); constants together.

        Packed params are adjacent in the buffer of their pack.
        """
        values: dict[int, Value] = {}
        packed = {i for n in self.graph if n.op == "pack_rows" for i in n.args}
        constants: list[tuple[int, int, int]] = []
        end = 0
        for n in self.graph:
            kind: BufferKind
            if n.op == "constant" and (n.id in used or n.id in self.graph.roots):
                nbytes = self.nbytes(ctx, n.id)
                constants.append((n.id, end, nbytes))
                end = align(end + nbytes, self.caps.storage_alignment)
            elif n.op == "pack_rows":
                values |= self._pack(ctx, n)
            elif n.op in ("input", "param", "state") and n.id not in packed:
                kind = "input" if n.op == "input" else "param" if n.op == "param" else "state"
                pieces = ctx.part_elements(n.id)
                sizes = [self.nbytes(ctx, n.id)] if len(pieces) == 1 else [align(n.type.dtype.nbytes(e), 4) for e in pieces]
                parts = tuple(Part(self._buffer(kind, size, n.name), 0, size) for size in sizes)
                values[n.id] = Value(n.id, n.type, parts)
        if constants:
            buffer = self._buffer("constant", max(end, _SMALLEST), "constants")
            for node, offset, nbytes in constants:
                values[node] = Value(node, ctx.type(node), (Part(buffer, offset, nbytes),))
        return values

    def _pack(self, ctx: LowerContext, n: Node) -> dict[int, Value]:
        nbytes = self.nbytes(ctx, n.id)
        buffer = self._buffer("param", nbytes, " + ".join(self.graph.nodes[i].name for i in n.args))
        values = {n.id: Value(n.id, n.type, (Part(buffer, 0, nbytes),))}
        offset = 0
        for i in n.args:
            t = ctx.type(i)
            size = t.max_nbytes({})
            values[i] = Value(i, t, (Part(buffer, offset, size),))
            offset += size
        return values

    def _place(
        self, ctx: LowerContext, lifetimes: Mapping[int, tuple[int, int]], conflicts: Mapping[int, set[int]]
    ) -> dict[int, tuple[int, int, int]]:
        """Arena, offset and bytes of each value."""
        arenas = [_Arena(nbytes=nbytes) for nbytes in self._arena_bytes]
        placed: dict[int, tuple[int, int, int]] = {}
        sizes: dict[int, int] = {}  # by the id of a type: layers share them
        for value, (first, last) in sorted(lifetimes.items(), key=lambda i: (i[1][0], i[0])):
            kind = id(ctx.type(value))
            nbytes = sizes.get(kind, -1)
            if nbytes < 0:
                nbytes = sizes[kind] = self.nbytes(ctx, value)
            forbidden = {placed[c][0] for c in conflicts.get(value, ()) if c in placed}
            best: tuple[int, int, int] | None = None  # growth, arena, offset
            for k, a in enumerate(arenas):
                if k in forbidden or (a.taken and not self.arena):
                    continue
                offset = a.place(first, nbytes, self.caps.storage_alignment)
                grown = max(a.nbytes, offset + nbytes)
                if grown <= self.caps.max_buffer_bytes and (best is None or grown - a.nbytes < best[0]):
                    best = (grown - a.nbytes, k, offset)
                    if grown == a.nbytes:
                        break
            if best is None:
                arenas.append(_Arena())
                best = (nbytes, len(arenas) - 1, 0)
            _, k, offset = best
            arenas[k].taken.append((offset, offset + nbytes, last))
            arenas[k].nbytes = max(arenas[k].nbytes, offset + nbytes)
            placed[value] = (k, offset, nbytes)
        self._arena_bytes = [a.nbytes for a in arenas]
        return placed


def value_lifetimes(graph: Graph, steps: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """First and last step of every value that steps write; results live until after the last step."""
    spans: dict[int, tuple[int, int]] = {}
    sources = {n.id for op in RESIDENT_OPS for n in graph.sources(op)}
    for k, s in enumerate(steps):
        for b in s.bindings:
            if b.value not in sources:
                spans[b.value] = (spans[b.value][0] if b.value in spans else k, k)
    for root in graph.roots:
        if root in spans:
            spans[root] = (spans[root][0], len(steps))
    return spans


def _conflicts(steps: Sequence[Step], shared: Container[int]) -> dict[int, set[int]]:
    """Pairs of the values in `shared` memory that one dispatch reads and writes.

    WebGPU forbids that of one buffer, even in disjoint ranges.
    """
    out: dict[int, set[int]] = {}
    for s in steps:
        bound = [b for b in s.bindings if b.value in shared]
        written = [b.value for b in bound if b.access != "read"]
        for b in bound:
            if b.access == "read":
                for w in written:
                    out.setdefault(w, set()).add(b.value)
                    out.setdefault(b.value, set()).add(w)
    return out
