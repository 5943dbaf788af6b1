"""Numba kernels of rasterize and its gradient: a part is a tile, of which one pixel after the other walks through the splats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import float_at, int_at, long_at, set_float
from pumice.backends.host.native.numba_text import inlined

_F32 = np.float32
# The words of a task; those from IMAGE on, but for the sizes, are of the gradient. PARTS has a row for each pair.
(
    SPLATS,
    PAIRS,
    BOUNDS,
    OUT,
    IMAGE,
    GIVEN,
    PARTS,
    COUNT,
    LISTED,
    FEATURES,
    WIDTH,
    HEIGHT,
    TILE,
    CLIP,
    CUTOFF,
    STOP,
    FAINT,
) = (8 * i for i in range(17))
# FAINT is the logarithm of the cutoff, less what rounding may change.
# Numbers of a splat before its features; the same as in ir/ops/rasterize.py.
_GEOMETRY = 6
# The words of the sum over rows.
SUM_PARTS, SUM_ROWS, SUM_OUT, SUM_NUMBERS, SUM_LISTED = (8 * i for i in range(5))


@inlined
def _limits(job: int, tile: int) -> Any:
    """A tile's first pixel and their ends, and its first and end pair."""
    side, wide, high = long_at(job + TILE), long_at(job + WIDTH), long_at(job + HEIGHT)
    across = (wide + side - 1) // side
    left, top = tile % across * side, tile // across * side
    at, listed = long_at(job + BOUNDS) + 4 * tile, long_at(job + LISTED)
    first, end = max(0, min(int_at(at), listed)), max(0, min(int_at(at + 4), listed))
    return left, top, min(left + side, wide), min(top + side, high), first, end if long_at(job + COUNT) > 0 else first


@inlined
def _splat(job: int, pair: int, bytes_each: int) -> Any:
    """Where the numbers of a pair's splat are."""
    found = int_at(long_at(job + PAIRS) + 8 * pair)
    return long_at(job + SPLATS) + bytes_each * max(0, min(found, long_at(job + COUNT) - 1))


@inlined
def _raw_alpha(splat: int, dx: Any, dy: Any, faint: Any) -> Any:
    """Alpha before it is clipped, negative where the exponent is positive, or that of no opacity up to 1 reaches the cutoff."""
    power = _F32(-0.5) * (float_at(splat + 8) * dx * dx + float_at(splat + 16) * dy * dy) - float_at(splat + 12) * dx * dy
    opacity = float_at(splat + 20)
    if not power <= _F32(0) or (power < faint and opacity <= _F32(1)):
        return _F32(-1)
    return opacity * _F32(math.exp(power))


def rasterize_f32(job: int, first: int, last: int) -> None:
    features = long_at(job + FEATURES)
    each, wide = 4 * (_GEOMETRY + features), long_at(job + WIDTH)
    clip, cutoff, stop, faint = float_at(job + CLIP), float_at(job + CUTOFF), float_at(job + STOP), float_at(job + FAINT)
    for tile in range(first, last):
        left, top, right, bottom, begin, end = _limits(job, tile)
        for y in range(top, bottom):
            for x in range(left, right):
                out = long_at(job + OUT) + 4 * (features + 1) * (y * wide + x)
                for c in range(features + 1):
                    set_float(out + 4 * c, _F32(0))
                through, covered = _F32(1), _F32(0)
                for pair in range(begin, end):
                    splat = _splat(job, pair, each)
                    dx, dy = _F32(x) + _F32(0.5) - float_at(splat), _F32(y) + _F32(0.5) - float_at(splat + 4)
                    raw = _raw_alpha(splat, dx, dy, faint)
                    alpha = min(raw, clip)
                    if not alpha >= cutoff:
                        continue
                    after = through * (_F32(1) - alpha)
                    if after < stop:
                        break
                    weight = alpha * through
                    for c in range(features):
                        at = out + 4 * c
                        set_float(at, float_at(at) + weight * float_at(splat + 4 * (_GEOMETRY + c)))
                    covered += weight
                    through = after
                set_float(out + 4 * features, covered)


def rasterize_parts_f32(job: int, first: int, last: int) -> None:
    """What each pair of splat and tile gives to the gradient."""
    features = long_at(job + FEATURES)
    numbers, wide = _GEOMETRY + features, long_at(job + WIDTH)
    each, clip, cutoff, stop = 4 * numbers, float_at(job + CLIP), float_at(job + CUTOFF), float_at(job + STOP)
    faint = float_at(job + FAINT)
    for tile in range(first, last):
        left, top, right, bottom, begin, end = _limits(job, tile)
        for pair in range(begin, end):
            part = _part(job, pair, each)
            for c in range(numbers):
                set_float(part + 4 * c, _F32(0))
        for y in range(top, bottom):
            for x in range(left, right):
                pixel = 4 * (features + 1) * (y * wide + x)
                image, given = long_at(job + IMAGE) + pixel, long_at(job + GIVEN) + pixel
                remaining = _F32(0)
                for c in range(features + 1):
                    remaining += float_at(image + 4 * c) * float_at(given + 4 * c)
                through = _F32(1)
                for pair in range(begin, end):
                    splat = _splat(job, pair, each)
                    dx, dy = _F32(x) + _F32(0.5) - float_at(splat), _F32(y) + _F32(0.5) - float_at(splat + 4)
                    raw = _raw_alpha(splat, dx, dy, faint)
                    alpha = min(raw, clip)
                    if not alpha >= cutoff:
                        continue
                    after = through * (_F32(1) - alpha)
                    if after < stop:
                        break
                    weight, part = alpha * through, _part(job, pair, each)
                    per_alpha = float_at(given + 4 * features)
                    for c in range(features):
                        own, to = float_at(given + 4 * c), part + 4 * (_GEOMETRY + c)
                        per_alpha += own * float_at(splat + 4 * (_GEOMETRY + c))
                        set_float(to, float_at(to) + weight * own)
                    remaining -= weight * per_alpha
                    through = after
                    if raw <= clip:
                        slope = weight * per_alpha - remaining * (alpha / (_F32(1) - alpha))
                        _add(part, slope * (float_at(splat + 8) * dx + float_at(splat + 12) * dy))
                        _add(part + 4, slope * (float_at(splat + 12) * dx + float_at(splat + 16) * dy))
                        _add(part + 8, _F32(-0.5) * slope * dx * dx)
                        _add(part + 12, -slope * dx * dy)
                        _add(part + 16, _F32(-0.5) * slope * dy * dy)
                        _add(part + 20, slope / float_at(splat + 20))


@inlined
def _part(job: int, pair: int, bytes_each: int) -> Any:
    """Where the part of a pair is."""
    row = int_at(long_at(job + PAIRS) + 8 * pair + 4)
    return long_at(job + PARTS) + bytes_each * max(0, min(row, long_at(job + LISTED) - 1))


@inlined
def _add(to: int, value: Any) -> None:
    set_float(to, float_at(to) + value)


def sum_splat_rows(job: int, first: int, last: int) -> None:
    """The sum of each splat's rows; a part is a splat."""
    numbers, listed = long_at(job + SUM_NUMBERS), long_at(job + SUM_LISTED)
    for splat in range(first, last):
        rows, out = long_at(job + SUM_ROWS) + 8 * splat, long_at(job + SUM_OUT) + 4 * numbers * splat
        begin, end = max(0, int_at(rows)), min(int_at(rows + 4), listed)
        for c in range(numbers):
            total = _F32(0)
            for row in range(begin, end):
                total += float_at(long_at(job + SUM_PARTS) + 4 * (row * numbers + c))
            set_float(out + 4 * c, total)
