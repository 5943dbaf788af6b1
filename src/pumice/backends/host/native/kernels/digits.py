"""One row of x as matmuls with packed weights read it: in fixed point where the processor has dot products of bytes.

Codes of weights are whole numbers of few bits, so a dot product with whole numbers is exact, and four of them are one
instruction's work for each lane. Each 32 numbers of x become whole numbers of 31 bits, times a power of two that the greatest
of them sets, and these become four digits of base 256. That keeps more of x than sums in float32 do: what is lost is 2**-31 of
the greatest number. Infinities and NaN make a result NaN.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    HAS_BYTE_DOTS,
    band,
    bits_of,
    bxor,
    float_of_bits,
    half_sum,
    half_total,
    load_f32,
    long_at,
    minus,
    most_of,
    nearest,
    scaled,
    set_float,
    set_int,
    shift_right,
    store_bytes,
    store_f32,
    to_whole,
    whole_everywhere,
    whole_plus,
)
from pumice.backends.host.native.kernels.tiled import KNOWN, K, X
from pumice.backends.host.native.sizes import ROW_HEADER

_F32, _I32 = np.float32, np.int32
# Added to a number so that its three lower digits, from -128 to 127, become bytes; and to the two lowest only.
_CARRY, _LOW_CARRY = _I32(0x808080), _I32(0x8080)
_BLOCK_BYTES = 128
_INFINITE = 255
# The smallest exponent for which the factors are normal numbers.
_LEAST_EXPONENT = 30
# Rows with a number from 2**95 on are taken as so many times smaller: sums of products with codes, before scales make them
# smaller, would be infinite. What is lost of other numbers of such a row is beyond the precision of its sums.
_LARGE_BITS = _I32((127 + 95) << 23)
_LARGE_FACTOR = _F32(2.0**32)

_inlined = numba.njit(forceinline=True, error_model="numpy")


# --- what is known of a row of x, and where: its factor, sums of 16, factors of 32, sums of 16 by digits, and digits ---


@_inlined
def sums_of(known: int) -> int:
    return known + ROW_HEADER


@_inlined
def factors_of(known: int, k: int) -> int:
    return known + ROW_HEADER + k // 4


@_inlined
def digit_sums_of(known: int, k: int) -> int:
    return known + ROW_HEADER + k // 4 + k // 8


@_inlined
def digits_of(known: int, k: int) -> int:
    """The digits, or where no dot products of bytes are used, x itself without the row's factor."""
    return known + ROW_HEADER + k // 4 + k // 8 + k // 2


@_inlined
def _scale_down(job: int) -> Any:
    """Stores the factor of a row, and gives what x is multiplied by to be without it."""
    x, k = long_at(job + X), long_at(job + K)
    most = _I32(0)
    for b in range(k // 32):
        most = max(most, most_of(band(bits_of(load_f32(x + _BLOCK_BYTES * b)), _I32(0x7FFFFFFF))))
    is_large = most >= _LARGE_BITS
    set_float(long_at(job + KNOWN), _LARGE_FACTOR if is_large else _F32(1))
    return _F32(1) / _LARGE_FACTOR if is_large else _F32(1)


@_inlined
def _store_sums(values: Any, b: int, known: int) -> None:
    for i in range(2):
        set_float(sums_of(known) + 8 * b + 4 * i, half_sum(values, i))


def row_as_floats(job: int, first: int, last: int) -> None:
    """What dot products in float32 need of one row of x: without its factor, and summed over each 16 elements."""
    x, known, k, scale = long_at(job + X), long_at(job + KNOWN), long_at(job + K), _scale_down(job)
    for b in range(k // 32):
        values = scaled(load_f32(x + _BLOCK_BYTES * b), scale)
        _store_sums(values, b, known)
        store_f32(digits_of(known, k) + _BLOCK_BYTES * b, values)


def row_as_digits(job: int, first: int, last: int) -> None:
    """What dot products of bytes need of one row of x: its digits and their factors, and the sums over each 16 elements."""
    x, known, k, scale = long_at(job + X), long_at(job + KNOWN), long_at(job + K), _scale_down(job)
    for b in range(k // 32):
        values = scaled(load_f32(x + _BLOCK_BYTES * b), scale)
        _store_sums(values, b, known)
        _split(values, b, known, k)


prepare_row = row_as_digits if HAS_BYTE_DOTS else row_as_floats


@_inlined
def _split(values: Any, b: int, known: int, k: int) -> None:
    """Digits of a block, least first, their sums, and the factor that leads back."""
    exponent = most_of(band(bits_of(values), _I32(0x7FFFFFFF))) >> 23
    used = max(exponent, _I32(_LEAST_EXPONENT))
    whole = to_whole(nearest(scaled(values, float_of_bits(_I32((283 - used) << 23)))))
    factor = float_of_bits(_I32((used - 29) << 23)) if exponent < _INFINITE else _F32(np.nan)
    set_float(factors_of(known, k) + 4 * b, factor)
    # Two digits at a time are summed: low is what they make of the number, high what is left.
    low = minus(band(whole_plus(whole, whole_everywhere(_LOW_CARRY)), _I32(0xFFFF)), _LOW_CARRY)
    high = whole_plus(whole, whole_everywhere(_LOW_CARRY))
    for upper in range(2):
        at = digit_sums_of(known, k) + 16 * b + 8 * upper
        set_int(at, half_total(low, upper))
        set_int(at + 4, half_total(_shift_signed(high), upper))
    carried, at = whole_plus(whole, whole_everywhere(_CARRY)), digits_of(known, k) + _BLOCK_BYTES * b
    store_bytes(at, bxor(carried, _I32(128)))
    store_bytes(at + 32, bxor(shift_right(carried, _I32(8)), _I32(128)))
    store_bytes(at + 64, bxor(shift_right(carried, _I32(16)), _I32(128)))
    store_bytes(at + 96, shift_right(carried, _I32(24)))


@_inlined
def _shift_signed(a: Any) -> Any:
    """Divided by 65536, rounded down."""
    return minus(bxor(shift_right(a, _I32(16)), _I32(0x8000)), _I32(0x8000))
