"""cross_entropy: the logarithm of a row's sum of exponentials, less the logit that its target names."""

from __future__ import annotations

from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.rows.layout import Rows, RowThreads, RowValues, choose_tile, registers
from pumice.kernels.rows.softmax import top_and_total


def lower_cross_entropy(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel; rows short enough for registers are read once, others with a running maximum."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    logits, targets = n.operands["logits"], n.operands["targets"]
    shape = ctx.type(logits).shape
    rows = Rows(shape, (len(shape) - 1,))
    length = ctx.max(rows.length)
    tile = choose_tile(ctx, group, rows)
    keep = registers(tile, length)
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p = Puller(ctx, group, kb)
    threads = RowThreads(kb, tile, rows.count, rows.length)
    others = p.split("row", rows.other_shape)
    values = RowValues(p, threads, "f32", keep, lambda j: p.value(logits, rows.index(p, "row", others, j)))
    top, total = top_and_total(values, threads, keep_exponentials=False)
    kb.open(f"if ({threads.leads})")
    p.push()
    # A negative target becomes one beyond every class.
    target = kb.let(f"u32({p.value(targets, others)})", "target_class")
    kb.emit("var loss = 0.0;")
    kb.open(f"if ({target} < {kb.dim(rows.length)})")
    p.push()
    picked = p.value(logits, rows.index(p, "row", others, target))
    # The sum's logarithm is small: added to a large logit, it would lose its digits.
    kb.emit(f"loss = pm_log({total}) + ({top} - {picked});")
    p.pop()
    kb.close()
    p.store(others, p.root_value(others, kb.let("loss", "y")))
    p.pop()
    kb.close()
    return [kb.finish(groups=threads.groups, label=ctx.label(group), variant=f"{tile}{'/once' if keep else '/running'}")]
