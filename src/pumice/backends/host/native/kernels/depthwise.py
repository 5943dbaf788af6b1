"""Numba kernels of depthwise convolution: a part is a channel of an image, whose plane is copied with its padding first.

The copy has one plane for each class of rows and columns that a stride reaches together. Then every tap is a shift of a plane,
and results are computed as if rows had no ends: vectors run on from one row to the next, whatever the width. Windows of
3x3 need no copy where parts of vectors are read as fast as whole ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.conv_code import copy_row, finish_row, finished, put_row, split_row
from pumice.backends.host.native.codegen.depthwise_code import (
    TOGETHER,
    TOGETHER_BY_TWO,
    filter_row,
    filter_row_by_two,
    filter_rows,
    filter_rows_by_two,
)
from pumice.backends.host.native.codegen.lanes import (
    copy_bytes,
    fetch_range,
    float_at,
    load_f32,
    long_at,
    madd_scalar,
    set_float,
    store_f32,
    zeros,
)
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES

# The words of a task. TAPS has for each tap where it shifts to in the copy and where its weight is, in bytes; PER_INPUT outputs
# share an input channel. The copy has PLANES of ROWS × PITCH for each class, LOW before the source along each axis, and the
# results FLAT elements. SCALE, SHIFT and OTHER may be 0.
(
    SOURCE,
    WEIGHTS,
    OUT,
    TAPS,
    TAP_COUNT,
    OUTPUTS,
    PER_INPUT,
    SIZE_Z,
    SIZE_Y,
    SIZE_X,
    COUNT_Z,
    COUNT_Y,
    COUNT_X,
    STEP_Z,
    STEP_Y,
    STEP_X,
    LOW_Z,
    LOW_Y,
    LOW_X,
    ROWS,
    PITCH,
    PLANES,
    FLAT,
    WEIGHT_CHANNEL,
    OUT_PLANE,
    OUT_Z,
    OUT_Y,
    OUT_X,
    SCALE,
    SHIFT,
    OTHER,
    LOW,
    HIGH,
) = (8 * i for i in range(33))
TAP_WORDS = 2
_F32, _VECTOR = np.float32, 4 * LANES


@inlined
def _class_bytes(job: int) -> Any:
    return 4 * long_at(job + ROWS) * long_at(job + PITCH)


@inlined
def _copy_plane(job: int, source: int, to: int) -> None:
    """The source into its places; the padding around them stays."""
    step_y, step_x = long_at(job + STEP_Y), long_at(job + STEP_X)
    high, wide, pitch = long_at(job + SIZE_Y), long_at(job + SIZE_X), long_at(job + PITCH)
    low, each = long_at(job + LOW_X), _class_bytes(job)
    for z in range(long_at(job + SIZE_Z)):
        plane = to + (z + long_at(job + LOW_Z)) * step_y * step_x * each
        for y in range(high):
            place = y + long_at(job + LOW_Y)
            row = plane + place % step_y * step_x * each + 4 * pitch * (place // step_y)
            at = source + 4 * (z * high + y) * wide
            # In both, zeros come behind the row: where nothing is but padding, and where the next row comes after this one.
            if step_x == 1:
                copy_row(row + 4 * low, at, wide)
                continue
            if step_x == 2:
                evens, odds = row + low % 2 * each + 4 * (low // 2), row + (low + 1) % 2 * each + 4 * ((low + 1) // 2)
                split_row(evens, odds, at, wide)
                continue
            for x in range(min(wide, step_x)):
                put = row + (x + low) % step_x * each + 4 * ((x + low) // step_x)
                taken = x
                while taken < wide:
                    set_float(put, float_at(at + 4 * taken))
                    put += 4
                    taken += step_x


def depthwise_f32(job: int, first: int, last: int) -> None:
    outputs, per, count = long_at(job + OUTPUTS), long_at(job + PER_INPUT), long_at(job + TAP_COUNT)
    step_y, step_x, flat = long_at(job + STEP_Y), long_at(job + STEP_X), long_at(job + FLAT)
    whole = long_at(job + PLANES) * step_y * step_x * _class_bytes(job)
    size = 4 * long_at(job + SIZE_Z) * long_at(job + SIZE_Y) * long_at(job + SIZE_X)
    work = take_work(job)
    results = work + whole + 8 * 4 * LANES
    for at in range(work, results, 4):
        set_float(at, _F32(0))
    held = -1
    scale, shift, other = long_at(job + SCALE), long_at(job + SHIFT), long_at(job + OTHER)
    wide, high = long_at(job + COUNT_X), long_at(job + COUNT_Y)
    # Whether rows follow each other without a gap, and are finished as they are computed.
    dense = not other and long_at(job + OUT_X) == 4 and long_at(job + OUT_Y) == 4 * wide
    # Rows behind which as many others come as a whole vector takes.
    whole_rows = max(0, high - (LANES + wide - 1) // wide)
    for part in range(first, last):
        channel = part % outputs
        plane = part // outputs * (outputs // per) + channel // per
        if plane != held:
            _copy_plane(job, long_at(job + SOURCE) + plane * size, work)
            held = plane
        weights = long_at(job + WEIGHTS) + channel * long_at(job + WEIGHT_CHANNEL)
        factor = float_at(scale + 4 * channel) if scale else _F32(1)
        move = float_at(shift + 4 * channel) if shift else _F32(0)
        for z in range(long_at(job + COUNT_Z)):
            begin = work + z * long_at(job + STEP_Z) * step_y * step_x * _class_bytes(job)
            at = 0
            while at < 4 * flat:
                # Two vectors at a time, so that what a tap is costs less than what it multiplies; the last may be none.
                total, more = zeros(), zeros()
                for tap in range(count):
                    entry = long_at(job + TAPS) + 8 * TAP_WORDS * tap
                    source, weight = begin + at + long_at(entry), float_at(weights + long_at(entry + 8))
                    total = madd_scalar(load_f32(source), weight, total)
                    more = madd_scalar(load_f32(source + _VECTOR), weight, more)
                if dense:
                    total = finished(total, factor, move, float_at(job + LOW), float_at(job + HIGH))
                    more = finished(more, factor, move, float_at(job + LOW), float_at(job + HIGH))
                store_f32(results + at, total)
                store_f32(results + at + _VECTOR, more)
                at += 2 * _VECTOR
            to = part * long_at(job + OUT_PLANE) + z * long_at(job + OUT_Z)
            if dense:
                place = long_at(job + OUT) + to
                for y in range(whole_rows):
                    put_row(place + 4 * y * wide, results + 4 * y * long_at(job + PITCH), wide)
                for y in range(whole_rows, high):
                    copy_bytes(place + 4 * y * wide, results + 4 * y * long_at(job + PITCH), 4 * wide)
                continue
            for y in range(high):
                row = results + 4 * y * long_at(job + PITCH)
                place = to + y * long_at(job + OUT_Y)
                if long_at(job + OUT_X) == 4:
                    beside = other + place if other else 0
                    finish_row(
                        row, long_at(job + OUT) + place, wide, factor, move, beside,
                        float_at(job + LOW), float_at(job + HIGH),
                    )  # fmt: skip
                    continue
                # Results of a class of positions, which are only scaled and moved.
                for x in range(wide):
                    set_float(long_at(job + OUT) + place + x * long_at(job + OUT_X), float_at(row + 4 * x) * factor + move)
    give_work(job, work)


# The words of 3x3 windows with the same stride on both axes. LOW_Y and LOW_X are the padding.
(
    ROWS_SOURCE,
    ROWS_WEIGHTS,
    ROWS_OUT,
    ROWS_CHANNELS,
    ROWS_SIZE_Y,
    ROWS_SIZE_X,
    ROWS_COUNT_Y,
    ROWS_COUNT_X,
    ROWS_STEP_Y,
    ROWS_STEP_X,
    ROWS_LOW_Y,
    ROWS_LOW_X,
    ROWS_SCALE,
    ROWS_SHIFT,
    ROWS_OTHER,
    ROWS_LOW,
    ROWS_HIGH,
) = (8 * i for i in range(17))


@inlined
def _filter(job: int, part: int, channel: int, y: int, is_many: bool, by_two: bool, nothing: int) -> None:
    """One row of results, or those that are computed together."""
    high, wide, count = long_at(job + ROWS_SIZE_Y), long_at(job + ROWS_SIZE_X), long_at(job + ROWS_COUNT_X)
    plane = long_at(job + ROWS_SOURCE) + 4 * part * high * wide
    at = 4 * (part * long_at(job + ROWS_COUNT_Y) + y) * count
    out, other = long_at(job + ROWS_OUT) + at, long_at(job + ROWS_OTHER) + at if long_at(job + ROWS_OTHER) else 0
    top, left = y * long_at(job + ROWS_STEP_Y) - long_at(job + ROWS_LOW_Y), long_at(job + ROWS_LOW_X)
    weights = long_at(job + ROWS_WEIGHTS) + 36 * channel
    scale, shift = float_at(long_at(job + ROWS_SCALE) + 4 * channel), float_at(long_at(job + ROWS_SHIFT) + 4 * channel)
    low, most = float_at(job + ROWS_LOW), float_at(job + ROWS_HIGH)
    if by_two:
        if is_many:
            filter_rows_by_two(out, plane, nothing, top, high, wide, count, left, weights, scale, shift, other, low, most)
        else:
            filter_row_by_two(out, plane, nothing, top, high, wide, count, left, weights, scale, shift, other, low, most)
    elif is_many:
        filter_rows(out, plane, nothing, top, high, wide, count, left, weights, scale, shift, other, low, most)
    else:
        filter_row(out, plane, nothing, top, high, wide, count, left, weights, scale, shift, other, low, most)


@inlined
def _filter_planes(job: int, first: int, last: int, by_two: bool, together: int, nothing: int) -> None:
    count = long_at(job + ROWS_COUNT_Y)
    plane = 4 * long_at(job + ROWS_SIZE_Y) * long_at(job + ROWS_SIZE_X)
    fetch_range(long_at(job + ROWS_SOURCE) + first * plane, plane)
    for part in range(first, last):
        channel = part % long_at(job + ROWS_CHANNELS)
        if part + 1 < last:
            fetch_range(long_at(job + ROWS_SOURCE) + (part + 1) * plane, plane)
        if count < together:
            for y in range(count):
                _filter(job, part, channel, y, False, by_two, nothing)
        else:
            # The last rows are computed together with some of those before them.
            for y in range(0, count, together):
                _filter(job, part, channel, min(y, count - together), True, by_two, nothing)


def depthwise_3x3_f32(job: int, first: int, last: int) -> None:
    """A part is a channel of an image."""
    nothing = take_work(job)
    for at in range(nothing, nothing + 4 * long_at(job + ROWS_SIZE_X), 4):
        set_float(at, _F32(0))
    if long_at(job + ROWS_STEP_X) == 2:
        _filter_planes(job, first, last, True, TOGETHER_BY_TWO, nothing)
    else:
        _filter_planes(job, first, last, False, TOGETHER, nothing)
    give_work(job, nothing)
