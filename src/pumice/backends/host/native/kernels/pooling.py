"""Numba kernels of pooling and resizing and their gradients; a part is a plane: one channel of one image.

Axes are always three, the first of them of size 1 where there are fewer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    block_memory,
    fetch_range,
    float_at,
    long_at,
    set_float,
)
from pumice.backends.host.native.codegen.pool_code import LANES, fill_row, fold_row, slide_row, slide_row_by_two
from pumice.backends.host.native.numba_text import inlined

_F32 = np.float32
# Floats of a row with its padding that fit the memory of a kernel: LANES of them more may be written behind it.
_MOST_ROW = 8000
# The words of a task. LARGE has the elements that windows are over, SMALL one for each window, and OTHER a second one for each;
# SHARES is what a window's sum is multiplied with, per window.
(
    LARGE,
    SMALL,
    OTHER,
    OUT,
    SHARES,
    SIZE_Z,
    SIZE_Y,
    SIZE_X,
    COUNT_Z,
    COUNT_Y,
    COUNT_X,
    KERNEL_Z,
    KERNEL_Y,
    KERNEL_X,
    STRIDE_Z,
    STRIDE_Y,
    STRIDE_X,
    LOW_Z,
    LOW_Y,
    LOW_X,
) = (8 * i for i in range(20))
# The words of resizing. PLACES has for each position of the resized axes, one axis after the other, the two elements that it is
# between, and the share of the second as a float in the last word.
SOURCE, RESIZED, PLACES, OLD_Z, OLD_Y, OLD_X, NEW_Z, NEW_Y, NEW_X = (8 * i for i in range(9))
PLACE_BYTES = 24


@inlined
def _span(job: int, axis: int, window: int) -> Any:
    """The elements begin…end-1 of a window along an axis, without padding."""
    at = job + 8 * axis
    start = window * long_at(at + STRIDE_Z) - long_at(at + LOW_Z)
    return max(0, start), min(long_at(at + SIZE_Z), start + long_at(at + KERNEL_Z))


@inlined
def _planes(job: int) -> Any:
    """Bytes of a plane, and of a plane of windows."""
    large = 4 * long_at(job + SIZE_Z) * long_at(job + SIZE_Y) * long_at(job + SIZE_X)
    return large, 4 * long_at(job + COUNT_Z) * long_at(job + COUNT_Y) * long_at(job + COUNT_X)


@inlined
def _pool(job: int, first: int, last: int, takes_max: bool) -> None:
    reach = (long_at(job + COUNT_X) - 1) * long_at(job + STRIDE_X) + long_at(job + KERNEL_X)
    length = max(long_at(job + LOW_X) + long_at(job + SIZE_X), reach) + 3 * LANES
    if long_at(job + STRIDE_X) <= 2 and length <= _MOST_ROW:
        _pool_rows(job, first, last, takes_max, length)
    else:
        _pool_windows(job, first, last, takes_max)


@inlined
def _pool_rows(job: int, first: int, last: int, takes_max: bool, length: int) -> None:
    """The rows of a row of windows folded into one, with padding on both sides, along which the windows slide."""
    large, small = _planes(job)
    high, wide, count = long_at(job + SIZE_Y), long_at(job + SIZE_X), long_at(job + COUNT_X)
    row, kernel = block_memory(), long_at(job + KERNEL_X)
    for part in range(first, last):
        x, out, share = long_at(job + LARGE) + part * large, long_at(job + OUT) + part * small, long_at(job + SHARES)
        fetch_range(x, large)
        for wz in range(long_at(job + COUNT_Z)):
            z0, z1 = _span(job, 0, wz)
            for wy in range(long_at(job + COUNT_Y)):
                y0, y1 = _span(job, 1, wy)
                fill_row(row, length, _F32(-np.inf) if takes_max else _F32(0))
                for z in range(z0, z1):
                    for y in range(y0, y1):
                        fold_row(row + 4 * long_at(job + LOW_X), x + 4 * (z * high + y) * wide, wide, takes_max)
                if long_at(job + STRIDE_X) == 2:
                    slide_row_by_two(out, row, count, kernel, share, takes_max)
                else:
                    slide_row(out, row, count, kernel, share, takes_max)
                out += 4 * count
                share += 4 * count


@inlined
def _pool_windows(job: int, first: int, last: int, takes_max: bool) -> None:
    """Window by window."""
    large, small = _planes(job)
    high, wide = long_at(job + SIZE_Y), long_at(job + SIZE_X)
    for part in range(first, last):
        x, out, share = long_at(job + LARGE) + part * large, long_at(job + OUT) + part * small, long_at(job + SHARES)
        for wz in range(long_at(job + COUNT_Z)):
            z0, z1 = _span(job, 0, wz)
            for wy in range(long_at(job + COUNT_Y)):
                y0, y1 = _span(job, 1, wy)
                for wx in range(long_at(job + COUNT_X)):
                    x0, x1 = _span(job, 2, wx)
                    found = _F32(-np.inf) if takes_max else _F32(0)
                    for z in range(z0, z1):
                        for y in range(y0, y1):
                            row = x + 4 * (z * high + y) * wide
                            for i in range(x0, x1):
                                value = float_at(row + 4 * i)
                                if not takes_max:
                                    found += value
                                elif value > found or value != value:  # NaN stays
                                    found = value
                    if not takes_max:
                        found *= float_at(share)
                        share += 4
                    set_float(out, found)
                    out += 4


def max_pool_f32(job: int, first: int, last: int) -> None:
    _pool(job, first, last, True)


def mean_pool_f32(job: int, first: int, last: int) -> None:
    _pool(job, first, last, False)


@inlined
def _clear(to: int, size: int) -> None:
    for i in range(0, size, 4):
        set_float(to + i, _F32(0))


def max_pool_grad_f32(job: int, first: int, last: int) -> None:
    """The gradient of a window goes to the first of its elements that is its maximum."""
    large, small = _planes(job)
    high, wide = long_at(job + SIZE_Y), long_at(job + SIZE_X)
    for part in range(first, last):
        x, out = long_at(job + LARGE) + part * large, long_at(job + OUT) + part * large
        top, grad = long_at(job + SMALL) + part * small, long_at(job + OTHER) + part * small
        _clear(out, large)
        for wz in range(long_at(job + COUNT_Z)):
            z0, z1 = _span(job, 0, wz)
            for wy in range(long_at(job + COUNT_Y)):
                y0, y1 = _span(job, 1, wy)
                for wx in range(long_at(job + COUNT_X)):
                    x0, x1 = _span(job, 2, wx)
                    most, place = float_at(top), -1
                    for z in range(z0, z1):
                        for y in range(y0, y1):
                            row = 4 * (z * high + y) * wide
                            for i in range(x0, x1):
                                value = float_at(x + row + 4 * i)
                                if place < 0 and (value == most or (value != value and most != most)):
                                    place = row + 4 * i
                    if place >= 0:
                        set_float(out + place, float_at(out + place) + float_at(grad))
                    top += 4
                    grad += 4


def mean_pool_grad_f32(job: int, first: int, last: int) -> None:
    """The gradient of a window goes to all its elements alike."""
    large, small = _planes(job)
    high, wide = long_at(job + SIZE_Y), long_at(job + SIZE_X)
    for part in range(first, last):
        out, grad, share = long_at(job + OUT) + part * large, long_at(job + SMALL) + part * small, long_at(job + SHARES)
        _clear(out, large)
        for wz in range(long_at(job + COUNT_Z)):
            z0, z1 = _span(job, 0, wz)
            for wy in range(long_at(job + COUNT_Y)):
                y0, y1 = _span(job, 1, wy)
                for wx in range(long_at(job + COUNT_X)):
                    x0, x1 = _span(job, 2, wx)
                    value = float_at(grad) * float_at(share)
                    for z in range(z0, z1):
                        for y in range(y0, y1):
                            row = out + 4 * (z * high + y) * wide
                            for i in range(x0, x1):
                                set_float(row + 4 * i, float_at(row + 4 * i) + value)
                    grad += 4
                    share += 4


# --- resizing ---


@inlined
def _resize(job: int, first: int, last: int, adds: bool) -> None:
    """Each resized element from those that it is between, or, in the gradient, added to them."""
    old_y, old_x = long_at(job + OLD_Y), long_at(job + OLD_X)
    new_z, new_y, new_x = long_at(job + NEW_Z), long_at(job + NEW_Y), long_at(job + NEW_X)
    old, new = 4 * long_at(job + OLD_Z) * old_y * old_x, 4 * new_z * new_y * new_x
    places_z = long_at(job + PLACES)
    places_y = places_z + PLACE_BYTES * new_z
    places_x = places_y + PLACE_BYTES * new_y
    for part in range(first, last):
        source, resized = long_at(job + SOURCE) + part * old, long_at(job + RESIZED) + part * new
        if adds:
            _clear(source, old)
        for z in range(new_z):
            at_z = places_z + PLACE_BYTES * z
            for y in range(new_y):
                at_y = places_y + PLACE_BYTES * y
                for x in range(new_x):
                    at_x = places_x + PLACE_BYTES * x
                    total, given = _F32(0), float_at(resized) if adds else _F32(0)
                    for corner in range(8):
                        k, j, i = corner >> 2, corner >> 1 & 1, corner & 1
                        weight = _weight(at_z, k) * _weight(at_y, j) * _weight(at_x, i)
                        # An element of no weight is not read: infinite, it would give NaN.
                        if weight == 0:
                            continue
                        place = (long_at(at_z + 8 * k) * old_y + long_at(at_y + 8 * j)) * old_x + long_at(at_x + 8 * i)
                        if adds:
                            set_float(source + 4 * place, float_at(source + 4 * place) + weight * given)
                        else:
                            total += weight * float_at(source + 4 * place)
                    if not adds:
                        set_float(resized, total)
                    resized += 4


@inlined
def _weight(at: int, second: int) -> Any:
    share = float_at(at + 16)
    return share if second else _F32(1) - share


def resize_f32(job: int, first: int, last: int) -> None:
    _resize(job, first, last, False)


def resize_grad_f32(job: int, first: int, last: int) -> None:
    _resize(job, first, last, True)
