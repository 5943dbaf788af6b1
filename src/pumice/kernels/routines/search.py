"""searchsorted: every thread halves the sorted vector until one place is left for its element."""

from __future__ import annotations

from pumice.core.dims import ceildiv, product
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.rows.folds import order_key


def lower_searchsorted(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, a thread an element; keys order NaN behind infinity and -0 with 0."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    ordered, threads = ctx.type(n.operands["sorted"]), map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p = Puller(ctx, group, kb)
    kb.emit(f"let i = wg * {threads}u + lid;")
    kb.open(f"if (i < {kb.dim(product(n.type.shape))})")
    at = p.split("i", n.type.shape)
    value = kb.let(p.load_view(ctx.view(n.operands["x"], group.leaves), at), "x")
    key = kb.let(order_key(kb, ordered.dtype, value), "key")
    kb.emit(f"var low = 0u;\nvar high = {kb.dim(ordered.shape[0])};")
    kb.open("while (low < high)")
    p.push()
    kb.emit("let middle = (low + high) / 2u;")
    found = kb.let(p.load_view(ctx.view(n.operands["sorted"], group.leaves), ("middle",)), "s")
    here = kb.let(order_key(kb, ordered.dtype, found), "here")
    kb.emit(f"if ({here} {'<=' if n.attr['right'] else '<'} {key}) {{ low = middle + 1u; }} else {{ high = middle; }}")
    p.pop()
    kb.close()
    p.store(at, p.root_value(at, kb.let("bitcast<i32>(low)", "y")))
    kb.close()
    return [kb.finish(groups=ceildiv(product(n.type.shape), threads), label=ctx.label(group), variant=f"thread/{threads}")]
