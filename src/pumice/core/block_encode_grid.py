"""Floats to the formats whose codes are rows of a grid: the nearest rows for a plain choice of scales.

There is no search for better scales, and no weights say which numbers matter more: files for use come from programs that do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import (
    Bytes,
    Floats,
    field_bits,
    get_scale,
    get_sub_scales,
    inverse,
    nibbles_at,
    put_f16,
    put_fields,
    put_sub_scales,
    require_finite,
)
from pumice.core.block_formats import BitField, BlockLayout, GridCodes, SubScales
from pumice.core.grids import Grid, grid_rows
from pumice.core.records import dataclass

# Rows whose distances to all rows of a grid exist at a time.
_AT_ONCE = 1 << 12


def encode_grid(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """Fills blocks [n, nbytes], all 0, from x [n, elements]."""
    assert layout.grid is not None and layout.scales is not None and layout.scale is not None
    codes, parts = layout.grid, x.reshape(len(x), -1, layout.part_size)
    _store_scales(layout, layout.scales, np.abs(parts).max(axis=2) / np.float32(codes.most), blocks)
    scale = get_scale(layout, blocks)
    assert scale is not None
    wanted = (parts * inverse(scale * get_sub_scales(layout.scales, blocks))[:, :, None]).reshape(len(x), -1, 8)
    if codes.signs is not None:
        wanted = _put_signs(codes.signs, wanted, blocks)
    if codes.offsets is None:
        index = _nearest_rows(codes.grid, wanted).index
    else:
        index = _put_offsets(codes, codes.offsets, wanted, blocks)
    at = 0
    for field in codes.index:
        part = index.reshape(len(x), -1) >> at & (1 << field.width) - 1
        put_fields(field_bits(field, part.shape[1]), blocks, part)
        at += field.width


def _store_scales(layout: BlockLayout, scales: SubScales, steps: Floats, blocks: Bytes) -> None:
    """The block's scale and the parts' own, for steps [n, parts] of which the largest gets the largest sub-scale."""
    assert layout.scale is not None
    top = (1 << sum(b.width for b in scales.parts[0])) - 1
    odd = np.float32(scales.odd)
    d = steps.max(axis=1, keepdims=True) / (odd * np.float32(2 * top + 1))
    if layout.scale_kind == "f16":
        put_f16(blocks, layout.scale, d)
    else:
        with np.errstate(over="ignore"):
            stored = d.astype("<f2")
        require_finite(stored, "f16")
        put_fields((nibbles_at(layout.scale),), blocks, stored.view(np.uint16))
    small = np.rint((steps * inverse(d * odd) - 1) / 2)
    put_sub_scales(scales, blocks, np.clip(small, 0, top))


def _put_signs(field: BitField, wanted: Floats, blocks: Bytes) -> Floats:
    """Stores the signs of eights [n, eights, 8], and gives what their rows should be."""
    is_less, size = wanted < 0, np.abs(wanted)
    if field.width == 7:
        # An odd number of them cannot be stored: the smallest of the eight gets the wrong sign.
        odd = is_less.sum(axis=2, keepdims=True) % 2 == 1
        smallest = np.arange(8) == size.argmin(axis=2, keepdims=True)
        is_less, size = is_less ^ (odd & smallest), np.where(odd & smallest, -size, size)
    signs = (is_less[:, :, : field.width] << np.arange(field.width)).sum(axis=2)
    put_fields(field_bits(field, signs.shape[1]), blocks, signs)
    return size


@dataclass(frozen=True, slots=True)
class _Nearest:
    """Which row of a grid is nearest, and its distance less what is the same for all."""

    index: NDArray[np.intp]
    distance: Floats


def _nearest_rows(grid: Grid, wanted: Floats) -> _Nearest:
    """For numbers [n, eights, 8], or fours of them."""
    rows = grid_rows(grid).astype(np.float32)
    squares, flat = np.square(rows).sum(axis=1), wanted.reshape(-1, grid.width)
    index, distance = np.empty(len(flat), np.intp), np.empty(len(flat), np.float32)
    for start in range(0, len(flat), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        found = squares - 2 * (flat[part] @ rows.T)
        index[part] = found.argmin(axis=1)
        distance[part] = found.min(axis=1)
    return _Nearest(index, distance)


def _put_offsets(codes: GridCodes, field: BitField, wanted: Floats, blocks: Bytes) -> NDArray[np.intp]:
    """Stores for all eights that share a bit whether the numbers are one more or one less; the nearest rows."""
    eights = field_bits(field, wanted.shape[1])
    both = [_nearest_rows(codes.grid, wanted - offset) for offset in (np.float32(1), np.float32(-1))]
    # A distance is without the square of what is wanted, which differs between the two.
    errors = [
        near.distance.reshape(len(blocks), -1) + np.square(wanted - offset).sum(axis=2)
        for near, offset in zip(both, (np.float32(1), np.float32(-1)), strict=True)
    ]
    firsts = [eights.index(bits) for bits in eights]
    starts = np.unique(firsts)
    together = [np.add.reduceat(error, starts, axis=1) for error in errors]
    is_less = together[1] < together[0]
    put_fields(tuple(eights[i] for i in starts), blocks, is_less)
    every = np.repeat(is_less, np.diff([*starts, len(eights)]), axis=1)
    return np.where(every, *(near.index.reshape(len(blocks), -1) for near in reversed(both)))
