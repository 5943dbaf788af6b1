"""Encoders of the formats with blocks of 32: one scale, for some a start, for two a table of unequal levels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import Bytes, Floats, inverse, put_f16, put_nibbles
from pumice.core.block_layouts import DOUBLED_E2M1, NONLINEAR
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
_FINE_NUDGES = (-0.6, -0.3, 0.0, 0.3, 0.6)


def halves(values: Floats) -> Floats:
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


def _symmetric(x: Floats, half: int) -> tuple[Floats, Bytes]:
    """The scale of every block and its levels 0…2·half-1, which stand for -half…half-1."""
    columns = as_columns(x, 32)
    zero = np.zeros(columns.shape[1], np.float32)
    plain, found = halves(extremes(columns) / np.float32(-half)), halves(fit_scale(columns, -half, half - 1, _NUDGES))
    d, _, levels = _better(columns, ((plain, zero), (found, zero.copy())), -half, half - 1)
    return d, as_blocks(levels + np.float32(half), 32)


def _between(x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """Scale, start and levels 0…top of every block."""
    columns = as_columns(x, 32)
    low = columns.min(axis=0)
    plain = (halves((columns.max(axis=0) - low) / np.float32(top)), halves(low))
    scale, start = fit_line(columns, top, _NUDGES)
    d, m, levels = _better(columns, (plain, (halves(scale), halves(start))), 0, top)
    return d, m, as_blocks(levels, 32)


def encode_q4_0(x: Floats, blocks: Bytes) -> None:
    d, levels = _symmetric(x, 8)
    put_f16(blocks, 0, d[:, None])
    put_nibbles(blocks[:, 2:], levels)


def encode_q4_1(x: Floats, blocks: Bytes) -> None:
    d, m, levels = _between(x, 15)
    put_f16(blocks, 0, d[:, None])
    put_f16(blocks, 2, m[:, None])
    put_nibbles(blocks[:, 4:], levels)


def encode_q5_0(x: Floats, blocks: Bytes) -> None:
    d, levels = _symmetric(x, 16)
    put_f16(blocks, 0, d[:, None])
    blocks[:, 2:6] = np.packbits(levels >> 4, axis=1, bitorder="little")
    put_nibbles(blocks[:, 6:], levels)


def encode_q5_1(x: Floats, blocks: Bytes) -> None:
    d, m, levels = _between(x, 31)
    put_f16(blocks, 0, d[:, None])
    put_f16(blocks, 2, m[:, None])
    blocks[:, 4:8] = np.packbits(levels >> 4, axis=1, bitorder="little")
    put_nibbles(blocks[:, 8:], levels)


def encode_q8_0(x: Floats, blocks: Bytes) -> None:
    columns = as_columns(x, 32)
    zero = np.zeros(columns.shape[1], np.float32)
    # Kernels elsewhere negate levels, so -128 is never written.
    largest: Floats = np.abs(extremes(columns))
    plain = halves(largest / np.float32(127))
    found = halves(np.abs(fit_scale(columns, -127, 127, _FINE_NUDGES)))
    d, _, levels = _better(columns, ((plain, zero), (found, zero.copy())), -127, 127)
    put_f16(blocks, 0, d[:, None])
    blocks[:, 2:] = np.ascontiguousarray(levels.T).astype(np.int8).view(np.uint8)


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


def encode_iq4_nl(x: Floats, blocks: Bytes) -> None:
    columns = as_columns(x, 32)
    best, found = halves(extremes(columns) / IQ4_NL.values[0]), halves(fit_nonlinear(columns))
    codes = IQ4_NL.nearest(columns * inverse(best))
    new_codes = IQ4_NL.nearest(columns * inverse(found))
    errors = (squared_error(columns, IQ4_NL.levels(c), d) for c, d in ((codes, best), (new_codes, found)))
    better = next(errors) > next(errors)
    np.copyto(best, found, where=better)
    np.copyto(codes, new_codes, where=better)
    put_f16(blocks, 0, best[:, None])
    put_nibbles(blocks[:, 2:], as_blocks(codes, 32))


def encode_mxfp4(x: Floats, blocks: Bytes) -> None:
    columns = as_columns(x, 32)
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
    blocks[:, 0] = best
    put_nibbles(blocks[:, 1:], as_blocks(codes, 32))
