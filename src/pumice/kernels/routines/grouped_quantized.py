"""grouped_qmatmul: grouped matmuls with quantised weights, which are unpacked inside the kernel and never stored as floats.

With few rows, as when a token is decoded, each row is a matvec with the weight of its group: only those weights are read. With
more rows the tiles follow the rows that are there, as in grouped_matmul.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import ceildiv
from pumice.core.dtypes import f32, u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.quant import format_of
from pumice.kernels.routines import matmul
from pumice.kernels.routines.common import Side
from pumice.kernels.routines.fragments import (
    SIZE,
    FragmentTile,
    Kind,
    StridedFragments,
    emit_fragments,
    matrix_kind,
    store_fragments,
)
from pumice.kernels.routines.grouped import GroupSizes, emit_bounds, lower_tile_table, open_tile, rows_side, tile_count
from pumice.kernels.routines.qmatmul import TILES, QuantFragments, QuantLoader, decide_fragments
from pumice.kernels.routines.qmatvec import OneRow, QMatmulProblem, QMatvec, decide_matvec, emit_matvec, store
from pumice.kernels.routines.tile import Tile, choose_tile, emit_tiled, fitting, store_tile, strided_loader

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "table": "works out which rows each group has, for the matmul over them",
    "matvec": matmul.VARIANTS["matvec"],
    "fragments": matmul.VARIANTS["fragments"],
    "tiled": matmul.VARIANTS["tiled"],
}
# Rows up to which each is a matvec: those of the same group then read its weights again.
MOST_ROWS = 32
_WASTE = 4


def decide(
    caps: Caps, k: int, rows: int, groups: int, n: int, *, together: int = 16, unit_bytes: int = 36, kind: Kind | None = None
) -> Tile | FragmentTile | QMatvec:
    """The variant for groups that have about equally many rows; for `together` and `unit_bytes` see `decide_matvec`.

    With a `kind` of matrices, matrix units are used where groups have enough rows to fill half a fragment.

    >>> caps = Caps.preset("h200")
    >>> decide(caps, 2048, 8, 64, 1024).name, decide(caps, 2048, 32_768, 64, 1024).name
    ('matvec 16x32 2 rows by digits', 'tiled 128x128x32 8x8')
    """
    if rows <= MOST_ROWS:
        return decide_matvec(caps, 1, n, k, together, unit_bytes)
    typical = max(1, rows // max(1, groups))
    if kind is not None and typical > SIZE // 2:
        tile = decide_fragments(caps, kind, typical, n, k, batch=max(1, groups))
        if isinstance(tile, FragmentTile):
            return tile
    return choose_tile(caps, TILES, typical, n, max(1, groups), waste=_WASTE) or fitting(caps, TILES)[-1]


def lower_grouped_qmatmul(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The table of rows or of tiles, then the matmul with its epilogue."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    x, given = (ctx.view(node.operands[name], group.leaves) for name in ("x", "sizes"))
    weight = node.operands["w"]
    groups, n, k = ctx.type(weight).shape
    assert isinstance(k, int)
    m, dtype = x.shape[0], ctx.type(weight).dtype
    f = format_of(dtype)
    together, unit_bytes = 4 * min(f.groups) if f.whole else 0, dtype.block_bytes * f.unit // dtype.block
    # Dequantised weights are f32: matrix units take them only where the precision allows it.
    kind = matrix_kind(ctx.caps, ctx.type(x.leaf).dtype, f32, node.attr["precision"])
    choose = partial(decide, ctx.caps, k, together=together, unit_bytes=unit_bytes, kind=kind)
    choice = ctx.choose(group.root, choose, m, groups, n)
    side = Side(x.leaf, (m,), x.strides[:1], x.strides[1], (), x.offset)
    s = QMatmulProblem(side, node.operands["x"], weight, (m,), m, n, k)
    sizes = GroupSizes(given, groups, m)
    if isinstance(choice, Tile | FragmentTile):
        return _lower_tiles(ctx, group, s, sizes, choice)
    return _lower_rows(ctx, group, s, sizes, choice)


def _lower_rows(ctx: LowerContext, group: Group, s: QMatmulProblem, sizes: GroupSizes, choice: QMatvec) -> list[Lowered]:
    """A matvec for each row."""
    label = ctx.label(group)
    first, table = _lower_row_table(ctx, group, sizes, label)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p, of_rows = Puller(ctx, group, kb), kb.read(table, u32)
    across = ceildiv(s.n, choice.rows * choice.thread_groups)
    kb.emit(f"let row = wg / {p.divisor(across)};\nlet part = wg % {p.divisor(across)};")
    kb.emit(f"let group = {of_rows.load('row')};")
    kb.emit(f"let depth = select(0u, {s.k}u, group < {kb.dim(sizes.groups)});")
    assert s.x is not None
    # The rows of x are the entries of a batch of vectors.
    one = replace(
        s, x=replace(s.x, rows=(1,), row_strides=(0,), batch=s.x.row_strides), m=1, one=OneRow("row", "group", "depth", "part")
    )
    emit_matvec(p, one, choice)
    return [first, kb.finish(groups=s.m * across, label=label, variant=choice.name)]


def _lower_row_table(ctx: LowerContext, group: Group, sizes: GroupSizes, label: str) -> tuple[Lowered, int]:
    """The kernel that finds the group of each row, as many as there are groups for rows of none, and where it leaves them."""
    table = ctx.temp(TensorType(u32, (sizes.rows,)))
    kb = KernelBuilder(ctx.caps, workgroup=map_workgroup(ctx.caps))
    p, out = Puller(ctx, group, kb), kb.write(table, u32)

    def fill() -> None:
        kb.open("for (var r = start; r < end; r++)")
        kb.emit(out.store("r", "g"))
        kb.close()

    emit_bounds(p, sizes, fill)
    return kb.finish(groups=1, label=f"{label} rows", variant=f"table/{kb.workgroup}"), table


def _lower_tiles(
    ctx: LowerContext, group: Group, s: QMatmulProblem, sizes: GroupSizes, tile: Tile | FragmentTile
) -> list[Lowered]:
    """The matmul over as many tiles as there are."""
    across, label = ceildiv(s.n, tile.bn), ctx.label(group)
    first, table = lower_tile_table(ctx, group, sizes, tile, across, label)
    kb = KernelBuilder(ctx.caps, workgroup=tile.threads)
    p = Puller(ctx, group, kb)
    open_tile(p, table, tile, sizes, across, s.k)
    assert s.x is not None

    def store_one(m: str, n: str, value: str) -> None:
        store(p, s, m, n, [value])

    groups = tile_count(table, sizes, tile, across)
    if isinstance(tile, FragmentTile):
        side = rows_side(ctx.view(s.left, group.leaves))
        left = StridedFragments(p, side, side.base(p, ()), "m0", s.m, s.k, tile.bm, tile)
        vectors = emit_fragments(p, tile, "depth", left, QuantFragments(p, s, "n0", tile, "group"))
        store_fragments(p, tile, "m0", "n0", "m_end", s.n, vectors, store_one, None)
        return [first, kb.finish(groups=groups, label=label, variant=tile.name)]
    a = strided_loader(p, s.x, s.x.base(p, ()), "m0", s.m, s.k, tile.bm, tile, "tile_a")
    b = QuantLoader(p, s, "n0", tile, "tile_b", group="group")
    emit_tiled(kb, tile, "f32", "depth", a, b)
    store_tile(p, tile, "f32", "m0", "n0", "m_end", s.n, store_one, written=True)
    return [first, kb.finish(groups=groups, label=label, variant=tile.name)]
