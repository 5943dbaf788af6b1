"""rasterize_gradient: each tile sums what its pixels give to each of its splats, then each splat sums its tiles; no atomics.

Of a few splats at a time, threads write the weight and the slope at their pixel to workgroup memory. Then each splat has a part
of the threads, which multiply these out for some of the pixels and add up.
"""

from __future__ import annotations

from pumice.core.dims import ceildiv
from pumice.core.dtypes import f32
from pumice.ir.ops.rasterize import GEOMETRY
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.routines.rasterize import TileKernel

VARIANTS = {
    "tiles": "a workgroup for each tile sums over its pixels, for each of its splats",
    "rows": "a thread for each number of a splat sums over its tiles",
}


def decide(tile: int) -> int:
    """Splats at a time: their weights and slopes take 8 KiB of workgroup memory at most.

    >>> decide(16), decide(8)
    (4, 8)
    """
    return 4 if tile == 16 else 8


def lower_rasterize_gradient(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Parts of gradients for each pair, in the order of their rows, then the sum over the rows of each splat."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    pairs = ctx.type(node.operands["pairs"]).shape[0]
    width = ctx.max(ctx.type(node.operands["splats"]).shape[1])
    parts = ctx.temp(TensorType(f32, (pairs, width)))
    return [_lower_parts(ctx, group, parts), _lower_sums(ctx, group, parts)]


def _lower_parts(ctx: LowerContext, group: Group, parts: int) -> Lowered:
    assert group.anchor is not None
    k = TileKernel(ctx, group, decide(ctx.graph.nodes[group.anchor].attr["tile"]))
    kb, p, threads, batch = k.kb, k.p, k.kb.workgroup, k.batch
    channels, width = k.features + 1, k.features + GEOMETRY
    out = kb.write(parts, f32)
    kb.shared("shares", "f32", 2 * batch * threads)
    k.open()
    given = [f"given{c}" for c in range(channels)]
    kb.emit("\n".join(f"var {name} = 0.0;" for name in given))
    # What the loss gets from splats farther away; each takes its own part off.
    kb.emit("var remaining = 0.0;")
    kb.open("if (inside)")
    p.push()
    for c, name in enumerate(given):
        kb.emit(f"{name} = {k.load('dy', 'py', 'px', f'{c}u')};")
        kb.emit(f"remaining += {name} * {k.load('image', 'py', 'px', f'{c}u')};")
    p.pop()
    kb.close()
    k.open_batches()
    _emit_shares(k, given)
    _emit_sums(k)
    _emit_totals(k, out.name, width)
    k.close_batches()
    # Pairs after the last that any pixel saw have parts too.
    kb.open(f"for (var at = start * {width}u + lid; at < end * {width}u; at += {threads}u)")
    p.push()
    row = _row(k, f"at / {width}u")
    kb.emit(f"{out.name}[{row} * {width}u + at % {width}u] = 0.0;")
    p.pop()
    kb.close()
    return kb.finish(groups=k.down * k.across, label=f"{ctx.label(group)} parts", variant=f"tiles {k.tile} by {batch}")


def _row(k: TileKernel, pair: str) -> str:
    """The name of a pair's row among the parts."""
    stored = k.kb.let(k.load("pairs", f"({pair})", "1u"), "row")
    return k.kb.let(f"min(u32(max({stored}, 0i)), {k.kb.dim(k.pairs - 1)})", "row")


def _emit_shares(k: TileKernel, given: list[str]) -> None:
    """The weight of each splat of the batch at the thread's pixel, and its slope: the derivative by log alpha."""
    kb, threads = k.kb, k.kb.workgroup
    kb.open("for (var j = 0u; j < size; j++)")
    kb.emit("var share = 0.0;\nvar slope = 0.0;")
    kb.open("if (going)")
    k.open_weight()
    terms = [f"{name} * {k.number(GEOMETRY + c)}" for c, name in enumerate(given[:-1])]
    kb.emit(f"let per_alpha = {' + '.join([*terms, given[-1]])};")
    kb.emit("share = weight;\nremaining -= weight * per_alpha;")
    kb.emit(f"if (raw <= {k.literal('clip')}) {{ slope = weight * per_alpha - remaining * (alpha / (1.0 - alpha)); }}")
    for _ in range(4):
        kb.close()
    kb.emit(f"shares[j * {threads}u + lid] = share;\nshares[({k.batch}u + j) * {threads}u + lid] = slope;")
    kb.close()
    kb.emit("workgroupBarrier();")


def _emit_sums(k: TileKernel) -> None:
    """Sums of some pixels for splat `j`, which threads / batch threads share; `part` is this one's number among them."""
    kb, p, threads = k.kb, k.p, k.kb.workgroup
    own = threads // k.batch
    kb.emit(f"let j = lid / {own}u;\nlet part = lid % {own}u;")
    for c in range(k.features + GEOMETRY):
        kb.emit(f"var sum{c} = 0.0;")
    kb.open("if (j < size)")
    kb.open(f"for (var pixel = part; pixel < {threads}u; pixel += {own}u)")
    p.push()
    kb.emit(f"let share = shares[j * {threads}u + pixel];")
    kb.open("if (share != 0.0)")
    kb.emit(f"let slope = shares[({k.batch}u + j) * {threads}u + pixel];")
    kb.emit(f"let qx = (wg % {k.across}u) * {k.tile}u + pixel % {k.tile}u;")
    kb.emit(f"let qy = (wg / {k.across}u) * {k.tile}u + pixel / {k.tile}u;")
    kb.emit(f"let dx = f32(qx) + 0.5 - {k.number(0)};\nlet dy = f32(qy) + 0.5 - {k.number(1)};")
    factors = (
        f"({k.number(2)} * dx + {k.number(3)} * dy)",
        f"({k.number(3)} * dx + {k.number(4)} * dy)",
        "(-0.5 * dx * dx)",
        "(-dx * dy)",
        "(-0.5 * dy * dy)",
        "1.0",
    )
    for c, factor in enumerate(factors):
        kb.emit(f"sum{c} += slope * {factor};")
    for c in range(k.features):
        kb.emit(f"sum{GEOMETRY + c} += share * {k.load('dy', 'qy', 'qx', f'{c}u')};")
    kb.close()
    p.pop()
    kb.close()
    # Where a splat counts at all, its opacity is not 0.
    kb.emit(f"if ({k.number(5)} != 0.0) {{ sum5 /= {k.number(5)}; }}")
    kb.close()
    kb.emit("workgroupBarrier();")


def _emit_totals(k: TileKernel, out: str, width: int) -> None:
    """Adds the threads' sums, as many numbers at a time as there is memory for, and writes each splat's to its row."""
    kb, p, threads = k.kb, k.p, k.kb.workgroup
    own, together = threads // k.batch, 2 * k.batch
    for first in range(0, width, together):
        some = range(min(together, width - first))
        for c in some:
            kb.emit(f"shares[{c * threads}u + lid] = sum{first + c};")
        kb.emit("workgroupBarrier();")
        half = own // 2
        while half:
            kb.open(f"if (part < {half}u)")
            for c in some:
                kb.emit(f"shares[{c * threads}u + lid] += shares[{c * threads + half}u + lid];")
            kb.close()
            kb.emit("workgroupBarrier();")
            half //= 2
        kb.open("if (j < size)")
        p.push()
        kb.open(f"for (var c = part; c < {len(some)}u; c += {own}u)")
        row = _row(k, "start + j")
        kb.emit(f"{out}[{row} * {width}u + {first}u + c] = shares[c * {threads}u + j * {own}u];")
        kb.close()
        p.pop()
        kb.close()
        kb.emit("workgroupBarrier();")


def _lower_sums(ctx: LowerContext, group: Group, parts: int) -> Lowered:
    """One thread for each number of a splat adds its rows in order."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    threads = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p, stored = Puller(ctx, group, kb), kb.read(parts, f32)
    rows = ctx.view(node.operands["rows"], group.leaves)
    pairs, width = ctx.type(parts).shape
    kb.emit(f"let i = wg * {threads}u + lid;")
    kb.open(f"if (i < {kb.dim(node.type.numel)})")
    idx = p.split("i", node.type.shape)
    kb.emit(f"let first = u32(max({p.load_view(rows, (idx[0], '0u'))}, 0i));")
    kb.emit(f"let end = u32(clamp({p.load_view(rows, (idx[0], '1u'))}, 0i, i32({kb.dim(pairs)})));")
    kb.emit("var sum = 0.0;")
    kb.emit(f"for (var r = first; r < end; r++) {{ sum += {stored.load(f'r * {width}u + {idx[1]}')}; }}")
    p.store(idx, p.root_value(idx, "sum"))
    kb.close()
    return kb.finish(groups=ceildiv(node.type.numel, threads), label=ctx.label(group), variant=f"rows/{threads}")
