"""Codecs of the quantised block formats: raw GGUF block bytes to float32 rows and back, one table entry per format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, FormatError, InputError, ShapeError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Rows are encoded in slices of about this many elements, so that temporaries stay small whatever the tensor.
_SLICE = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """How one format stores a block.

    `decode(blocks, out)` fills out [n, block] from blocks [n, block_bytes]; `encode(x, blocks)` the other way round,
    rounding every step in float32 as ggml's reference quantisers do. Both write into what they are given, and `encode` may
    use x as scratch.
    """

    decode: Callable[[Bytes, Floats], None]
    encode: Callable[[Floats, Bytes], None]


def dequantize_rows(dtype: DType, data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """The values of packed rows: bytes [..., row bytes] to float32 [..., k].

    >>> from pumice.core.dtypes import q8_0
    >>> row = np.zeros(34, np.uint8)
    >>> row[:4] = 0x00, 0x38, 3, 0xFE  # d = 0.5, then the int8 values 3 and -2
    >>> dequantize_rows(q8_0, row, 32)[:3]
    array([ 1.5, -1. ,  0. ], dtype=float32)
    """
    codec = _codec(dtype)
    row_bytes = _row_bytes(dtype, k)
    if data.dtype != np.uint8:
        raise DTypeError(f"packed {dtype} rows are uint8, not {data.dtype}", dtype=dtype.name, got=str(data.dtype))
    if data.ndim == 0 or data.shape[-1] != row_bytes:
        raise FormatError(
            f"{k} elements of {dtype} take {row_bytes} bytes a row, the data has shape {data.shape}",
            hint=f"{dtype} stores {dtype.block} elements in {dtype.block_bytes} bytes; the last axis holds whole rows",
            dtype=dtype.name,
            k=k,
            row_bytes=row_bytes,
            got=data.shape,
        )
    out = np.empty((*data.shape[:-1], k), np.float32)
    # Scales are whatever the file says: infinity times 0 is NaN, as on the device, and no reason for a warning.
    with np.errstate(invalid="ignore"):
        codec.decode(data.reshape(-1, dtype.block_bytes), out.reshape(-1, dtype.block))
    return out


def quantize_rows(dtype: DType, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Floats [..., k] as packed rows [..., row bytes]; k must be a multiple of the block.

    >>> from pumice.core.dtypes import q4_0
    >>> packed = quantize_rows(q4_0, np.linspace(-8, 7.5, 32))
    >>> packed.shape, dequantize_rows(q4_0, packed, 32)[[0, 2, 31]].tolist()
    ((18,), [-8.0, -7.0, 7.0])
    """
    codec = _codec(dtype)
    if x.ndim == 0:
        raise ShapeError(f"a scalar has no row of {dtype} blocks", hint=f"the last axis is a multiple of {dtype.block}")
    row_bytes = _row_bytes(dtype, x.shape[-1])
    out = np.empty((*x.shape[:-1], row_bytes), np.uint8)
    source, target = x.reshape(-1, dtype.block), out.reshape(-1, dtype.block_bytes)
    step = max(1, _SLICE // dtype.block)
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        codec.encode(source[part].astype(np.float32), target[part])
    return out


def _codec(dtype: DType) -> BlockCodec:
    codec = CODECS.get(dtype)
    if codec is None:
        raise DTypeError(f"{dtype} is not stored in blocks", hint="one of " + " ".join(d.name for d in CODECS), dtype=dtype.name)
    return codec


def _row_bytes(dtype: DType, k: int) -> int:
    if k % dtype.block:
        raise ShapeError(
            f"a row of {k} elements is no whole number of {dtype} blocks",
            hint=f"the last axis must be a multiple of {dtype.block}",
            dtype=dtype.name,
            k=k,
        )
    return dtype.nbytes(k)


def _get_f16(blocks: Bytes, at: int) -> Floats:
    """The little-endian f16 at byte `at` of every block, as a column."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _put_f16(blocks: Bytes, at: int, values: Floats) -> None:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    # NaN and infinity anywhere in a block end up in its scale, so this one check keeps them out of the integers too.
    if not np.isfinite(halves).all():
        raise InputError(
            "a block's scale does not fit in f16: its values are NaN, infinite or too large",
            hint="check the tensor for NaN and infinity, or store it as f32",
        )
    blocks[:, at : at + 2] = halves.view(np.uint8)


def _get_nibbles(packed: Bytes, out: Floats) -> None:
    """Byte j holds element j in its low half and element j + n in its high half, where n is the number of bytes."""
    half = packed.shape[-1]
    np.bitwise_and(packed, 15, out=out[..., :half], dtype=np.uint8, casting="unsafe")
    np.right_shift(packed, 4, out=out[..., half:], dtype=np.uint8, casting="unsafe")


def _put_nibbles(packed: Bytes, levels: Bytes) -> None:
    """The low four bits of every level, laid out as `_get_nibbles` reads them."""
    half = packed.shape[-1]
    packed[...] = levels[..., :half] & 15 | levels[..., half:] << 4


def _levels(x: Floats, top: int) -> Bytes:
    """Whole levels of numbers that are not negative: the fraction is cut off, and top + 1, which rounding can reach, is top."""
    return np.minimum(x.astype(np.uint8), np.uint8(top))


def _inverse(d: Floats) -> Floats:
    """1/d, and 0 where d is 0 or so small that its inverse overflows: such a block decodes to its offset anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    inverse[np.isinf(inverse)] = 0
    return inverse


# --- blocks of 32: d, for some formats a minimum m, for some the fifth bits of all levels in order, then the levels ---


def _add_fifth_bits(packed: Bytes, out: Floats) -> None:
    out += np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)


def _encode_symmetric(x: Floats, blocks: Bytes, half: int) -> Bytes:
    """Stores the scale and gives the levels 0…2·half-1, which stand for -half…half-1."""
    # The element that is largest in magnitude maps to level 0 with its sign, so the range is used in full.
    d = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1) / np.float32(-half)
    _put_f16(blocks, 0, d)
    x *= _inverse(d)
    x += half + 0.5
    return _levels(x, 2 * half - 1)


def _encode_between(x: Floats, blocks: Bytes, top: int) -> Bytes:
    """Stores scale and minimum and gives the levels 0…top."""
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, low)
    x -= low
    x *= _inverse(d)
    x += 0.5
    return _levels(x, top)


def _decode_q4_0(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _get_f16(blocks, 0)


def _encode_q4_0(x: Floats, blocks: Bytes) -> None:
    _put_nibbles(blocks[:, 2:], _encode_symmetric(x, blocks, 8))


def _decode_q4_1(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 4:], out)
    out *= _get_f16(blocks, 0)
    out += _get_f16(blocks, 2)


def _encode_q4_1(x: Floats, blocks: Bytes) -> None:
    _put_nibbles(blocks[:, 4:], _encode_between(x, blocks, 15))


def _decode_q5_0(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 6:], out)
    _add_fifth_bits(blocks[:, 2:6], out)
    out -= 16
    out *= _get_f16(blocks, 0)


def _encode_q5_0(x: Floats, blocks: Bytes) -> None:
    levels = _encode_symmetric(x, blocks, 16)
    _put_nibbles(blocks[:, 6:], levels)
    blocks[:, 2:6] = np.packbits(levels >> 4, axis=1, bitorder="little")


def _decode_q5_1(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 8:], out)
    _add_fifth_bits(blocks[:, 4:8], out)
    out *= _get_f16(blocks, 0)
    out += _get_f16(blocks, 2)


def _encode_q5_1(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between(x, blocks, 31)
    _put_nibbles(blocks[:, 8:], levels)
    blocks[:, 4:8] = np.packbits(levels >> 4, axis=1, bitorder="little")


def _decode_q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _get_f16(blocks, 0), out=out)


def _encode_q8_0(x: Floats, blocks: Bytes) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    _put_f16(blocks, 0, d)
    x *= _inverse(d)
    # Halves round away from zero; adding 0.5 first would also lift the largest float below one half.
    whole = np.trunc(x)
    x -= whole
    x *= 2
    whole += np.trunc(x)
    blocks[:, 2:] = whole.astype(np.int8).view(np.uint8)


# --- blocks of 256: parts of 32 or 16 elements with small whole scales of their own, which the block's f16 numbers multiply ---


# Shifts of the two bits that each of four parts has in a byte.
_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def _get_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits: the first four in bytes 0…3 and 4…7, whose top bits belong to the last four."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, c & 15 | a >> 2 & 48], axis=1)
    minima = np.concatenate([b & 63, c >> 4 | b >> 2 & 48], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _put_scales(packed: Bytes, scales: Bytes, minima: Bytes) -> None:
    packed[:, 0:4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    packed[:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    packed[:, 8:12] = scales[:, 4:] & 15 | minima[:, 4:] << 4


def _scale_parts(blocks: Bytes, out: Floats) -> None:
    """Turns levels into values for the formats with minima."""
    scales, minima = _get_scales(blocks[:, 4:16])
    parts = out.reshape(-1, 8, 32)
    parts *= (_get_f16(blocks, 0) * scales)[:, :, None]
    parts -= (_get_f16(blocks, 2) * minima)[:, :, None]


def _decode_q4_k(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 16:].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
    _scale_parts(blocks, out)


def _decode_q5_k(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 48:].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
    # Bit i of byte j belongs to element j of part i.
    parts, fifth = out.reshape(-1, 8, 32), blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    parts += (fifth & 1) * np.uint8(16)
    _scale_parts(blocks, out)


def _decode_q6_k(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, :128].reshape(-1, 2, 64), out.reshape(-1, 2, 128))
    # Two bits for each of four parts, from the low end up.
    parts, upper = out.reshape(-1, 2, 4, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS
    parts += (upper & 3) * np.uint8(16)
    out -= 32
    scaled = out.reshape(-1, 16, 16)
    scaled *= (_get_f16(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


def _nearest(x: Floats, step: Floats, low: int, high: int) -> Floats:
    """Which whole multiple of `step`, within bounds, is nearest to x; 0 where the step is 0."""
    found: Floats = np.clip(np.rint(x * _inverse(step)), low, high)
    return found


def _fit_between(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum (not negative, to be subtracted) of parts [..., 32] for levels 0…top.

    Several steps a little off the plain one are tried. For the levels that each gives, the line through them with the least
    weighted squares is kept if its error is the least so far; large elements weigh more.
    """
    weight = np.abs(x) + np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True))
    low = np.minimum(x.min(axis=-1, keepdims=True), np.float32(0))
    plain = (x.max(axis=-1, keepdims=True) - low) / np.float32(top)

    def total(values: Floats) -> Floats:
        found: Floats = values.sum(axis=-1, keepdims=True)
        return found

    def error(levels: Floats, scale: Any, minimum: Any) -> Floats:
        return total(weight * np.square(scale * levels + minimum - x))

    scale, minimum = plain, low
    least = error(_nearest(x - low, plain, 0, top), plain, low)
    all_weights, all_x = total(weight), total(weight * x)
    for tenths in range(-10, 11):
        levels = _nearest(x - low, plain * np.float32(top / (top + tenths / 10)), 0, top)
        weighted = weight * levels
        first, second, product = total(weighted), total(weighted * levels), total(weighted * x)
        determinant = all_weights * second - first * first
        slope = (all_weights * product - all_x * first) / determinant
        start = (second * all_x - first * product) / determinant
        # A minimum above zero cannot be stored: then the best line through zero.
        np.copyto(slope, product / second, where=start > 0)
        np.minimum(start, 0, out=start)
        found = error(levels, slope, start)
        better = (determinant > 0) & (found < least)
        scale, minimum, least = (np.where(better, n, o) for n, o in ((slope, scale), (start, minimum), (found, least)))
    return scale[..., 0], -minimum[..., 0]


def _encode_between_parts(x: Floats, blocks: Bytes, top: int) -> Bytes:
    """Stores all scales of a format with minima and gives the levels 0…top as [n, 8, 32]."""
    parts = x.reshape(-1, 8, 32)
    with np.errstate(all="ignore"):  # broken values are refused when their scale is stored
        scale, minimum = _fit_between(parts, top)
    d, least = scale.max(axis=1, keepdims=True) / np.float32(63), minimum.max(axis=1, keepdims=True) / np.float32(63)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, least)
    scales, minima = (_nearest(v, step, 0, 63).astype(np.uint8) for v, step in ((scale, d), (minimum, least)))
    _put_scales(blocks[:, 4:16], scales, minima)
    # The levels fit the scales as they will be read back.
    step, offset = (_get_f16(blocks, 0) * scales)[:, :, None], (_get_f16(blocks, 2) * minima)[:, :, None]
    return _nearest(parts + offset, step, 0, top).astype(np.uint8)


def _encode_q4_k(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between_parts(x, blocks, 15)
    blocks[:, 16:] = (levels[:, 0::2] | levels[:, 1::2] << 4).reshape(-1, 128)


def _encode_q5_k(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between_parts(x, blocks, 31)
    blocks[:, 48:] = (levels[:, 0::2] & 15 | levels[:, 1::2] << 4).reshape(-1, 128)
    blocks[:, 16:48] = np.bitwise_or.reduce(levels >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=1)


def _fit_symmetric(x: Floats, half: int) -> Floats:
    """The scale of parts [..., 16] for levels -half…half-1, searched as in `_fit_between`."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    weight = np.square(x)
    scale, most = extreme / np.float32(-half), np.full_like(extreme, -1)
    for tenths in range(-9, 10):
        levels = _nearest(x, extreme / np.float32(-half - tenths / 10), -half, half - 1)
        weighted = weight * levels
        product, square = ((weighted * v).sum(axis=-1, keepdims=True) for v in (x, levels))
        # The error is least where this quotient is greatest.
        gain = np.square(product) / square
        better = gain > most
        scale, most = np.where(better, product / square, scale), np.where(better, gain, most)
    found: Floats = scale[..., 0]
    return found


def _encode_q6_k(x: Floats, blocks: Bytes) -> None:
    parts = x.reshape(-1, 16, 16)
    with np.errstate(all="ignore"):
        scale = _fit_symmetric(parts, 32)
    d = np.take_along_axis(scale, np.abs(scale).argmax(axis=1, keepdims=True), axis=1) / np.float32(-128)
    _put_f16(blocks, 208, d)
    scales = _nearest(scale, d, -128, 127).astype(np.int8)
    blocks[:, 192:208] = scales.view(np.uint8)
    step = (_get_f16(blocks, 208) * scales)[:, :, None]
    levels = (_nearest(parts, step, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    blocks[:, :128] = (levels[:, :, :2] & 15 | levels[:, :, 2:] << 4).reshape(-1, 128)
    upper = levels >> 4 << _PAIRS
    blocks[:, 128:192] = np.bitwise_or.reduce(upper, axis=2).reshape(-1, 64)


CODECS: dict[DType, BlockCodec] = {
    dtypes.q4_0: BlockCodec(_decode_q4_0, _encode_q4_0),
    dtypes.q4_1: BlockCodec(_decode_q4_1, _encode_q4_1),
    dtypes.q5_0: BlockCodec(_decode_q5_0, _encode_q5_0),
    dtypes.q5_1: BlockCodec(_decode_q5_1, _encode_q5_1),
    dtypes.q8_0: BlockCodec(_decode_q8_0, _encode_q8_0),
    dtypes.q4_k: BlockCodec(_decode_q4_k, _encode_q4_k),
    dtypes.q5_k: BlockCodec(_decode_q5_k, _encode_q5_k),
    dtypes.q6_k: BlockCodec(_decode_q6_k, _encode_q6_k),
}
