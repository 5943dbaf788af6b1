"""Numba kernels of 3x3 convolutions by Winograd's method: 16 multiplications for four results, in place of 36.

A part has some tiles of 2x2 results of an image and some slabs of outputs. Each channel's rows are copied with their padding,
split into even and odd ones both ways, so that a tile's 16 numbers are neighbours of those of the next tile; a row of tiles has
one more than are needed. They become 16 matrices, each multiplied with its own of the weights as in conv.py, whose sums become
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.conv_code import finish_row, split_row
from pumice.backends.host.native.codegen.conv_products import ROWS, SIZES, WIDE
from pumice.backends.host.native.codegen.lanes import float_at, long_at, set_float
from pumice.backends.host.native.codegen.winograd_code import collect_tiles, spread_tiles
from pumice.backends.host.native.kernels.conv_products import multiply
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined

# The words of a task: channels and outputs are those of a group. A part has PART_BLOCKS blocks of WIDE tiles and PART_SLABS
# slabs; it makes their matrices, or finds those of all blocks in memory if they are GATHERED, by parts of that many channels.
# PITCH is the tiles of a row with the one more, and PLANE_BYTES what the rows that are copied at once take, split. SCALE to HIGH
# are as in conv_products.py.
(
    SOURCE,
    WEIGHTS,
    OUT,
    CHANNELS,
    OUTPUTS,
    GROUPS,
    SIZE_Y,
    SIZE_X,
    COUNT_Y,
    COUNT_X,
    LOW_Y,
    LOW_X,
    PITCH,
    PLANE_BYTES,
    PART_BLOCKS,
    PART_SLABS,
    SCALE,
    SHIFT,
    OTHER,
    LOW,
    HIGH,
    GATHERED,
    PACKED,
    MEMORY,
) = (8 * i for i in range(24))
MATRICES = 16
# Bytes between two matrices, whose places would otherwise share a few lines of the first cache.
MATRIX_GAP = 2 * 64
SLAB_BYTES, TILE_BYTES = SIZES.slab_bytes, SIZES.tile_bytes
_BLOCK_ROWS = ROWS * TILE_BYTES
_F32, _F64 = np.float32, np.float64


@inlined
def _slabs(job: int) -> Any:
    return (long_at(job + OUTPUTS) + ROWS - 1) // ROWS


@inlined
def _spread_weight(source: int, step: int, i: int) -> Any:
    """One of the four numbers that three weights, `step` bytes apart, become."""
    a, b, c = _F64(float_at(source)), _F64(float_at(source + step)), _F64(float_at(source + 2 * step))
    return _spread(a, b, c, i)


@inlined
def _spread(a: Any, b: Any, c: Any, i: int) -> Any:
    if i == 0:
        return a
    if i == 3:
        return c
    return (a + b + c) * _F64(0.5) if i == 1 else (a - b + c) * _F64(0.5)


def winograd_weights_f32(job: int, first: int, last: int) -> None:
    """Weights as slabs [16, channels, ROWS]; a part is a slab of a group. Rows that are not there are zeros."""
    slabs, channels, outputs = _slabs(job), long_at(job + CHANNELS), long_at(job + OUTPUTS)
    for part in range(first, last):
        begin, group = part % slabs * ROWS, part // slabs
        to = long_at(job + PACKED) + part * MATRICES * channels * SLAB_BYTES
        for c in range(channels):
            for r in range(ROWS):
                at = to + c * SLAB_BYTES + 4 * r
                source = long_at(job + WEIGHTS) + 36 * ((group * outputs + begin + r) * channels + c)
                for i in range(4):
                    for j in range(4):
                        value = _F64(0)
                        if begin + r < outputs:
                            left, middle = _spread_weight(source, 12, i), _spread_weight(source + 4, 12, i)
                            value = _spread(left, middle, _spread_weight(source + 8, 12, i), j)
                        set_float(at + (4 * i + j) * channels * SLAB_BYTES, _F32(value))


@inlined
def _copy_rows(job: int, source: int, top: int, rows: int, to: int) -> None:
    """Rows top…top+rows-1 of a channel with its padding, `top` being even, split into four planes; zeros outside."""
    pitch, high, wide = long_at(job + PITCH), long_at(job + SIZE_Y), long_at(job + SIZE_X)
    plane, low = long_at(job + PLANE_BYTES), long_at(job + LOW_X)
    for r in range(rows):
        y = top + r - long_at(job + LOW_Y)
        row = to + r % 2 * 2 * plane + 4 * (r // 2) * pitch
        if y < 0 or y >= high:
            for i in range(0, 4 * pitch, 4):
                set_float(row + i, _F32(0))
                set_float(row + plane + i, _F32(0))
            continue
        evens, odds = row + low % 2 * plane + 4 * (low // 2), row + (low + 1) % 2 * plane + 4 * ((low + 1) // 2)
        split_row(evens, odds, source + 4 * y * wide, wide)


@inlined
def _store_tiles(job: int, results: int, blocks: int, begin: int, entry: int, channel: int, rows: int) -> None:
    """Finished results of a slab to their places; `begin` is the first tile of the part."""
    pitch, high, wide = long_at(job + PITCH), long_at(job + COUNT_Y), long_at(job + COUNT_X)
    outputs, groups = long_at(job + OUTPUTS), long_at(job + GROUPS)
    across, down = (wide + 1) // 2, (high + 1) // 2
    end = min(begin + blocks * WIDE, down * pitch)
    length = 8 * WIDE * blocks
    for r in range(rows):
        number = entry % groups * outputs + channel + r
        plane = 4 * high * wide * (entry // groups * groups * outputs + number)
        scale, shift = float_at(long_at(job + SCALE) + 4 * number), float_at(long_at(job + SHIFT) + 4 * number)
        for ty in range(begin // pitch, (end + pitch - 1) // pitch):
            left, right = max(begin, ty * pitch), min(end, ty * pitch + across)
            if left >= right:
                continue
            x = 2 * (left - ty * pitch)
            count = min(wide - x, 2 * (right - left))
            for y in range(2 * ty, min(high, 2 * ty + 2)):
                at = plane + 4 * (y * wide + x)
                finish_row(
                    results + (2 * r + y % 2) * length + 8 * (left - begin), long_at(job + OUT) + at, count, scale, shift,
                    long_at(job + OTHER) + at if long_at(job + OTHER) else 0, float_at(job + LOW), float_at(job + HIGH),
                )  # fmt: skip


@inlined
def _matrix_bytes(job: int) -> Any:
    return long_at(job + CHANNELS) * TILE_BYTES + MATRIX_GAP


@inlined
def _tiles(job: int) -> Any:
    return (long_at(job + COUNT_Y) + 1) // 2 * long_at(job + PITCH)


@inlined
def _clear(planes: int, job: int) -> None:
    for at in range(planes, planes + 4 * long_at(job + PLANE_BYTES), 4):
        set_float(at, _F32(0))


@inlined
def _make_matrices(job: int, entry: int, first: int, last: int, begin: int, blocks: int, planes: int, to: int) -> None:
    """The numbers of channels first…last-1 of a group of an image in the matrices of some blocks, the first at tile `begin`."""
    channels, pitch, plane, matrix = long_at(job + CHANNELS), long_at(job + PITCH), long_at(job + PLANE_BYTES), _matrix_bytes(job)
    size = 4 * long_at(job + SIZE_Y) * long_at(job + SIZE_X)
    row = begin // pitch
    rows = 2 * ((begin + blocks * WIDE - 1) // pitch - row + 2)
    for c in range(first, last):
        _copy_rows(job, long_at(job + SOURCE) + (entry * channels + c) * size, 2 * row, rows, planes)
        for b in range(blocks):
            tile = planes + 4 * (begin + b * WIDE - row * pitch)
            spread_tiles(tile, plane, 4 * pitch, to + b * MATRICES * matrix + c * TILE_BYTES, matrix)


def winograd_matrices_f32(job: int, first: int, last: int) -> None:
    """The matrices of all blocks, where there are so few that threads share the weights; a part is some channels."""
    channels, some = long_at(job + CHANNELS), long_at(job + GATHERED)
    blocks = (_tiles(job) + WIDE - 1) // WIDE
    parts = (channels + some - 1) // some
    planes = take_work(job)
    _clear(planes, job)
    for part in range(first, last):
        entry, begin = part // parts, part % parts * some
        to = long_at(job + MEMORY) + entry * blocks * MATRICES * _matrix_bytes(job)
        _make_matrices(job, entry, begin, min(channels, begin + some), 0, blocks, planes, to)
    give_work(job, planes)


def winograd_f32(job: int, first: int, last: int) -> None:
    """A part is some blocks of an image and some slabs of outputs of a group."""
    channels, outputs, many, gathered = (
        long_at(job + CHANNELS),
        long_at(job + OUTPUTS),
        long_at(job + PART_BLOCKS),
        long_at(job + GATHERED),
    )
    slabs, high, groups, tiles = _slabs(job), long_at(job + PART_SLABS), long_at(job + GROUPS), _tiles(job)
    whole = (tiles + WIDE - 1) // WIDE
    across, down = (whole + many - 1) // many, (slabs + high - 1) // high
    matrix = _matrix_bytes(job)
    products = take_work(job)
    results = products + MATRICES * _BLOCK_ROWS
    made = results + 2 * ROWS * 8 * WIDE * many
    planes = made + many * MATRICES * matrix
    if not gathered:
        _clear(planes, job)
    for part in range(first, last):
        # Parts of the same weights follow each other.
        entry, top, left = part // (across * down), part // across % down * high, part % across * many
        blocks, begin = min(many, whole - left), left * WIDE
        matrices = long_at(job + MEMORY) + (entry * whole + left) * MATRICES * matrix
        if not gathered:
            matrices = made
            _make_matrices(job, entry, 0, channels, begin, blocks, planes, made)
        for s in range(top, min(slabs, top + high)):
            rows = min(ROWS, outputs - s * ROWS)
            slab = long_at(job + PACKED) + (entry % groups * slabs + s) * MATRICES * channels * SLAB_BYTES
            for b in range(blocks):
                for m in range(MATRICES):
                    of = matrices + (b * MATRICES + m) * matrix
                    to = products + m * _BLOCK_ROWS
                    multiply(slab + m * channels * SLAB_BYTES, of, channels, to, TILE_BYTES, False, rows, WIDE)
                for r in range(rows):
                    upper = results + 2 * r * 8 * WIDE * blocks + 8 * WIDE * b
                    collect_tiles(products + r * TILE_BYTES, _BLOCK_ROWS, upper, upper + 8 * WIDE * blocks)
            _store_tiles(job, results, blocks, begin, entry, s * ROWS, rows)
    give_work(job, products)
