"""What all kernels of writes by index have in common: how rows find their updates, and a kernel under construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from pumice.core.dims import Dim, ceildiv, divide_exactly, product
from pumice.core.dtypes import DType
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.pull import Index, Puller
from pumice.kernels.rows.folds import combine
from pumice.kernels.rows.layout import RowTile

_T = TypeVar("_T")
_EACH = 4  # elements of a row that one thread takes


@dataclass(frozen=True, slots=True)
class Scatter:
    """How rows find their updates.

    "thread": every thread scans all indices. "group": the threads of a workgroup scan them together, for one row. "table": a
    kernel of its own finds the last update of every row first. "bins": `parts` workgroups add up integers in workgroup memory,
    in whatever order. "sorted": the updates are sorted by row, so that each row's are neighbours.
    """

    method: Literal["thread", "group", "table", "bins", "sorted"]
    threads: int
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.method}/{self.threads}" + (f"/split{self.parts}" if self.parts > 1 else "")


def words_after(type: TensorType, axis: int) -> Dim | None:
    """How many words the axes after `axis` fill, None if they do not fill words: then two rows may share one.

    >>> from pumice.core.dtypes import f16
    >>> words_after(TensorType(f16, (4, 3, 6)), 0), words_after(TensorType(f16, (4, 3)), 0)
    (9, None)
    """
    return divide_exactly(product(type.shape[axis + 1 :]), type.dtype.per_word)


def named_row(kb: KernelBuilder, index: str, dtype: DType, size: Dim) -> str:
    """WGSL of the row that an index of that dtype names; not below the axis's size if there is no such row."""
    if dtype.compute == "u32":
        return index
    kb.function("fn named_row(i: i32, n: u32) -> u32 { return u32(select(i, i + i32(n), i < 0i)); }")
    return f"named_row({index}, {kb.dim(size)})"


class ScatterKernel:
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
        return named_row(self.kb, self.load("indices", (t,)), self.ctx.type(self.n.operands["indices"]).dtype, self.size)

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

    def finish_threads(self, shape: tuple[Dim, ...], variant: Scatter, what: str = "") -> Lowered:
        self.kb.close()
        return self.finish(ceildiv(product(shape), self.threads), variant, what)

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
