"""Binning of Gaussian splats: which tiles of an image each one touches, sorted by tile and depth; how many is data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim
from pumice.errors import InputError, ShapeError
from pumice.ir.ops.shape import plain, sample
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import require_kind, rng, same_shape
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

# Pixels along a side of a tile: a thread of a workgroup for each.
TILES = (8, 16)
_MOST_PIXELS = 1 << 15
# Counts end here rather than wrap.
MOST_PAIRS = 2**31 - 1


def check_image(attrs: Attrs) -> None:
    """Refuses image and tile sizes that no kernel is for."""
    for name in ("width", "height"):
        size = attrs[name]
        if not isinstance(size, int) or not 1 <= size <= _MOST_PIXELS:
            raise InputError(f"{name} must be a number of pixels in 1…{_MOST_PIXELS}, not {size!r}")
    if attrs["tile"] not in TILES:
        raise InputError(f"tile must be one of {', '.join(map(str, TILES))} pixels, not {attrs['tile']!r}")


def tile_grid(attrs: Attrs) -> tuple[int, int]:
    """Tiles down and across.

    >>> tile_grid({"width": 33, "height": 16, "tile": 16})
    (1, 3)
    """
    return -(-attrs["height"] // attrs["tile"]), -(-attrs["width"] // attrs["tile"])


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    centre, extent, depth = plain(types)
    for t in (centre, extent, depth):
        require_kind(t, "float")
        if t.dtype != dtypes.f32:
            raise ShapeError(f"centre, extent and depth are f32, not {t.dtype}", hint="cast with .astype('f32')")
    check_image(attrs)
    if centre.rank != 2 or centre.shape[1] != 2:
        raise ShapeError(f"centre is [N, 2], not {centre.describe()}")
    count = centre.shape[0]
    same_shape(extent.shape, centre.shape, "extent and centre")
    same_shape(depth.shape, (count,), "depth, and [N]")
    capacity: Dim = attrs["capacity"]
    if isinstance(capacity, int) and not 1 <= capacity <= MOST_PAIRS:
        raise InputError(f"capacity must be a number of pairs in 1…{MOST_PAIRS}, not {capacity}")
    rows, columns = tile_grid(attrs)
    shapes = ((capacity, 2), (rows * columns + 1,), (count, 2), (1,))
    return tuple(TensorType(dtypes.i32, s) for s in shapes)


def tile_spans(centre: Array, extent: Array, attrs: Attrs) -> Array:
    """First and end tile of each splat, down and across, [N, 4]; nothing between them where it touches none.

    In f32 whatever the operands come as: a kernel's subtraction rounds the same way, and the division by a power of two is exact.
    """
    with np.errstate(all="ignore"):
        centre, extent = centre.astype(np.float32), extent.astype(np.float32)
        exists = (np.isfinite(centre) & np.isfinite(extent) & (extent > 0)).all(1)
        spans = np.zeros((len(centre), 4), np.int64)
        for axis, most in ((0, attrs["width"]), (1, attrs["height"])):
            low, high = centre[:, axis] - extent[:, axis], centre[:, axis] + extent[:, axis]
            inside = exists & (low < most) & (high >= 0)
            first = np.floor(np.clip(np.where(inside, low, 0), 0, most - 1) / attrs["tile"])
            last = np.floor(np.clip(np.where(inside, high, 0), 0, most - 1) / attrs["tile"])
            at = 2 * (1 - axis)
            spans[:, at], spans[:, at + 1] = first, np.where(inside, last + 1, first)
    return spans


def _tiles(arrays: Sequence[Any], attrs: Attrs, outs: tuple[TensorType, ...]) -> tuple[Array, ...]:
    centre, extent, depth = arrays
    rows, columns = tile_grid(attrs)
    capacity = outs[0].static_shape[0]
    spans = tile_spans(centre, extent, attrs)
    down, across = spans[:, 1] - spans[:, 0], spans[:, 3] - spans[:, 2]
    order = np.argsort(depth, kind="stable")
    counts = (down * across)[order]
    ends = np.minimum(np.cumsum(counts), MOST_PAIRS)
    found = np.zeros((len(centre), 2), np.int64)
    found[order] = np.minimum(np.stack([ends - counts, ends], 1), capacity)
    total = int(ends[-1]) if len(ends) else 0
    kept = min(total, capacity)
    place = np.arange(kept)
    splat = order[np.searchsorted(ends, place, side="right")]
    nth = place - found[splat, 0]
    tile = (spans[splat, 0] + nth // across[splat]) * columns + spans[splat, 2] + nth % across[splat]
    by_tile = np.argsort(tile, kind="stable")
    pairs = np.full((capacity, 2), -1, np.int32)
    pairs[:kept, 0], pairs[:kept, 1] = splat[by_tile], by_tile
    bounds = np.searchsorted(tile[by_tile], np.arange(rows * columns + 1), side="left")
    return pairs, bounds.astype(np.int32), found.astype(np.int32), np.array([total], np.int32)


def scattered(count: int, width: int, height: int, seed: int = 0, size: float = 9.0) -> tuple[Array, Array, Array]:
    """Centres on and around an image, extents and depths, for samples."""
    r = rng(seed + count)
    centre = r.uniform(-0.3, 1.3, (count, 2)) * (width, height)
    extent = r.uniform(0.2, size, (count, 2))
    return centre.astype(np.float32), extent.astype(np.float32), r.uniform(0.5, 9, count).astype(np.float32)


def _samples() -> Iterator[Sample]:
    def case(label: str, arrays: Sequence[Array], width: int, height: int, capacity: int, tile: int = 16) -> Sample:
        return sample(label, list(arrays), width=width, height=height, tile=tile, capacity=capacity)

    yield case("some splats", scattered(37, 70, 50), 70, 50, 300)
    yield case("small tiles", scattered(37, 70, 50), 70, 50, 700, tile=8)
    yield case("more than a workgroup, and one tile", scattered(700, 16, 16), 16, 16, 900)
    yield case("several blocks of pairs", scattered(1500, 150, 90, size=30.0), 150, 90, 20000, tile=8)
    yield case("more pairs than there is room for", scattered(60, 64, 64, size=30.0), 64, 64, 101)
    centre, extent, depth = scattered(33, 40, 40)
    extent[::5], centre[1, 0], extent[2, 1], centre[3, 1], depth[6:20] = 0, np.nan, np.nan, np.inf, 2.5
    extent[7], extent[8] = -1, np.inf
    yield case("culled splats, and ties of depth", (centre, extent, depth), 40, 40, 200)
    odd = np.array([-0.0, 0.0, -3, np.inf, -np.inf, np.nan, 1e-42, -1e-42], np.float32)
    yield case("depths of all kinds", (*scattered(8, 20, 20)[:2], odd), 20, 20, 64)
    edges = np.array([[0, 0], [16, 16], [32, 32], [31.5, 8], [-4, 8], [36, 8]], np.float32)
    yield case("on the borders of tiles", (edges, np.full((6, 2), 4, np.float32), np.arange(6).astype(np.float32)), 32, 32, 40)
    yield case("one splat over all", [np.array(a, np.float32) for a in ([[5, 5]], [[1e9, 1e9]], [1])], 100, 60, 28)
    yield case("one splat", scattered(1, 20, 20), 20, 20, 9)
    yield case("no splats", scattered(0, 33, 20), 33, 20, 5)


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    return f"{of['centre'][0]} splats, {attrs['width']}x{attrs['height']} pixels, room for {out[0]} pairs"


register(
    OpSpec(
        "splat_tiles",
        "splat",
        "the tiles of an image that splats touch: pairs of splat and tile, sorted by tile, then by depth",
        ("centre", "extent", "depth"),
        _infer,
        _tiles,
        Routine("splat_tiles"),
        _samples,
        {"width": REQUIRED, "height": REQUIRED, "tile": 16, "capacity": REQUIRED},
        cost="compute",
        results=("pairs", "bounds", "rows", "count"),
        no_gradient="which tiles a splat touches is a whole number; gradients of splats flow through rasterize",
        differentiable=False,
        traits=Traits(sizes=_sizes),
        rules="centre and extent [N, 2] are in pixels (x, y), depth is [N], all f32. A splat touches the tiles that the box"
        " centre ± extent meets; one whose extent is not greater than 0, or whose centre or extent is not finite, touches none."
        " pairs [capacity, 2] has splat and row, tile after tile, the nearer splat first, of equal depths the smaller index, NaN"
        " last. Tile t has the pairs bounds[t]…bounds[t + 1] - 1. Splat i has the rows rows[i, 0]…rows[i, 1] - 1, one a tile."
        " count [1] is the number of pairs. Where it exceeds capacity, pairs of the farthest splats are left out; unused pairs"
        " are -1.",
    )
)
