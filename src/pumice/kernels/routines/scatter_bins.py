"""scatter_add of integers: workgroups add up parts of the updates in their own memory, then a kernel joins the parts.

Sums of integers, which wrap, do not depend on the order: atomic additions give the same bits every time.
"""

from __future__ import annotations

from pumice.core.dims import Dim, ceildiv, dim_min, product
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines.scatter_kernel import Scatter, ScatterKernel
from pumice.kernels.rows import layout
from pumice.kernels.rows.layout import RowThreads

# Counters in the memory of a workgroup: all that a browser's default limits allow.
_BINS = 4096
# More elements than bins of so many workgroups: each of them would read all updates.
_RANGES = 16
# Updates that a thread adds, and counters of all parts together, at most.
_EACH, _COUNTERS = 64, 1 << 22
# Fewer rows times updates than this are looked through as quickly.
_ENOUGH = 1 << 17


def decide_bins(threads: int, updates: int, size: int, width: int) -> Scatter | None:
    """How many workgroups share the updates; None where another method suits better."""
    elements = size * width
    if updates * size < _ENOUGH or width > threads or not 0 < elements <= _BINS * _RANGES:
        return None
    return Scatter("bins", threads, max(1, min(-(-updates * width // (threads * _EACH)), _COUNTERS // elements)))


def lower_bins(ctx: LowerContext, group: Group, choice: Scatter) -> list[Lowered]:
    """Two kernels: sums of the parts of the updates, and of these."""
    k = ScatterKernel(ctx, group, choice.threads)
    elements = product(k.n.type.shape)
    sums = ctx.temp(TensorType(u32, (choice.parts, elements)))
    return [_add_parts(k, choice, elements, sums), _join_parts(ctx, group, choice, elements, sums)]


def _add_parts(k: ScatterKernel, choice: Scatter, elements: Dim, sums: int) -> Lowered:
    """A workgroup for each part of the updates and each range of the result's elements."""
    kb, p, threads = k.kb, k.p, choice.threads
    bins = min(_BINS, k.ctx.max(elements))
    ranges, updates = ceildiv(elements, bins), k.count * product(k.row_shape)
    out = kb.write(sums, u32)
    kb.shared("bins", "atomic<u32>", bins)
    kb.emit(f"for (var b = lid; b < {bins}u; b += {threads}u) {{ atomicStore(&bins[b], 0u); }}\nworkgroupBarrier();")
    kb.emit(f"let part = wg / {p.divisor(ranges)};\nlet first = (wg % {p.divisor(ranges)}) * {bins}u;")
    span = kb.dim(ceildiv(updates, choice.parts))
    kb.open(f"for (var i = part * {span} + lid; i < min({kb.dim(updates)}, (part + 1u) * {span}); i += {threads}u)")
    p.push()
    at = p.split("i", k.update_shape)
    row = kb.let(k.named_row(at[k.axis]), "row")
    kb.open(f"if ({row} < {kb.dim(k.size)})")
    p.push()
    # Below the range the difference wraps, and is above it.
    place = kb.let(f"{p.linear(k.n.type.shape, k.at(k.others(at), row))} - first", "place")
    kb.open(f"if ({place} < {bins}u)")
    p.push()
    kb.emit(f"atomicAdd(&bins[{place}], u32({k.load('updates', at)}));")
    for _ in range(3):
        p.pop()
        kb.close()
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var b = lid; b < {kb.dim(dim_min(bins, elements))}; b += {threads}u)")
    kb.open(f"if (first + b < {kb.dim(elements)})")
    kb.emit(out.store(f"part * {kb.dim(elements)} + first + b", "atomicLoad(&bins[b])"))
    kb.close()
    kb.close()
    return k.finish(ranges * choice.parts, choice, " parts")


def _join_parts(ctx: LowerContext, group: Group, choice: Scatter, elements: Dim, sums: int) -> Lowered:
    tile = layout.decide(ctx.caps, ctx.max(elements), choice.parts, strided=True)
    k = ScatterKernel(ctx, group, tile.workgroup)
    kb = k.kb
    found = kb.read(sums, u32)
    threads = RowThreads(kb, tile, elements, choice.parts)
    kb.emit("var own = 0u;")
    with threads.elements(k.p) as j:
        kb.emit(f"own += {found.load(f'{j} * {kb.dim(elements)} + row')};")
    total = threads.reduce("sum", "u32", "own")
    kb.open(f"if ({threads.leads})")
    at = k.p.split("row", k.n.type.shape)
    k.store(at, k.added(k.load("x", at), f"{k.n.type.dtype.compute}({total})"))
    kb.close()
    return k.finish(threads.groups, tile)
