"""Numba kernels of matmuls with packed weights and x rounded to 8 bits, for several rows of x.

Each 32 elements of a row of x become whole numbers from -127 to 127 times a factor. A tile of 32 rows of weights becomes a panel
of bytes for DEEP elements, over which all rows of x pass while it is in the first cache; block_bytes.py has its layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from pumice.backends.host.native import levels
from pumice.backends.host.native.codegen.block_bytes import Panel, emit_rows, raises_x
from pumice.backends.host.native.codegen.lanes import (
    ADDRESS,
    band,
    bits_of,
    block_memory,
    bxor,
    copy_bytes,
    define,
    everywhere,
    float_of_bits,
    half_total,
    load_f32,
    long_at,
    most_of,
    nearest,
    scaled,
    set_float,
    store_bytes,
    store_f32,
    to_whole,
    zeros,
)
from pumice.backends.host.native.kernels.tiled import OUT, PACKED, K, M, N, W, X
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import (
    BYTE_ROWS,
    BYTE_TILES,
    CHUNK,
    CHUNK_FACTOR,
    CHUNK_PITCH,
    CHUNK_SUM,
    CHUNK_SUMS_16,
    DEEP,
    LANES,
    ROW_PITCH,
    SPARE_ROWS,
    VECTOR_BYTES,
)

_F32, _I32 = np.float32, np.int32
_LARGEST = _F32(127)
# A factor that is no normal number counts as 0.
_LEAST_FACTOR = _F32(2.0**-126)
_INFINITY_BITS = _I32(0x7F800000)
_RAISED = _I32(128 if raises_x(levels.current()) else 0)


@inlined
def _round_chunk(x: int, to: int) -> None:
    values = load_f32(x)
    most = most_of(band(bits_of(values), _I32(0x7FFFFFFF)))
    factor = float_of_bits(most) / _LARGEST
    if most >= _INFINITY_BITS:
        _put_zeros(to, _F32(np.nan))
    elif factor < _LEAST_FACTOR:
        _put_zeros(to, _F32(0))
    else:
        whole = to_whole(nearest(scaled(values, _F32(1) / factor)))
        store_bytes(to, bxor(whole, _RAISED))
        low, high = half_total(whole, 0), half_total(whole, 1)
        set_float(to + CHUNK_FACTOR, factor)
        set_float(to + CHUNK_SUM, _F32(low + high))
        set_float(to + CHUNK_SUMS_16, _F32(low))
        set_float(to + CHUNK_SUMS_16 + 4, _F32(high))


@inlined
def _round_to_floats(x: int, to: int) -> None:
    """The same as float32 numbers, for weights whose codes are no whole numbers."""
    values = load_f32(x)
    most = most_of(band(bits_of(values), _I32(0x7FFFFFFF)))
    factor = float_of_bits(most) / _LARGEST
    if most >= _INFINITY_BITS:
        store_f32(to, everywhere(_F32(np.nan)))
    elif factor < _LEAST_FACTOR:
        store_f32(to, zeros())
    else:
        store_f32(to, scaled(nearest(scaled(values, _F32(1) / factor)), factor))


def round_rows(job: int, first: int, last: int) -> None:
    """A part is a row of x."""
    k = long_at(job + K)
    for r in range(first, last):
        for at in range(4 * r * k, 4 * (r + 1) * k, 4 * CHUNK):
            _round_to_floats(long_at(job + X) + at, long_at(job + OUT) + at)


@inlined
def _put_zeros(to: int, factor: Any) -> None:
    store_bytes(to, bxor(to_whole(zeros()), _RAISED))
    set_float(to + CHUNK_FACTOR, factor)
    for at in range(CHUNK_SUM, CHUNK_PITCH, 4):
        set_float(to + at, _F32(0))


def prepare_rows_fast(job: int, first: int, last: int) -> None:
    """A part is a row of x; the SPARE_ROWS after the last one are zeros, which fill registers."""
    m, k = long_at(job + M), long_at(job + K)
    for r in range(first, last):
        for c in range(k // CHUNK):
            block, inside = c * CHUNK // DEEP, c % (DEEP // CHUNK)
            to = long_at(job + PACKED) + (block * (m + SPARE_ROWS) + r) * ROW_PITCH + inside * CHUNK_PITCH
            if r < m:
                _round_chunk(long_at(job + X) + 4 * (r * k + c * CHUNK), to)
            else:
                _put_zeros(to, _F32(0))


def _adder(panel: Panel, rows: int) -> Any:
    """A function that adds `chunks` chunks of so many rows of x, times a panel, to totals [rows, LANES]."""

    @define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS)
    def add(builder: Any, x: Any, weights: Any, chunks: Any, totals: Any) -> None:
        for lane in range(0, LANES, panel.lanes):
            places = (builder.add(at, ir.IntType(64)(4 * lane)) for at in (weights, totals))
            emit_rows(builder, panel, rows, x, next(places), chunks, next(places))

    return add


@inlined
def _clear(totals: int, rows: int) -> None:
    for r in range(rows):
        store_f32(totals + r * VECTOR_BYTES, zeros())


@inlined
def _finish(totals: int, rows: int, out: int, pitch: int, width: int) -> None:
    for r in range(rows):
        if width == LANES:
            store_f32(out + r * pitch, load_f32(totals + r * VECTOR_BYTES))
        else:
            copy_bytes(out + r * pitch, totals + r * VECTOR_BYTES, 4 * width)


def matmul_of(panel: Panel, fill: Any, group: int, size: int) -> Callable[[int, int, int], None]:
    """The kernel for weights whose groups of so many elements have so many bytes; a part is a tile.

    `fill(w, start, count, stride, to)` writes `count` elements of a tile at w, from its element `start` on, as a panel.
    """
    most, fewer = panel.rows[0], panel.rows[-1]
    add_most, add_fewer, nbytes = _adder(panel, most), _adder(panel, fewer), panel.nbytes
    tile_bytes = DEEP // CHUNK * nbytes

    def matmul(job: int, first: int, last: int) -> None:
        m, n, k, panels = long_at(job + M), long_at(job + N), long_at(job + K), take_work(job)
        pitch = (min(m, BYTE_ROWS) + SPARE_ROWS) * VECTOR_BYTES
        sums, t = panels + BYTE_TILES * tile_bytes, first
        while t < last:
            tiles = min(BYTE_TILES, last - t)
            for begin in range(0, m, BYTE_ROWS):
                high = min(BYTE_ROWS, m - begin)
                for start in range(0, k, DEEP):
                    count, x = (
                        min(DEEP, k - start),
                        long_at(job + PACKED) + (start // DEEP * (m + SPARE_ROWS) + begin) * ROW_PITCH,
                    )
                    for i in range(tiles):
                        w, stride = long_at(job + W) + (t + i) * LANES * (k // group * size), min(LANES, n - (t + i) * LANES)
                        fill(w, start, count, stride, panels + i * tile_bytes)
                    r = 0
                    while r < high:
                        step = fewer if high - r <= fewer else most
                        for i in range(tiles):
                            weights, totals = panels + i * tile_bytes, sums + i * pitch + r * VECTOR_BYTES
                            if start == 0:
                                _clear(totals, step)
                            if step == most:
                                add_most(x + r * ROW_PITCH, weights, count // CHUNK, totals)
                            else:
                                add_fewer(x + r * ROW_PITCH, weights, count // CHUNK, totals)
                        r += step
                for i in range(tiles):
                    out, width = long_at(job + OUT) + 4 * (begin * n + (t + i) * LANES), min(LANES, n - (t + i) * LANES)
                    _finish(sums + i * pitch, high, out, 4 * n, width)
            t += tiles
        give_work(job, panels)

    return matmul


def filler(emit: Any, even: Any, block: int, parts: int, part_bytes: int, size: int, nbytes: int) -> Any:
    """`fill` for groups of `parts` parts of `block` elements, of which `emit(group, part, to)` writes one at a time."""

    @inlined
    def fill(w: int, start: int, count: int, stride: int, to: int) -> None:
        room = block_memory()
        for b in range(count // block):
            group, part = divmod(start // block + b, parts)
            whole = w + group * size * stride
            own = whole + part * part_bytes * LANES
            if stride < LANES:
                even(whole, part, stride, room)
                whole = own = room
            emit(whole, own, to + b * block // CHUNK * nbytes)

    return fill
