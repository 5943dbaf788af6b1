"""Numba kernels of the gradients of layer_norm and rms_norm."""

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
    times,
    total_of,
    zeros,
)
from pumice.backends.host.native.kernels.rowops import TOTAL_BLOCK, sum_row, sum_squares
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES

_F32 = np.float32
# The words of a task. BIAS is where the sums of dy go, or 0; FACTORS are a mean and a factor for each row.
DY, X, WEIGHT, OUT, BIAS, ROWS, COLUMNS, EPS, CENTRED, FACTORS = (8 * i for i in range(10))


@inlined
def _mean(job: int, x: int, k: int) -> Any:
    return sum_row(x, k) / _F32(k) if long_at(job + CENTRED) else _F32(0)


@inlined
def _factor(job: int, x: int, k: int, mean: Any) -> Any:
    return _F32(1) / _F32(math.sqrt(sum_squares(x, k, mean) / _F32(k) + float_at(job + EPS)))


@inlined
def _weighed(dy: int, weight: int, at: int) -> Any:
    value = load_f32(dy + 4 * at)
    return times(value, load_f32(weight + 4 * at)) if weight else value


@inlined
def _weighed_one(dy: int, weight: int, j: int) -> Any:
    return float_at(dy + 4 * j) * float_at(weight + 4 * j) if weight else float_at(dy + 4 * j)


def norm_gradient_f32(job: int, first: int, last: int) -> None:
    """By what is normalised; a part is a row."""
    k, weight = long_at(job + COLUMNS), long_at(job + WEIGHT)
    for row in range(first, last):
        dy, x, out = long_at(job + DY) + 4 * k * row, long_at(job + X) + 4 * k * row, long_at(job + OUT) + 4 * k * row
        mean = _mean(job, x, k)
        factor = _factor(job, x, k, mean)
        sums, products, centre, at = zeros(), zeros(), everywhere(mean), 0
        while at + LANES <= k:
            dn = _weighed(dy, weight, at)
            sums = plus(sums, dn)
            products = madd(dn, less(load_f32(x + 4 * at), centre), products)
            at += LANES
        total, along = total_of(sums), total_of(products)
        for j in range(at, k):
            one = _weighed_one(dy, weight, j)
            total += one
            along += one * (float_at(x + 4 * j) - mean)
        # What all elements of the row have in common, and what each has in proportion to how far it is from the mean.
        common = factor * total / _F32(k) if long_at(job + CENTRED) else _F32(0)
        slope = factor * factor * factor * along / _F32(k)
        at, shared = 0, everywhere(common)
        while at + LANES <= k:
            far = scaled(less(load_f32(x + 4 * at), centre), slope)
            store_f32(out + 4 * at, less(less(scaled(_weighed(dy, weight, at), factor), shared), far))
            at += LANES
        for j in range(at, k):
            set_float(out + 4 * j, factor * _weighed_one(dy, weight, j) - common - slope * (float_at(x + 4 * j) - mean))


def norm_factors_f32(job: int, first: int, last: int) -> None:
    """A part is a row."""
    k = long_at(job + COLUMNS)
    for row in range(first, last):
        x, to = long_at(job + X) + 4 * k * row, long_at(job + FACTORS) + 8 * row
        mean = _mean(job, x, k)
        set_float(to, mean)
        set_float(to + 4, _factor(job, x, k, mean))


def norm_parameters_f32(job: int, first: int, last: int) -> None:
    """By weight and bias; a part is a vector of columns, or what is left of one."""
    rows, k, bias = long_at(job + ROWS), long_at(job + COLUMNS), long_at(job + BIAS)
    for part in range(first, last):
        place = VECTOR_BYTES * part
        if LANES * (part + 1) > k:
            for j in range(LANES * part, k):
                weighed, plain = 0.0, 0.0
                for row in range(rows):
                    factors, at = long_at(job + FACTORS) + 8 * row, 4 * (row * k + j)
                    dy, x = float_at(long_at(job + DY) + at), float_at(long_at(job + X) + at)
                    weighed += dy * (x - float_at(factors)) * float_at(factors + 4)
                    plain += dy
                set_float(long_at(job + OUT) + 4 * j, weighed)
                if bias:
                    set_float(bias + 4 * j, plain)
            continue
        all_weighed, all_plain = zeros(), zeros()
        # Sums of sums, as one long sum of float32 would drift.
        for start in range(0, rows, TOTAL_BLOCK):
            of_weight, of_bias = zeros(), zeros()
            for row in range(start, min(rows, start + TOTAL_BLOCK)):
                factors, at = long_at(job + FACTORS) + 8 * row, 4 * row * k + place
                dy = load_f32(long_at(job + DY) + at)
                normal = scaled(less(load_f32(long_at(job + X) + at), everywhere(float_at(factors))), float_at(factors + 4))
                of_weight, of_bias = madd(dy, normal, of_weight), plus(of_bias, dy)
            all_weighed, all_plain = plus(all_weighed, of_weight), plus(all_plain, of_bias)
        store_f32(long_at(job + OUT) + place, all_weighed)
        if bias:
            store_f32(bias + place, all_plain)
