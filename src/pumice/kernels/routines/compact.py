"""compact: kernels count the kept rows of each block, list them in order, and copy them."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, dim_max
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import ZERO, Puller
from pumice.kernels.routines.grouped import emit_scan

_VALUES, _COUNT = 0, 1
VARIANTS = {
    "blocks": "a workgroup for each block of rows: which are kept, and where they go",
    "copy": "one thread for each element of the rows that are kept, and of the zeros behind them",
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """A workgroup takes a block of rows, `each` of them a thread, one after the other."""

    threads: int
    each: int

    @property
    def rows(self) -> int:
        return self.threads * self.each

    @property
    def name(self) -> str:
        return f"blocks of {self.rows} rows {self.threads}"


def decide(caps: Caps) -> Blocks:
    """Threads take as many rows as a word has bits at most: the flags stay in a register.

    >>> decide(Caps.preset("h200")).name
    'blocks of 4096 rows 256'
    """
    return Blocks(map_workgroup(caps), 16)


def lower_compact(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Up to three kernels: counts of the blocks, the list of rows with its length, and what is kept of x."""
    assert group.anchor is not None
    x = ctx.type(ctx.graph.nodes[group.anchor].operands["x"])
    lowering = _Compaction(ctx, group, decide(ctx.caps), x.shape[0])
    return lowering.lower(copies=_VALUES in ctx.wanted(group) and x.numel != 0)


class _Compaction:
    def __init__(self, ctx: LowerContext, group: Group, choice: Blocks, rows: Dim) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.choice, self.rows = ctx, group, choice, rows
        self.node = ctx.graph.nodes[group.anchor]
        self.label = ctx.label(group)
        # Where there is no row, a block still says so.
        self.blocks = dim_max(1, ceildiv(rows, choice.rows))

    def lower(self, copies: bool) -> list[Lowered]:
        several = self.ctx.max(self.blocks) > 1
        counts = self.ctx.temp(TensorType(u32, (self.blocks,))) if several else None
        # The number of rows that are kept, then these.
        listed = self.ctx.temp(TensorType(u32, (1 + self.rows,)))
        out = [] if counts is None else [self._count_blocks(counts)]
        out.append(self._list_rows(counts, listed))
        return [*out, self._copy_rows(listed)] if copies else out

    def _kernel(self) -> tuple[KernelBuilder, Puller]:
        kb = KernelBuilder(self.ctx.caps, workgroup=self.choice.threads)
        return kb, Puller(self.ctx, self.group, kb)

    def _flags(self, kb: KernelBuilder, p: Puller) -> None:
        """The flags of the thread's rows from `first` on, as bits; `totals` has how many this thread and those before it have."""
        keep = self.ctx.view(self.node.operands["keep"], self.group.leaves)
        kb.emit(f"let first = wg * {self.choice.rows}u + lid * {self.choice.each}u;")
        kb.emit("var flags = 0u;")
        kb.open(f"for (var r = 0u; r < {self.choice.each}u; r++)")
        kb.emit("let row = first + r;")
        kb.open(f"if (row < {kb.dim(self.rows)})")
        p.push()
        kb.emit(f"if ({p.load_view(keep, ('row',))}) {{ flags |= 1u << r; }}")
        p.pop()
        kb.close()
        kb.close()
        kb.emit("totals[lid] = countOneBits(flags);")
        emit_scan(kb, "totals", lambda a, b: f"{a} + {b}")

    def _count_blocks(self, counts: int) -> Lowered:
        kb, p = self._kernel()
        out, last = kb.write(counts, u32), self.choice.threads - 1
        kb.shared("totals", "u32", self.choice.threads)
        self._flags(kb, p)
        kb.emit(f"if (lid == {last}u) {{ {out.store('wg', f'totals[{last}u]')} }}")
        return kb.finish(groups=self.blocks, label=f"{self.label} blocks", variant=self.choice.name)

    def _list_rows(self, counts: int | None, listed: int) -> Lowered:
        kb, p = self._kernel()
        threads = self.choice.threads
        kb.shared("totals", "u32", threads)
        kb.emit("var before = 0u;")
        if counts is not None:
            stored = kb.read(counts, u32)
            kb.emit(f"for (var b = lid; b < wg; b += {threads}u) {{ before += {stored.load('b')}; }}")
            kb.emit("totals[lid] = before;")
            emit_scan(kb, "totals", lambda a, b: f"{a} + {b}")
            kb.emit(f"before = totals[{threads - 1}u];")
            kb.emit("workgroupBarrier();")
        self._flags(kb, p)
        out = kb.write(listed, u32)
        kb.emit("var at = before + totals[lid] - countOneBits(flags);")
        kb.open(f"for (var r = 0u; r < {self.choice.each}u; r++)")
        kb.open("if ((flags & (1u << r)) != 0u)")
        kb.emit(f"{out.store('1u + at', 'first + r')}\nat++;")
        kb.close()
        kb.close()
        kb.open(f"if (wg == {kb.dim(self.blocks - 1)} && lid == {threads - 1}u)")
        kb.emit(out.store("0u", "at"))
        p.store_result(_COUNT, ("0u",), "bitcast<i32>(at)")
        kb.close()
        return kb.finish(groups=self.blocks, label=f"{self.label} rows", variant=self.choice.name)

    def _copy_rows(self, listed: int) -> Lowered:
        """One thread for each element of the values, which are zeros behind the last row that is kept."""
        kb, p = self._kernel()
        threads, x = self.choice.threads, self.ctx.view(self.node.operands["x"], self.group.leaves)
        found, type = kb.read(listed, u32), self.ctx.type(self.node.operands["x"])
        kb.emit(f"let i = wg * {threads}u + lid;")
        kb.open(f"if (i < {kb.dim(type.numel)})")
        idx = p.split("i", type.shape)
        kb.emit(f"var value = {ZERO[type.dtype.compute]};")
        kb.open(f"if ({idx[0]} < {found.load('0u')})")
        p.push()
        row = kb.let(found.load(f"1u + {idx[0]}"), "row")
        kb.emit(f"value = {p.load_view(x, (row, *idx[1:]))};")
        p.pop()
        kb.close()
        p.store_result(_VALUES, idx, "value")
        kb.close()
        return kb.finish(groups=ceildiv(type.numel, threads), label=self.label, variant=f"copy/{threads}")
