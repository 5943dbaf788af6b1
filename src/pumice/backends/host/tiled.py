"""Numba kernels over packed weights in tiles of 32 rows, byte-transposed: one lane of a vector per row of the weight.

Every kernel does the tiles first…last-1 of the task whose words lie at the address `job`; formats.py has them by format.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pumice.backends.host.lanes import (
    LANES,
    band,
    block_memory,
    bor,
    copy_bytes,
    everywhere,
    float_at,
    load_i8,
    load_split_half,
    load_u8,
    long_at,
    madd,
    madd_scalar,
    minus,
    plus,
    prefetch,
    scaled,
    set_float,
    shift_left,
    shift_right,
    store_f32,
    times,
    to_floats,
    turn_bytes,
    zeros,
)

_F32, _I32 = np.float32, np.int32
# The words of a task: addresses of x [M, K], of the tiles, of out [M, N] and of the sums over each 16 of x, then the sizes. For
# a single row there is another one: whether a task for another weight and the same x follows, whose tiles come after these.
X, W, OUT, SUMS, M, K, N, MORE = (8 * i for i in range(8))
# For more rows than one, the last word is the address of slabs of x instead.
PACKED = MORE
_TASK_BYTES = 64
# Bytes between what is computed and what is fetched: enough for memory to answer, few enough to stay in the first cache.
_AHEAD = 4096
_VECTOR = 4 * LANES
_inlined = numba.njit(forceinline=True, error_model="numpy")


@_inlined
def half_at(w: int, stride: int, byte: int) -> Any:
    return load_split_half(w + byte * stride, w + (byte + 1) * stride)


@_inlined
def fetch(w: int, size: int) -> None:
    for line in range(0, size, 64):
        prefetch(w + _AHEAD + line)


# --- one row of x: products with the codes first, scales once per block ---


@_inlined
def _dot_nibbles(x: int, w: int, stride: int, start: Any) -> Any:
    """Codes of 32 elements in 16 bytes, low nibbles first, times x."""
    low, high = everywhere(start), zeros()
    for j in range(16):
        codes = load_u8(w + j * stride)
        low = madd_scalar(to_floats(band(codes, _I32(15))), float_at(x + 4 * j), low)
        high = madd_scalar(to_floats(shift_right(codes, _I32(4))), float_at(x + 4 * j + 64), high)
    return plus(low, high)


@_inlined
def sum32(sums: int, block: int) -> Any:
    return float_at(sums + 8 * block) + float_at(sums + 8 * block + 4)


@_inlined
def dot_q4_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 32):
        fetch(w, 18 * stride)
        # The codes are 8 too large: that is 8 times the sum of x too much.
        dot = _dot_nibbles(x + 128 * b, w + 2 * stride, stride, _F32(-8) * sum32(sums, b))
        total = madd(half_at(w, stride, 0), dot, total)
        w += 18 * stride
    return total


@_inlined
def dot_q4_1(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 32):
        fetch(w, 20 * stride)
        dot = _dot_nibbles(x + 128 * b, w + 4 * stride, stride, _F32(0))
        total = madd(half_at(w, stride, 0), dot, total)
        total = madd_scalar(half_at(w, stride, 2), sum32(sums, b), total)
        w += 20 * stride
    return total


@_inlined
def dot_q8_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for _ in range(k // 32):
        fetch(w, 34 * stride)
        even, odd = zeros(), zeros()
        for j in range(0, 32, 2):
            even = madd_scalar(to_floats(load_i8(w + (2 + j) * stride)), float_at(x + 4 * j), even)
            odd = madd_scalar(to_floats(load_i8(w + (3 + j) * stride)), float_at(x + 4 * j + 4), odd)
        total = madd(half_at(w, stride, 0), plus(even, odd), total)
        w += 34 * stride
        x += 128
    return total


@_inlined
def six_bits(w: int, stride: int, part: int, least: bool) -> Any:
    """The scale of a part of a K-quant block, or its minimum, out of the twelve bytes from byte 4 on."""
    if part < 4:
        return band(load_u8(w + (part + (8 if least else 4)) * stride), _I32(63))
    low = load_u8(w + (part + 8) * stride)
    low = shift_right(low, _I32(4)) if least else band(low, _I32(15))
    return bor(low, shift_left(shift_right(load_u8(w + (part + (4 if least else 0)) * stride), _I32(6)), _I32(4)))


@_inlined
def dot_q4_k(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 256):
        least = zeros()
        whole = zeros()
        for pair in range(4):
            codes = w + (16 + 32 * pair) * stride
            fetch(codes, 36 * stride)
            low, high = zeros(), zeros()
            for j in range(32):
                c = load_u8(codes + j * stride)
                low = madd_scalar(to_floats(band(c, _I32(15))), float_at(x + 4 * j), low)
                high = madd_scalar(to_floats(shift_right(c, _I32(4))), float_at(x + 4 * j + 128), high)
            part = 2 * pair
            whole = madd(to_floats(six_bits(w, stride, part, False)), low, whole)
            whole = madd(to_floats(six_bits(w, stride, part + 1, False)), high, whole)
            at = 8 * b + part
            least = madd_scalar(to_floats(six_bits(w, stride, part, True)), sum32(sums, at), least)
            least = madd_scalar(to_floats(six_bits(w, stride, part + 1, True)), sum32(sums, at + 1), least)
            x += 256
        total = madd(half_at(w, stride, 0), whole, total)
        total = madd(scaled(half_at(w, stride, 2), _F32(-1)), least, total)
        w += 144 * stride
    return total


@_inlined
def dot_q6_k(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 256):
        whole = zeros()
        for run in range(8):  # 16 low bytes hold two parts of 16 elements, 64 elements apart
            half, odd, second = run // 4, run % 2, run // 2 % 2
            low, high = w + (half * 64 + second * 32 + odd * 16) * stride, w + (128 + half * 32 + odd * 16) * stride
            fetch(w + run * 26 * stride, 27 * stride)
            at = half * 128 + second * 32 + odd * 16
            base, group = x + 4 * at, sums + 4 * (16 * b + at // 16)
            first, third = everywhere(_F32(-32) * float_at(group)), everywhere(_F32(-32) * float_at(group + 16))
            for j in range(16):
                c, top = load_u8(low + j * stride), shift_left(load_u8(high + j * stride), _I32(4))
                upper = band(shift_right(top, _I32(2 * second)), _I32(48))
                first = madd_scalar(to_floats(bor(band(c, _I32(15)), upper)), float_at(base + 4 * j), first)
                upper = band(shift_right(top, _I32(2 * second + 4)), _I32(48))
                third = madd_scalar(to_floats(bor(shift_right(c, _I32(4)), upper)), float_at(base + 4 * j + 256), third)
            scale = w + (192 + at // 16) * stride
            whole = madd(to_floats(load_i8(scale)), first, whole)
            whole = madd(to_floats(load_i8(scale + 4 * stride)), third, whole)
        total = madd(half_at(w, stride, 208), whole, total)
        w += 210 * stride
        x += 1024
    return total


# --- any number of rows of x: the values of a block first, [elements, LANES] float32 ---


@_inlined
def _put(values: int, k: int, codes: Any, scale: Any, least: Any) -> None:
    store_f32(values + k * _VECTOR, madd(to_floats(codes), scale, least))


@_inlined
def _decode_q4(w: int, stride: int, values: int, scale: Any, least: Any, zero: Any) -> None:
    for j in range(16):
        codes = load_u8(w + j * stride)
        _put(values, j, minus(band(codes, _I32(15)), zero), scale, least)
        _put(values, j + 16, minus(shift_right(codes, _I32(4)), zero), scale, least)


@_inlined
def decode_q4_0(w: int, stride: int, values: int) -> None:
    _decode_q4(w + 2 * stride, stride, values, half_at(w, stride, 0), zeros(), _I32(8))


@_inlined
def decode_q4_1(w: int, stride: int, values: int) -> None:
    _decode_q4(w + 4 * stride, stride, values, half_at(w, stride, 0), half_at(w, stride, 2), _I32(0))


@_inlined
def _decode_q5(w: int, stride: int, values: int, scale: Any, least: Any, zero: Any) -> None:
    """Four bytes of fifth bits, then the nibbles."""
    fifth = load_u8(w)
    for j in range(1, 4):
        fifth = bor(fifth, shift_left(load_u8(w + j * stride), _I32(8 * j)))
    # The fifth bit of element j comes to its place, bit 4, by a shift to the right by j.
    early, late = shift_left(fifth, _I32(4)), shift_right(fifth, _I32(12))
    for j in range(16):
        codes, shift = load_u8(w + (4 + j) * stride), _I32(j)
        low = bor(band(codes, _I32(15)), band(shift_right(early, shift), _I32(16)))
        high = bor(shift_right(codes, _I32(4)), band(shift_right(late, shift), _I32(16)))
        _put(values, j, minus(low, zero), scale, least)
        _put(values, j + 16, minus(high, zero), scale, least)


@_inlined
def decode_q5_0(w: int, stride: int, values: int) -> None:
    _decode_q5(w + 2 * stride, stride, values, half_at(w, stride, 0), zeros(), _I32(16))


@_inlined
def decode_q5_1(w: int, stride: int, values: int) -> None:
    _decode_q5(w + 4 * stride, stride, values, half_at(w, stride, 0), half_at(w, stride, 2), _I32(0))


@_inlined
def decode_q8_0(w: int, stride: int, values: int) -> None:
    scale = half_at(w, stride, 0)
    for j in range(32):
        _put(values, j, load_i8(w + (2 + j) * stride), scale, zeros())


@_inlined
def _decode_parts(w: int, stride: int, values: int, codes: int, fifth: int) -> None:
    """q4_k and q5_k: nibbles from byte `codes` on, fifth bits from byte `fifth` on, if that is not 0."""
    scale, least = half_at(w, stride, 0), scaled(half_at(w, stride, 2), _F32(-1))
    for part in range(8):
        step = times(scale, to_floats(six_bits(w, stride, part, False)))
        low = times(least, to_floats(six_bits(w, stride, part, True)))
        at, shift = w + (codes + part // 2 * 32) * stride, _I32(part % 2 * 4)
        for j in range(32):
            code = band(shift_right(load_u8(at + j * stride), shift), _I32(15))
            if fifth:
                bits = shift_left(load_u8(w + (fifth + j) * stride), _I32(4))
                code = bor(code, band(shift_right(bits, _I32(part)), _I32(16)))
            _put(values, part * 32 + j, code, step, low)


@_inlined
def decode_q4_k(w: int, stride: int, values: int) -> None:
    _decode_parts(w, stride, values, 16, 0)


@_inlined
def decode_q5_k(w: int, stride: int, values: int) -> None:
    _decode_parts(w, stride, values, 48, 16)


@_inlined
def decode_q6_k(w: int, stride: int, values: int) -> None:
    scale = half_at(w, stride, 208)
    for part in range(16):
        half, quarter, odd = part // 8, part // 2 % 4, part % 2
        low, high = w + (half * 64 + quarter % 2 * 32 + odd * 16) * stride, w + (128 + half * 32 + odd * 16) * stride
        step = times(scale, to_floats(load_i8(w + (192 + part) * stride)))
        for j in range(16):
            code = band(shift_right(load_u8(low + j * stride), _I32(quarter // 2 * 4)), _I32(15))
            top = shift_left(load_u8(high + j * stride), _I32(4))
            code = bor(code, band(shift_right(top, _I32(2 * quarter)), _I32(48)))
            _put(values, part * 16 + j, minus(code, _I32(32)), step, zeros())


# --- the loops around them ---


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
def run_matvec(job: int, first: int, last: int, dot: Any, row_bytes: int) -> None:
    n, k, skipped = long_at(job + N), long_at(job + K), 0
    for t in range(first, last):
        while (t - skipped) * LANES >= n:
            skipped += (n + LANES - 1) // LANES
            job += _TASK_BYTES
            n = long_at(job + N)
        row = (t - skipped) * LANES
        stride = min(LANES, n - row)
        total = dot(long_at(job + X), long_at(job + SUMS), long_at(job + W) + row * row_bytes, stride, k)
        _finish(long_at(job + OUT) + 4 * row, stride, total)


@_inlined
def run_unpack(job: int, first: int, last: int, decode: Any, block: int, size: int) -> None:
    n, k, values = long_at(job + N), long_at(job + K), block_memory()
    for t in range(first, last):
        row = t * LANES
        stride = min(LANES, n - row)
        w, out = long_at(job + W) + row * (k // block * size), long_at(job + OUT) + 4 * row * k
        for b in range(k // block):
            decode(w, stride, values)
            w += size * stride
            for r in range(stride):
                to, lane = out + 4 * (r * k + b * block), values + 4 * r
                for j in range(block):
                    set_float(to + 4 * j, float_at(lane + j * _VECTOR))


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
