"""Numba kernels of convolution over one to three axes, and of its gradient by input, which is a convolution too.

A convolution is a matmul of weights and windows: a result is the sum over taps and channels of a weight times a number of the
source. Windows are gathered a tile of positions at a time, as many numbers of each as fit the second cache, straight into the
order in which the registers take them. Where they go comes from tables, so that strides, dilation, padding, groups, several
images in one tile and each class of positions of a transposed convolution need no code of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.conv_code import ANYWHERE, NEXT, NEXT_BUT_ONE, gather_columns
from pumice.backends.host.native.codegen.conv_products import HALF, ROWS, SIZES, WIDE
from pumice.backends.host.native.codegen.lanes import (
    fetch_range,
    float_at,
    long_at,
    set_float,
    set_int,
    set_long,
)
from pumice.backends.host.native.kernels.conv_products import multiply, store_product
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined

# The words of a task. Axes are always three, the first of them of size 1 where there are fewer. `TAPS` is a table: for each tap
# how far it moves along each axis, and where its weights begin in bytes. Positions are counted through all images; PARTS_* says
# how many tiles and slabs a part has. The results are scaled and moved per channel, added to what is at OTHER, which has their
# strides, and limited, if FINISHES; OTHER may be 0. SCALE to HIGH are in the order of conv_products.py.
(
    SOURCE,
    WEIGHTS,
    OUT,
    TAPS,
    TAP_COUNT,
    CHANNELS,
    OUTPUTS,
    GROUPS,
    IMAGES,
    SIZE_Z,
    SIZE_Y,
    SIZE_X,
    COUNT_Z,
    COUNT_Y,
    COUNT_X,
    STEP_Z,
    STEP_Y,
    STEP_X,
    SOURCE_IMAGE,
    WEIGHT_ROW,
    WEIGHT_CHANNEL,
    WEIGHT_GROUP,
    OUT_IMAGE,
    OUT_CHANNEL,
    OUT_Z,
    OUT_Y,
    OUT_X,
    PART_TILES,
    PART_SLABS,
    FINISHES,
    SCALE,
    SHIFT,
    OTHER,
    LOW,
    HIGH,
    GATHERED,
    PACKED_WEIGHTS,
    PACKED,
) = (8 * i for i in range(38))
TAP_WORDS = 4
SLAB_BYTES, TILE_BYTES, TABLE_BYTES, DEEP, _TILES = (
    SIZES.slab_bytes,
    SIZES.tile_bytes,
    SIZES.table_bytes,
    SIZES.deep,
    SIZES.tiles,
)
_OUTSIDE = -(1 << 30)
# Slabs whose weights stay in the second cache while all tiles of a part pass by.
SLABS_AT_ONCE = 16
_F32 = np.float32


@inlined
def depth_of(job: int) -> Any:
    return long_at(job + TAP_COUNT) * long_at(job + CHANNELS)


@inlined
def slab_count(job: int) -> Any:
    return (long_at(job + OUTPUTS) + ROWS - 1) // ROWS


@inlined
def positions_of(job: int) -> Any:
    return long_at(job + IMAGES) * long_at(job + COUNT_Z) * long_at(job + COUNT_Y) * long_at(job + COUNT_X)


@inlined
def weights_of(job: int) -> Any:
    """Where the packed weights are: in memory of their own, or before the gathered windows."""
    kept = long_at(job + PACKED_WEIGHTS)
    return kept if kept else long_at(job + PACKED)


def conv_weights_f32(job: int, first: int, last: int) -> None:
    """Weights as slabs [channels, taps, ROWS]; a part is a slab of a group. Rows that are not there are zeros."""
    slabs, depth, channels, taps = slab_count(job), depth_of(job), long_at(job + CHANNELS), long_at(job + TAP_COUNT)
    row, channel = long_at(job + WEIGHT_ROW), long_at(job + WEIGHT_CHANNEL)
    for part in range(first, last):
        begin = part % slabs * ROWS
        high = min(ROWS, long_at(job + OUTPUTS) - begin)
        group = long_at(job + WEIGHTS) + part // slabs * long_at(job + WEIGHT_GROUP) + begin * row
        to = weights_of(job) + part * depth * SLAB_BYTES
        for c in range(channels):
            for tap in range(taps):
                source = group + c * channel + long_at(long_at(job + TAPS) + 8 * (TAP_WORDS * tap + 3))
                if high == ROWS:
                    for r in range(ROWS):
                        set_float(to + 4 * r, float_at(source + r * row))
                else:
                    for r in range(ROWS):
                        set_float(to + 4 * r, float_at(source + r * row) if r < high else _F32(0))
                to += SLAB_BYTES


@inlined
def find_places(job: int, tile: int, table: int) -> None:
    """Fills a tile's table: where its positions are in the source, where their results go, and which neighbours both have."""
    # Read once: what is stored below could be anywhere, for all that the compiler knows.
    count_z, count_y, count_x = long_at(job + COUNT_Z), long_at(job + COUNT_Y), long_at(job + COUNT_X)
    step_z, step_y, step_x = long_at(job + STEP_Z), long_at(job + STEP_Y), long_at(job + STEP_X)
    size_y, size_x, image = long_at(job + SIZE_Y), long_at(job + SIZE_X), long_at(job + SOURCE_IMAGE)
    out_image, out_z, out_y, out_x = long_at(job + OUT_IMAGE), long_at(job + OUT_Z), long_at(job + OUT_Y), long_at(job + OUT_X)
    begin = tile * WIDE
    here = min(WIDE, positions_of(job) - begin)
    x = begin % count_x
    y = begin // count_x % count_y
    z = begin // (count_x * count_y) % count_z
    n = begin // (count_x * count_y * count_z)
    results = table + 4 * 4 * WIDE
    neighbours, order, by_two, first, half, start = 1, NEXT, True, 0, 0, 0
    i = 0
    while i < here:
        # A row of positions.
        row = n * image + (z * step_z * size_y + y * step_y) * size_x
        at = n * out_image + z * out_z + y * out_y + x * out_x
        for _ in range(min(here - i, count_x - x)):
            place = row + x * step_x
            set_int(table + 4 * i, n * image)
            set_int(table + 4 * (WIDE + i), z * step_z)
            set_int(table + 4 * (2 * WIDE + i), y * step_y)
            set_int(table + 4 * (3 * WIDE + i), x * step_x)
            set_long(results + 8 * i, at)
            if i == 0:
                first, start = place, at
            if i == HALF:
                half = place
            if place != first + i:
                order = ANYWHERE
            if place != (first + 2 * i if i < HALF else half + 2 * (i - HALF)):
                by_two = False
            if at != start + 4 * i:
                neighbours = 0
            i += 1
            x += 1
            at += out_x
        x = 0
        y += 1
        if y == count_y:
            y = 0
            z += 1
            if z == count_z:
                z = 0
                n += 1
    for i in range(here, WIDE):
        set_int(table + 4 * i, 0)
        set_int(table + 4 * (WIDE + i), _OUTSIDE)
    set_long(results + 8 * WIDE, neighbours)
    set_long(results + 8 * WIDE + 8, NEXT_BUT_ONE if order == ANYWHERE and by_two else order)
    set_long(results + 8 * WIDE + 16, first)
    set_long(results + 8 * WIDE + 24, half)


@inlined
def gather_tile(job: int, group: int, table: int, begin: int, end: int, to: int) -> None:
    """Numbers begin…end-1 of the windows at a tile's positions, taps of a channel are neighbours."""
    taps, channels = long_at(job + TAP_COUNT), long_at(job + CHANNELS)
    plane = 4 * long_at(job + SIZE_Z) * long_at(job + SIZE_Y) * long_at(job + SIZE_X)
    source = long_at(job + SOURCE) + group * channels * plane
    for tap in range(taps):
        # Channels of which this tap is among the numbers.
        c, stop = (begin - tap + taps - 1) // taps, (end - tap + taps - 1) // taps
        if c < stop:
            shifts = long_at(job + TAPS) + 8 * TAP_WORDS * tap
            gather_columns(
                table, long_at(shifts), long_at(shifts + 8), long_at(shifts + 16),
                long_at(job + SIZE_Z), long_at(job + SIZE_Y), long_at(job + SIZE_X),
                source + c * plane, plane, stop - c, to + (c * taps + tap - begin) * TILE_BYTES, taps * TILE_BYTES,
            )  # fmt: skip


@inlined
def _fetch_channels(job: int, group: int, begin: int, end: int) -> None:
    """Asks for the channels of a group that numbers begin…end-1 of its windows are from, of all images."""
    taps, channels = long_at(job + TAP_COUNT), long_at(job + CHANNELS)
    plane = long_at(job + SIZE_Z) * long_at(job + SIZE_Y) * long_at(job + SIZE_X)
    first, last = begin // taps, min(channels, (end + taps - 1) // taps)
    for n in range(long_at(job + IMAGES)):
        source = n * long_at(job + SOURCE_IMAGE) + (group * channels + first) * plane
        fetch_range(long_at(job + SOURCE) + 4 * source, 4 * (last - first) * plane)


def conv_windows_f32(job: int, first: int, last: int) -> None:
    """All windows, where there are so few that threads share the weights; a part is a tile of a block of numbers."""
    tiles, depth = (positions_of(job) + WIDE - 1) // WIDE, depth_of(job)
    blocks = (depth + DEEP - 1) // DEEP
    table = take_work(job)
    for part in range(first, last):
        group, block, tile = part // (blocks * tiles), part // tiles % blocks, part % tiles
        start = block * DEEP
        stop = min(depth, start + DEEP)
        find_places(job, tile, table)
        if tile == 0 or part == first:
            _fetch_channels(job, group, start, stop)
        to = long_at(job + PACKED) + long_at(job + GATHERED) + TILE_BYTES * ((group * depth + start) * tiles)
        gather_tile(job, group, table, start, stop, to + TILE_BYTES * tile * (stop - start))
    give_work(job, table)


@inlined
def _finish_one(job: int, value: Any, other: int, channel: int) -> Any:
    value = value * float_at(long_at(job + SCALE) + 4 * channel) + float_at(long_at(job + SHIFT) + 4 * channel)
    if other:
        value = value + float_at(other)
    low, high = float_at(job + LOW), float_at(job + HIGH)
    value = low if value < low else value
    return high if value > high else value


@inlined
def _scatter_product(
    job: int,
    slab: int,
    tile: int,
    count: int,
    results: int,
    channel: int,
    rows: int,
    width: int,
    more: bool,
    ends: bool,
    block: int,
) -> None:  # fmt: skip
    """A tile times a slab to places that are no neighbours."""
    row = long_at(job + OUT_CHANNEL)
    to = long_at(job + OUT) + channel * row
    beside = long_at(job + OTHER) + channel * row if long_at(job + OTHER) else 0
    multiply(slab, tile, count, block, TILE_BYTES, False, rows, width)
    for r in range(rows):
        for i in range(width):
            place = to + r * row + long_at(results + 8 * i)
            value = float_at(block + r * TILE_BYTES + 4 * i)
            if more:
                value += float_at(place)
            if ends:
                value = _finish_one(job, value, beside + r * row + long_at(results + 8 * i) if beside else 0, channel + r)
            set_float(place, value)


@inlined
def store_rows(
    job: int, slab: int, tile: int, count: int, at: int, channel: int, rows: int, width: int, more: bool, ends: bool, block: int
) -> None:
    """The same to neighbours, `at` bytes from the first result of a channel."""
    row = long_at(job + OUT_CHANNEL)
    at += channel * row
    other = long_at(job + OTHER) + at if long_at(job + OTHER) else 0
    out = long_at(job + OUT) + at
    store_product(slab, tile, count, out, row, rows, width, more, ends, job + SCALE, channel, other, block)


def conv_f32(job: int, first: int, last: int) -> None:
    """A part is some tiles of positions and some slabs of outputs of a group."""
    tiles, slabs, depth, outputs = (positions_of(job) + WIDE - 1) // WIDE, slab_count(job), depth_of(job), long_at(job + OUTPUTS)
    many, high = long_at(job + PART_TILES), long_at(job + PART_SLABS)
    across, down = (tiles + many - 1) // many, (slabs + high - 1) // high
    total, gathered = positions_of(job), long_at(job + GATHERED)
    work = take_work(job)
    tables = work + _TILES * DEEP * TILE_BYTES
    block = tables + _TILES * TABLE_BYTES
    while first < last:
        group, left, top = first // (across * down), first // down % across * many, first % down * high
        # All parts of the same tiles at once: what is in cache of these is read again for all slabs.
        together = min(last - first, down - first % down)
        first += together
        right, bottom = min(tiles, left + many), min(slabs, top + together * high)
        for t in range(left, right):
            find_places(job, t, tables + (t - left) * TABLE_BYTES)
        start = 0
        while start < depth or start == 0:
            count = min(DEEP, depth - start)
            ends = start + count == depth and long_at(job + FINISHES) != 0
            if not gathered:
                for t in range(left, right):
                    table, tile = tables + (t - left) * TABLE_BYTES, work + (t - left) * DEEP * TILE_BYTES
                    gather_tile(job, group, table, start, start + count, tile)
            for some in range(top, bottom, SLABS_AT_ONCE):
                for t in range(left, right):
                    table = tables + (t - left) * TABLE_BYTES
                    results = table + 4 * 4 * WIDE
                    tile = work + (t - left) * DEEP * TILE_BYTES
                    if gathered:
                        tile = long_at(job + PACKED) + gathered + TILE_BYTES * ((group * depth + start) * tiles + t * count)
                    width = min(WIDE, total - t * WIDE)
                    for s in range(some, min(bottom, some + SLABS_AT_ONCE)):
                        slab = weights_of(job) + ((group * slabs + s) * depth + start) * SLAB_BYTES
                        rows = min(ROWS, outputs - s * ROWS)
                        channel = group * outputs + s * ROWS
                        if long_at(results + 8 * WIDE):
                            at = long_at(results)
                            store_rows(job, slab, tile, count, at, channel, rows, width, start > 0, ends, block)
                        else:
                            _scatter_product(job, slab, tile, count, results, channel, rows, width, start > 0, ends, block)
            start += DEEP
    give_work(job, work)
