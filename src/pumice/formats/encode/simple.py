"""Encoders of the formats with one scale for a block: for some a start, for two a table of unequal levels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import Bytes, Floats, inverse, put_codes, put_f16, put_sub_scales
from pumice.core.block_formats import DOUBLED_E2M1, NONLINEAR, BlockLayout
from pumice.formats.encode.search import (
    as_blocks,
    as_columns,
    extremes,
    fit_line,
    fit_scale,
    nearest,
    squared_error,
    total,
)

# How far, in levels, candidates move the extreme element beyond or within the range.
_NUDGES = tuple(n / 4 for n in range(-6, 7))
_TERNARY_NUDGES = tuple(n / 4 for n in range(13))
_FINE_NUDGES = (-0.6, -0.3, 0.0, 0.3, 0.6)


def round_to_f16(values: Floats) -> Floats:
    """The values as f16 holds them; what f16 cannot hold becomes infinite, and is refused when it is stored."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _better(x: Floats, choices: tuple[tuple[Floats, Floats], ...], low: int, high: int) -> tuple[Floats, Floats, Floats]:
    """Of several (scale, start), rounded as they will be stored, the one with the least error in each column; and levels."""
    best_d, best_start = choices[0]
    best_levels = nearest(x - best_start, best_d, low, high)
    least = squared_error(x, best_levels, best_d, best_start)
    for d, start in choices[1:]:
        levels = nearest(x - start, d, low, high)
        error = squared_error(x, levels, d, start)
        better = error < least
        for kept, new in ((best_d, d), (best_start, start), (least, error), (best_levels, levels)):
            np.copyto(kept, new, where=better)
    return best_d, best_start, best_levels


def encode_symmetric(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """One scale; levels -zero…zero-1, which are stored from 0 up."""
    half, columns = layout.zero, as_columns(x, layout.elements)
    plain, found = extremes(columns) / np.float32(-half), fit_scale(columns, -half, half - 1, _NUDGES)
    _store_better(layout, columns, blocks, plain, found, half, half - 1)


def encode_signed(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """One scale; signed bytes. Kernels elsewhere negate levels, so -128 is never written."""
    columns = as_columns(x, layout.elements)
    plain, found = extremes(columns) / np.float32(127), fit_scale(columns, -127, 127, _FINE_NUDGES)
    _store_better(layout, columns, blocks, np.abs(plain), np.abs(found), 127, 127)


def _store_better(
    layout: BlockLayout, columns: Floats, blocks: Bytes, plain: Floats, found: Floats, below: int, above: int
) -> None:
    zero = np.zeros(columns.shape[1], np.float32)
    d, _, levels = _better(columns, ((round_to_f16(plain), zero), (round_to_f16(found), zero.copy())), -below, above)
    store(layout, blocks, d, as_blocks(levels + np.float32(layout.zero), layout.elements))


def encode_ternary(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """One scale; levels -1, 0 and 1. Weights that were trained to be such numbers are kept as they are."""
    columns = as_columns(x, layout.elements)
    plain, found = np.abs(extremes(columns)), np.abs(fit_scale(columns, -1, 1, _TERNARY_NUDGES))
    _store_better(layout, columns, blocks, plain, found, 1, 1)


def encode_between(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """A scale and a start; levels from 0 up."""
    columns, top = as_columns(x, layout.elements), (1 << layout.bits) - 1
    low = columns.min(axis=0)
    plain = (round_to_f16((columns.max(axis=0) - low) / np.float32(top)), round_to_f16(low))
    scale, start = fit_line(columns, top, _NUDGES)
    d, m, levels = _better(columns, (plain, (round_to_f16(scale), round_to_f16(start))), 0, top)
    store(layout, blocks, d, as_blocks(levels, layout.elements), least=m)


def store(
    layout: BlockLayout,
    blocks: Bytes,
    d: Floats,
    codes: Bytes,
    *,
    scales: Floats | None = None,
    least: Floats | None = None,
    leasts: Floats | None = None,
) -> None:
    """Fills blocks: d and least [n], the parts' whole scales and leasts [n, parts], codes [n, elements]."""
    blocks[:] = 0
    for at, number in ((layout.scale, d), (layout.least, least)):
        if at is not None and number is not None:
            put_f16(blocks, at, number[:, None])
    for where, values in ((layout.scales, scales), (layout.leasts, leasts)):
        if where is not None and values is not None:
            put_sub_scales(where, blocks, values)
    put_codes(layout, blocks, codes)


class _LevelTable:
    """Unequal levels: which one is nearest to a number, found by a table of half steps, as all midpoints are such steps."""

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = np.array(values, np.float32)
        self.reach = max(abs(v) for v in values) + 1
        steps = np.arange(-2 * self.reach, 2 * self.reach + 1) / 2 + 0.25
        self._codes = np.abs(steps[:, None] - self.values).argmin(axis=1).astype(np.uint8)
        self._levels = self.values[self._codes]

    def levels(self, codes: Bytes) -> Floats:
        return self.values.take(codes, mode="clip")

    def nearest(self, x: Floats) -> Bytes:
        """The code of the nearest level for each number; x is used up."""
        found: Bytes = self._codes.take(self._places(x), mode="clip")
        return found

    def nearest_levels(self, x: Floats) -> Floats:
        """The nearest level for each number; x is used up."""
        found: Floats = self._levels.take(self._places(x), mode="clip")
        return found

    def _places(self, x: Floats) -> NDArray[np.intp]:
        np.clip(x, -self.reach, self.reach, out=x)
        x *= 2
        np.floor(x, out=x)
        x += 2 * self.reach
        return x.astype(np.intp)


IQ4_NL, _E2M1 = _LevelTable(NONLINEAR), _LevelTable(DOUBLED_E2M1)


def fit_nonlinear(x: Floats, weight: Floats | None = None) -> Floats:
    """The scale of each column for the nonlinear levels, searched like `fit_scale`."""
    extreme = extremes(x)
    unit = inverse(extreme)
    found: Floats = extreme / IQ4_NL.values[0]
    most = np.zeros_like(extreme)
    wx = x if weight is None else weight * x
    # The extreme element goes to either end, or a little beyond.
    for end in (-143.0, -135.0, -127.0, -119.0, -111.0, 105.0, 113.0, 121.0):
        tried = IQ4_NL.nearest_levels(x * (unit * np.float32(end)))
        product = total(wx, tried)
        scale = product * inverse(total(tried if weight is None else weight * tried, tried))
        gain = scale * product
        found, most = np.where(gain > most, scale, found), np.maximum(gain, most)
    return found


def encode_table(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """One scale; numbers of the nonlinear table."""
    columns = as_columns(x, layout.elements)
    best, found = round_to_f16(extremes(columns) / IQ4_NL.values[0]), round_to_f16(fit_nonlinear(columns))
    codes = IQ4_NL.nearest(columns * inverse(best))
    new_codes = IQ4_NL.nearest(columns * inverse(found))
    errors = (squared_error(columns, IQ4_NL.levels(c), d) for c, d in ((codes, best), (new_codes, found)))
    better = next(errors) > next(errors)
    np.copyto(best, found, where=better)
    np.copyto(codes, new_codes, where=better)
    store(layout, blocks, best, as_blocks(codes, layout.elements))


def encode_exponent(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """A power of two as the scale; four-bit floats."""
    columns = as_columns(x, layout.elements)
    # Everything relative to a power of two above the extreme element: the scale may be any, where squares would overflow.
    _, power = np.frexp(np.abs(extremes(columns)))
    columns = np.ldexp(columns, -power)
    best, codes, least = np.zeros_like(power), np.zeros(columns.shape, np.uint8), total(columns, columns)
    # The exponent that takes the extreme element to 4…8, or 8…16 in doubled levels; its neighbours may lose less.
    for nudge in (0, 1, -1):
        d = np.full(columns.shape[1], 2.0 ** (nudge - 4), np.float32)
        new_codes = _E2M1.nearest(columns * inverse(d))
        error = squared_error(columns, _E2M1.levels(new_codes), d)
        # A byte e stands for 2^(e - 127), and for half of it with doubled levels.
        e = power + (nudge - 4 + 128)
        better = (error < least) & (e >= 0) & (e <= 254)
        for kept, new in ((best, e), (least, error), (codes, new_codes)):
            np.copyto(kept, new, where=better)
    blocks[:, layout.scale] = best
    put_codes(layout, blocks, as_blocks(codes, layout.elements))
