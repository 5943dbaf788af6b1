"""Numba kernels over packed weights for more rows of x than one: weights are unpacked a few tiles at a time.

With 32 registers of 512 bits slabs of x pass over the unpacked tiles, as in matmul.py; elsewhere two rows at a time do.
"""

from __future__ import annotations

from typing import Any

from pumice.backends.host.native.codegen.lanes import (
    LEVEL,
    block_memory,
    copy_bytes,
    float_at,
    load_f32,
    long_at,
    madd_scalar,
    plus,
    store_f32,
    zeros,
)
from pumice.backends.host.native.kernels.matmul import multiply_slab, pack_slabs
from pumice.backends.host.native.kernels.tiled import OUT, PACKED, K, M, N, W, X, unpack_part
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import DEEP, LANES, SLAB, SLAB_PITCH, TILES_AT_ONCE, UNPACKED_BYTES, VECTOR_BYTES

_MANY_REGISTERS = LEVEL.is_wide
# Rows of x that pass together where slabs do not: the first cache holds them.
_ROWS_AT_A_TIME = 16


def pack_rows_f32(job: int, first: int, last: int) -> None:
    """The rows of x as slabs; a part is one of them."""
    k = long_at(job + K)
    pack_slabs(long_at(job + X), 4 * k, 4, long_at(job + M), k, DEEP, long_at(job + PACKED), first, last)


# --- with few registers ---


@inlined
def _begin(to: int, more: bool) -> Any:
    return load_f32(to) if more else zeros()


@inlined
def _add_two(x: int, row: int, values: int, count: int, to: int, pitch: int, more: bool) -> None:
    t0, t1 = _begin(to, more), _begin(to + pitch, more)
    for j in range(0, 4 * count, 4):
        v = load_f32(values + j * LANES)
        t0 = madd_scalar(v, float_at(x + j), t0)
        t1 = madd_scalar(v, float_at(x + row + j), t1)
    store_f32(to, t0)
    store_f32(to + pitch, t1)


@inlined
def _add_one(x: int, values: int, count: int, to: int, more: bool) -> None:
    even, odd = _begin(to, more), zeros()
    for j in range(0, 4 * count, 8):
        even = madd_scalar(load_f32(values + j * LANES), float_at(x + j), even)
        odd = madd_scalar(load_f32(values + j * LANES + VECTOR_BYTES), float_at(x + j + 4), odd)
    store_f32(to, plus(even, odd))


@inlined
def _add_rows(x: int, row: int, m: int, values: int, count: int, to: int, pitch: int, more: bool) -> None:
    """to [m, LANES] = x [m, count] times values [count, LANES], plus what is there if there is `more`.

    `row` and `pitch` are the bytes from one row of x and of the result to the next.
    """
    r = 0
    while r + 2 <= m:
        _add_two(x + r * row, row, values, count, to + r * pitch, pitch, more)
        r += 2
    if r < m:
        _add_one(x + r * row, values, count, to + r * pitch, more)


@inlined
def _add_narrow(x: int, row: int, m: int, values: int, count: int, to: int, pitch: int, more: bool, width: int) -> None:
    """The same for a last tile of fewer than LANES rows, by way of a vector that may be written as a whole."""
    lanes = block_memory()
    for r in range(m):
        copy_bytes(lanes, to + r * pitch, 4 * width)
        _add_one(x + r * row, values, count, lanes, more)
        copy_bytes(to + r * pitch, lanes, 4 * width)


@inlined
def _multiply_rows(job: int, t: int, tiles: int, start: int, count: int, values: int) -> None:
    m, n, k = long_at(job + M), long_at(job + N), long_at(job + K)
    for r in range(0, m, _ROWS_AT_A_TIME):
        rows = min(_ROWS_AT_A_TIME, m - r)
        x = long_at(job + X) + 4 * (r * k + start)
        for i in range(tiles):
            at, to = values + i * count * VECTOR_BYTES, long_at(job + OUT) + 4 * (r * n + (t + i) * LANES)
            width = min(LANES, n - (t + i) * LANES)
            if width == LANES:
                _add_rows(x, 4 * k, rows, at, count, to, 4 * n, start > 0)
            else:
                _add_narrow(x, 4 * k, rows, at, count, to, 4 * n, start > 0, width)


# --- with many ---


@inlined
def _multiply_slabs(job: int, t: int, tiles: int, start: int, count: int, values: int) -> None:
    m, n, block = long_at(job + M), long_at(job + N), values + UNPACKED_BYTES
    slabs = (m + SLAB - 1) // SLAB
    for s in range(slabs):
        slab = long_at(job + PACKED) + (start * slabs + s * count) * SLAB_PITCH
        out, rows = long_at(job + OUT) + 4 * (s * SLAB * n + t * LANES), min(SLAB, m - s * SLAB)
        for i in range(tiles):
            width = min(LANES, n - (t + i) * LANES)
            tile, to = values + i * count * VECTOR_BYTES, out + i * VECTOR_BYTES
            multiply_slab(slab, tile, count, to, 4 * n, start > 0, rows, width, block)


# --- the loops around both ---


@inlined
def _multiply(job: int, t: int, tiles: int, start: int, count: int, values: int) -> None:
    """Adds the products of `count` columns of x from `start` on with unpacked tiles, each [count, LANES]; count is even."""
    if _MANY_REGISTERS:
        _multiply_slabs(job, t, tiles, start, count, values)
    else:
        _multiply_rows(job, t, tiles, start, count, values)


@inlined
def run_matmul(
    job: int, first: int, last: int, decode: Any, even: Any, header: int, part_bytes: int, parts: int, block: int
) -> None:
    """For groups of `parts` parts of `block` elements, which `decode(group, part, values)` unpacks; a task's part is a tile."""
    n, k = long_at(job + N), long_at(job + K)
    values, room, size = take_work(job), block_memory(), header + parts * part_bytes
    # Loops of steps that are no constants are written out: a range would have to raise an error for a step of 0.
    t = first
    while t < last:
        tiles = min(TILES_AT_ONCE, last - t)
        for start in range(0, k, DEEP):
            count = min(DEEP, k - start)
            for i in range(tiles):
                row = (t + i) * LANES
                w, stride = long_at(job + W) + row * (k // (parts * block) * size), min(LANES, n - row)
                for b in range(count // block):
                    group, part = divmod(start // block + b, parts)
                    to = values + (i * count + b * block) * VECTOR_BYTES
                    unpack_part(w + group * size * stride, part, stride, room, to, decode, even, part_bytes)
            _multiply(job, t, tiles, start, count, values)
        t += tiles
    give_work(job, values)
