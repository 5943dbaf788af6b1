"""argmax and argmin: the greatest order key of a row, then the least position that has it."""

from __future__ import annotations

from collections.abc import Callable

from pumice.core.dtypes import u32
from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Index, Puller
from pumice.kernels.rows.folds import order_key
from pumice.kernels.rows.layout import Rows, RowThreads, RowTile, choose_tile, decide

_NOWHERE = "0xffffffffu"


def lower_argreduce(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, or two where several workgroups share a row: the best of each slice, then the best of those."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows = Rows(ctx.type(n.operands["x"]).shape, (n.attr["axis"],))
    tile = choose_tile(ctx, group, rows, split=True)
    if tile.slices == 1:
        return [_search(ctx, group, n, rows, tile, None)]
    best = ctx.temp(TensorType(u32, (rows.count, tile.slices, 2)))  # key and position
    second = decide(ctx.caps, ctx.max(rows.count), tile.slices, strided=False)
    return [_search(ctx, group, n, rows, tile, best), _combine(ctx, group, n, rows, second, best, tile.slices)]


def _best(p: Puller, threads: RowThreads, element: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    """Key and position of the best element of a row; `element` gives those of one."""
    kb = p.kb
    kb.emit(f"var best = 0u;\nvar place = {_NOWHERE};")
    with threads.elements(p) as j:
        key, at = element(j)
        kb.open(f"if ({key} > best || ({key} == best && {at} < place))")
        kb.emit(f"best = {key};\nplace = {at};")
        kb.close()
    top = threads.reduce("max", "u32", "best")
    kb.emit(f"let candidate = select({_NOWHERE}, place, best == {top});")
    return top, threads.reduce("min", "u32", "candidate")


def _search(ctx: LowerContext, group: Group, n: Node, rows: Rows, tile: RowTile, best: int | None) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    at = p.split("row", n.type.shape)
    others = tuple(at[a] for a in rows.others) if n.attr["keepdims"] else at
    source = ctx.type(n.operands["x"]).dtype

    def element(j: str) -> tuple[str, str]:
        v = p.value(n.operands["x"], rows.index(p, "row", others, j))
        return kb.let(order_key(kb, source, v, reverse=n.op == "argmin"), "key"), j

    key, place = _best(p, threads, element)
    label = ctx.label(group)
    kb.open(f"if ({threads.leads})")
    if best is None:
        _store(p, at, place)
    else:
        i = kb.let(f"(row * {tile.slices}u + part) * 2u", "i")
        for at_word, value in ((i, key), (f"{i} + 1u", place)):
            kb.emit(kb.write(best, u32).store(at_word, value))
        label += " partial"
    kb.close()
    return kb.finish(groups=threads.groups, label=label, variant=str(tile))


def _combine(ctx: LowerContext, group: Group, n: Node, rows: Rows, tile: RowTile, best: int, slices: int) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, slices)
    stored = kb.read(best, u32)

    def element(j: str) -> tuple[str, str]:
        i = kb.let(f"(row * {slices}u + {j}) * 2u", "i")
        return kb.let(stored.load(i), "key"), kb.let(stored.load(f"{i} + 1u"), "at")

    _, place = _best(p, threads, element)
    kb.open(f"if ({threads.leads})")
    _store(p, p.split("row", n.type.shape), place)
    kb.close()
    return kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"combine/{tile}")


def _store(p: Puller, at: Index, place: str) -> None:
    # A row that turned out empty has its best nowhere; the rule says 0.
    index = p.kb.let(f"i32(select({place}, 0u, {place} == {_NOWHERE}))", "index")
    p.store(at, p.root_value(at, index))
