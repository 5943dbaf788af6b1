"""Additions of very many updates to many rows: sorted by row, stably, each row's updates are neighbours in their old order."""

from __future__ import annotations

from pumice.core.dims import dim_max
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines import radix
from pumice.kernels.routines.scatter_kernel import Scatter, ScatterKernel

# Rows times updates from which sorting is quicker than looking through all indices for each row.
MANY = 1 << 25


def lower_sorted(ctx: LowerContext, group: Group, choice: Scatter) -> list[Lowered]:
    """Kernels that list (row, update), sort them, find where each row's begin, and add these up in their order."""
    k = ScatterKernel(ctx, group, choice.threads)
    pairs, starts = ctx.temp(TensorType(u32, (dim_max(1, k.count), 2))), ctx.temp(TensorType(u32, (k.size + 1,)))
    # Updates of rows that do not exist go behind the last row, where nothing walks through them.
    bits = ctx.max(k.size).bit_length()
    out = [_list_pairs(ctx, group, choice, pairs)]
    sorting, ordered = radix.lower_radix_sort(ctx, pairs, radix.ItemCount(k.count), bits, ctx.label(group))
    return [*out, *sorting, _find_starts(ctx, group, choice, ordered, starts), _add_ranges(k, choice, ordered, starts)]


def _list_pairs(ctx: LowerContext, group: Group, choice: Scatter, pairs: int) -> Lowered:
    k = ScatterKernel(ctx, group, choice.threads)
    out = k.kb.write(pairs, u32)
    (i,) = k.open_thread((k.count,))
    k.kb.emit(out.store(f"2u * {i}", f"min({k.named_row(i)}, {k.kb.dim(k.size)})"))
    k.kb.emit(out.store(f"2u * {i} + 1u", i))
    return k.finish_threads((k.count,), choice, " rows")


def _find_starts(ctx: LowerContext, group: Group, choice: Scatter, ordered: int, starts: int) -> Lowered:
    """Of each row, and of those that do not exist, the number of pairs before it."""
    k = ScatterKernel(ctx, group, choice.threads)
    kb, rows = k.kb, k.size + 1
    found, out = kb.read(ordered, u32), kb.write(starts, u32)
    (row,) = k.open_thread((rows,))
    kb.emit(f"var low = 0u;\nvar high = {kb.dim(k.count)};")
    kb.open("while (low < high)")
    kb.emit("let middle = (low + high) / 2u;")
    kb.emit(f"if ({found.load('2u * middle')} < {row}) {{ low = middle + 1u; }} else {{ high = middle; }}")
    kb.close()
    kb.emit(out.store(row, "low"))
    return k.finish_threads((rows,), choice, " starts")


def _add_ranges(k: ScatterKernel, choice: Scatter, ordered: int, starts: int) -> Lowered:
    kb, shape = k.kb, k.n.type.shape
    found, start = kb.read(ordered, u32), kb.read(starts, u32)
    at = k.open_thread(shape)
    row = at[k.axis]
    kb.emit(f"var sum = {k.load('x', at)};\nlet end = {start.load(f'{row} + 1u')};")
    kb.open(f"for (var j = {start.load(row)}; j < end; j++)")
    k.p.push()
    update = kb.let(found.load("2u * j + 1u"), "t")
    kb.emit(f"sum = {k.added('sum', k.load('updates', k.at(k.others(at), update)))};")
    k.p.pop()
    kb.close()
    k.store(at, "sum")
    return k.finish_threads(shape, choice)
