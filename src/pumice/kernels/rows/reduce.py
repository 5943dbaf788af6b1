"""Reductions: sums, products, extremes and flags over any axes, by a thread, a workgroup or several workgroups a row."""

from __future__ import annotations

from collections.abc import Callable

from pumice.core.dims import Dim
from pumice.core.dtypes import DType, f32, i32, u32
from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Index, Puller
from pumice.kernels.rows.folds import combine, identity
from pumice.kernels.rows.layout import Rows, RowThreads, RowTile, choose_tile, decide

_FOLDS = {
    "reduce_sum": "sum",
    "reduce_mean": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_any": "any",
    "reduce_all": "all",
}
_STORED = {"f32": f32, "i32": i32, "u32": u32}


def lower_reduce(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, or two where several workgroups share a row: partial results, then their combination."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows = Rows(ctx.type(n.operands["x"]).shape, n.attr["axes"])
    tile = choose_tile(ctx, group, rows, split=True)
    if tile.slices == 1:
        return [_reduce(ctx, group, n, rows, tile, None)]
    partial = ctx.temp(TensorType(_STORED[_accumulator(n)], (rows.count, tile.slices)))
    second = decide(ctx.caps, ctx.max(rows.count), tile.slices, strided=False)
    return [_reduce(ctx, group, n, rows, tile, partial), _combine(ctx, group, n, rows, second, partial, tile.slices)]


def _accumulator(n: Node) -> str:
    """The WGSL type that partial results have: flags are u32, which subgroups and workgroup memory take."""
    compute = n.type.dtype.compute
    return "u32" if compute == "bool" else compute


def _flagged(source: DType, acc: str, v: str) -> str:
    """A pulled element in the accumulator's type."""
    if source.kind != "bool":
        return v
    return f"select({acc}(0), {acc}(1), {v})"


def _fold(p: Puller, threads: RowThreads, n: Node, element: Callable[[str], str]) -> str:
    """Fold the elements of a row; every lane has the result."""
    kb, acc, fold = p.kb, _accumulator(n), _FOLDS[n.op]
    kb.emit(f"var acc: {acc} = {identity(fold, n.type.dtype)};")
    with threads.elements(p) as j:
        kb.emit(f"acc = {combine(fold, acc, 'acc', element(j))};")
    return threads.reduce(fold, acc, "acc")


def _reduce(ctx: LowerContext, group: Group, n: Node, rows: Rows, tile: RowTile, partial: int | None) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    at = p.split("row", n.type.shape)
    others = tuple(at[a] for a in rows.others) if n.attr["keepdims"] else at
    source, acc = ctx.type(n.operands["x"]).dtype, _accumulator(n)

    def element(j: str) -> str:
        return _flagged(source, acc, p.value(n.operands["x"], rows.index(p, "row", others, j)))

    result = _fold(p, threads, n, element)
    label = ctx.label(group)
    kb.open(f"if ({threads.leads})")
    if partial is None:
        _store(p, n, at, result, rows.length)
    else:
        kb.emit(kb.write(partial, ctx.type(partial).dtype).store(f"row * {tile.slices}u + part", result))
        label += " partial"
    kb.close()
    return kb.finish(groups=threads.groups, label=label, variant=str(tile))


def _combine(ctx: LowerContext, group: Group, n: Node, rows: Rows, tile: RowTile, partial: int, slices: int) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, slices)
    stored = kb.read(partial, ctx.type(partial).dtype)
    result = _fold(p, threads, n, lambda j: stored.load(f"row * {slices}u + {j}"))
    kb.open(f"if ({threads.leads})")
    _store(p, n, p.split("row", n.type.shape), result, rows.length)
    kb.close()
    return kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"combine/{tile}")


def _store(p: Puller, n: Node, at: Index, result: str, length: Dim) -> None:
    """Finish a row's fold, run the epilogue and store."""
    kb = p.kb
    if n.op == "reduce_mean":
        count = kb.dim(length)
        result = kb.let(f"select({result} / f32(max({count}, 1u)), pm_nan(), {count} == 0u)", "mean")
    elif n.type.dtype.kind == "bool":
        result = kb.let(f"{result} != 0u", "flag")
    p.store(at, p.root_value(at, result))
