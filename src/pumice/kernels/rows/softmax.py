"""softmax and log_softmax: the greatest element and the sum of exponentials in one or two passes, then the results."""

from __future__ import annotations

from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.rows.layout import Rows, RowThreads, RowValues, choose_tile, registers

# Below every finite element, and finite itself: a running maximum of -inf would make -inf - -inf of a masked element.
_LOWEST = "-3.4028234e38f"


def lower_softmax(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel; rows short enough for registers are read once, others twice with a running maximum."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows = Rows(n.type.shape, (n.attr["axis"],))
    length = ctx.max(rows.length)
    tile = choose_tile(ctx, group, rows)
    keep = registers(tile, length)
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    others = p.split("row", rows.other_shape)
    values = RowValues(p, threads, "f32", keep, lambda j: p.value(n.operands["x"], rows.index(p, "row", others, j)))
    soft = n.op == "softmax"
    top, total = top_and_total(values, threads, keep_exponentials=soft)
    # A row of -inf only sums to 0; infinities and NaN have made the sum NaN.
    whole = f"{total} > 0.0"
    scale = kb.let(f"select(pm_nan(), {f'1.0 / {total}' if soft else f'pm_log({total})'}, {whole})", "scale")
    with values.each() as (j, v):
        at = rows.index(p, "row", others, j)
        if soft:
            result = f"{v} * {scale}" if keep else f"pm_exp({v} - {top}) * {scale}"
        else:
            result = f"({v} - {top}) - {scale}"
        p.store(at, p.root_value(at, kb.let(result, "y")))
    return [kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"{tile}{'/once' if keep else '/twice'}")]


def top_and_total(values: RowValues, threads: RowThreads, *, keep_exponentials: bool) -> tuple[str, str]:
    """Names of the row's greatest element and of the sum of exp(x - greatest)."""
    kb = threads.kb
    kb.emit(f"var top = {_LOWEST};\nvar total = 0.0;")
    if values.keep is None:
        with values.each() as (_, v):
            kb.emit(f"let higher = max(top, {v});")
            kb.emit(f"total = total * exp(top - higher) + pm_exp({v} - higher);")
            kb.emit("top = higher;")
        greatest = threads.reduce("max", "f32", "top")
        kb.emit(f"total = total * pm_exp(top - {greatest});")
    else:
        with values.each() as (_, v):
            kb.emit(f"top = max(top, {v});")
        greatest = threads.reduce("max", "f32", "top")
        with values.each() as (_, v):
            e = kb.let(f"pm_exp({v} - {greatest})", "e")
            kb.emit(f"total += {e};")
            if keep_exponentials:
                values.replace(e)
    return greatest, threads.reduce("sum", "f32", "total")
