"""Numba kernels over packed weights in tiles of 32 rows, byte-transposed: one lane of a vector per row of the weight.

Every kernel does the tiles first…last-1 of the task whose words lie at the address `job`; formats.py has them by format.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
import numpy as np

from pumice.backends.host.lanes import (
    LANES,
    allocate,
    band,
    block_memory,
    bor,
    copy_bytes,
    everywhere,
    float_at,
    load_f32,
    load_i8,
    load_split_half,
    load_u8,
    long_at,
    madd,
    madd_scalar,
    minus,
    plus,
    prefetch,
    release,
    scaled,
    set_float,
    shift_left,
    shift_right,
    store_f32,
    times,
    to_floats,
    zeros,
)

_F32, _I32 = np.float32, np.int32
# The words of a task: addresses of x [M, K], of the tiles, of out [M, N] and of the sums over each 16 of x, then the sizes.
X, W, OUT, SUMS, M, K, N = (8 * i for i in range(7))
# Bytes between what is computed and what is fetched: enough for memory to answer, few enough to stay in the first cache.
_AHEAD = 4096
_VECTOR = 4 * LANES
# Values that are kept unpacked while all rows of x pass over them (256 KiB, which the second cache holds), at most so many of
# one row; and the rows of x that pass together, which the first cache holds.
_UNPACKED, _MOST_DEPTH, _ROWS_AT_A_TIME = 1 << 16, 2048, 16
# With 32 registers of 512 bits, eight rows of x at once keep both multipliers busy; elsewhere they would not fit.
_settings: Any = numba.config  # its fields are made at run time
_MANY_REGISTERS = "+avx512f" in (_settings.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten())
_inlined = numba.njit(forceinline=True, error_model="numpy")


@_inlined
def _half(w: int, stride: int, byte: int) -> Any:
    return load_split_half(w + byte * stride, w + (byte + 1) * stride)


@_inlined
def _fetch(w: int, size: int) -> None:
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
def _sum32(sums: int, block: int) -> Any:
    return float_at(sums + 8 * block) + float_at(sums + 8 * block + 4)


@_inlined
def dot_q4_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 32):
        _fetch(w, 18 * stride)
        # The codes are 8 too large: that is 8 times the sum of x too much.
        dot = _dot_nibbles(x + 128 * b, w + 2 * stride, stride, _F32(-8) * _sum32(sums, b))
        total = madd(_half(w, stride, 0), dot, total)
        w += 18 * stride
    return total


@_inlined
def dot_q4_1(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for b in range(k // 32):
        _fetch(w, 20 * stride)
        dot = _dot_nibbles(x + 128 * b, w + 4 * stride, stride, _F32(0))
        total = madd(_half(w, stride, 0), dot, total)
        total = madd_scalar(_half(w, stride, 2), _sum32(sums, b), total)
        w += 20 * stride
    return total


@_inlined
def dot_q8_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total = zeros()
    for _ in range(k // 32):
        _fetch(w, 34 * stride)
        even, odd = zeros(), zeros()
        for j in range(0, 32, 2):
            even = madd_scalar(to_floats(load_i8(w + (2 + j) * stride)), float_at(x + 4 * j), even)
            odd = madd_scalar(to_floats(load_i8(w + (3 + j) * stride)), float_at(x + 4 * j + 4), odd)
        total = madd(_half(w, stride, 0), plus(even, odd), total)
        w += 34 * stride
        x += 128
    return total


@_inlined
def _six_bits(w: int, stride: int, part: int, least: bool) -> Any:
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
            _fetch(codes, 36 * stride)
            low, high = zeros(), zeros()
            for j in range(32):
                c = load_u8(codes + j * stride)
                low = madd_scalar(to_floats(band(c, _I32(15))), float_at(x + 4 * j), low)
                high = madd_scalar(to_floats(shift_right(c, _I32(4))), float_at(x + 4 * j + 128), high)
            part = 2 * pair
            whole = madd(to_floats(_six_bits(w, stride, part, False)), low, whole)
            whole = madd(to_floats(_six_bits(w, stride, part + 1, False)), high, whole)
            at = 8 * b + part
            least = madd_scalar(to_floats(_six_bits(w, stride, part, True)), _sum32(sums, at), least)
            least = madd_scalar(to_floats(_six_bits(w, stride, part + 1, True)), _sum32(sums, at + 1), least)
            x += 256
        total = madd(_half(w, stride, 0), whole, total)
        total = madd(scaled(_half(w, stride, 2), _F32(-1)), least, total)
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
            _fetch(w + run * 26 * stride, 27 * stride)
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
        total = madd(_half(w, stride, 208), whole, total)
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
    _decode_q4(w + 2 * stride, stride, values, _half(w, stride, 0), zeros(), _I32(8))


@_inlined
def decode_q4_1(w: int, stride: int, values: int) -> None:
    _decode_q4(w + 4 * stride, stride, values, _half(w, stride, 0), _half(w, stride, 2), _I32(0))


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
    _decode_q5(w + 2 * stride, stride, values, _half(w, stride, 0), zeros(), _I32(16))


@_inlined
def decode_q5_1(w: int, stride: int, values: int) -> None:
    _decode_q5(w + 4 * stride, stride, values, _half(w, stride, 0), _half(w, stride, 2), _I32(0))


@_inlined
def decode_q8_0(w: int, stride: int, values: int) -> None:
    scale = _half(w, stride, 0)
    for j in range(32):
        _put(values, j, load_i8(w + (2 + j) * stride), scale, zeros())


@_inlined
def _decode_parts(w: int, stride: int, values: int, codes: int, fifth: int) -> None:
    """q4_k and q5_k: nibbles from byte `codes` on, fifth bits from byte `fifth` on, if that is not 0."""
    scale, least = _half(w, stride, 0), scaled(_half(w, stride, 2), _F32(-1))
    for part in range(8):
        step = times(scale, to_floats(_six_bits(w, stride, part, False)))
        low = times(least, to_floats(_six_bits(w, stride, part, True)))
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
    scale = _half(w, stride, 208)
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
    n, k = long_at(job + N), long_at(job + K)
    for t in range(first, last):
        row = t * LANES
        stride = min(LANES, n - row)
        total = dot(long_at(job + X), long_at(job + SUMS), long_at(job + W) + row * row_bytes, stride, k)
        _finish(long_at(job + OUT) + 4 * row, stride, total)


@_inlined
def _begin(to: int, more: bool) -> Any:
    return load_f32(to) if more else zeros()


@_inlined
def _add_eight(x: int, row: int, values: int, count: int, to: int, pitch: int, more: bool) -> None:
    x4, to4 = x + 4 * row, to + 4 * pitch
    t0, t1, t2, t3 = _begin(to, more), _begin(to + pitch, more), _begin(to + 2 * pitch, more), _begin(to + 3 * pitch, more)
    t4, t5, t6, t7 = _begin(to4, more), _begin(to4 + pitch, more), _begin(to4 + 2 * pitch, more), _begin(to4 + 3 * pitch, more)
    for j in range(0, 4 * count, 4):
        v = load_f32(values + j * LANES)
        t0 = madd_scalar(v, float_at(x + j), t0)
        t1 = madd_scalar(v, float_at(x + row + j), t1)
        t2 = madd_scalar(v, float_at(x + 2 * row + j), t2)
        t3 = madd_scalar(v, float_at(x + 3 * row + j), t3)
        t4 = madd_scalar(v, float_at(x4 + j), t4)
        t5 = madd_scalar(v, float_at(x4 + row + j), t5)
        t6 = madd_scalar(v, float_at(x4 + 2 * row + j), t6)
        t7 = madd_scalar(v, float_at(x4 + 3 * row + j), t7)
    store_f32(to, t0)
    store_f32(to + pitch, t1)
    store_f32(to + 2 * pitch, t2)
    store_f32(to + 3 * pitch, t3)
    store_f32(to4, t4)
    store_f32(to4 + pitch, t5)
    store_f32(to4 + 2 * pitch, t6)
    store_f32(to4 + 3 * pitch, t7)


@_inlined
def _add_two(x: int, row: int, values: int, count: int, to: int, pitch: int, more: bool) -> None:
    t0, t1 = _begin(to, more), _begin(to + pitch, more)
    for j in range(0, 4 * count, 4):
        v = load_f32(values + j * LANES)
        t0 = madd_scalar(v, float_at(x + j), t0)
        t1 = madd_scalar(v, float_at(x + row + j), t1)
    store_f32(to, t0)
    store_f32(to + pitch, t1)


@_inlined
def _add_one(x: int, values: int, count: int, to: int, more: bool) -> None:
    even, odd = _begin(to, more), zeros()
    for j in range(0, 4 * count, 8):
        even = madd_scalar(load_f32(values + j * LANES), float_at(x + j), even)
        odd = madd_scalar(load_f32(values + j * LANES + _VECTOR), float_at(x + j + 4), odd)
    store_f32(to, plus(even, odd))


@_inlined
def _add_rows(x: int, row: int, m: int, values: int, count: int, to: int, pitch: int, more: bool) -> None:
    """to [m, LANES] = x [m, count] times values [count, LANES], plus what is there if there is `more`.

    `row` and `pitch` are the bytes from one row of x and of the result to the next.
    """
    r = 0
    if _MANY_REGISTERS:
        while r + 8 <= m:
            _add_eight(x + r * row, row, values, count, to + r * pitch, pitch, more)
            r += 8
    while r + 2 <= m:
        _add_two(x + r * row, row, values, count, to + r * pitch, pitch, more)
        r += 2
    if r < m:
        _add_one(x + r * row, values, count, to + r * pitch, more)


@_inlined
def _add_narrow(x: int, row: int, m: int, values: int, count: int, to: int, pitch: int, more: bool, width: int) -> None:
    """The same for a last tile of fewer than LANES rows, by way of a vector that may be written as a whole."""
    lanes = block_memory()
    for r in range(m):
        copy_bytes(lanes, to + r * pitch, 4 * width)
        _add_one(x + r * row, values, count, lanes, more)
        copy_bytes(to + r * pitch, lanes, 4 * width)


@_inlined
def _multiply(job: int, t: int, tiles: int, start: int, count: int, values: int, depth: int) -> None:
    """Adds the products of `count` columns of x from `start` on with unpacked tiles, each [depth, LANES]."""
    m, n, k = long_at(job + M), long_at(job + N), long_at(job + K)
    for r in range(0, m, _ROWS_AT_A_TIME):
        rows = min(_ROWS_AT_A_TIME, m - r)
        x = long_at(job + X) + 4 * (r * k + start)
        for i in range(tiles):
            at, to = values + i * depth * _VECTOR, long_at(job + OUT) + 4 * (r * n + (t + i) * LANES)
            width = min(LANES, n - (t + i) * LANES)
            if width == LANES:
                _add_rows(x, 4 * k, rows, at, count, to, 4 * n, start > 0)
            else:
                _add_narrow(x, 4 * k, rows, at, count, to, 4 * n, start > 0, width)


@_inlined
def run_matmul(job: int, first: int, last: int, decode: Any, block: int, size: int) -> None:
    """A few tiles are unpacked at a time; then all rows of x pass over them, some at a time that stay in registers."""
    n, k = long_at(job + N), long_at(job + K)
    depth = min(k, _MOST_DEPTH)
    step = min(last - first, max(1, _UNPACKED // (depth * LANES)))
    memory = allocate((step * depth + 1) * _VECTOR)
    values = (memory + _VECTOR - 1) // _VECTOR * _VECTOR  # vectors across cache lines load at half speed
    # Loops of steps that are no constants are written out: a range would have to raise an error for a step of 0.
    t = first
    while t < last:
        tiles, start = min(step, last - t), 0
        while start < k:
            count = min(depth, k - start)
            for i in range(tiles):
                row = (t + i) * LANES
                stride = min(LANES, n - row)
                w = long_at(job + W) + row * (k // block * size) + start // block * size * stride
                for b in range(count // block):
                    _fetch(w, size * stride)
                    decode(w, stride, values + (i * depth + b * block) * _VECTOR)
                    w += size * stride
            _multiply(job, t, tiles, start, count, values, depth)
            start += count
        t += tiles
    release(memory)


@_inlined
def run_groups(job: int, first: int, last: int, decode: Any, part: int, group: int, size: int) -> None:
    """The same for groups of any length, which `decode(w, inside, stride, values)` unpacks a part at a time."""
    n, k = long_at(job + N), long_at(job + K)
    depth = min(k, _MOST_DEPTH)
    step = min(last - first, max(1, _UNPACKED // (depth * LANES)))
    memory = allocate((step * depth + 1) * _VECTOR)
    values = (memory + _VECTOR - 1) // _VECTOR * _VECTOR
    t = first
    while t < last:
        tiles, start = min(step, last - t), 0
        while start < k:
            count = min(depth, k - start)
            for i in range(tiles):
                row = (t + i) * LANES
                stride = min(LANES, n - row)
                tile = long_at(job + W) + row * (k // group * size)
                for b in range(count // part):
                    at = start + b * part
                    decode(tile + at // group * size * stride, at % group, stride, values + (i * depth + b * part) * _VECTOR)
            _multiply(job, t, tiles, start, count, values, depth)
            start += count
        t += tiles
    release(memory)


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
