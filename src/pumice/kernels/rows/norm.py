"""layer_norm and rms_norm over trailing axes: mean, then mean square of what is left, then the results."""

from __future__ import annotations

from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, float_literal
from pumice.kernels.rows.layout import Rows, RowThreads, RowValues, choose_tile, registers


def lower_norm(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel; the variance comes from a pass of its own, as a mean of squares less a squared mean would cancel."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    shape, axes = n.type.shape, n.attr["axes"]
    rows = Rows(shape, tuple(range(len(shape) - axes, len(shape))))
    length = ctx.max(rows.length)
    tile = choose_tile(ctx, group, rows)
    keep = registers(tile, length)
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    others = p.split("row", rows.other_shape)
    x = n.operands["x"]
    values = RowValues(p, threads, "f32", keep, lambda j: p.value(x, rows.index(p, "row", others, j)))
    count = f"f32({p.divisor(rows.length)})"
    mean = ""
    if n.op == "layer_norm":
        kb.emit("var total = 0.0;")
        with values.each() as (_, v):
            kb.emit(f"total += {v};")
        mean = kb.let(f"{threads.reduce('sum', 'f32', 'total')} / {count}", "mean")
    kb.emit("var squares = 0.0;")
    with values.each() as (_, v):
        d = kb.let(f"{v} - {mean}", "d") if mean else v
        kb.emit(f"squares += {d} * {d};")
    variance = f"{threads.reduce('sum', 'f32', 'squares')} / {count}"
    scale = kb.let(f"inverseSqrt({variance} + {float_literal(kb, n.attr['eps'])})", "scale")
    with values.each() as (j, v):
        at = rows.index(p, "row", others, j)
        result = f"({v} - {mean}) * {scale}" if mean else f"{v} * {scale}"
        along = p.split(j, shape[len(shape) - axes :])
        for operand, sign in (("weight", "*"), ("bias", "+")):
            if operand in n.operands:
                result = f"{result} {sign} {p.value(n.operands[operand], along)}"
        p.store(at, p.root_value(at, kb.let(result, "y")))
    passes = "once" if keep else "thrice" if mean else "twice"
    return [kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"{tile}/{passes}")]
