"""Numba kernels of convolutions of one tap without strides: each image's channels are the right operand of a matmul as they are.

The words of a task and its packed weights are those of conv.py. Tiles of positions end with an image, so that results are always
neighbours, and no table says where they go.
"""

from __future__ import annotations

from typing import Any

from pumice.backends.host.native.codegen.conv_products import ROWS, SIZES, WIDE, copy_columns
from pumice.backends.host.native.codegen.lanes import fetch_range, long_at
from pumice.backends.host.native.kernels.conv import (
    CHANNELS,
    COUNT_X,
    COUNT_Y,
    COUNT_Z,
    DEEP,
    FINISHES,
    GATHERED,
    GROUPS,
    OUT_IMAGE,
    OUTPUTS,
    PACKED,
    PART_SLABS,
    PART_TILES,
    SLAB_BYTES,
    SLABS_AT_ONCE,
    SOURCE,
    TILE_BYTES,
    slab_count,
    store_rows,
    weights_of,
)
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined

COLUMN_CHANNELS = SIZES.columns
_TILES_BYTES = SIZES.tiles * DEEP * TILE_BYTES


@inlined
def _plane(job: int) -> Any:
    """Positions of an image."""
    return long_at(job + COUNT_Z) * long_at(job + COUNT_Y) * long_at(job + COUNT_X)


@inlined
def _copy_tile(job: int, entry: int, tile: int, start: int, count: int, to: int) -> None:
    """Channels start…start+count-1 at a tile of positions; an entry is a group of an image."""
    plane = _plane(job)
    source = long_at(job + SOURCE) + 4 * ((entry * long_at(job + CHANNELS) + start) * plane + tile * WIDE)
    copy_columns(source, 4 * plane, count, min(WIDE, plane - tile * WIDE), to)


def pointwise_columns_f32(job: int, first: int, last: int) -> None:
    """All tiles, where there are so few that threads share the weights; a part is COLUMN_CHANNELS channels of an entry."""
    plane, depth = _plane(job), long_at(job + CHANNELS)
    tiles, some = (plane + WIDE - 1) // WIDE, (depth + COLUMN_CHANNELS - 1) // COLUMN_CHANNELS
    for part in range(first, last):
        entry, begin = part // some, part % some * COLUMN_CHANNELS
        start = begin - begin % DEEP
        count, mine = min(DEEP, depth - start), min(COLUMN_CHANNELS, depth - begin)
        fetch_range(long_at(job + SOURCE) + 4 * (entry * depth + begin) * plane, 4 * mine * plane)
        to = long_at(job + PACKED) + long_at(job + GATHERED) + TILE_BYTES * ((entry * depth + start) * tiles + begin - start)
        for tile in range(tiles):
            _copy_tile(job, entry, tile, begin, mine, to + TILE_BYTES * tile * count)


def pointwise_f32(job: int, first: int, last: int) -> None:
    """A part is some tiles of an image and some slabs of outputs of a group."""
    plane, slabs, depth, outputs = _plane(job), slab_count(job), long_at(job + CHANNELS), long_at(job + OUTPUTS)
    groups, gathered, finishes = long_at(job + GROUPS), long_at(job + GATHERED), long_at(job + FINISHES) != 0
    many, high, tiles = long_at(job + PART_TILES), long_at(job + PART_SLABS), (plane + WIDE - 1) // WIDE
    across, down = (tiles + many - 1) // many, (slabs + high - 1) // high
    work = take_work(job)
    block = work + _TILES_BYTES
    while first < last:
        entry, left, top = first // (across * down), first // down % across * many, first % down * high
        # All parts of the same tiles at once: what is in cache of these is read again for all slabs.
        together = min(last - first, down - first % down)
        first += together
        right, bottom, group = min(tiles, left + many), min(slabs, top + together * high), entry % groups
        for start in range(0, depth, DEEP):
            count = min(DEEP, depth - start)
            ends = start + count == depth and finishes
            if not gathered:
                for t in range(left, right):
                    _copy_tile(job, entry, t, start, count, work + (t - left) * DEEP * TILE_BYTES)
            for some in range(top, bottom, SLABS_AT_ONCE):
                for t in range(left, right):
                    tile = work + (t - left) * DEEP * TILE_BYTES
                    if gathered:
                        tile = long_at(job + PACKED) + gathered + TILE_BYTES * ((entry * depth + start) * tiles + t * count)
                    at, width = entry // groups * long_at(job + OUT_IMAGE) + 4 * t * WIDE, min(WIDE, plane - t * WIDE)
                    for s in range(some, min(bottom, some + SLABS_AT_ONCE)):
                        slab = weights_of(job) + ((group * slabs + s) * depth + start) * SLAB_BYTES
                        rows, channel = min(ROWS, outputs - s * ROWS), group * outputs + s * ROWS
                        store_rows(job, slab, tile, count, at, channel, rows, width, start > 0, ends, block)
    give_work(job, work)
