"""nearest: how all points are searched, by blocks or by a thread for each point; a second kernel merges parts."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32, u32
from pumice.errors import PlanError
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.routines.nearest_blocks import PointBlocks, decide_blocks, search_blocks
from pumice.kernels.routines.nearest_results import store_nearest

VARIANTS = {
    "blocks": "distances of blocks of points as in a tiled product, and several threads for the list of each point",
    "tiles": "a thread for each point keeps its nearest while tiles of all points pass through workgroup memory",
    "merge": "joins the nearest that several workgroups found among parts of the points",
}
# Floats of a tile in workgroup memory, and the most parts that a thread merges.
_TILE, _PARTS = 2048, 16


@dataclass(frozen=True, slots=True)
class PointTiles:
    """A workgroup has `threads` points, and looks through `points` others at a time, in one of `parts` parts of all."""

    threads: int
    points: int
    parts: int

    @property
    def name(self) -> str:
        return f"tiles of {self.points} points, {self.parts} parts {self.threads}"


def decide(caps: Caps, n: int, coordinates: int, k: int) -> PointTiles | PointBlocks:
    """Blocks where the lists fit; else as many parts as keep the device busy, of at least a few tiles each.

    >>> h200, lavapipe = Caps.preset("h200"), Caps.preset("lavapipe")
    >>> decide(h200, 2000, 64, 15).name
    'blocks of 64 by 64 points, 15 parts 256'
    >>> decide(h200, 2000, 64, 999).name, decide(lavapipe, 2000, 64, 15).name
    ('tiles of 32 points, 4 parts 64', 'tiles of 32 points, 1 parts 64')
    """
    blocks_found = decide_blocks(caps, n, k)
    if blocks_found is not None:
        return blocks_found
    threads = caps.workgroup(64)
    points = max(1, min(threads, _TILE // max(1, coordinates)))
    blocks = -(-max(1, n) // threads)
    parts = min(_PARTS, -(-caps.busy_groups // blocks), max(1, n // (4 * points)))
    return PointTiles(threads, points, max(1, parts))


def lower_nearest(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, or two where several workgroups share the points that one is compared with."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    n, d = ctx.type(node.operands["x"]).shape
    assert isinstance(d, int)
    if d > _TILE:
        raise PlanError(f"nearest compares points of up to {_TILE} coordinates on a GPU, not {d}", coordinates=d)
    k = node.attr["k"]
    choice = ctx.choose(group.root, lambda points: decide(ctx.caps, points, d, k), n)
    if choice.parts == 1:
        return [_search(ctx, group, choice, n, d, k, None)]
    found = ctx.temp(TensorType(f32, (n, choice.parts, k))), ctx.temp(TensorType(u32, (n, choice.parts, k)))
    merge = _merge(ctx, group, choice.parts, n, k, found)
    return [_search(ctx, group, choice, n, d, k, found), merge]


def _search(
    ctx: LowerContext, group: Group, choice: PointTiles | PointBlocks, n: Dim, d: int, k: int, into: tuple[int, int] | None
) -> Lowered:
    if isinstance(choice, PointBlocks):
        return search_blocks(ctx, group, choice, n, d, k, into)
    return _search_tiles(ctx, group, choice, n, d, k, into)


def _search_tiles(
    ctx: LowerContext, group: Group, choice: PointTiles, n: Dim, d: int, k: int, into: tuple[int, int] | None
) -> Lowered:
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p = Puller(ctx, group, kb)
    points, size, threads, parts = choice.points, kb.dim(n), choice.threads, choice.parts
    x = ctx.view(node.operands["x"], group.leaves)
    kb.shared("tile", "f32", max(1, points * d))
    kb.emit(f"let point = wg / {parts}u * {threads}u + lid;\nlet part = wg % {parts}u;")
    # A workgroup that is the last of its kind still loads for its neighbours.
    kb.emit(f"let mine = min(point, {size} - 1u);")
    kb.emit(f"let span = ({size} + {parts - 1}u) / {parts}u;\nlet end = min({size}, (part + 1u) * span);")
    kb.emit(f"var best: array<f32, {k}>;\nvar which: array<u32, {k}>;\nvar count = 0u;")
    kb.emit(f"for (var t = 0u; t < {k}u; t++) {{ best[t] = pm_inf(); which[t] = {size}; }}")
    kb.open(f"for (var base = part * span; base < end; base += {points}u)")
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var e = lid; e < min({points}u, end - base) * {d}u; e += {threads}u)")
    p.push()
    kb.emit(f"tile[e] = {p.load_view(x, (kb.let(f'base + e / {max(1, d)}u', 'row'), kb.let(f'e % {max(1, d)}u', 'column')))};")
    p.pop()
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var c = 0u; c < min({points}u, end - base); c++)")
    if not node.attr["include_self"]:
        kb.emit("if (base + c == point) { continue; }")
    kb.emit("var squares = 0.0;")
    kb.open(f"for (var j = 0u; j < {d}u; j++)")
    p.push()
    kb.emit(f"let apart = {p.load_view(x, ('mine', 'j'))} - tile[c * {d}u + j];\nsquares += apart * apart;")
    p.pop()
    kb.close()
    kb.emit("squares = select(squares, pm_inf(), pm_isnan(squares));")
    kb.open(f"if (count < {k}u || squares < best[{k - 1}u])")
    # Behind those that are as near: they have smaller numbers.
    kb.emit(f"var at = min(count, {k - 1}u);\ncount = min(count + 1u, {k}u);")
    kb.emit("while (at > 0u && best[at - 1u] > squares) { best[at] = best[at - 1u]; which[at] = which[at - 1u]; at--; }")
    kb.emit("best[at] = squares;\nwhich[at] = base + c;")
    kb.close()
    kb.close()
    kb.close()
    kb.open(f"if (point < {size})")
    kb.open(f"for (var t = 0u; t < {k}u; t++)")
    if into is None:
        store_nearest(p, "best[t]", "which[t]")
    else:
        squares, numbers = kb.write(into[0], f32), kb.write(into[1], u32)
        place = f"(point * {parts}u + part) * {k}u + t"
        kb.emit(f"{squares.store(place, 'best[t]')}\n{numbers.store(place, 'which[t]')}")
    kb.close()
    kb.close()
    return kb.finish(groups=ceildiv(n, threads) * parts, label=ctx.label(group), variant=choice.name)


def _merge(ctx: LowerContext, group: Group, parts: int, n: Dim, k: int, found: tuple[int, int]) -> Lowered:
    """A thread a point: the least of the parts' first, again and again; of equal ones that of the earlier part."""
    threads = ctx.caps.workgroup(64)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p = Puller(ctx, group, kb)
    squares, numbers = kb.read(found[0], f32), kb.read(found[1], u32)
    kb.emit(f"let point = wg * {threads}u + lid;")
    kb.open(f"if (point < {kb.dim(n)})")
    kb.emit(f"var taken: array<u32, {parts}>;")
    kb.emit(f"for (var q = 0u; q < {parts}u; q++) {{ taken[q] = 0u; }}")
    kb.open(f"for (var t = 0u; t < {k}u; t++)")
    kb.emit(f"var least = pm_inf();\nvar chosen = {parts}u;")
    kb.open(f"for (var q = 0u; q < {parts}u; q++)")
    kb.emit(f"if (taken[q] >= {k}u) {{ continue; }}")
    kb.emit(f"let place = (point * {parts}u + q) * {k}u + taken[q];")
    # A place that holds no point is behind all infinite ones.
    kb.emit(f"if ({numbers.load('place')} >= {kb.dim(n)}) {{ continue; }}")
    kb.emit(f"let here = {squares.load('place')};\nif (chosen == {parts}u || here < least) {{ least = here; chosen = q; }}")
    kb.close()
    kb.emit(
        f"let place = (point * {parts}u + min(chosen, {parts - 1}u)) * {k}u + min(taken[min(chosen, {parts - 1}u)], {k - 1}u);"
    )
    kb.emit(f"let number = {numbers.load('place')};")
    store_nearest(p, "least", "number")
    kb.emit("taken[chosen] += 1u;")
    kb.close()
    kb.close()
    return kb.finish(groups=ceildiv(n, threads), label=f"{ctx.label(group)} merge", variant=f"merge/{threads}")
