"""Encoders of the K formats: blocks of 256 in parts of 32 or 16, whose small whole scales multiply the block's f16 numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import Bytes, Floats, inverse, put_f16, put_nibbles
from pumice.core.blocks_k import put_iq4_xs_scales
from pumice.formats.encode.search import (
    as_blocks,
    as_columns,
    extremes,
    fit_line,
    fit_scale,
    nearest,
    total,
)
from pumice.formats.encode.simple import IQ4_NL, fit_nonlinear, halves

_NUDGES = tuple(n / 5 for n in range(-5, 6))
_COARSE_NUDGES = tuple(n / 10 for n in range(-8, 9))  # with few levels each one counts more
_FINE_NUDGES = tuple(n / 4 for n in range(-4, 5))
# Shifts of the two bits that each of four parts has in a byte, and of the one bit that each of eight has.
_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]


def _importance(x: Floats) -> Floats:
    """What an error of each element costs: large ones matter more to a product, small ones are not free."""
    found: Floats = np.abs(x) + np.sqrt(np.mean(np.square(x), axis=0))
    return found


def _with_minima(
    x: Floats, part: int, top: int, most: int, nudges: tuple[float, ...]
) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """d, the step of minima, the parts' scales and minima (0…most) as [blocks, parts], and levels 0…top as [blocks, 256]."""
    columns = as_columns(x, part)
    weight = _importance(columns)
    scale, start = fit_line(columns, top, nudges, weight, below_zero=True)
    scales, minima = np.maximum(scale, 0).reshape(-1, 256 // part), -start.reshape(-1, 256 // part)
    d, least = (halves(v.max(axis=1) / np.float32(most)) for v in (scales, minima))
    scales, minima = (nearest(v.T, step, 0, most).T for v, step in ((scales, d), (minima, least)))
    for _ in range(2):
        levels = _levels_above(columns, scales * d[:, None], minima * least[:, None], top)
        d, least = _refit(columns, weight, levels, scales, minima, d, least)
    levels = _levels_above(columns, scales * d[:, None], minima * least[:, None], top)
    return d, least, scales.astype(np.uint8), minima.astype(np.uint8), as_blocks(levels, 256)


def _levels_above(columns: Floats, steps: Floats, minima: Floats, top: int) -> Floats:
    return nearest(columns + minima.ravel(), steps.ravel(), 0, top)


def _refit(
    x: Floats, weight: Floats, levels: Floats, scales: Floats, minima: Floats, d: Floats, least: Floats
) -> tuple[Floats, Floats]:
    """The block's two numbers that fit best once all whole numbers are fixed; those given where that does not help."""

    def per_block(values: Floats) -> Floats:
        found: Floats = values.reshape(scales.shape).sum(axis=1)
        return found

    s, m = scales.ravel(), minima.ravel()
    weighted, wx = weight * levels, weight * x
    # x ≈ d·(s·level) - least·m
    aa = per_block(s * s * total(weighted, levels))
    ab = -per_block(s * m * weighted.sum(axis=0))
    bb = per_block(m * m * weight.sum(axis=0))
    ax, bx = per_block(s * total(weighted, x)), -per_block(m * wx.sum(axis=0))
    determinant = aa * bb - ab * ab
    sound = determinant > 1e-4 * aa * bb
    per = inverse(determinant)
    both = halves((bb * ax - ab * bx) * per), halves((aa * bx - ab * ax) * per)
    single = halves((ax - ab * least) * inverse(aa))
    new_d, new_least = np.where(sound, both[0], single), np.where(sound, both[1], least)

    def loss(d: Floats, least: Floats) -> Floats:
        found: Floats = d * d * aa + 2 * d * least * ab + least * least * bb - 2 * (d * ax + least * bx)
        return found

    better = (new_d > 0) & (new_least >= 0) & (loss(new_d, new_least) < loss(d, least))
    return np.where(better, new_d, d), np.where(better, new_least, least)


def _put_six_bits(packed: Bytes, scales: Bytes, minima: Bytes) -> None:
    """Eight scales and minima of six bits: the first four whole in bytes 0…3 and 4…7, whose top bits the last four share."""
    packed[:, 0:4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    packed[:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    packed[:, 8:12] = scales[:, 4:] & 15 | minima[:, 4:] << 4


def encode_q2_k(x: Floats, blocks: Bytes) -> None:
    d, least, scales, minima, levels = _with_minima(x, 16, 3, 15, _COARSE_NUDGES)
    blocks[:, :16] = scales | minima << 4
    blocks[:, 16:80] = _packed_pairs(levels)
    put_f16(blocks, 80, d[:, None])
    put_f16(blocks, 82, least[:, None])


def encode_q4_k(x: Floats, blocks: Bytes) -> None:
    d, least, scales, minima, levels = _with_minima(x, 32, 15, 63, _NUDGES)
    put_f16(blocks, 0, d[:, None])
    put_f16(blocks, 2, least[:, None])
    _put_six_bits(blocks[:, 4:16], scales, minima)
    blocks[:, 16:] = _packed_nibbles(levels)


def encode_q5_k(x: Floats, blocks: Bytes) -> None:
    d, least, scales, minima, levels = _with_minima(x, 32, 31, 63, _NUDGES)
    put_f16(blocks, 0, d[:, None])
    put_f16(blocks, 2, least[:, None])
    _put_six_bits(blocks[:, 4:16], scales, minima)
    blocks[:, 16:48] = _packed_bits(levels >> 4)
    blocks[:, 48:] = _packed_nibbles(levels)


def _packed_nibbles(levels: NDArray[Any]) -> NDArray[Any]:
    """Bytes of 64 elements each: part 2i in the low halves, part 2i + 1 in the high ones."""
    parts = levels.reshape(-1, 4, 2, 32)
    return (parts[:, :, 0] & 15 | parts[:, :, 1] << 4).reshape(-1, 128)


def _packed_pairs(levels: NDArray[Any]) -> Bytes:
    """Two bits of each element, four parts of 32 in the 32 bytes of each half."""
    packed: Bytes = np.bitwise_or.reduce((levels & 3).reshape(-1, 2, 4, 32) << _PAIRS, axis=2).reshape(-1, 64)
    return packed


def _packed_bits(levels: NDArray[Any]) -> Bytes:
    """One bit of each element: bit i of byte j belongs to element j of part i."""
    packed: Bytes = np.bitwise_or.reduce((levels & 1).reshape(-1, 8, 32) << _BITS, axis=1)
    return packed


def _signed(x: Floats, half: int, most: int, nudges: tuple[float, ...]) -> tuple[Floats, Floats, Bytes]:
    """d, the parts' scales -most…most-1 as [blocks, 16], and levels 0…2·half-1 for -half…half-1 as [blocks, 256]."""
    columns = as_columns(x, 16)
    weight = _importance(columns)
    rounded = partial(nearest, low=-half, high=half - 1)
    scale = fit_scale(columns, -half, half - 1, nudges, weight).reshape(-1, 16)
    d, scales = _signed_scales(columns, weight, scale, most, rounded)
    levels = rounded(columns, (scales * d[:, None]).ravel())
    return d, scales, as_blocks(levels + np.float32(half), 256)


def _signed_scales(
    columns: Floats, weight: Floats, scale: Floats, most: int, rounded: Callable[[Floats, Floats], Floats]
) -> tuple[Floats, Floats]:
    """d and the whole scales -most…most-1 for the best `scale` of each part [blocks, parts].

    `rounded(x, steps)` gives the levels nearest to x, for which d is fitted again.
    """
    d = halves(extremes(np.ascontiguousarray(scale.T)) / np.float32(-most))
    scales = nearest(scale.T, d, -most, most - 1).T
    for _ in range(2):
        levels = rounded(columns, (scales * d[:, None]).ravel())
        s, weighted = scales.ravel(), weight * levels
        aa, ax = (v.reshape(scale.shape).sum(axis=1) for v in (s * s * total(weighted, levels), s * total(weighted, columns)))
        found = halves(ax * inverse(aa))
        d = np.where(np.isfinite(found) & (found != 0), found, d)
    return d, scales


def encode_q3_k(x: Floats, blocks: Bytes) -> None:
    d, scales, levels = _signed(x, 4, 32, _COARSE_NUDGES)
    blocks[:, :32] = _packed_bits(levels >> 2)
    blocks[:, 32:96] = _packed_pairs(levels)
    six = (scales + np.float32(32)).astype(np.uint8)
    blocks[:, 96:104] = six[:, :8] & 15 | six[:, 8:] << 4
    blocks[:, 104:108] = np.bitwise_or.reduce((six >> 4).reshape(-1, 4, 4) << _PAIRS, axis=1)
    put_f16(blocks, 108, d[:, None])


def encode_q6_k(x: Floats, blocks: Bytes) -> None:
    d, scales, levels = _signed(x, 32, 128, _FINE_NUDGES)
    parts = levels.reshape(-1, 2, 4, 32)
    blocks[:, :128] = (parts[:, :, :2] & 15 | parts[:, :, 2:] << 4).reshape(-1, 128)
    blocks[:, 128:192] = _packed_pairs(levels >> 4)
    blocks[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    put_f16(blocks, 208, d[:, None])


def encode_iq4_xs(x: Floats, blocks: Bytes) -> None:
    columns = as_columns(x, 32)
    weight = _importance(columns)
    scale = fit_nonlinear(columns, weight).reshape(-1, 8)
    d, scales = _signed_scales(columns, weight, scale, 32, lambda x, steps: IQ4_NL.nearest_levels(x * inverse(steps)))
    codes = IQ4_NL.nearest(columns * inverse((scales * d[:, None]).ravel()))
    put_f16(blocks, 0, d[:, None])
    put_iq4_xs_scales(blocks, scales)
    put_nibbles(blocks[:, 8:].reshape(-1, 8, 16), as_blocks(codes, 8, 32))
