"""The searches that all encoders share: which scale, or which line, loses least when its levels are rounded.

Everything works on parts as columns, x [elements of a part, parts]: sums over a part then run along whole rows of memory,
several times faster than many short sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import Bytes, Floats, inverse


def as_columns(x: Floats, part: int) -> Floats:
    """Rows of blocks, cut into parts, one part a column.

    >>> as_columns(np.arange(8, dtype=np.float32).reshape(2, 4), 2).tolist()
    [[0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0]]
    """
    return np.ascontiguousarray(x.reshape(-1, part).T)


def as_blocks(columns: NDArray[np.generic], *shape: int) -> Bytes:
    """Levels in columns as bytes, back in the order of the elements."""
    return np.ascontiguousarray(columns.T).astype(np.uint8).reshape(-1, *shape)


def total(a: Floats, b: Floats) -> Floats:
    """The sum of products of each column."""
    found: Floats = np.einsum("kn,kn->n", a, b)
    return found


def extremes(x: Floats) -> Floats:
    """The element of each column that is largest in magnitude, with its sign."""
    high, low = x.max(axis=0), x.min(axis=0)
    found: Floats = np.where(high > -low, high, low)
    return found


def nearest(x: Floats, d: Floats, low: int, high: int) -> Floats:
    """For each element the whole multiple of its column's d, within bounds, that is nearest."""
    # Not `block_codec.nearest`: these arrays are large, and each copy of one costs as much as the rounding.
    levels = x * inverse(d)
    np.rint(levels, out=levels)
    return np.clip(levels, low, high, out=levels)


def squared_error(x: Floats, levels: Floats, d: Floats, start: Floats | float = 0.0) -> Floats:
    """The squared error of d · levels + start against x, summed over each column."""
    missed = levels * d
    missed += start
    missed -= x
    return total(missed, missed)


def fit_scale(x: Floats, low: int, high: int, nudges: Sequence[float], weight: Floats | None = None) -> Floats:
    """The scale of each column for levels low…high, as found by rounding with several scales near the plain one.

    The plain scale takes the extreme element to `low`, and is negative where that element is positive, so that the range is
    used in full. For the levels that each candidate gives, the best scale follows in closed form.
    """
    extreme = extremes(x)
    unit = inverse(extreme)
    wx = x if weight is None else weight * x
    levels, weighted = np.empty_like(x), np.empty_like(x)
    scale, most = extreme / np.float32(low), np.zeros_like(extreme)
    for nudge in nudges:
        np.multiply(x, unit * np.float32(low - nudge), out=levels)
        np.rint(levels, out=levels)
        np.clip(levels, low, high, out=levels)
        product = total(wx, levels)
        square = total(levels, levels) if weight is None else total(np.multiply(weight, levels, out=weighted), levels)
        # The error is least where this is greatest.
        best = product * inverse(square)
        gain = best * product
        better = gain > most
        np.copyto(scale, best, where=better)
        np.copyto(most, gain, where=better)
    return scale


def fit_line(
    x: Floats, top: int, nudges: Sequence[float], weight: Floats | None = None, *, below_zero: bool = False
) -> tuple[Floats, Floats]:
    """Scale and start of each column for levels 0…top, searched like `fit_scale`; `below_zero` forbids a start above 0."""
    low = x.min(axis=0)
    if below_zero:
        low = np.minimum(low, np.float32(0))
    shifted = x - low
    plain = shifted.max(axis=0) / np.float32(top)
    unit = inverse(plain)
    ones = np.ones_like(x) if weight is None else weight
    # Sums over the elements: of weights, and of the values above `low` (differences of large numbers would lose digits).
    sw, wx = ones.sum(axis=0), ones * shifted
    sx = wx.sum(axis=0)
    levels, weighted = np.empty_like(x), np.empty_like(x)
    scale, start, most = plain.copy(), np.zeros_like(plain), np.full_like(plain, -np.inf)
    for nudge in nudges:
        np.multiply(shifted, unit * np.float32((top + nudge) / top), out=levels)
        np.rint(levels, out=levels)
        np.minimum(levels, np.float32(top), out=levels)
        np.multiply(ones, levels, out=weighted)
        sl, sll, slx = weighted.sum(axis=0), total(weighted, levels), total(wx, levels)
        determinant = sw * sll - sl * sl
        sound = determinant > 1e-6 * sw * sll  # else all levels are as good as equal
        per = inverse(determinant)
        slope, begin = (sw * slx - sx * sl) * per, (sll * sx - sl * slx) * per
        if below_zero:
            # The nearest start that can be stored is 0: then the best line through it.
            over = begin > -low
            np.copyto(begin, -low, where=over)
            np.copyto(slope, (slx + low * sl) * inverse(sll), where=over)
        gain = 2 * (slope * slx + begin * sx - slope * begin * sl) - slope * slope * sll - begin * begin * sw
        better = sound & (gain > most)
        np.copyto(scale, slope, where=better)
        np.copyto(start, begin, where=better)
        np.copyto(most, gain, where=better)
    return scale, low + start
