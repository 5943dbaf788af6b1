"""Codecs of the GGUF formats with blocks of 256: parts with small whole scales of their own, which the block's d multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.block_codec import (
    BlockCodec,
    Bytes,
    Floats,
    extreme,
    get_f16,
    get_nibbles,
    nearest,
    put_f16,
    put_nibbles,
    require_finite,
)
from pumice.core.blocks_small import IQ4_NL, fit_iq4_nl, look_up, nearest_iq4_nl
from pumice.core.dtypes import DType

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
    parts *= (get_f16(blocks, 0) * scales)[:, :, None]
    parts -= (get_f16(blocks, 2) * minima)[:, :, None]


def _decode_q4_k(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 16:].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
    _scale_parts(blocks, out)


def _decode_q5_k(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 48:].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
    # Bit i of byte j belongs to element j of part i.
    parts, fifth = out.reshape(-1, 8, 32), blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    parts += (fifth & 1) * np.uint8(16)
    _scale_parts(blocks, out)


def _decode_q6_k(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, :128].reshape(-1, 2, 64), out.reshape(-1, 2, 128))
    # Two bits for each of four parts, from the low end up.
    parts, upper = out.reshape(-1, 2, 4, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS
    parts += (upper & 3) * np.uint8(16)
    out -= 32
    scaled = out.reshape(-1, 16, 16)
    scaled *= (get_f16(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


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
    least = error(nearest(x - low, plain, 0, top), plain, low)
    all_weights, all_x = total(weight), total(weight * x)
    for tenths in range(-10, 11):
        levels = nearest(x - low, plain * np.float32(top / (top + tenths / 10)), 0, top)
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
    put_f16(blocks, 0, d)
    put_f16(blocks, 2, least)
    scales, minima = (nearest(v, step, 0, 63).astype(np.uint8) for v, step in ((scale, d), (minimum, least)))
    _put_scales(blocks[:, 4:16], scales, minima)
    # The levels fit the scales as they will be read back.
    step, offset = (get_f16(blocks, 0) * scales)[:, :, None], (get_f16(blocks, 2) * minima)[:, :, None]
    return nearest(parts + offset, step, 0, top).astype(np.uint8)


def _encode_q4_k(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between_parts(x, blocks, 15)
    blocks[:, 16:] = (levels[:, 0::2] | levels[:, 1::2] << 4).reshape(-1, 128)


def _encode_q5_k(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between_parts(x, blocks, 31)
    blocks[:, 48:] = (levels[:, 0::2] & 15 | levels[:, 1::2] << 4).reshape(-1, 128)
    blocks[:, 16:48] = np.bitwise_or.reduce(levels >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=1)


def _fit_symmetric(x: Floats, half: int) -> Floats:
    """The scale of parts [..., 16] for levels -half…half-1, searched as in `_fit_between`."""
    top = extreme(x)
    weight = np.square(x)
    scale, most = top / np.float32(-half), np.full_like(top, -1)
    for tenths in range(-9, 10):
        levels = nearest(x, top / np.float32(-half - tenths / 10), -half, half - 1)
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
    d = extreme(scale) / np.float32(-128)
    put_f16(blocks, 208, d)
    scales = nearest(scale, d, -128, 127).astype(np.int8)
    blocks[:, 192:208] = scales.view(np.uint8)
    step = (get_f16(blocks, 208) * scales)[:, :, None]
    levels = (nearest(parts, step, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    blocks[:, :128] = (levels[:, :, :2] & 15 | levels[:, :, 2:] << 4).reshape(-1, 128)
    upper = levels >> 4 << _PAIRS
    blocks[:, 128:192] = np.bitwise_or.reduce(upper, axis=2).reshape(-1, 64)


# --- q2_k: 16 bytes of scale and minimum, four bits each; 64 of codes; d and the minima's d ---


def _get_pairs(packed: Bytes, out: Floats) -> None:
    """Two-bit codes: two halves of 32 bytes, each of which holds one element of four parts of 32, from the low end up."""
    np.copyto(out.reshape(-1, 2, 4, 32), packed.reshape(-1, 2, 1, 32) >> _PAIRS & 3)


def _put_pairs(packed: Bytes, levels: Bytes) -> None:
    packed[...] = np.bitwise_or.reduce((levels.reshape(-1, 2, 4, 32) & 3) << _PAIRS, axis=2).reshape(-1, 64)


def _decode_q2_k(blocks: Bytes, out: Floats) -> None:
    _get_pairs(blocks[:, 16:80], out)
    parts, both = out.reshape(-1, 16, 16), blocks[:, :16]
    parts *= (get_f16(blocks, 80) * (both & 15))[:, :, None]
    parts -= (get_f16(blocks, 82) * (both >> 4))[:, :, None]


def _encode_q2_k(x: Floats, blocks: Bytes) -> None:
    parts = x.reshape(-1, 16, 16)
    with np.errstate(all="ignore"):
        scale, minimum = _fit_between(parts, 3)
    put_f16(blocks, 80, scale.max(axis=1, keepdims=True) / np.float32(15))
    put_f16(blocks, 82, minimum.max(axis=1, keepdims=True) / np.float32(15))
    d, least = get_f16(blocks, 80), get_f16(blocks, 82)
    scales, minima = (nearest(v, step, 0, 15).astype(np.uint8) for v, step in ((scale, d), (minimum, least)))
    blocks[:, :16] = scales | minima << 4
    levels = nearest(parts + (least * minima)[:, :, None], (d * scales)[:, :, None], 0, 3)
    _put_pairs(blocks[:, 16:80], levels.astype(np.uint8))


# --- q3_k: 32 bytes of third bits, 64 of codes, twelve of scales, d ---


def _decode_q3_k(blocks: Bytes, out: Floats) -> None:
    _get_pairs(blocks[:, 32:96], out)
    # Bit i of byte j belongs to element j of part i.
    parts, third = out.reshape(-1, 8, 32), blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]
    parts += (third & 1) * np.uint8(4)
    out -= 4
    # Four bits of each of 16 scales in eight bytes, then two bits of each in four.
    low = (blocks[:, None, 96:104] >> np.array([[0], [4]], np.uint8) & 15).reshape(-1, 16)
    high = (blocks[:, None, 104:108] >> _PAIRS & 3).reshape(-1, 16)
    scaled = out.reshape(-1, 16, 16)
    scaled *= (get_f16(blocks, 108) * ((low | high << 4).astype(np.float32) - 32))[:, :, None]


def _encode_q3_k(x: Floats, blocks: Bytes) -> None:
    parts = x.reshape(-1, 16, 16)
    with np.errstate(all="ignore"):
        scale = _fit_symmetric(parts, 4)
    put_f16(blocks, 108, extreme(scale) / np.float32(-32))
    d = get_f16(blocks, 108)
    scales = nearest(scale, d, -32, 31)
    stored = (scales + 32).astype(np.uint8)
    blocks[:, 96:104] = stored[:, :8] & 15 | stored[:, 8:] << 4
    blocks[:, 104:108] = np.bitwise_or.reduce(stored.reshape(-1, 4, 4) >> 4 << _PAIRS, axis=1)
    levels = (nearest(parts, (d * scales)[:, :, None], -4, 3) + 4).astype(np.uint8)
    _put_pairs(blocks[:, 32:96], levels)
    third = levels.reshape(-1, 8, 32) >> 2 << np.arange(8, dtype=np.uint8)[:, None]
    blocks[:, :32] = np.bitwise_or.reduce(third, axis=1)


# --- q8_k: d in f32, 256 signed bytes, and the sums of each 16 of them, which no reader needs ---


def _decode_q8_k(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 4:260].view(np.int8), blocks[:, :4].view("<f4"), out=out)


def _encode_q8_k(x: Floats, blocks: Bytes) -> None:
    d = extreme(x) / np.float32(-127)
    require_finite(d, "f32")
    blocks[:, :4] = d.astype("<f4").view(np.uint8)
    levels = nearest(x, d, -127, 127).astype(np.int8)
    blocks[:, 4:260] = levels.view(np.uint8)
    blocks[:, 260:] = levels.reshape(-1, 16, 16).sum(axis=2, dtype="<i2").view(np.uint8)


# --- iq4_xs: d, two bits of each part's scale in two bytes, four bits of each in four, 16 bytes of codes for every 32 ---


def _decode_iq4_xs(blocks: Bytes, out: Floats) -> None:
    parts = out.reshape(-1, 8, 32)
    look_up(IQ4_NL, blocks[:, 8:].reshape(-1, 8, 16), parts)
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> _PAIRS[:, 0] & 3).reshape(-1, 8)
    parts *= (get_f16(blocks, 0) * ((low | high << 4).astype(np.float32) - 32))[:, :, None]


def put_iq4_xs_scales(blocks: Bytes, scales: Floats) -> None:
    """Stores the whole scales -32…31 of the eight parts of each block."""
    stored = (scales + 32).astype(np.uint8)
    blocks[:, 4:8] = stored[:, 0::2] & 15 | stored[:, 1::2] << 4
    blocks[:, 2:4] = np.bitwise_or.reduce(stored.reshape(-1, 2, 4) >> 4 << _PAIRS[:, 0], axis=2)


def _encode_iq4_xs(x: Floats, blocks: Bytes) -> None:
    parts = x.reshape(-1, 8, 32)
    scale = fit_iq4_nl(parts)[:, :, 0]
    put_f16(blocks, 0, extreme(scale) / np.float32(-32))
    d = get_f16(blocks, 0)
    scales = nearest(scale, d, -32, 31)
    put_iq4_xs_scales(blocks, scales)
    put_nibbles(blocks[:, 8:].reshape(-1, 8, 16), nearest_iq4_nl(parts, (d * scales)[:, :, None]))


K_CODECS: dict[DType, BlockCodec] = {
    dtypes.q2_k: BlockCodec(_decode_q2_k, _encode_q2_k),
    dtypes.q3_k: BlockCodec(_decode_q3_k, _encode_q3_k),
    dtypes.q4_k: BlockCodec(_decode_q4_k, _encode_q4_k),
    dtypes.q5_k: BlockCodec(_decode_q5_k, _encode_q5_k),
    dtypes.q6_k: BlockCodec(_decode_q6_k, _encode_q6_k),
    dtypes.q8_k: BlockCodec(_decode_q8_k, _encode_q8_k),
    dtypes.iq4_xs: BlockCodec(_decode_iq4_xs, _encode_iq4_xs),
}
