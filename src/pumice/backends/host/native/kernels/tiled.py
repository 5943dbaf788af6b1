"""Numba kernels over packed weights in tiles of 32 rows, byte-transposed: one lane of a vector per row of the weight.

Every kernel does the tiles first…last-1 of the task whose words are at the address `job`; formats.py has them by format.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    block_memory,
    copy_bytes,
    copy_short,
    float_at,
    int_at,
    long_at,
    scaled,
    set_float,
    set_int,
    store_f32,
    turn_bytes,
    turn_words,
    zeros,
)
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES, bytes_known

_F32, _I32 = np.float32, np.int32
# The words of a task: addresses of x [M, K], of the tiles, of out [M, N] and of what is known of a single row, then the sizes.
# For few rows there is another one: whether a task for another weight and the same x follows, whose tiles come after these.
X, W, OUT, KNOWN, M, K, N, MORE = (8 * i for i in range(8))
# For many rows, the last word is the address of slabs of x instead.
PACKED = MORE
_TASK_BYTES = 64
# Bytes from what is known of one row of x to the next.
pitch_of = inlined(bytes_known)


@inlined
def unpack_part(w: int, part: int, stride: int, room: int, values: int, decode: Any, even: Any, part_bytes: int) -> None:
    """The values of a part of all rows of a tile, [elements, LANES] float32, by `decode(group, part, values)`."""
    group, own = w, w + part * part_bytes * LANES
    if stride < LANES:
        even(w, part, stride, room)
        group = own = room
    decode(group, own, values)


@inlined
def _finish(out: int, count: int, total: Any) -> None:
    """Writes the first `count` lanes."""
    if count == LANES:
        store_f32(out, total)
        return
    lanes = block_memory()
    store_f32(lanes, total)
    for r in range(count):
        set_float(out + 4 * r, float_at(lanes + 4 * r))


@inlined
def run_matvec(
    job: int, first: int, last: int, dot: Any, even: Any, header: int, part_bytes: int, parts: int, block: int
) -> None:
    """Few rows of x; `dot(known, k, b, group, part, total)` adds the products of a row's elements with a part of a tile.

    Groups have `parts` parts of `block` elements; `even` is that of evening.py. A tile is read again for each row, from a cache:
    sums of several rows at once would not stay in registers.
    """
    n, k, m, skipped, room = long_at(job + N), long_at(job + K), long_at(job + M), 0, block_memory()
    size = header + parts * part_bytes
    for t in range(first, last):
        while (t - skipped) * LANES >= n:
            skipped += (n + LANES - 1) // LANES
            job += _TASK_BYTES
            n = long_at(job + N)
        row = (t - skipped) * LANES
        stride, known = min(LANES, n - row), long_at(job + KNOWN)
        for r in range(m):
            w, total = long_at(job + W) + row * (k // (parts * block) * size), zeros()
            for g in range(k // (parts * block)):
                for p in range(parts):
                    group, part = w, w + p * part_bytes * LANES
                    if stride < LANES:
                        even(w, p, stride, room)
                        group = part = room
                    total = dot(known, k, g * parts + p, group, part, total)
                w += size * stride
            _finish(long_at(job + OUT) + 4 * (r * n + row), stride, scaled(total, float_at(known)))
            known += pitch_of(k)


@inlined
def run_unpack(job: int, first: int, last: int, decode: Any, even: Any, block: int, size: int) -> None:
    """Weights of a format without groups."""
    n, k, values, room = long_at(job + N), long_at(job + K), block_memory(), block_memory()
    for t in range(first, last):
        row = t * LANES
        stride = min(LANES, n - row)
        w, out = long_at(job + W) + row * (k // block * size), long_at(job + OUT) + 4 * row * k
        for b in range(k // block):
            unpack_part(w, 0, stride, room, values, decode, even, size)
            w += size * stride
            for r in range(stride):
                to, lane = out + 4 * (r * k + b * block), values + 4 * r
                for j in range(block):
                    set_float(to + 4 * j, float_at(lane + j * VECTOR_BYTES))


# --- packing: a part is a tile ---

# The words after the sizes are the address of the sections of a group, (start, stop, unit) each, their number, the bytes of a
# group, and which of its bytes have single bits that are dealt, -1 for none.
ROWS_SOURCE, ROWS_TILES, ROWS_BYTES, ROWS_COUNT, ROWS_SECTIONS, ROWS_SECTION_COUNT, ROWS_GROUP, ROWS_BITS = (
    8 * i for i in range(8)
)


@inlined
def _every_fourth(bits: int) -> int:
    """Bits 0, 4, 8, … of 32 side by side."""
    found = bits & 0x11111111
    found = (found | (found >> 3)) & 0x03030303
    found = (found | (found >> 6)) & 0x000F000F
    return (found | (found >> 12)) & 0xFF


@inlined
def _dealt(bits: int) -> int:
    """Bit 4 j + i as bit j of byte i."""
    found = 0
    for i in range(4):
        found |= _every_fourth(bits >> i) << (8 * i)
    return found


@inlined
def _copy_group(source: int, size: int, width: int, to: int, sections: int, count: int) -> None:
    """The bytes of a group of `width` rows, `size` apart."""
    for _ in range(count):
        start, stop, unit = long_at(sections), long_at(sections + 8), long_at(sections + 16)
        sections += 24
        if unit == 1 and width == LANES and stop - start >= 16:
            # 16 bytes at a time; the last 16 may be some of those before again.
            for at in range(start, stop, 16):
                begin = min(at, stop - 16)
                turn_bytes(source + begin, size, to + begin * LANES)
                turn_bytes(source + begin + 16 * size, size, to + begin * LANES + 16)
            continue
        if unit == 4 and width == LANES and stop - start >= 16:
            for begin in range(start, stop, 16):
                at = min(begin, stop - 16)
                turn_words(source + at, size, to + at * LANES)
                turn_words(source + at + 16 * size, size, to + at * LANES + 64)
            continue
        for r in range(width):
            at, place = source + r * size + start, to + start * width + r * unit
            if unit == 4:
                for _word in range(start, stop, 4):
                    set_int(place, int_at(at))
                    at += 4
                    place += 4 * width
            elif unit == 2:
                for _half in range(start, stop, 2):
                    copy_short(place, at)
                    at += 2
                    place += 2 * width
            else:
                for _byte in range(start, stop):
                    copy_bytes(place, at, 1)
                    at += 1
                    place += width


def interleave_rows(job: int, first: int, last: int) -> None:
    """Rows in their own order become tiles."""
    size, count, group = long_at(job + ROWS_BYTES), long_at(job + ROWS_COUNT), long_at(job + ROWS_GROUP)
    sections, number, bits = long_at(job + ROWS_SECTIONS), long_at(job + ROWS_SECTION_COUNT), long_at(job + ROWS_BITS)
    for t in range(first, last):
        row = t * LANES
        rows, to = long_at(job + ROWS_SOURCE) + row * size, long_at(job + ROWS_TILES) + row * size
        width = min(LANES, count - row)
        for g in range(size // group if group else 0):
            _copy_group(rows + g * group, size, width, to, sections, number)
            for r in range(width if bits >= 0 else 0):
                at = to + bits * width + 4 * r
                set_int(at, np.int32(_dealt(int_at(at) & 0xFFFFFFFF)))
            to += group * width
