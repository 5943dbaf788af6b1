"""Numba kernels of the gradient of convolution by its weights: outputs' gradients times windows, summed over positions.

The words of a task are those of conv.py, with the gradient in place of the weights and their gradient as the result. A part has
some weights of all output channels, and a piece of all positions, so that no two threads add to one number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.conv_products import ROWS, SIZES, WIDE
from pumice.backends.host.native.codegen.lanes import float_at, long_at, set_float
from pumice.backends.host.native.kernels.conv import (
    COUNT_X,
    COUNT_Y,
    COUNT_Z,
    GATHERED,
    GROUPS,
    IMAGES,
    OUT,
    OUTPUTS,
    PACKED,
    PART_SLABS,
    PART_TILES,
    SLAB_BYTES,
    TABLE_BYTES,
    TILE_BYTES,
    WEIGHTS,
    depth_of,
    find_places,
    gather_tile,
    positions_of,
    slab_count,
)
from pumice.backends.host.native.kernels.conv_products import multiply
from pumice.backends.host.native.kernels.matmul import SQUARE, turn_square
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined

_WEIGHTS, _CHUNK = SIZES.weights, SIZES.chunk
_SUM_PART = 4096
_F32 = np.float32


@inlined
def _row_positions(job: int) -> Any:
    """Positions of a slab: whole tiles."""
    return (positions_of(job) + WIDE - 1) // WIDE * WIDE


def conv_grads_f32(job: int, first: int, last: int) -> None:
    """The gradient as slabs [positions, ROWS]; a part is a slab of a group."""
    slabs, outputs, images = slab_count(job), long_at(job + OUTPUTS), long_at(job + IMAGES)
    plane = long_at(job + COUNT_Z) * long_at(job + COUNT_Y) * long_at(job + COUNT_X)
    for part in range(first, last):
        begin = part // slabs * outputs + part % slabs * ROWS
        high = min(ROWS, outputs - part % slabs * ROWS)
        to = long_at(job + PACKED) + part * _row_positions(job) * SLAB_BYTES
        for n in range(images):
            source = long_at(job + WEIGHTS) + 4 * plane * (n * long_at(job + GROUPS) * outputs + begin)
            if high == ROWS:
                for p in range(plane):
                    for r in range(ROWS):
                        set_float(to + p * SLAB_BYTES + 4 * r, float_at(source + 4 * (r * plane + p)))
            else:
                for p in range(plane):
                    for r in range(ROWS):
                        value = float_at(source + 4 * (r * plane + p)) if r < high else _F32(0)
                        set_float(to + p * SLAB_BYTES + 4 * r, value)
            to += plane * SLAB_BYTES


def conv_by_weight_f32(job: int, first: int, last: int) -> None:
    """A part is a piece of the positions and a block of the weights of a group."""
    depth, outputs, slabs = depth_of(job), long_at(job + OUTPUTS), slab_count(job)
    blocks, total, piece = (depth + _WEIGHTS - 1) // _WEIGHTS, positions_of(job), long_at(job + PART_TILES) * WIDE
    groups, parted = long_at(job + GROUPS), long_at(job + GATHERED)
    work = take_work(job)
    tile = work + 4 * _WEIGHTS * _CHUNK
    table = tile + _WEIGHTS * TILE_BYTES
    block = table + TABLE_BYTES
    for part in range(first, last):
        number, group, begin = part // (blocks * groups), part // blocks % groups, part % blocks * _WEIGHTS
        end = min(depth, begin + _WEIGHTS)
        out = long_at(job + PACKED) + parted + 4 * number * groups * outputs * depth if parted else long_at(job + OUT)
        out += 4 * (group * outputs * depth + begin)
        start, stop = number * piece, min(total, number * piece + piece)
        for at in range(start, stop, _CHUNK):
            count = min(_CHUNK, stop - at)
            for p in range(0, count, WIDE):
                find_places(job, (at + p) // WIDE, table)
                gather_tile(job, group, table, begin, end, tile)
                for k in range(0, end - begin, WIDE):
                    to = work + 4 * (k * _CHUNK + p * WIDE)
                    for i in range(0, WIDE, SQUARE):
                        for j in range(0, WIDE, SQUARE):
                            turn_square(
                                tile + (k + j) * TILE_BYTES + 4 * i, TILE_BYTES, SQUARE, to + 4 * (i * WIDE + j), TILE_BYTES
                            )
            for k in range(0, end - begin, WIDE):
                width = min(WIDE, end - begin - k)
                for s in range(slabs):
                    slab = long_at(job + PACKED) + ((group * slabs + s) * _row_positions(job) + at) * SLAB_BYTES
                    rows, place = min(ROWS, outputs - s * ROWS), out + 4 * (s * ROWS * depth + k)
                    if width == WIDE and rows % 2 == 0:
                        multiply(slab, work + 4 * k * _CHUNK, count, place, 4 * depth, at > start, rows, width)
                        continue
                    multiply(slab, work + 4 * k * _CHUNK, count, block, TILE_BYTES, False, rows, width)
                    for r in range(rows):
                        for i in range(width):
                            value = float_at(block + r * TILE_BYTES + 4 * i)
                            if at > start:
                                value += float_at(place + 4 * (r * depth + i))
                            set_float(place + 4 * (r * depth + i), value)
    give_work(job, work)


def conv_pieces_f32(job: int, first: int, last: int) -> None:
    """The sums of all pieces; a part is so many weights."""
    size = long_at(job + GROUPS) * long_at(job + OUTPUTS) * depth_of(job)
    source, out, pieces = long_at(job + PACKED) + long_at(job + GATHERED), long_at(job + OUT), long_at(job + PART_SLABS)
    for i in range(first * _SUM_PART, min(size, last * _SUM_PART)):
        total = float_at(source + 4 * i)
        for piece in range(1, pieces):
            total += float_at(source + 4 * (piece * size + i))
        set_float(out + 4 * i, total)
