"""cumsum: a thread a row where rows are short, else a workgroup that scans chunks of a row and carries the sum along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from pumice.core.caps import Caps
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import ZERO, Index, Puller
from pumice.kernels.rows.layout import Rows, RowThreads, RowTile, is_short, many_rows, power_of_two

_EACH = 4  # neighbouring elements that one thread adds up before the threads' sums are scanned


def decide(caps: Caps, rows: int, length: int, *, strided: bool) -> RowTile:
    """The tile for `rows` scans of `length` elements.

    >>> str(decide(Caps.preset("h200"), 8, 5000, strided=False)), str(decide(Caps.preset("h200"), 8, 5, strided=False))
    ('row/256', 'thread/256')
    """
    width = map_workgroup(caps)
    if is_short(caps, rows, length) or (strided and rows >= many_rows(caps)):
        return RowTile(width, 1)
    return RowTile(1, min(width, max(32, power_of_two(length // _EACH))))


def lower_scan(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel."""
    return [_Scan(ctx, group).lower()]


class _Scan:
    """One scan kernel under construction."""

    def __init__(self, ctx: LowerContext, group: Group) -> None:
        assert group.anchor is not None
        self.n = ctx.graph.nodes[group.anchor]
        self.rows = Rows(self.n.type.shape, (self.n.attr["axis"],))
        chosen = partial(decide, ctx.caps, strided=self.rows.strided)
        self.tile = ctx.choose(group.root, chosen, self.rows.count, self.rows.length)
        self.kb = KernelBuilder(ctx.caps, workgroup=self.tile.workgroup)
        self.p = Puller(ctx, group, self.kb)
        self.threads = RowThreads(self.kb, self.tile, self.rows.count, self.rows.length)
        self.others = self.p.split("row", self.rows.other_shape)
        self.label = ctx.label(group)
        self.compute = self.n.type.dtype.compute
        self.zero = ZERO[self.compute]

    def lower(self) -> Lowered:
        if self.tile.lanes == 1:
            self._one_by_one()
        else:
            self._by_chunks()
        return self.kb.finish(groups=self.threads.groups, label=self.label, variant=str(self.tile))

    def _index(self, i: str) -> Index:
        """Index of the element that is added i-th."""
        j = self.kb.let(f"{self.kb.dim(self.rows.length - 1)} - {i}", "j") if self.n.attr["reverse"] else i
        return self.rows.index(self.p, "row", self.others, j)

    def _store(self, at: Index, sum: str) -> None:
        self.p.store(at, self.p.root_value(at, self.kb.let(sum, "y")))

    def _one_by_one(self) -> None:
        kb = self.kb
        kb.emit(f"var sum: {self.compute} = {self.zero};")
        with self.threads.elements(self.p) as i:
            at = self._index(i)
            v = self.p.value(self.n.operands["x"], at)
            if self.n.attr["exclusive"]:
                self._store(at, "sum")
                kb.emit(f"sum += {v};")
            else:
                kb.emit(f"sum += {v};")
                self._store(at, "sum")

    def _by_chunks(self) -> None:
        kb, length = self.kb, self.kb.dim(self.rows.length)
        kb.emit(f"var carry: {self.compute} = {self.zero};")
        kb.open(f"for (var base = 0u; base < {length}; base += {self.tile.lanes * _EACH}u)")
        kb.emit(f"var sums: array<{self.compute}, {_EACH}>;\nvar sum: {self.compute} = {self.zero};")
        with self._own_elements(length) as i:
            v = self.p.value(self.n.operands["x"], self._index(i))
            kb.emit(f"sums[k] = sum;\nsum += {v};" if self.n.attr["exclusive"] else f"sum += {v};\nsums[k] = sum;")
        self._scan_lanes()
        start = kb.let("carry + before", "start")
        with self._own_elements(length) as i:
            self._store(self._index(i), f"{start} + sums[k]")
        kb.emit("carry += total;")
        kb.close()

    @contextmanager
    def _own_elements(self, length: str) -> Iterator[str]:
        """A loop over this thread's elements of the chunk, by `k`; gives the name of the position in the row."""
        self.kb.open(f"for (var k = 0u; k < {_EACH}u; k++)")
        self.p.push()
        i = self.kb.let(f"base + lid * {_EACH}u + k", "i")
        self.kb.open(f"if ({i} < {length})")
        yield i
        self.kb.close()
        self.p.pop()
        self.kb.close()

    def _scan_lanes(self) -> None:
        """Computes `before`, the exclusive scan of the lanes' `sum`s, and `total`; nothing is ever subtracted."""
        kb, lanes, zero = self.kb, self.tile.lanes, self.zero
        s = self.threads.scratch(self.compute)
        if kb.caps.subgroups:
            whole = kb.let(kb.subgroup("Add", "sum"), "s")
            kb.emit(f"if (sg_lane == 0u) {{ {s}[lid / sg_size] = {whole}; }}")
            nearby = kb.subgroup("ExclusiveAdd", "sum")
            kb.emit(f"workgroupBarrier();\nlet nearby = {nearby};\nvar before = {zero};\nvar total = {zero};")
            kb.open(f"for (var g = 0u; g < ({lanes}u + sg_size - 1u) / sg_size; g++)")
            kb.emit(f"if (g < lid / sg_size) {{ before += {s}[g]; }}\ntotal += {s}[g];")
            kb.close()
            kb.emit("before += nearby;")
        else:
            kb.emit(f"{s}[lid] = sum;")
            kb.open(f"for (var d = 1u; d < {lanes}u; d <<= 1u)")
            kb.emit(f"workgroupBarrier();\nvar left = {zero};")
            kb.emit(f"if (lid >= d) {{ left = {s}[lid - d]; }}")
            kb.emit(f"workgroupBarrier();\n{s}[lid] += left;")
            kb.close()
            kb.emit(f"workgroupBarrier();\nlet total = {s}[{lanes - 1}];\nvar before = {zero};")
            kb.emit(f"if (lid > 0u) {{ before = {s}[lid - 1u]; }}")
        # The next chunk writes the same scratch.
        kb.emit("workgroupBarrier();")
