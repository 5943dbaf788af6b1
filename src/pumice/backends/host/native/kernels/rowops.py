"""Numba kernels of the small steps between matmuls: norms, rotary embedding, cache updates, attention, elementwise maps.

They follow the convention of formats.py: `kernel(job, first, last)` for some parts of the task at the address `job`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    bf16_at,
    block_memory,
    copy_bytes,
    everywhere,
    f16_at,
    float_at,
    gelu_tanh,
    int_at,
    less,
    load_bf16,
    load_f16,
    load_f32,
    long_at,
    madd,
    plus,
    scaled,
    set_float,
    silu,
    store_f32,
    times,
    total_of,
    zeros,
)
from pumice.backends.host.native.kernels.tiled import OUT, K, M, N, W, X
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES

_F32 = np.float32
# Elements of one part of an elementwise task.
MAP_PART = 4096
# The words of other tasks than matmuls. A row of x is D elements; COSINES has for each row where its cosines begin.
NORM_X, NORM_WEIGHT, NORM_BIAS, NORM_OUT, NORM_COLUMNS, NORM_EPS, NORM_CENTRED = (8 * i for i in range(7))
ROPE_X, ROPE_COS, ROPE_SIN, ROPE_OUT, ROPE_ROWS, ROPE_DEPTH, ROPE_ROTARY, ROPE_INTERLEAVED = (8 * i for i in range(8))
SCATTER_OUT, SCATTER_INDICES, SCATTER_UPDATES, SCATTER_COUNT, SCATTER_ROWS, SCATTER_BYTES = (8 * i for i in range(6))
MAP_A, MAP_B, MAP_OUT, MAP_COUNT = (8 * i for i in range(4))


# --- f32, f16 and bf16 rows: one row after the other, a lane for each of 32 elements; a part is LANES rows ---


@inlined
def _dot_rows(job: int, first: int, last: int, size: int, load: Any, load_one: Any) -> None:
    m, n, k = long_at(job + M), long_at(job + N), long_at(job + K)
    for row in range(first * LANES, min(n, last * LANES)):
        w = long_at(job + W) + size * k * row
        for r in range(m):
            x = long_at(job + X) + 4 * k * r
            even, odd = zeros(), zeros()
            at = 0
            while at + 2 * LANES <= k:
                even = madd(load(w + size * at), load_f32(x + 4 * at), even)
                at += LANES
                odd = madd(load(w + size * at), load_f32(x + 4 * at), odd)
                at += LANES
            total = total_of(plus(even, odd))
            for j in range(at, k):
                total += load_one(w + size * j) * float_at(x + 4 * j)
            set_float(long_at(job + OUT) + 4 * (r * n + row), total)


@inlined
def _widen(job: int, first: int, last: int, load: Any, load_one: Any) -> None:
    n, k = long_at(job + N), long_at(job + K)
    stop = min(n, last * LANES) * k
    w, out, at = long_at(job + W), long_at(job + OUT), first * LANES * k
    while at + LANES <= stop:
        store_f32(out + 4 * at, load(w + 2 * at))
        at += LANES
    for j in range(at, stop):
        set_float(out + 4 * j, load_one(w + 2 * j))


def dot_f32(job: int, first: int, last: int) -> None:
    _dot_rows(job, first, last, 4, load_f32, float_at)


def dot_f16(job: int, first: int, last: int) -> None:
    _dot_rows(job, first, last, 2, load_f16, f16_at)


def dot_bf16(job: int, first: int, last: int) -> None:
    _dot_rows(job, first, last, 2, load_bf16, bf16_at)


def widen_f16(job: int, first: int, last: int) -> None:
    _widen(job, first, last, load_f16, f16_at)


def widen_bf16(job: int, first: int, last: int) -> None:
    _widen(job, first, last, load_bf16, bf16_at)


# --- norms: a part is a row ---


@inlined
def sum_row(x: int, k: int) -> Any:
    """The sum of k numbers."""
    total, at = zeros(), 0
    while at + LANES <= k:
        total = plus(total, load_f32(x + 4 * at))
        at += LANES
    found = total_of(total)
    for j in range(at, k):
        found += float_at(x + 4 * j)
    return found


@inlined
def sum_squares(x: int, k: int, mean: Any) -> Any:
    """The sum of the squares of k numbers less their mean."""
    total, at, centre = zeros(), 0, everywhere(mean)
    while at + LANES <= k:
        v = less(load_f32(x + 4 * at), centre)
        total = madd(v, v, total)
        at += LANES
    found = total_of(total)
    for j in range(at, k):
        v1 = float_at(x + 4 * j) - mean
        found += v1 * v1
    return found


def norm_f32(job: int, first: int, last: int) -> None:
    """rms_norm, or layer_norm if the task says that rows are centred first."""
    k, eps = long_at(job + NORM_COLUMNS), float_at(job + NORM_EPS)
    weight, bias = long_at(job + NORM_WEIGHT), long_at(job + NORM_BIAS)
    for row in range(first, last):
        x, out = long_at(job + NORM_X) + 4 * k * row, long_at(job + NORM_OUT) + 4 * k * row
        mean = sum_row(x, k) / _F32(k) if long_at(job + NORM_CENTRED) else _F32(0)
        factor = _F32(1) / _F32(math.sqrt(sum_squares(x, k, mean) / _F32(k) + eps))
        at, centre = 0, everywhere(mean)
        while at + LANES <= k:
            y = scaled(less(load_f32(x + 4 * at), centre), factor)
            if weight:
                y = times(y, load_f32(weight + 4 * at))
            if bias:
                y = plus(y, load_f32(bias + 4 * at))
            store_f32(out + 4 * at, y)
            at += LANES
        for j in range(at, k):
            one = (float_at(x + 4 * j) - mean) * factor
            if weight:
                one *= float_at(weight + 4 * j)
            if bias:
                one += float_at(bias + 4 * j)
            set_float(out + 4 * j, one)


# --- sums of a matrix: over rows, a part is one; over columns, a part is a vector of them ---

TOTAL_X, TOTAL_OUT, TOTAL_ROWS, TOTAL_COLUMNS, TOTAL_FACTOR = (8 * i for i in range(5))
# Rows that one accumulator adds up before it is added to the others.
TOTAL_BLOCK = 64


def row_sums_f32(job: int, first: int, last: int) -> None:
    columns, factor = long_at(job + TOTAL_COLUMNS), float_at(job + TOTAL_FACTOR)
    for row in range(first, last):
        total = sum_row(long_at(job + TOTAL_X) + 4 * columns * row, columns)
        set_float(long_at(job + TOTAL_OUT) + 4 * row, total * factor)


def column_sums_f32(job: int, first: int, last: int) -> None:
    rows, columns, factor = long_at(job + TOTAL_ROWS), long_at(job + TOTAL_COLUMNS), float_at(job + TOTAL_FACTOR)
    for part in range(first, last):
        x, out = long_at(job + TOTAL_X) + VECTOR_BYTES * part, long_at(job + TOTAL_OUT) + VECTOR_BYTES * part
        if LANES * (part + 1) <= columns:
            total = zeros()
            for block in range(0, rows, TOTAL_BLOCK):
                some = zeros()
                for r in range(block, min(rows, block + TOTAL_BLOCK)):
                    some = plus(some, load_f32(x + 4 * columns * r))
                total = plus(total, some)
            store_f32(out, scaled(total, factor))
            continue
        for j in range(columns - LANES * part):
            found = _F32(0)
            for block in range(0, rows, TOTAL_BLOCK):
                few = _F32(0)
                for r in range(block, min(rows, block + TOTAL_BLOCK)):
                    few += float_at(x + 4 * (columns * r + j))
                found += few
            set_float(out + 4 * j, found * factor)


# --- rotary embedding: a part is a row ---


def rope_f32(job: int, first: int, last: int) -> None:
    depth, rotary = long_at(job + ROPE_DEPTH), long_at(job + ROPE_ROTARY)
    step, gap = (8, 4) if long_at(job + ROPE_INTERLEAVED) else (4, 2 * rotary)
    for row in range(first, last):
        x, out = long_at(job + ROPE_X) + 4 * depth * row, long_at(job + ROPE_OUT) + 4 * depth * row
        angles = 2 * rotary * long_at(long_at(job + ROPE_ROWS) + 8 * row)
        cos, sin = long_at(job + ROPE_COS) + angles, long_at(job + ROPE_SIN) + angles
        for i in range(rotary // 2):
            a, b = float_at(x + step * i), float_at(x + step * i + gap)
            c, s = float_at(cos + 4 * i), float_at(sin + 4 * i)
            set_float(out + step * i, a * c - b * s)
            set_float(out + step * i + gap, b * c + a * s)
        copy_bytes(out + 4 * rotary, x + 4 * rotary, 4 * (depth - rotary))


# --- rows of a table replaced ---


def scatter_rows(job: int, first: int, last: int) -> None:
    """The last of several updates of a row stays; those of rows that are not there are dropped."""
    rows, size = long_at(job + SCATTER_ROWS), long_at(job + SCATTER_BYTES)
    for i in range(long_at(job + SCATTER_COUNT)):
        row = np.int64(int_at(long_at(job + SCATTER_INDICES) + 4 * i))
        if row < 0:
            row += rows
        if 0 <= row < rows:
            copy_bytes(long_at(job + SCATTER_OUT) + row * size, long_at(job + SCATTER_UPDATES) + i * size, size)


# --- elementwise maps of dense arrays: a part is MAP_PART elements ---


@inlined
def _map(job: int, first: int, last: int, function: Any) -> None:
    """out = function(a, b); maps of one operand have it as both."""
    a, b, out, count = long_at(job + MAP_A), long_at(job + MAP_B), long_at(job + MAP_OUT), long_at(job + MAP_COUNT)
    at, stop = first * MAP_PART, min(count, last * MAP_PART)
    while at + LANES <= stop:
        store_f32(out + 4 * at, function(load_f32(a + 4 * at), load_f32(b + 4 * at)))
        at += LANES
    if at < stop:
        rest, memory = 4 * (stop - at), block_memory()
        copy_bytes(memory, a + 4 * at, rest)
        copy_bytes(memory + VECTOR_BYTES, b + 4 * at, rest)
        store_f32(memory, function(load_f32(memory), load_f32(memory + VECTOR_BYTES)))
        copy_bytes(out + 4 * at, memory, rest)


@inlined
def _silu(a: Any, b: Any) -> Any:
    return silu(a)


@inlined
def _gelu_tanh(a: Any, b: Any) -> Any:
    return gelu_tanh(a)


def map_add(job: int, first: int, last: int) -> None:
    _map(job, first, last, plus)


def map_sub(job: int, first: int, last: int) -> None:
    _map(job, first, last, less)


def map_mul(job: int, first: int, last: int) -> None:
    _map(job, first, last, times)


def map_silu(job: int, first: int, last: int) -> None:
    _map(job, first, last, _silu)


def map_gelu_tanh(job: int, first: int, last: int) -> None:
    _map(job, first, last, _gelu_tanh)
