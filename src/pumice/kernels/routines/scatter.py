"""Writes by index: every output looks up the updates that name its row, so that repeats give the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, divide_exactly, product
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index, Puller
from pumice.kernels.rows import layout
from pumice.kernels.rows.folds import combine
from pumice.kernels.rows.layout import ROW_VARIANTS, RowThreads, RowTile

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "thread": "few updates: every thread scans all indices",
    "group": "many updates: the threads of a workgroup look through the indices together",
    "table": "many updates of a fresh result: a first kernel finds the last update of every row",
    **ROW_VARIANTS,
}

Form = Literal["add", "set", "inplace"]
_T = TypeVar("_T")
_FEW = 16  # indices that every thread scans itself
_EACH = 4  # elements of a row that one thread takes


@dataclass(frozen=True, slots=True)
class Scatter:
    """How rows find their updates.

    "thread": every thread scans all indices. "group": the threads of a workgroup scan them
    together, for one row. "table": a kernel of its own finds the last update of every row first.
    """

    method: Literal["thread", "group", "table"]
    threads: int

    def __str__(self) -> str:
        return f"{self.method}/{self.threads}"


def words_after(type: TensorType, axis: int) -> Dim | None:
    """How many words the axes after `axis` fill, None if they do not fill words: then two rows may share one.

    >>> from pumice.core.dtypes import f16
    >>> words_after(TensorType(f16, (4, 3, 6)), 0), words_after(TensorType(f16, (4, 3)), 0)
    (9, None)
    """
    return divide_exactly(product(type.shape[axis + 1 :]), type.dtype.per_word)


def decide(caps: Caps, form: Form, updates: int, width: int) -> Scatter:
    """The method for `updates` indices and rows of `width` elements.

    >>> caps = Caps.preset("browser-baseline")
    >>> str(decide(caps, "inplace", 1, 4096)), str(decide(caps, "inplace", 512, 4096)), str(decide(caps, "set", 512, 4096))
    ('thread/256', 'group/256', 'table/256')
    >>> str(decide(caps, "add", 512, 4096)), str(decide(caps, "add", 512, 1))
    ('group/256', 'thread/256')
    """
    threads = map_workgroup(caps)
    if updates <= _FEW:
        return Scatter("thread", threads)
    if form == "add" and width < threads // 4 and updates <= 1024:
        return Scatter("thread", threads)  # a workgroup would search together and then mostly idle
    return Scatter("table" if form == "set" else "group", threads)


def lower_scatter_add(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel; the updates of a row are added in their order."""
    choice = _choose(ctx, group, "add")
    k = _ScatterKernel(ctx, group, choice.threads)
    if choice.method == "thread":
        return [_add_by_thread(k, choice)]
    return [_add_by_group(k, choice)]


def lower_scatter_set(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Writes the whole output, or in place only the rows that are named; the last update of a row wins."""
    choice = _choose(ctx, group, "set" if group.inplace is None else "inplace")
    k = _ScatterKernel(ctx, group, choice.threads)
    if group.inplace is not None:
        return [_overwrite_by_thread(k, choice) if choice.method == "thread" else _overwrite_by_group(k, choice)]
    if choice.method == "thread":
        return [_set_by_thread(k, choice)]
    last = ctx.temp(TensorType(u32, (k.size,)))
    return [_last_updates(ctx, group, last), _set_by_table(k, choice, last)]


def _choose(ctx: LowerContext, group: Group, form: Form) -> Scatter:
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    width = product(d for a, d in enumerate(n.type.shape) if a != n.attr["axis"])
    return ctx.choose(group.root, partial(decide, ctx.caps, form), ctx.type(n.operands["indices"]).shape[0], width)


class _ScatterKernel:
    """One scatter kernel under construction, with the names and sizes that all of them need."""

    def __init__(self, ctx: LowerContext, group: Group, threads: int) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.threads = ctx, group, threads
        self.n = ctx.graph.nodes[group.anchor]
        self.kb = KernelBuilder(ctx.caps, workgroup=threads)
        self.p = Puller(ctx, group, self.kb)
        self.axis: int = self.n.attr["axis"]
        shape = self.n.type.shape
        self.size = shape[self.axis]
        self.count: Dim = ctx.type(self.n.operands["indices"]).shape[0]
        # In place, packed dtypes move by whole words: what follows the axis counts in words, what precedes it is one axis.
        self.per_word = 1 if group.inplace is None else self.n.type.dtype.per_word
        if self.per_word > 1:
            words = words_after(self.n.type, self.axis)
            assert words is not None  # the planner allows no other update in place
            shape, self.axis = (product(shape[: self.axis]), self.size, words), 1
        self.row_shape = shape[: self.axis] + shape[self.axis + 1 :]
        self.update_shape = self.at(self.row_shape, self.count)

    def load(self, operand: str, at: Index) -> str:
        """WGSL of an element of an operand; the updates may be computed here."""
        node = self.n.operands[operand]
        if operand == "updates" and find_view(self.ctx.graph, node, set(self.group.leaves)) is None:
            return self.p.value(node, at)
        return self.p.load_view(self.ctx.view(node, self.group.leaves), at)

    def named_row(self, t: str) -> str:
        """WGSL of the row that index t names; not below the axis's size if there is no such row."""
        v = self.load("indices", (t,))
        if self.ctx.type(self.n.operands["indices"]).dtype.compute == "u32":
            return v
        self.kb.function("fn named_row(i: i32, n: u32) -> u32 { return u32(select(i, i + i32(n), i < 0i)); }")
        return f"named_row({v}, {self.kb.dim(self.size)})"

    def at(self, others: tuple[_T, ...], along: _T) -> tuple[_T, ...]:
        """An index, or a shape, from the entries of the other axes and the one of the scattered axis."""
        return (*others[: self.axis], along, *others[self.axis :])

    def others(self, at: Index) -> Index:
        return at[: self.axis] + at[self.axis + 1 :]

    def store(self, at: Index, value: str) -> None:
        self.p.store(at, self.p.root_value(at, self.kb.let(value, "y")))

    def overwrite(self, at: Index, update: Index) -> None:
        """In place, put the element or word `update` of the updates at `at`."""
        self.p.push()
        self._overwrite(at, update)
        self.p.pop()

    def _overwrite(self, at: Index, update: Index) -> None:
        if self.per_word == 1:
            self.p.store(at, self.load("updates", update))
            return
        shape, axis = self.n.type.shape, self.n.attr["axis"]
        outer, t, word = update
        before = self.p.split(outer, shape[:axis])
        places = [self.p.split(f"{word} * {self.per_word}u + {lane}u", shape[axis + 1 :]) for lane in range(self.per_word)]
        lanes = [self.load("updates", (*before, t, *after)) for after in places]
        target = self.p.linear(self.at(self.row_shape, self.size), at)
        self.kb.emit(self.p.out().store_word(target, lanes))

    def added(self, a: str, b: str) -> str:
        largest = self.n.attr.get("largest")
        if largest is None:
            return self.p.wrap(self.n, f"{a} + {b}")
        return combine("max" if largest else "min", self.n.type.dtype.compute, a, b)

    def open_thread(self, shape: tuple[Dim, ...]) -> Index:
        """A thread an element of `shape`: opens the block of those that exist, which the caller closes; gives the index."""
        self.kb.emit(f"let i = wg * {self.threads}u + lid;")
        self.kb.open(f"if (i < {self.kb.dim(product(shape))})")
        return self.p.split("i", shape)

    def finish(self, groups: Dim, variant: Scatter | RowTile, what: str = "") -> Lowered:
        return self.kb.finish(groups=groups, label=self.ctx.label(self.group) + what, variant=str(variant))

    def finish_threads(self, shape: tuple[Dim, ...], variant: Scatter) -> Lowered:
        self.kb.close()
        return self.finish(ceildiv(product(shape), self.threads), variant)

    @property
    def chunks(self) -> Dim:
        """Workgroups that share a row, each thread taking a few elements of it."""
        return ceildiv(product(self.row_shape), self.threads * _EACH)

    def chunk_elements(self) -> list[tuple[str, Index]]:
        """This thread's elements of chunk `chunk`: for each the condition that it exists, and its index in the row."""
        out = []
        for part in range(_EACH):
            e = self.kb.let(f"chunk * {self.threads * _EACH}u + {part * self.threads}u + lid", "e")
            out.append((f"{e} < {self.kb.dim(product(self.row_shape))}", self.p.split(e, self.row_shape)))
        return out


def _add_by_thread(k: _ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.n.type.shape)
    kb.emit(f"var sum = {k.load('x', at)};")
    kb.open(f"for (var t = 0u; t < {kb.dim(k.count)}; t++)")
    kb.open(f"if ({k.named_row('t')} == {at[k.axis]})")
    kb.emit(f"sum = {k.added('sum', k.load('updates', k.at(k.others(at), 't')))};")
    kb.close()
    kb.close()
    k.store(at, "sum")
    return k.finish_threads(k.n.type.shape, choice)


def _add_by_group(k: _ScatterKernel, choice: Scatter) -> Lowered:
    """A workgroup a row: the hits among a batch of indices become bits, which every thread walks in order."""
    kb, count, words = k.kb, k.kb.dim(k.count), k.threads // 4
    hits = kb.shared("hits", "atomic<u32>", words)
    chunks = k.p.divisor(k.chunks)
    kb.emit(f"let row = wg / {chunks};\nlet chunk = wg % {chunks};")
    own = k.chunk_elements()
    compute = k.n.type.dtype.compute
    for part, (exists, others) in enumerate(own):
        kb.emit(f"var sum{part}: {compute};")
        kb.emit(f"if ({exists}) {{ sum{part} = {k.load('x', k.at(others, 'row'))}; }}")
    kb.open(f"for (var base = 0u; base < {count}; base += {words * 32}u)")
    kb.emit(f"if (lid < {words}u) {{ atomicStore(&{hits}[lid], 0u); }}\nworkgroupBarrier();")
    kb.open(f"for (var j = lid; j < min({words * 32}u, {count} - base); j += {k.threads}u)")
    kb.emit(f"if ({k.named_row('base + j')} == row) {{ atomicOr(&{hits}[j >> 5u], 1u << (j & 31u)); }}")
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var w = 0u; w < {words}u; w++)")
    kb.emit(f"var left = atomicLoad(&{hits}[w]);")
    kb.open("while (left != 0u)")
    kb.emit("let t = base + w * 32u + countTrailingZeros(left);\nleft &= left - 1u;")
    for part, (exists, others) in enumerate(own):
        update = k.load("updates", k.at(others, "t"))
        kb.emit(f"if ({exists}) {{ sum{part} = {k.added(f'sum{part}', update)}; }}")
    kb.close()
    kb.close()
    # The next batch clears the bits.
    kb.emit("workgroupBarrier();")
    kb.close()
    for part, (exists, others) in enumerate(own):
        kb.open(f"if ({exists})")
        k.store(k.at(others, "row"), f"sum{part}")
        kb.close()
    return k.finish(k.size * k.chunks, choice)


def _set_by_thread(k: _ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.n.type.shape)
    kb.emit(f"var last = 0u;\nfor (var t = 0u; t < {kb.dim(k.count)}; t++) {{")
    kb.emit(f"  if ({k.named_row('t')} == {at[k.axis]}) {{ last = t + 1u; }}\n}}")
    _pick(k, at)
    return k.finish_threads(k.n.type.shape, choice)


def _last_updates(ctx: LowerContext, group: Group, last: int) -> Lowered:
    """For every row one more than the number of the last update that names it, 0 if none does."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows, count = n.type.shape[n.attr["axis"]], ctx.type(n.operands["indices"]).shape[0]
    # Neighbouring rows read the same index at a time: one broadcast load.
    tile = layout.decide(ctx.caps, ctx.max(rows), ctx.max(count), strided=True)
    k = _ScatterKernel(ctx, group, tile.workgroup)
    row_threads = RowThreads(k.kb, tile, rows, count)
    k.kb.emit("var last = 0u;")
    with row_threads.elements(k.p) as j:
        k.kb.emit(f"if ({k.named_row(j)} == row) {{ last = {j} + 1u; }}")
    found = row_threads.reduce("max", "u32", "last")
    k.kb.open(f"if ({row_threads.leads})")
    k.kb.emit(k.kb.write(last, u32).store("row", found))
    k.kb.close()
    return k.finish(row_threads.groups, tile, " last")


def _set_by_table(k: _ScatterKernel, choice: Scatter, last: int) -> Lowered:
    at = k.open_thread(k.n.type.shape)
    k.kb.emit(f"let last = {k.kb.read(last, u32).load(at[k.axis])};")
    _pick(k, at)
    return k.finish_threads(k.n.type.shape, choice)


def _pick(k: _ScatterKernel, at: Index) -> None:
    """Store the element at `at`, from update `last` - 1 if there is one, else from x."""
    kb = k.kb
    kb.emit(f"var value: {k.n.type.dtype.compute};")
    kb.open("if (last == 0u)")
    kb.emit(f"value = {k.load('x', at)};")
    kb.orelse()
    k.p.push()
    kb.emit(f"value = {k.load('updates', k.at(k.others(at), '(last - 1u)'))};")
    k.p.pop()
    kb.close()
    k.store(at, "value")


def _overwrite_by_thread(k: _ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.update_shape)
    kb.emit(f"let row = {k.named_row(at[k.axis])};\nvar wins = row < {kb.dim(k.size)};")
    kb.emit(f"for (var t = {at[k.axis]} + 1u; t < {kb.dim(k.count)}; t++) {{ wins = wins && {k.named_row('t')} != row; }}")
    kb.open("if (wins)")
    k.overwrite(k.at(k.others(at), "row"), at)
    kb.close()
    return k.finish_threads(k.update_shape, choice)


def _overwrite_by_group(k: _ScatterKernel, choice: Scatter) -> Lowered:
    """A workgroup an update: its threads look for a later one of the same row together, then copy."""
    kb, chunks = k.kb, k.p.divisor(k.chunks)
    row_threads = RowThreads(kb, RowTile(1, choice.threads), k.count * k.chunks, k.count)
    kb.emit(f"let update = row / {chunks};\nlet chunk = row % {chunks};\nlet target_row = {k.named_row('update')};")
    kb.emit("var later = 0u;")
    with row_threads.elements(k.p) as j:
        kb.emit(f"if ({j} > update && {k.named_row(j)} == target_row) {{ later = 1u; }}")
    any_later = row_threads.reduce("any", "u32", "later")
    kb.open(f"if ({any_later} == 0u && target_row < {kb.dim(k.size)})")
    for exists, others in k.chunk_elements():
        kb.open(f"if ({exists})")
        k.overwrite(k.at(others, "target_row"), k.at(others, "update"))
        kb.close()
    kb.close()
    return k.finish(row_threads.groups, choice)
