"""Numba kernels over packed weights in tiles of 32 rows, byte-transposed: one lane of a vector per row of the weight.

Every kernel does the tiles first…last-1 of the task whose words are at the address `job`; formats.py has them by format.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    block_memory,
    copy_bytes,
    copy_lanes,
    float_at,
    gathered,
    long_at,
    scaled,
    set_float,
    store_f32,
    turn_bytes,
    zeros,
)
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES

_F32, _I32 = np.float32, np.int32
# The words of a task: addresses of x [M, K], of the tiles, of out [M, N] and of what is known of a single row, then the sizes.
# For a single row there is another one: whether a task for another weight and the same x follows, whose tiles come after these.
X, W, OUT, KNOWN, M, K, N, MORE = (8 * i for i in range(8))
# For more rows than one, the last word is the address of slabs of x instead.
PACKED = MORE
_TASK_BYTES = 64
_inlined = numba.njit(forceinline=True, error_model="numpy")


@_inlined
def _evened(w: int, stride: int, size: int, room: int) -> int:
    """A block of `size` bytes for each row with its rows LANES apart: that of a last tile of fewer rows is copied to `room`."""
    if stride == LANES:
        return w
    for byte in range(size):
        copy_lanes(room + byte * LANES, w + byte * stride)
    return room


@_inlined
def unpack_block(w: int, stride: int, size: int, room: int, values: int, decode: Any) -> None:
    """The values of one block of all rows of a tile, [elements, LANES] float32, by `decode(block, values)`."""
    decode(_evened(w, stride, size, room), values)


@_inlined
def _finish(out: int, count: int, total: Any) -> None:
    """Writes the first `count` lanes."""
    if count == LANES:
        store_f32(out, total)
        return
    lanes = block_memory()
    store_f32(lanes, total)
    for r in range(count):
        set_float(out + 4 * r, float_at(lanes + 4 * r))


@_inlined
def run_matvec(job: int, first: int, last: int, dot: Any, block: int, size: int, is_dealt: bool) -> None:
    """One row of x; `dot(known, k, b, w, total)` adds the products of its elements of block b with a tile's block.

    The lanes of its totals may be dealt.
    """
    n, k, skipped, room = long_at(job + N), long_at(job + K), 0, block_memory()
    for t in range(first, last):
        while (t - skipped) * LANES >= n:
            skipped += (n + LANES - 1) // LANES
            job += _TASK_BYTES
            n = long_at(job + N)
        row = (t - skipped) * LANES
        stride, known = min(LANES, n - row), long_at(job + KNOWN)
        w, total = long_at(job + W) + row * (k // block * size), zeros()
        for b in range(k // block):
            total = dot(known, k, b, _evened(w, stride, size, room), total)
            w += size * stride
        total = scaled(total, float_at(known))
        _finish(long_at(job + OUT) + 4 * row, stride, gathered(total) if is_dealt else total)


@_inlined
def run_unpack(job: int, first: int, last: int, decode: Any, block: int, size: int) -> None:
    n, k, values, room = long_at(job + N), long_at(job + K), block_memory(), block_memory()
    for t in range(first, last):
        row = t * LANES
        stride = min(LANES, n - row)
        w, out = long_at(job + W) + row * (k // block * size), long_at(job + OUT) + 4 * row * k
        for b in range(k // block):
            unpack_block(w, stride, size, room, values, decode)
            w += size * stride
            for r in range(stride):
                to, lane = out + 4 * (r * k + b * block), values + 4 * r
                for j in range(block):
                    set_float(to + 4 * j, float_at(lane + j * VECTOR_BYTES))


# --- packing: a part is a tile ---

ROWS_SOURCE, ROWS_TILES, ROWS_BYTES, ROWS_COUNT = (8 * i for i in range(4))


def interleave_rows(job: int, first: int, last: int) -> None:
    """Rows in their own order become tiles, 16 bytes of each at a time; the last 16 may be some of those before again."""
    size, count = long_at(job + ROWS_BYTES), long_at(job + ROWS_COUNT)
    for t in range(first, last):
        row = t * LANES
        rows, to = long_at(job + ROWS_SOURCE) + row * size, long_at(job + ROWS_TILES) + row * size
        width = min(LANES, count - row)
        if width == LANES and size >= 16:
            for at in range(0, size + 15, 16):
                begin = min(at, size - 16)
                turn_bytes(rows + begin, size, to + begin * LANES)
                turn_bytes(rows + begin + 16 * size, size, to + begin * LANES + 16)
            continue
        for byte in range(size):
            for r in range(width):
                copy_bytes(to + byte * width + r, rows + r * size + byte, 1)
