"""Grouped matmuls: a first kernel turns the groups' sizes into a table, and the tiles follow the rows that are there.

For grouped_matmul the table lists the tiles of all groups, and its first word is the number of workgroups: the second kernel's
grid comes from the device. Rows of no group make up one more group, whose K is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, dim_min
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.ir.views import View
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines import matmul
from pumice.kernels.routines.blocks import emit_block
from pumice.kernels.routines.common import Side, divides, store_four, stores_fours
from pumice.kernels.routines.fragments import (
    SIZE,
    FragmentTile,
    Kind,
    StridedFragments,
    emit_fragments,
    matrix_kind,
    store_fragments,
)
from pumice.kernels.routines.tile import Store, StoreFour, Tile, choose_tile, emit_tiled, fitting, store_tile, strided_loader
from pumice.plan.plan import DeviceCount

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "table": "works out which rows each group has, for the matmul over them",
    "fragments": matmul.VARIANTS["fragments"],
    "tiled": matmul.VARIANTS["tiled"],
}
# Padding of a tile: at most this many times the results that exist.
_WASTE = 4
# Words of a tile in the table: its group, its first row, and the end of the group's rows.
_TILE_WORDS = 3


def decide(caps: Caps, rows: int, groups: int, n: int) -> Tile:
    """The tile for groups that have about equally many rows; that of fewest rows where all compute much for nothing.

    >>> caps = Caps.preset("h200")
    >>> decide(caps, 4096, 8, 1024).name, decide(caps, 16, 8, 1024).name
    ('tiled 128x128x16 8x8', 'tiled 16x64x32 4x4')
    """
    typical = max(1, rows // max(1, groups))
    found = choose_tile(caps, matmul.TILES, typical, n, max(1, groups), waste=_WASTE)
    return found or min(fitting(caps, matmul.TILES), key=lambda t: t.bm)


def decide_fragments(caps: Caps, kind: Kind, k: int, rows: int, groups: int, n: int) -> Tile | FragmentTile:
    """As `decide`, on matrix units where groups have enough rows for them."""
    typical = rows // max(1, groups)
    if typical <= SIZE // 2:
        return decide(caps, rows, groups, n)
    found = matmul.fragment_tile(caps, kind, typical, n, k, max(1, groups), 1)
    return found if isinstance(found, FragmentTile) else decide(caps, rows, groups, n)


def decide_weight(caps: Caps, kind: Kind | None, rows: int, k: int, n: int, groups: int) -> Tile | FragmentTile:
    """The tile for the [K, N] matrix of each group, whose sums have about equally many of `rows`."""
    fragments = None
    if kind is not None:
        fragments = matmul.fragment_tile(caps, kind, k, n, rows // max(1, groups), max(1, groups), 1)
    if isinstance(fragments, FragmentTile):
        return fragments
    found = choose_tile(caps, matmul.TILES, k, n, max(1, groups), waste=_WASTE)
    return found or min(fitting(caps, matmul.TILES), key=lambda t: t.bm * t.bn)


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The sizes of `groups` groups of `rows` rows, as they are stored."""

    view: View
    groups: Dim
    rows: Dim

    def most_tiles(self, bm: int) -> Dim:
        """Tiles of `bm` rows, at most: all groups, and the rows of none, may have one that is not full."""
        return dim_min(self.rows, (self.rows + (self.groups + 1) * (bm - 1)) // bm)


def emit_bounds(p: Puller, sizes: GroupSizes, body: Callable[[], None]) -> None:
    """A loop of one workgroup over the groups and the rows of none, as many at a time as it has threads.

    In its `body` a thread has group `g` with the rows start…end-1. `ends` in workgroup memory has the ends of all groups of this
    round, the first of which is `g0`, and `before` the end of the group before that.
    """
    kb, threads = p.kb, p.kb.workgroup
    rows, groups = kb.dim(sizes.rows), kb.dim(sizes.groups)
    kb.shared("ends", "u32", threads)
    kb.emit("var before = 0u;")
    kb.open(f"for (var g0 = 0u; g0 <= {groups}; g0 += {threads}u)")
    kb.emit("let g = g0 + lid;")
    # The rows of no group are all that is left: as every sum, this one stops at the last row.
    kb.emit(f"var size = {rows};")
    kb.open(f"if (g < {groups})")
    p.push()
    kb.emit(f"size = u32(clamp({p.load_view(sizes.view, ('g',))}, 0i, i32({rows})));")
    p.pop()
    kb.close()
    kb.emit(f"ends[lid] = select(size, min(size + before, {rows}), lid == 0u);")
    emit_scan(kb, "ends", lambda a, b: f"min({a} + {b}, {rows})")
    kb.emit("let start = select(before, ends[max(lid, 1u) - 1u], lid > 0u);")
    kb.emit("let end = ends[lid];")
    body()
    kb.emit(f"before = ends[{threads - 1}u];")
    kb.emit("workgroupBarrier();")
    kb.close()


def emit_scan(kb: KernelBuilder, name: str, join: Callable[[str, str], str]) -> None:
    """Turns an array in workgroup memory, an element a thread, into its running totals; ends with a barrier."""
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var d = 1u; d < {kb.workgroup}u; d <<= 1u)")
    kb.emit(f"var total = {name}[lid];")
    kb.emit(f"if (lid >= d) {{ total = {join('total', f'{name}[lid - d]')}; }}")
    kb.emit("workgroupBarrier();")
    kb.emit(f"{name}[lid] = total;")
    kb.emit("workgroupBarrier();")
    kb.close()


def lower_tile_table(
    ctx: LowerContext, group: Group, sizes: GroupSizes, tile: Tile | FragmentTile, across: Dim, label: str
) -> tuple[Lowered, int]:
    """The kernel that lists the tiles of all groups, and the list: the number of workgroups, then three words for each tile.

    A workgroup has a tile of rows and one of `across` parts of the columns.
    """
    most = sizes.most_tiles(tile.bm)
    table = ctx.temp(TensorType(u32, (1 + _TILE_WORDS * most,)))
    threads = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p, out = Puller(ctx, group, kb), kb.write(table, u32)
    kb.shared("tile_ends", "u32", threads)
    kb.emit("var tiles_before = 0u;")

    def list_tiles() -> None:
        kb.emit(f"let tiles = (end - start + {tile.bm - 1}u) / {tile.bm}u;")
        kb.emit("tile_ends[lid] = select(tiles, tiles + tiles_before, lid == 0u);")
        emit_scan(kb, "tile_ends", lambda a, b: f"{a} + {b}")
        # Threads take tiles, not groups: one group may have nearly all of them.
        last = f"tile_ends[{threads - 1}u]"
        kb.open(f"for (var t = tiles_before + lid; t < {last}; t += {threads}u)")
        kb.emit("var low = 0u;")
        kb.emit(f"var high = {threads - 1}u;")
        kb.open("while (low < high)")
        kb.emit("let middle = (low + high) / 2u;")
        kb.emit("if (tile_ends[middle] > t) { high = middle; } else { low = middle + 1u; }")
        kb.close()
        kb.emit("let first_tile = select(tiles_before, tile_ends[max(low, 1u) - 1u], low > 0u);")
        kb.emit("let first_row = select(before, ends[max(low, 1u) - 1u], low > 0u);")
        kb.emit(f"let at = 1u + t * {_TILE_WORDS}u;")
        words = ("g0 + low", f"first_row + (t - first_tile) * {tile.bm}u", "ends[low]")
        for k, word in enumerate(words):
            kb.emit(out.store(plus("at", f"{k}u"), word))
        kb.close()
        kb.emit(f"tiles_before = {last};")

    emit_bounds(p, sizes, list_tiles)
    kb.emit(f"if (lid == 0u) {{ {out.store('0u', f'tiles_before * {kb.dim(across)}')} }}")
    return kb.finish(groups=1, label=f"{label} tiles", variant=f"table/{threads}"), table


def lower_grouped_matmul(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The table of tiles, then the matmul with its epilogue over as many tiles as there are."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    x, w, given = (ctx.view(node.operands[name], group.leaves) for name in ("x", "w", "sizes"))
    (m, k), (groups, _, n) = x.shape, w.shape
    sizes = GroupSizes(given, groups, m)
    kind = matrix_kind(ctx.caps, ctx.type(x.leaf).dtype, ctx.type(w.leaf).dtype, node.attr["precision"])
    choose = partial(decide, ctx.caps) if kind is None else partial(decide_fragments, ctx.caps, kind, ctx.max(k))
    tile = ctx.choose(group.root, choose, m, groups, n)
    across, label = ceildiv(n, tile.bn), ctx.label(group)
    first, table = lower_tile_table(ctx, group, sizes, tile, across, label)
    kb = KernelBuilder(ctx.caps, workgroup=tile.threads)
    p = Puller(ctx, group, kb)
    open_tile(p, table, tile, sizes, across, k)
    left = rows_side(x)
    right = Side(w.leaf, (n,), (w.strides[2],), w.strides[1], (w.strides[0],), w.offset)
    compute, (store, fours) = node.type.dtype.compute, _stores(p, n, ())
    if isinstance(tile, FragmentTile):
        rows = StridedFragments(p, left, left.base(p, ()), "m0", m, k, tile.bm, tile)
        columns = StridedFragments(p, right, right.base(p, ("group",)), "n0", n, k, tile.bn, tile)
        vectors = emit_fragments(p, tile, "depth", rows, columns)
        store_fragments(p, tile, "m0", "n0", "m_end", n, vectors, store, fours)
    else:
        a = strided_loader(p, left, left.base(p, ()), "m0", m, k, tile.bm, tile, "tile_a")
        b = strided_loader(p, right, right.base(p, ("group",)), "n0", n, k, tile.bn, tile, "tile_b")
        emit_tiled(kb, tile, compute, "depth", a, b)
        store_tile(p, tile, compute, "m0", "n0", "m_end", n, store, written=True, store_four=fours)
    return [first, kb.finish(groups=tile_count(table, sizes, tile, across), label=label, variant=tile.name)]


def rows_side(x: View) -> Side:
    """The rows [M, K] of all groups as the left operand."""
    # A group begins at any row, so that rows side by side in memory do not come in whole words.
    apart = x.strides[1] != 1
    rows, strides = ((x.shape[0], 1), (x.strides[0], 0)) if apart else (x.shape[:1], x.strides[:1])
    return Side(x.leaf, rows, strides, x.strides[1], (), x.offset)


def open_tile(p: Puller, table: int, tile: Tile | FragmentTile, sizes: GroupSizes, across: Dim, k: Dim) -> None:
    """Names the workgroup's `group`, its rows m0…m_end-1 and first column `n0`, and `depth`: K, or 0 for rows of no group."""
    kb = p.kb
    tiles = kb.read(table, u32)
    # Tiles that share columns of a group's weights follow each other: so these are read from memory once.
    kb.emit(f"let tiles = max({tiles.load('0u')} / {p.divisor(across)}, 1u);")
    kb.emit(f"let at = 1u + (wg % tiles) * {_TILE_WORDS}u;")
    kb.emit(f"let group = {tiles.load('at')};\nlet m0 = {tiles.load('at + 1u')};")
    # For any content of the table, nothing is stored past the last row.
    kb.emit(f"let m_end = min({tiles.load('at + 2u')}, {kb.dim(sizes.rows)});")
    kb.emit(f"let n0 = (wg / tiles) * {tile.bn}u;")
    kb.emit(f"let depth = select(0u, {kb.dim(k)}, group < {kb.dim(sizes.groups)});")


def tile_count(table: int, sizes: GroupSizes, tile: Tile | FragmentTile, across: Dim) -> DeviceCount:
    """The grid of a matmul over the tiles of a table."""
    return DeviceCount(table, 0, sizes.most_tiles(tile.bm) * across)


def lower_grouped_grad_weight(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The first row of every group, then a matmul for each group over its own rows."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    x, dy, given = (ctx.view(node.operands[name], group.leaves) for name in ("x", "dy", "sizes"))
    (m, k), n, groups = x.shape, dy.shape[1], given.shape[0]
    kind = matrix_kind(ctx.caps, ctx.type(x.leaf).dtype, ctx.type(dy.leaf).dtype, node.attr["precision"])
    tile = ctx.choose(group.root, partial(decide_weight, ctx.caps, kind, ctx.max(m)), k, n, groups)
    label = ctx.label(group)
    first, bounds = _lower_bounds(ctx, group, GroupSizes(given, groups, m), label)
    kb = KernelBuilder(ctx.caps, workgroup=tile.threads)
    p, starts = Puller(ctx, group, kb), kb.read(bounds, u32)
    down, across = ceildiv(k, tile.bm), ceildiv(n, tile.bn)
    kb.emit(f"let m0 = (wg % {p.divisor(down)}) * {tile.bm}u;")
    kb.emit(f"let n0 = ((wg / {p.divisor(down)}) % {p.divisor(across)}) * {tile.bn}u;")
    kb.emit(f"let group = wg / {p.divisor(down * across)};")
    kb.emit(f"let start = {starts.load('group')};\nlet count = {starts.load('group + 1u')} - start;")
    # The rows of x and dy are what is summed over: each group's begin at `start`.
    left = Side(x.leaf, (k,), (x.strides[1],), x.strides[0], (x.strides[0],), x.offset)
    right = Side(dy.leaf, (n,), (dy.strides[1],), dy.strides[0], (dy.strides[0],), dy.offset)
    compute, origin = node.type.dtype.compute, ("m0", "n0")
    emit_block(p, tile, compute, left, right, ("start",), origin, (k, n, "count"), *_stores(p, n, ("group",)))
    return [first, kb.finish(groups=groups * down * across, label=label, variant=tile.name)]


def _lower_bounds(ctx: LowerContext, group: Group, sizes: GroupSizes, label: str) -> tuple[Lowered, int]:
    """The kernel that finds the first row of each group and the end of the last one, and where it leaves them."""
    bounds = ctx.temp(TensorType(u32, (sizes.groups + 1,)))
    threads = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    p, out = Puller(ctx, group, kb), kb.write(bounds, u32)
    emit_bounds(p, sizes, lambda: kb.emit(f"if (g <= {kb.dim(sizes.groups)}) {{ {out.store('g', 'start')} }}"))
    return kb.finish(groups=1, label=f"{label} bounds", variant=f"table/{threads}"), bounds


def _stores(p: Puller, n: Dim, lead: tuple[str, ...]) -> tuple[Store, StoreFour | None]:
    """What takes results through the epilogue to their places, one at a time and, where rows allow it, four."""

    def store(row: str, column: str, value: str) -> None:
        idx = (*lead, row, column)
        p.store(idx, p.root_value(idx, value))

    def store_vector(row: str, column: str, values: list[str]) -> None:
        places = [(*lead, row, plus(column, f"{e}u")) for e in range(4)]
        store_four(p, places[0], [p.root_value(idx, value) for idx, value in zip(places, values, strict=True)])

    return store, store_vector if stores_fours(p) and divides(4, n) else None
