"""Decoders of more packed formats for tiled.py's loops: `decode(w, stride, values)` unpacks one block of 32 rows."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from pumice.backends.host.lanes import (
    FLOATS,
    INTS,
    LANES,
    band,
    bor,
    define,
    load_i8,
    load_split_half,
    load_u8,
    madd,
    madd_scalar,
    minus,
    scaled,
    shift_left,
    shift_right,
    store_f32,
    times,
    to_floats,
    zeros,
)
from pumice.core.dtypes import GroupLayout

_F32, _I32 = np.float32, np.int32
_VECTOR = 4 * LANES
_inlined = numba.njit(forceinline=True, error_model="numpy")


def _constant(value: int) -> Any:
    return ir.Constant(INTS.vector, [value] * LANES)


# --- numbers ---


def _table(numbers: tuple[int, ...]) -> Any:
    """A function from codes of four bits to whole numbers of a byte: a byte of one of four words."""
    words = [sum((n & 255) << 8 * i for i, n in enumerate(numbers[at : at + 4])) for at in range(0, 16, 4)]

    @define(INTS, INTS)
    def look_up(builder: Any, codes: Any) -> Any:
        def choose(bit: int, one: Any, other: Any) -> Any:
            is_set = builder.icmp_unsigned("!=", builder.and_(codes, _constant(bit)), _constant(0))
            return builder.select(is_set, one, other)

        low, high = (choose(4, _constant(words[i + 1]), _constant(words[i])) for i in (0, 2))
        # The byte comes to the top, then down with its sign.
        shift = builder.shl(builder.and_(builder.not_(codes), _constant(3)), _constant(3))
        return builder.ashr(builder.shl(choose(8, high, low), shift), _constant(24))

    return look_up


_iq4_nl = _table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
_e2m1 = _table((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))


@define(FLOATS, INTS)
def _as_floats(builder: Any, bits: Any) -> Any:
    """The same bits."""
    return builder.bitcast(bits, FLOATS.vector)


def _from_half(builder: Any, bits: Any) -> Any:
    halves = builder.trunc(bits, ir.VectorType(ir.IntType(16), LANES))
    return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), LANES)), FLOATS.vector)


@define(FLOATS, INTS)
def _from_e5m2(builder: Any, codes: Any) -> Any:
    """The upper halves of f16."""
    return _from_half(builder, builder.shl(codes, _constant(8)))


@define(FLOATS, INTS)
def _from_e4m3(builder: Any, codes: Any) -> Any:
    """As f16 with another bias; the largest code is NaN."""
    size, sign = builder.and_(codes, _constant(127)), builder.and_(codes, _constant(128))
    bits = builder.or_(builder.shl(sign, _constant(8)), builder.shl(size, _constant(7)))
    value = builder.fmul(_from_half(builder, bits), ir.Constant(FLOATS.vector, [256.0] * LANES))
    nan = ir.Constant(FLOATS.vector, [float("nan")] * LANES)
    return builder.select(builder.icmp_unsigned("==", size, _constant(127)), nan, value)


@define(FLOATS, INTS)
def _from_ue4m3(builder: Any, codes: Any) -> Any:
    """Without a sign; the largest code is 0."""
    size = builder.and_(codes, _constant(127))
    value = builder.fmul(_from_half(builder, builder.shl(size, _constant(7))), ir.Constant(FLOATS.vector, [256.0] * LANES))
    zero = builder.icmp_unsigned("==", codes, _constant(127))
    return builder.select(zero, ir.Constant(FLOATS.vector, None), value)


@define(FLOATS, INTS)
def _half_powers(builder: Any, exponents: Any) -> Any:
    """Half of the power of two that a biased exponent stands for."""
    small = builder.shl(_constant(1 << 21), builder.and_(exponents, _constant(1)))
    large = builder.shl(builder.sub(exponents, _constant(1)), _constant(23))
    is_small = builder.icmp_unsigned("<", exponents, _constant(2))
    return builder.bitcast(builder.select(is_small, small, large), FLOATS.vector)


@_inlined
def _f16(w: int, stride: int, byte: int) -> Any:
    return load_split_half(w + byte * stride, w + (byte + 1) * stride)


@_inlined
def _two(w: int, stride: int, byte: int) -> Any:
    return bor(load_u8(w + byte * stride), shift_left(load_u8(w + (byte + 1) * stride), _I32(8)))


@_inlined
def _bf16(w: int, stride: int, byte: int) -> Any:
    return _as_floats(shift_left(_two(w, stride, byte), _I32(16)))


@_inlined
def _f32(w: int, stride: int, byte: int) -> Any:
    return _as_floats(bor(_two(w, stride, byte), shift_left(_two(w, stride, byte + 2), _I32(16))))


@_inlined
def _put(values: int, k: int, numbers: Any, scale: Any, least: Any) -> None:
    store_f32(values + k * _VECTOR, madd(numbers, scale, least))


# --- GGUF formats ---


@_inlined
def decode_q2_k(w: int, stride: int, values: int) -> None:
    scale, least = _f16(w, stride, 80), scaled(_f16(w, stride, 82), _F32(-1))
    for part in range(16):
        both = load_u8(w + part * stride)
        step, low = times(scale, to_floats(band(both, _I32(15)))), times(least, to_floats(shift_right(both, _I32(4))))
        at, shift = w + (16 + part // 8 * 32 + part % 2 * 16) * stride, _I32(part // 2 % 4 * 2)
        for j in range(16):
            _put(values, part * 16 + j, to_floats(band(shift_right(load_u8(at + j * stride), shift), _I32(3))), step, low)


@_inlined
def decode_q3_k(w: int, stride: int, values: int) -> None:
    scale = _f16(w, stride, 108)
    for part in range(16):
        low = band(shift_right(load_u8(w + (96 + part % 8) * stride), _I32(part // 8 * 4)), _I32(15))
        high = band(shift_right(load_u8(w + (104 + part % 4) * stride), _I32(part // 4 * 2)), _I32(3))
        step = times(scale, to_floats(minus(bor(low, shift_left(high, _I32(4))), _I32(32))))
        at, bits = w + (32 + part // 8 * 32 + part % 2 * 16) * stride, w + part % 2 * 16 * stride
        shift, third = _I32(part // 2 % 4 * 2), _I32(part // 2)
        for j in range(16):
            code = band(shift_right(load_u8(at + j * stride), shift), _I32(3))
            upper = band(shift_right(load_u8(bits + j * stride), third), _I32(1))
            _put(values, part * 16 + j, to_floats(minus(bor(code, shift_left(upper, _I32(2))), _I32(4))), step, zeros())


@_inlined
def decode_q8_k(w: int, stride: int, values: int) -> None:
    scale = _f32(w, stride, 0)
    for j in range(256):
        _put(values, j, to_floats(load_i8(w + (4 + j) * stride)), scale, zeros())


@_inlined
def decode_iq4_nl(w: int, stride: int, values: int) -> None:
    scale = _f16(w, stride, 0)
    for j in range(16):
        codes = load_u8(w + (2 + j) * stride)
        _put(values, j, to_floats(_iq4_nl(band(codes, _I32(15)))), scale, zeros())
        _put(values, j + 16, to_floats(_iq4_nl(shift_right(codes, _I32(4)))), scale, zeros())


@_inlined
def decode_mxfp4(w: int, stride: int, values: int) -> None:
    scale = _half_powers(load_u8(w))
    for j in range(16):
        codes = load_u8(w + (1 + j) * stride)
        _put(values, j, to_floats(_e2m1(band(codes, _I32(15)))), scale, zeros())
        _put(values, j + 16, to_floats(_e2m1(shift_right(codes, _I32(4)))), scale, zeros())


@_inlined
def _put_sixteen(w: int, stride: int, values: int, scale: Any) -> None:
    """Four-bit floats of which j and j + 8 share a byte."""
    for j in range(8):
        codes = load_u8(w + j * stride)
        _put(values, j, to_floats(_e2m1(band(codes, _I32(15)))), scale, zeros())
        _put(values, j + 8, to_floats(_e2m1(shift_right(codes, _I32(4)))), scale, zeros())


@_inlined
def decode_nvfp4(w: int, stride: int, values: int) -> None:
    for part in range(4):
        # The codes are doubled.
        scale = scaled(_from_ue4m3(load_u8(w + part * stride)), _F32(0.5))
        _put_sixteen(w + (4 + part * 8) * stride, stride, values + part * 16 * _VECTOR, scale)


# --- grouped formats ---

_SCALES = {"f16": _f16, "bf16": _bf16, "f32": _f32}


@_inlined
def _signed(w: int, stride: int, byte: int) -> Any:
    """A zero point: its first two bytes, whatever its width."""
    return to_floats(bor(load_u8(w + byte * stride), shift_left(load_i8(w + (byte + 1) * stride), _I32(8))))


@_inlined
def _i8_at(at: int) -> Any:
    return to_floats(load_i8(at))


@_inlined
def _e4m3_at(at: int) -> Any:
    return _from_e4m3(load_u8(at))


@_inlined
def _e5m2_at(at: int) -> Any:
    return _from_e5m2(load_u8(at))


def _least_of(layout: GroupLayout) -> Any:
    """What is added to the product of code and scale."""
    width, load, raised = layout.scale_bytes, _SCALES[layout.scale], _F32(128 if layout.codes == "u8b" else 0)
    if layout.offset == "zero":

        @_inlined
        def least(w: int, stride: int, scale: Any) -> Any:
            return times(scaled(scale, _F32(-1)), _signed(w, stride, width))

    elif layout.offset == "bias":

        @_inlined
        def least(w: int, stride: int, scale: Any) -> Any:
            return madd_scalar(scale, raised, load(w, stride, width))

    else:

        @_inlined
        def least(w: int, stride: int, scale: Any) -> Any:
            return zeros()

    return least


@functools.cache
def group_decoder(layout: GroupLayout) -> Any:
    """`decode(w, inside, stride, values)` of a grouped dtype: a part of the group at w, from its element `inside` on."""
    header, load, least_of = layout.header, _SCALES[layout.scale], _least_of(layout)
    if layout.codes == "nvfp4":
        return _decode_nvfp4_part
    if layout.bits == 4:
        zero = _I32(8 if layout.codes == "i4" else 0)

        @_inlined
        def decode(w: int, inside: int, stride: int, values: int) -> None:
            scale = load(w, stride, 0)
            least, at = least_of(w, stride, scale), w + (header + inside // 2) * stride
            for j in range(16):
                codes = load_u8(at + j * stride)
                _put(values, j, to_floats(minus(band(codes, _I32(15)), zero)), scale, least)
                _put(values, j + 16, to_floats(minus(shift_right(codes, _I32(4)), zero)), scale, least)

        return decode
    number = {"e4m3": _e4m3_at, "e5m2": _e5m2_at}.get(layout.codes, _i8_at)

    @_inlined
    def decode_bytes(w: int, inside: int, stride: int, values: int) -> None:
        scale = load(w, stride, 0)
        least, at = least_of(w, stride, scale), w + (header + inside) * stride
        for j in range(32):
            _put(values, j, number(at + j * stride), scale, least)

    return decode_bytes


@_inlined
def _decode_nvfp4_part(w: int, inside: int, stride: int, values: int) -> None:
    whole, at = scaled(_f32(w, stride, 0), _F32(0.5)), w + (4 + inside // 64 * 36) * stride
    for part in range(4):
        scale = times(whole, _from_e4m3(load_u8(at + part * stride)))
        _put_sixteen(at + (4 + part * 8) * stride, stride, values + part * 16 * _VECTOR, scale)
