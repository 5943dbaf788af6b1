"""Products of packed weights with one row of x in fixed point, by the processor's dot products of bytes.

Codes of weights are whole numbers of few bits, so a product with whole numbers is exact, and four of them are one instruction's
work for each lane. Each 32 numbers of x become whole numbers of 31 bits, times a power of two that the greatest of them sets,
and these become four digits of base 256. That keeps more of x than the sums of a float32 product do: what is lost is 2**-31 of
the greatest number. Infinities and NaN make a product NaN.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pumice.backends.host.lanes import (
    HAS_BYTE_DOTS,
    add_byte_dots,
    band,
    bits_of,
    bor,
    bxor,
    float_at,
    float_of_bits,
    half_total,
    int_at,
    load_f32,
    load_i8,
    load_quads,
    long_at,
    madd,
    madd_scalar,
    minus,
    most_of,
    nearest,
    scaled,
    set_float,
    set_int,
    shift_left,
    shift_right,
    store_bytes,
    to_floats,
    to_whole,
    whole_everywhere,
    whole_plus,
    zeros,
)
from pumice.backends.host.tiled import SUMS, K, X, fetch, half_at, six_bits, sum32

_F32, _I32 = np.float32, np.int32
_NIBBLES = _I32(0x0F0F0F0F)
# Added to a number so that its three lower digits, from -128 to 127, become bytes; and to the two lowest only.
_CARRY, _LOW_CARRY = _I32(0x808080), _I32(0x8080)
_BLOCK_BYTES = 128
_INFINITE = 255
# The smallest exponent for which the factors are normal numbers.
_LEAST_EXPONENT = 30

_inlined = numba.njit(forceinline=True, error_model="numpy")


# --- what is known of a row of x, and where: sums of 16, factors of 32, sums of 16 by digits, digits ---


@_inlined
def _factors(sums: int, k: int) -> int:
    return sums + k // 4


@_inlined
def _digit_sums(sums: int, k: int) -> int:
    return sums + k // 4 + k // 8


@_inlined
def _digits(sums: int, k: int) -> int:
    return sums + k // 4 + k // 8 + k // 2


def sums_f32(job: int, first: int, last: int) -> None:
    """What products need to know of one row of x: its sums over each 16 elements and, for dot products of bytes, its digits."""
    x, sums, k = long_at(job + X), long_at(job + SUMS), long_at(job + K)
    for i in range(k // 16):
        total = _F32(0)
        for j in range(16):
            total += float_at(x + 64 * i + 4 * j)
        set_float(sums + 4 * i, total)
    if HAS_BYTE_DOTS:
        for b in range(k // 32):
            _split(load_f32(x + _BLOCK_BYTES * b), b, sums, k)


@_inlined
def _split(values: Any, b: int, sums: int, k: int) -> None:
    """Digits of a block, least first, their sums, and the factor that leads back."""
    exponent = most_of(band(bits_of(values), _I32(0x7FFFFFFF))) >> 23
    used = max(exponent, _I32(_LEAST_EXPONENT))
    whole = to_whole(nearest(scaled(values, float_of_bits(_I32((283 - used) << 23)))))
    factor = float_of_bits(_I32((used - 29) << 23)) if exponent < _INFINITE else _F32(np.nan)
    set_float(_factors(sums, k) + 4 * b, factor)
    # Two digits at a time are summed: low is what they make of the number, high what is left.
    low = minus(band(whole_plus(whole, whole_everywhere(_LOW_CARRY)), _I32(0xFFFF)), _LOW_CARRY)
    high = whole_plus(whole, whole_everywhere(_LOW_CARRY))
    for upper in range(2):
        at = _digit_sums(sums, k) + 16 * b + 8 * upper
        set_int(at, half_total(low, upper))
        set_int(at + 4, half_total(_shift_signed(high), upper))
    carried, at = whole_plus(whole, whole_everywhere(_CARRY)), _digits(sums, k) + _BLOCK_BYTES * b
    store_bytes(at, bxor(carried, _I32(128)))
    store_bytes(at + 32, bxor(shift_right(carried, _I32(8)), _I32(128)))
    store_bytes(at + 64, bxor(shift_right(carried, _I32(16)), _I32(128)))
    store_bytes(at + 96, shift_right(carried, _I32(24)))


@_inlined
def _shift_signed(a: Any) -> Any:
    """Divided by 65536, rounded down."""
    return minus(bxor(shift_right(a, _I32(16)), _I32(0x8000)), _I32(0x8000))


# --- the products ---


@_inlined
def _begin(zero: Any, low: Any, high: Any) -> Any:
    """Totals by digits; `zero`, which codes are too large by, times the sums of x is taken away from the even ones."""
    nothing = whole_everywhere(_I32(0))
    return whole_everywhere(_I32(-zero * low)), nothing, whole_everywhere(_I32(-zero * high)), nothing


@_inlined
def _begin_block(zero: Any, sums: int) -> Any:
    return _begin(zero, int_at(sums) + int_at(sums + 8), int_at(sums + 4) + int_at(sums + 12))


@_inlined
def _add(totals: Any, codes: Any, x: int) -> Any:
    """More of the totals: four codes for each lane times four numbers of x."""
    t0, t1, t2, t3 = totals
    t0, t1 = add_byte_dots(t0, codes, int_at(x)), add_byte_dots(t1, codes, int_at(x + 32))
    return t0, t1, add_byte_dots(t2, codes, int_at(x + 64)), add_byte_dots(t3, codes, int_at(x + 96))


@_inlined
def _value(totals: Any, factor: Any) -> Any:
    t0, t1, t2, t3 = totals
    low, high = whole_plus(t0, shift_left(t1, _I32(8))), whole_plus(t2, shift_left(t3, _I32(8)))
    return scaled(madd_scalar(to_floats(high), _F32(65536), to_floats(low)), factor)


@_inlined
def _add_nibbles(totals: Any, x: int, w: int, stride: int) -> Any:
    """32 codes in 16 bytes, low nibbles first."""
    for j in range(0, 16, 4):
        codes = load_quads(w + j * stride, stride)
        totals = _add(totals, band(codes, _NIBBLES), x + j)
        totals = _add(totals, band(shift_right(codes, _I32(4)), _NIBBLES), x + j + 16)
    return totals


@_inlined
def fixed_q4_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total, digits, factors, offsets = zeros(), _digits(sums, k), _factors(sums, k), _digit_sums(sums, k)
    for b in range(k // 32):
        fetch(w, 18 * stride)
        totals = _begin_block(_I32(8), offsets + 16 * b)
        totals = _add_nibbles(totals, digits + _BLOCK_BYTES * b, w + 2 * stride, stride)
        total = madd(half_at(w, stride, 0), _value(totals, float_at(factors + 4 * b)), total)
        w += 18 * stride
    return total


@_inlined
def fixed_q4_1(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total, digits, factors = zeros(), _digits(sums, k), _factors(sums, k)
    for b in range(k // 32):
        fetch(w, 20 * stride)
        totals = _begin(_I32(0), _I32(0), _I32(0))
        totals = _add_nibbles(totals, digits + _BLOCK_BYTES * b, w + 4 * stride, stride)
        total = madd(half_at(w, stride, 0), _value(totals, float_at(factors + 4 * b)), total)
        total = madd_scalar(half_at(w, stride, 2), sum32(sums, b), total)
        w += 20 * stride
    return total


@_inlined
def fixed_q8_0(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total, digits, factors, offsets = zeros(), _digits(sums, k), _factors(sums, k), _digit_sums(sums, k)
    for b in range(k // 32):
        fetch(w, 34 * stride)
        totals = _begin_block(_I32(128), offsets + 16 * b)
        for j in range(0, 32, 4):
            # Signed bytes, each 128 larger: the instruction takes unsigned ones.
            codes = bxor(load_quads(w + (2 + j) * stride, stride), _I32(-0x7F7F7F80))
            totals = _add(totals, codes, digits + _BLOCK_BYTES * b + j)
        total = madd(half_at(w, stride, 0), _value(totals, float_at(factors + 4 * b)), total)
        w += 34 * stride
    return total


@_inlined
def fixed_q4_k(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total, digits, factors = zeros(), _digits(sums, k), _factors(sums, k)
    for b in range(k // 256):
        least = zeros()
        whole = zeros()
        for pair in range(4):
            codes, part, at = w + (16 + 32 * pair) * stride, 2 * pair, 8 * b + 2 * pair
            fetch(codes, 36 * stride)
            low, high, x = _begin(_I32(0), _I32(0), _I32(0)), _begin(_I32(0), _I32(0), _I32(0)), digits + _BLOCK_BYTES * at
            for j in range(0, 32, 4):
                c = load_quads(codes + j * stride, stride)
                low = _add(low, band(c, _NIBBLES), x + j)
                high = _add(high, band(shift_right(c, _I32(4)), _NIBBLES), x + _BLOCK_BYTES + j)
            factor = factors + 4 * at
            whole = madd(to_floats(six_bits(w, stride, part, False)), _value(low, float_at(factor)), whole)
            whole = madd(to_floats(six_bits(w, stride, part + 1, False)), _value(high, float_at(factor + 4)), whole)
            least = madd_scalar(to_floats(six_bits(w, stride, part, True)), sum32(sums, at), least)
            least = madd_scalar(to_floats(six_bits(w, stride, part + 1, True)), sum32(sums, at + 1), least)
        total = madd(half_at(w, stride, 0), whole, total)
        total = madd(scaled(half_at(w, stride, 2), _F32(-1)), least, total)
        w += 144 * stride
    return total


@_inlined
def fixed_q6_k(x: int, sums: int, w: int, stride: int, k: int) -> Any:
    total, digits, factors, offsets = zeros(), _digits(sums, k), _factors(sums, k), _digit_sums(sums, k)
    for b in range(k // 256):
        whole = zeros()
        for run in range(8):  # as in tiled.py: 16 low bytes hold two parts of 16 elements, 64 elements apart
            side, odd, second = run // 4, run % 2, run // 2 % 2
            low, high = w + (side * 64 + second * 32 + odd * 16) * stride, w + (128 + side * 32 + odd * 16) * stride
            fetch(w + run * 26 * stride, 27 * stride)
            at = b * 256 + side * 128 + second * 32 + odd * 16
            x, sum16, factor = digits + _BLOCK_BYTES * (at // 32) + 16 * odd, offsets + 8 * (at // 16), factors + 4 * (at // 32)
            first = _begin(_I32(32), int_at(sum16), int_at(sum16 + 4))
            third = _begin(_I32(32), int_at(sum16 + 32), int_at(sum16 + 36))
            for j in range(0, 16, 4):
                c, top = load_quads(low + j * stride, stride), load_quads(high + j * stride, stride)
                upper = band(shift_right(shift_left(top, _I32(4)), _I32(2 * second)), _I32(0x30303030))
                first = _add(first, bor(band(c, _NIBBLES), upper), x + j)
                upper = band(shift_right(top, _I32(2 * second)), _I32(0x30303030))
                third = _add(third, bor(band(shift_right(c, _I32(4)), _NIBBLES), upper), x + 2 * _BLOCK_BYTES + j)
            scale = w + (192 + (at // 16) % 16) * stride
            whole = madd(to_floats(load_i8(scale)), _value(first, float_at(factor)), whole)
            whole = madd(to_floats(load_i8(scale + 4 * stride)), _value(third, float_at(factor + 8)), whole)
        total = madd(half_at(w, stride, 208), whole, total)
        w += 210 * stride
    return total
