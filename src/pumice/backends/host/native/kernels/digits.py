"""Rows of x as matmuls with packed weights read them: in fixed point where the processor has dot products of bytes.

Codes of weights are whole numbers of few bits, so a dot product with whole numbers is exact, and four of them are one
instruction's work for each lane. Each 32 numbers of x become whole numbers of 24 bits, times a power of two that the greatest
of them sets, and these become three digits of base 256. What is lost is at most 2**-23 of the greatest number, which is about
what sums in float32 lose. Fast matmuls have one digit: x is rounded to whole multiples of 1/127 of the greatest number.
Infinities and NaN make a result NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    LEVEL,
    band,
    bits_of,
    bxor,
    everywhere,
    float_of_bits,
    half_sum,
    half_total,
    load_f32,
    long_at,
    minus,
    most_of,
    nearest,
    over,
    scaled,
    set_float,
    set_int,
    shift_right,
    store_bytes,
    store_f32,
    to_floats,
    to_whole,
    whole_everywhere,
    whole_plus,
)
from pumice.backends.host.native.kernels.tiled import KNOWN, K, X, pitch_of
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import ROW_HEADER

_F32, _I32 = np.float32, np.int32
# Digits of x in exact matmuls.
EXACT_DIGITS = 3
# Added to a number so that its two lower digits, from -128 to 127, become bytes.
_CARRY = _I32(0x8080)
_BLOCK_BYTES = 128
_INFINITE = 255
# Added to the bits of the greatest number to have the exponent of one whose digits do not suffice for the next.
_TOP_CARRY = _I32(0x10100)
# The smallest exponent for which the factors are normal numbers.
_LEAST_EXPONENT = 24
# The largest whole number of fast matmuls; a factor that is no normal number counts as 0.
_MOST_FAST, _LEAST_FACTOR = _F32(127), _F32(2.0**-126)
# Rows with a number from 2**95 on are taken as so many times smaller: sums of products with codes, before scales make them
# smaller, would be infinite. What is lost of other numbers of such a row is beyond the precision of its sums.
_LARGE_BITS = _I32((127 + 95) << 23)
_LARGE_FACTOR = _F32(2.0**32)
# Rows of which all numbers are small are taken as so many times larger: their factors would not be normal numbers.
_SMALL_BITS = _I32((127 - 64) << 23)
_SMALL_FACTOR = _F32(2.0**-62)

HAS_DIGITS = LEVEL.byte_dots != "none"


# --- what is known of a row of x, and where: its factor, sums of 16, factors of 32, sums of 16 by digits, x itself without
# the row's factor, and digits ---


@inlined
def sums_of(known: int) -> int:
    return known + ROW_HEADER


@inlined
def factors_of(known: int, k: int) -> int:
    return known + ROW_HEADER + k // 4


@inlined
def digit_sums_of(known: int, k: int) -> int:
    return known + ROW_HEADER + k // 4 + k // 8


@inlined
def floats_of(known: int, k: int) -> int:
    return known + ROW_HEADER + k // 4 + k // 8 + k // 2


@inlined
def digits_of(known: int, k: int) -> int:
    return floats_of(known, k) + 4 * k


@inlined
def _begin_row(x: int, known: int, k: int, exact: bool) -> Any:
    """Stores the factor of a row, and gives what x is multiplied by to be without it."""
    most = _I32(0)
    for b in range(k // 32):
        most = max(most, most_of(band(bits_of(load_f32(x + _BLOCK_BYTES * b)), _I32(0x7FFFFFFF))))
    factor = _F32(1)
    if most >= _LARGE_BITS:
        factor = _LARGE_FACTOR
    elif exact and most < _SMALL_BITS:
        factor = _SMALL_FACTOR
    set_float(known, factor)
    return _F32(1) / factor


@inlined
def _store_values(values: Any, b: int, known: int, k: int) -> None:
    for i in range(2):
        set_float(sums_of(known) + 8 * b + 4 * i, half_sum(values, i))
    store_f32(floats_of(known, k) + _BLOCK_BYTES * b, values)


def prepare_row(job: int, first: int, last: int) -> None:
    """What exact matmuls of few rows need of each of them; a part is a row."""
    k = long_at(job + K)
    for row in range(first, last):
        x, known = long_at(job + X) + 4 * row * k, long_at(job + KNOWN) + row * pitch_of(k)
        scale = _begin_row(x, known, k, True)
        for b in range(k // 32):
            values = scaled(load_f32(x + _BLOCK_BYTES * b), scale)
            _store_values(values, b, known, k)
            if HAS_DIGITS:
                _split(values, b, known, k)


def prepare_row_fast(job: int, first: int, last: int) -> None:
    """The same for fast matmuls, with x rounded."""
    k = long_at(job + K)
    for row in range(first, last):
        x, known = long_at(job + X) + 4 * row * k, long_at(job + KNOWN) + row * pitch_of(k)
        scale = _begin_row(x, known, k, False)
        for b in range(k // 32):
            _round(scaled(load_f32(x + _BLOCK_BYTES * b), scale), b, known, k)


@inlined
def _round(values: Any, b: int, known: int, k: int) -> None:
    """A block as whole numbers from -127 to 127 times a factor."""
    most = most_of(band(bits_of(values), _I32(0x7FFFFFFF)))
    step = float_of_bits(most) / _MOST_FAST
    is_zero = step < _LEAST_FACTOR
    whole = to_whole(nearest(scaled(over(values, everywhere(_F32(1) if is_zero else step)), _F32(0) if is_zero else _F32(1))))
    factor = _F32(np.nan) if most >> 23 == _INFINITE else _F32(0) if is_zero else step
    set_float(factors_of(known, k) + 4 * b, factor)
    _store_values(scaled(to_floats(whole), factor), b, known, k)
    for upper in range(2):
        total = half_total(whole, upper)
        set_int(digit_sums_of(known, k) + 16 * b + 8 * upper, total)
        set_float(sums_of(known) + 8 * b + 4 * upper, _F32(total) * factor)
    store_bytes(digits_of(known, k) + 32 * b, whole)


@inlined
def _split(values: Any, b: int, known: int, k: int) -> None:
    """Digits of a block, least first, their sums, and the factor that leads back."""
    most = most_of(band(bits_of(values), _I32(0x7FFFFFFF)))
    used = max((most + _TOP_CARRY) >> 23, _I32(_LEAST_EXPONENT))
    whole = to_whole(nearest(scaled(values, float_of_bits(_I32((276 - used) << 23)))))
    factor = float_of_bits(_I32((used - 22) << 23)) if most >> 23 < _INFINITE else _F32(np.nan)
    set_float(factors_of(known, k) + 4 * b, factor)
    # The two lower digits are summed together: low is what they make of the number, and the upper one what is left.
    carried = whole_plus(whole, whole_everywhere(_CARRY))
    low = minus(band(carried, _I32(0xFFFF)), _CARRY)
    for upper in range(2):
        at = digit_sums_of(known, k) + 16 * b + 8 * upper
        set_int(at, half_total(low, upper))
        set_int(at + 4, half_total(_shift_signed(carried), upper))
    at = digits_of(known, k) + EXACT_DIGITS * 32 * b
    store_bytes(at, bxor(carried, _I32(128)))
    store_bytes(at + 32, bxor(shift_right(carried, _I32(8)), _I32(128)))
    store_bytes(at + 64, shift_right(carried, _I32(16)))


@inlined
def _shift_signed(a: Any) -> Any:
    """Divided by 65536, rounded down."""
    return minus(bxor(shift_right(a, _I32(16)), _I32(0x8000)), _I32(0x8000))
