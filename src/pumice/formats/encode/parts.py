"""Encoders of the K formats: blocks of 256 in parts of 32 or 16, whose small whole scales multiply the block's f16 numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pumice.core.block_codec import Bytes, Floats, inverse
from pumice.core.block_formats import BlockLayout
from pumice.formats.encode.search import (
    as_blocks,
    as_columns,
    extremes,
    fit_line,
    fit_scale,
    nearest,
    total,
)
from pumice.formats.encode.simple import IQ4_NL, fit_nonlinear, round_to_f16, store

_NUDGES = tuple(n / 5 for n in range(-5, 6))
_COARSE_NUDGES = tuple(n / 10 for n in range(-8, 9))  # with few levels each one counts more
_FINE_NUDGES = tuple(n / 4 for n in range(-4, 5))


def _importance(x: Floats) -> Floats:
    """The cost of an error in each element: large ones matter more to a matmul, small ones are not free."""
    found: Floats = np.abs(x) + np.sqrt(np.mean(np.square(x), axis=0))
    return found


def _with_minima(
    x: Floats, part: int, top: int, most: int, nudges: tuple[float, ...]
) -> tuple[Floats, Floats, Floats, Floats, Bytes]:
    """d, the step of minima, the parts' scales and minima (0…most) as [blocks, parts], and levels 0…top as [blocks, 256]."""
    columns = as_columns(x, part)
    weight = _importance(columns)
    scale, start = fit_line(columns, top, nudges, weight, below_zero=True)
    scales, minima = np.maximum(scale, 0).reshape(-1, 256 // part), -start.reshape(-1, 256 // part)
    d, least = (round_to_f16(v.max(axis=1) / np.float32(most)) for v in (scales, minima))
    scales, minima = (nearest(v.T, step, 0, most).T for v, step in ((scales, d), (minima, least)))
    for _ in range(2):
        levels = _levels_above(columns, scales * d[:, None], minima * least[:, None], top)
        d, least = _refit(columns, weight, levels, scales, minima, d, least)
    levels = _levels_above(columns, scales * d[:, None], minima * least[:, None], top)
    return d, least, scales, minima, as_blocks(levels, 256)


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
    both = round_to_f16((bb * ax - ab * bx) * per), round_to_f16((aa * bx - ab * ax) * per)
    single = round_to_f16((ax - ab * least) * inverse(aa))
    new_d, new_least = np.where(sound, both[0], single), np.where(sound, both[1], least)

    def loss(d: Floats, least: Floats) -> Floats:
        found: Floats = d * d * aa + 2 * d * least * ab + least * least * bb - 2 * (d * ax + least * bx)
        return found

    better = (new_d > 0) & (new_least >= 0) & (loss(new_d, new_least) < loss(d, least))
    return np.where(better, new_d, d), np.where(better, new_least, least)


def encode_between_parts(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """Parts with scales and minima; levels from 0 up."""
    assert layout.scales is not None
    most = (1 << sum(bits.width for bits in layout.scales.parts[-1])) - 1
    nudges = _COARSE_NUDGES if layout.bits == 2 else _NUDGES
    d, least, scales, minima, levels = _with_minima(x, layout.part_size, (1 << layout.bits) - 1, most, nudges)
    store(layout, blocks, d, levels, scales=scales, least=least, leasts=minima)


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
    d = round_to_f16(extremes(np.ascontiguousarray(scale.T)) / np.float32(-most))
    scales = nearest(scale.T, d, -most, most - 1).T
    for _ in range(2):
        levels = rounded(columns, (scales * d[:, None]).ravel())
        s, weighted = scales.ravel(), weight * levels
        aa, ax = (v.reshape(scale.shape).sum(axis=1) for v in (s * s * total(weighted, levels), s * total(weighted, columns)))
        found = round_to_f16(ax * inverse(aa))
        d = np.where(np.isfinite(found) & (found != 0), found, d)
    return d, scales


def encode_symmetric_parts(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """Parts with signed scales; levels -zero…zero-1, which are stored from 0 up."""
    assert layout.scales is not None
    nudges = _FINE_NUDGES if layout.scales.is_signed else _COARSE_NUDGES
    d, scales, levels = _signed(x, layout.zero, layout.scales.zero or 128, nudges)
    store(layout, blocks, d, levels, scales=scales)


def encode_table_parts(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """Parts with signed scales; numbers of the nonlinear table."""
    assert layout.scales is not None
    columns = as_columns(x, layout.part_size)
    weight = _importance(columns)
    scale = fit_nonlinear(columns, weight).reshape(len(x), -1)
    d, scales = _signed_scales(columns, weight, scale, layout.scales.zero, _nearest_nonlinear)
    codes = IQ4_NL.nearest(columns * inverse((scales * d[:, None]).ravel()))
    store(layout, blocks, d, as_blocks(codes, layout.elements), scales=scales)


def _nearest_nonlinear(x: Floats, steps: Floats) -> Floats:
    return IQ4_NL.nearest_levels(x * inverse(steps))
