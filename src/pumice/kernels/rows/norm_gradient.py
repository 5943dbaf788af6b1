"""norm_gradient: the threads of a row recompute its statistics, then two means of gradients, then the results."""

from __future__ import annotations

from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, float_literal
from pumice.kernels.rows.layout import Rows, RowThreads, RowValues, choose_tile, registers


def lower_norm_gradient(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel: dx = scale · (dn - mean(dn) - normal · mean(dn · normal)) with dn = dy · weight."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    shape, axes, centred = n.type.shape, n.attr["axes"], n.attr["centred"]
    rows = Rows(shape, tuple(range(len(shape) - axes, len(shape))))
    length = ctx.max(rows.length)
    tile = choose_tile(ctx, group, rows)
    keep = registers(tile, length)
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    others = p.split("row", rows.other_shape)
    dy, x, weight = n.operands["dy"], n.operands["x"], n.operands.get("weight")

    def pull(j: str) -> str:
        """An element of x and its dn."""
        at = rows.index(p, "row", others, j)
        dn = p.value(dy, at)
        if weight is not None:
            dn = f"{dn} * {p.value(weight, p.split(j, shape[len(shape) - axes :]))}"
        return kb.let(f"vec2<f32>({p.value(x, at)}, {dn})", "pair")

    values = RowValues(p, threads, "vec2<f32>", keep, pull)
    count = f"f32({p.divisor(rows.length)})"
    mean = "0.0"
    if centred:
        kb.emit("var total = 0.0;")
        with values.each() as (_, v):
            kb.emit(f"total += {v}.x;")
        mean = kb.let(f"{threads.reduce('sum', 'f32', 'total')} / {count}", "mean")
    kb.emit("var squares = 0.0;")
    kb.emit("var straight = 0.0;")
    kb.emit("var along = 0.0;")
    with values.each() as (_, v):
        d = kb.let(f"{v}.x - {mean}", "d")
        kb.emit(f"squares += {d} * {d};")
        kb.emit(f"straight += {v}.y;")
        kb.emit(f"along += {v}.y * {d};")
    variance = f"{threads.reduce('sum', 'f32', 'squares')} / {count}"
    scale = kb.let(f"inverseSqrt({variance} + {float_literal(kb, n.attr['eps'])})", "scale")
    shift = kb.let(f"{threads.reduce('sum', 'f32', 'straight')} / {count}", "shift") if centred else "0.0"
    factor = kb.let(f"{scale} * {scale} * {threads.reduce('sum', 'f32', 'along')} / {count}", "factor")
    with values.each() as (j, v):
        at = rows.index(p, "row", others, j)
        result = kb.let(f"{scale} * ({v}.y - {shift} - ({v}.x - {mean}) * {factor})", "dx")
        p.store(at, p.root_value(at, result))
    return [kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"{tile}/{'once' if keep else 'thrice'}")]
