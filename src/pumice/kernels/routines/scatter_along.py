"""scatter_along_axis_add: every output element looks through the indices of its own row, so that repeats give the same bits."""

from __future__ import annotations

from pumice.core.dims import ceildiv, product
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index, Puller


def lower_scatter_along_axis_add(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, a thread an element; the updates of an element are added in their order."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    axis, shape, indices = n.attr["axis"], n.type.shape, ctx.type(n.operands["indices"])
    threads = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p = Puller(ctx, group, kb)

    def load(operand: str, at: Index) -> str:
        return p.load_view(ctx.view(n.operands[operand], group.leaves), at)

    kb.emit(f"let i = wg * {threads}u + lid;")
    kb.open(f"if (i < {kb.dim(product(shape))})")
    at = p.split("i", shape)
    kb.emit(f"var sum = {load('x', at)};")
    kb.open(f"for (var t = 0u; t < {kb.dim(indices.shape[axis])}; t++)")
    here = (*at[:axis], "t", *at[axis + 1 :])
    place = load("indices", here)
    if indices.dtype.compute == "i32":
        kb.function("fn named_place(i: i32, n: u32) -> u32 { return u32(select(i, i + i32(n), i < 0i)); }")
        place = f"named_place({place}, {kb.dim(shape[axis])})"
    added = p.wrap(n, f"sum + {load('updates', here)}")
    kb.emit(f"if ({place} == {at[axis]}) {{ sum = {added}; }}")
    kb.close()
    p.store(at, p.root_value(at, kb.let("sum", "y")))
    kb.close()
    return [kb.finish(groups=ceildiv(product(shape), threads), label=ctx.label(group), variant=f"thread/{threads}")]
