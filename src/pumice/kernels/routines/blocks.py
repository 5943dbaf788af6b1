"""One block of a matmul's results in one workgroup, by tiles of either kind: threads' own arithmetic, or matrix units."""

from __future__ import annotations

from collections.abc import Callable

from pumice.core.dims import Dim
from pumice.kernels.builder import Extent
from pumice.kernels.pull import Index, Puller
from pumice.kernels.routines.common import Side
from pumice.kernels.routines.fragments import FragmentTile, StridedFragments, emit_fragments, store_fragments
from pumice.kernels.routines.tile import Store, StoreFour, Tile, emit_tiled, store_tile, strided_loader


def emit_block(
    p: Puller,
    tile: Tile | FragmentTile,
    compute: str,
    left: Side,
    right: Side,
    batch: Index,
    origin: tuple[str, str],
    sizes: tuple[Dim, Dim, Extent],
    store: Store,
    store_four: StoreFour | None = None,
    columns_first: Callable[[list[str]], None] | None = None,
) -> None:
    """The block of results at `origin` of an entry of the batch, from strided operands; `sizes` are m, n and k.

    For `store`, `store_four` and `columns_first` see `store_tile`.
    """
    (m0, n0), (m, n, k) = origin, sizes
    if isinstance(tile, FragmentTile):
        loaders = (
            StridedFragments(p, left, left.base(p, batch), m0, m, k, tile.bm, tile),
            StridedFragments(p, right, right.base(p, batch), n0, n, k, tile.bn, tile),
        )
        vectors = emit_fragments(p, tile, k, *loaders)
        store_fragments(p, tile, m0, n0, m, n, vectors, store, store_four)
        return
    tile_a = strided_loader(p, left, left.base(p, batch), m0, m, k, tile.bm, tile, "tile_a")
    tile_b = strided_loader(p, right, right.base(p, batch), n0, n, k, tile.bn, tile, "tile_b")
    emit_tiled(p.kb, tile, compute, k, tile_a, tile_b, 0 if isinstance(k, str) else p.ctx.max(k))
    store_tile(p, tile, compute, m0, n0, m, n, store, written=True, store_four=store_four, columns_first=columns_first)
