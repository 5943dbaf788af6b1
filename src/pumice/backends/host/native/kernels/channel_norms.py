"""Numba kernels of channel_norm and its gradient: a part is a channel, which is read once for sums and, still in cache, again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    everywhere,
    float_at,
    less,
    load_f32,
    long_at,
    madd,
    plus,
    scaled,
    set_float,
    store_f32,
    total_of,
    zeros,
)
from pumice.backends.host.native.kernels.rowops import sum_row, sum_squares
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES

_F32 = np.float32
# The words of a task. WEIGHT, BIAS and the places of results that are not wanted may be 0.
DY, X, MEAN, VARIANCE, WEIGHT, BIAS, OUT, OF_WEIGHT, OF_BIAS, IMAGES, CHANNELS, PLANE, EPS = (8 * i for i in range(13))
# Elements whose mean and squares are found together, in the first cache.
_BLOCK = 4096


@inlined
def _statistics(job: int, channel: int) -> Any:
    """Mean and variance of a channel: those of blocks, joined as they come, so that large means cancel nowhere."""
    images, plane = long_at(job + IMAGES), long_at(job + PLANE)
    step, x = 4 * plane * long_at(job + CHANNELS), long_at(job + X) + 4 * plane * channel
    mean, squares, known = 0.0, 0.0, 0.0
    if plane < LANES:
        # Planes too short to be blocks: what is read twice is small.
        total = 0.0
        for n in range(images):
            for i in range(plane):
                total += float_at(x + n * step + 4 * i)
        known = float(images * plane)
        mean = total / known
        for n in range(images):
            for i in range(plane):
                far = float_at(x + n * step + 4 * i) - mean
                squares += far * far
        return mean, squares / known
    for n in range(images):
        for start in range(0, plane, _BLOCK):
            at, count = x + n * step + 4 * start, min(_BLOCK, plane - start)
            own = sum_row(at, count) / _F32(count)
            of_own, size = sum_squares(at, count, own), float(count)
            far = own - mean
            known += size
            mean += far * (size / known)
            squares += of_own + far * far * (size / known) * (known - size)
    return mean, squares / known


def channel_norm_f32(job: int, first: int, last: int) -> None:
    images, plane, channels = long_at(job + IMAGES), long_at(job + PLANE), long_at(job + CHANNELS)
    weight, bias = long_at(job + WEIGHT), long_at(job + BIAS)
    for channel in range(first, last):
        mean, variance = _statistics(job, channel)
        if long_at(job + MEAN):
            set_float(long_at(job + MEAN) + 4 * channel, _F32(mean))
        if long_at(job + VARIANCE):
            set_float(long_at(job + VARIANCE) + 4 * channel, _F32(variance))
        if not long_at(job + OUT):
            continue
        factor = _F32(1 / math.sqrt(variance + float_at(job + EPS)))
        if weight:
            factor *= float_at(weight + 4 * channel)
        shift = float_at(bias + 4 * channel) if bias else _F32(0)
        centre, centres, shifts = _F32(mean), everywhere(_F32(mean)), everywhere(shift)
        for n in range(images):
            place = 4 * plane * (n * channels + channel)
            x, out, at = long_at(job + X) + place, long_at(job + OUT) + place, 0
            while at + LANES <= plane:
                store_f32(out + 4 * at, plus(scaled(less(load_f32(x + 4 * at), centres), factor), shifts))
                at += LANES
            for i in range(at, plane):
                set_float(out + 4 * i, (float_at(x + 4 * i) - centre) * factor + shift)


def channel_norm_gradient_f32(job: int, first: int, last: int) -> None:
    images, plane, channels = long_at(job + IMAGES), long_at(job + PLANE), long_at(job + CHANNELS)
    weight, count = long_at(job + WEIGHT), float(images * plane)
    for channel in range(first, last):
        mean = float_at(long_at(job + MEAN) + 4 * channel)
        factor = 1 / math.sqrt(float_at(long_at(job + VARIANCE) + 4 * channel) + float_at(job + EPS))
        centres = everywhere(mean)
        total, along = 0.0, 0.0
        for n in range(images):
            place = 4 * plane * (n * channels + channel)
            dy, x, at = long_at(job + DY) + place, long_at(job + X) + place, 0
            # Sums of a few blocks, added up in float64: one long sum of float32 would drift.
            while at + LANES <= plane:
                sums, products = zeros(), zeros()
                stop = min(plane, at + _BLOCK)
                while at + LANES <= stop:
                    one = load_f32(dy + 4 * at)
                    sums = plus(sums, one)
                    products = madd(one, less(load_f32(x + 4 * at), centres), products)
                    at += LANES
                total += total_of(sums)
                along += total_of(products)
            for i in range(at, plane):
                total += float_at(dy + 4 * i)
                along += float_at(dy + 4 * i) * (float_at(x + 4 * i) - mean)
        if long_at(job + OF_WEIGHT):
            set_float(long_at(job + OF_WEIGHT) + 4 * channel, _F32(along * factor))
        if long_at(job + OF_BIAS):
            set_float(long_at(job + OF_BIAS) + 4 * channel, _F32(total))
        if not long_at(job + OUT):
            continue
        # What all elements have in common, and what each has in proportion to how far it is from the mean.
        scale = factor * float_at(weight + 4 * channel) if weight else factor
        common, slope, own = _F32(scale * total / count), _F32(scale * factor * factor * along / count), _F32(scale)
        shared = everywhere(common)
        for n in range(images):
            place = 4 * plane * (n * channels + channel)
            dy, x, out, at = long_at(job + DY) + place, long_at(job + X) + place, long_at(job + OUT) + place, 0
            while at + LANES <= plane:
                far = scaled(less(load_f32(x + 4 * at), centres), slope)
                store_f32(out + 4 * at, less(less(scaled(load_f32(dy + 4 * at), own), shared), far))
                at += LANES
            for i in range(at, plane):
                set_float(out + 4 * i, own * float_at(dy + 4 * i) - common - slope * (float_at(x + 4 * i) - mean))
