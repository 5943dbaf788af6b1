"""Decoders of the grouped formats for the loops of tiled_matmul.py: each unpacks a part of a group of 32 rows."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from pumice.backends.host.native.codegen import small_floats
from pumice.backends.host.native.codegen.block_code import look_up
from pumice.backends.host.native.codegen.lanes import (
    FLOATS,
    INTS,
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
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES
from pumice.core.block_formats import DOUBLED_E2M1
from pumice.core.dtypes import GroupLayout

_F32, _I32 = np.float32, np.int32
_inlined = numba.njit(forceinline=True, error_model="numpy")


@define(INTS, INTS)
def _e2m1(builder: Any, codes: Any) -> Any:
    """Four-bit floats times two: whole numbers."""
    numbers = look_up(builder, DOUBLED_E2M1, builder.trunc(codes, ir.VectorType(ir.IntType(8), LANES)))
    return builder.sext(numbers, INTS.vector)


@define(FLOATS, INTS)
def _as_floats(builder: Any, bits: Any) -> Any:
    """The same bits."""
    return builder.bitcast(bits, FLOATS.vector)


_from_e5m2, _from_e4m3 = define(FLOATS, INTS)(small_floats.from_e5m2), define(FLOATS, INTS)(small_floats.from_e4m3)


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
    store_f32(values + k * VECTOR_BYTES, madd(numbers, scale, least))


@_inlined
def _put_sixteen(w: int, stride: int, values: int, scale: Any) -> None:
    """Four-bit floats of which j and j + 8 share a byte."""
    for j in range(8):
        codes = load_u8(w + j * stride)
        _put(values, j, to_floats(_e2m1(band(codes, _I32(15)))), scale, zeros())
        _put(values, j + 8, to_floats(_e2m1(shift_right(codes, _I32(4)))), scale, zeros())


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
        _put_sixteen(at + (4 + part * 8) * stride, stride, values + part * 16 * VECTOR_BYTES, scale)
