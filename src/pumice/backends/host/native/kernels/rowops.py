"""Numba kernels of the small steps between matmuls: norms, rotary embedding, cache updates, attention, elementwise maps.

They follow the convention of formats.py: `kernel(job, first, last)` for some parts of the task at the address `job`.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    bf16_at,
    block_memory,
    copy_bytes,
    everywhere,
    exp,
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
    madd_scalar,
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
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES

_F32 = np.float32
# Elements of one part of an elementwise task.
MAP_PART = 4096
# The words of other tasks than matmuls. A row of x is D elements; COSINES has for each row where its cosines begin.
NORM_X, NORM_WEIGHT, NORM_BIAS, NORM_OUT, NORM_COLUMNS, NORM_EPS, NORM_CENTRED = (8 * i for i in range(7))
ROPE_X, ROPE_COS, ROPE_SIN, ROPE_OUT, ROPE_ROWS, ROPE_DEPTH, ROPE_ROTARY, ROPE_INTERLEAVED = (8 * i for i in range(8))
SCATTER_OUT, SCATTER_INDICES, SCATTER_UPDATES, SCATTER_COUNT, SCATTER_ROWS, SCATTER_BYTES = (8 * i for i in range(6))
MAP_A, MAP_B, MAP_OUT, MAP_COUNT = (8 * i for i in range(4))

_inlined = numba.njit(forceinline=True, error_model="numpy")


# --- f32, f16 and bf16 rows: one row after the other, a lane for each of 32 elements; a part is LANES rows ---


@_inlined
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


@_inlined
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


@_inlined
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


@_inlined
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


@_inlined
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


@_inlined
def _silu(a: Any, b: Any) -> Any:
    return silu(a)


@_inlined
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


# --- attention of few queries: a part is one query of one head ---

(
    ATT_Q,
    ATT_K,
    ATT_V,
    ATT_OUT,
    ATT_STARTS,
    ATT_LENGTHS,
    ATT_ENTRIES,
    ATT_HEADS,
    ATT_GROUP,
    ATT_QUERIES,
    ATT_KEYS,
    ATT_CACHES,
    ATT_DEPTH,
    ATT_VALUE_DEPTH,
    ATT_SCALE,
    ATT_SOFTCAP,
    ATT_CAUSAL,
    ATT_WINDOW,
    ATT_Q_BATCH,
    ATT_Q_HEAD,
    ATT_Q_QUERY,
    ATT_K_BATCH,
    ATT_K_HEAD,
    ATT_K_KEY,
    ATT_V_BATCH,
    ATT_V_HEAD,
    ATT_V_KEY,
    ATT_OUT_BATCH,
    ATT_OUT_HEAD,
    ATT_OUT_QUERY,
) = (8 * i for i in range(30))
ATT_WORDS = 30
# Keys whose scores are kept at a time.
_KEYS = 1024


@_inlined
def _seen(job: int, b: int, query: int) -> Any:
    """The keys that a query sees: first and one past the last."""
    keys, queries = long_at(job + ATT_KEYS), long_at(job + ATT_QUERIES)
    starts, lengths, window = long_at(job + ATT_STARTS), long_at(job + ATT_LENGTHS), long_at(job + ATT_WINDOW)
    start = np.int64(int_at(starts + 4 * b)) if starts else keys - queries
    stop = min(keys, np.int64(int_at(lengths + 4 * b))) if lengths else keys
    if long_at(job + ATT_CAUSAL):
        stop = min(stop, start + query + 1)
    first = max(0, start + query - window + 1) if window else 0
    return first, max(first, stop)


@_inlined
def _score(job: int, q: int, k: int, depth: int) -> Any:
    total, at = zeros(), 0
    while at < depth:
        total = madd(load_f32(q + 4 * at), load_f32(k + 4 * at), total)
        at += LANES
    found = total_of(total) * float_at(job + ATT_SCALE)
    cap = float_at(job + ATT_SOFTCAP)
    return _F32(math.tanh(found / cap)) * cap if cap else found


@_inlined
def _weights(scores: int, count: int, top: Any) -> Any:
    """Scores become exp(score - top); gives their sum. Those past the end, up to a whole vector, become next to nothing."""
    total, lowered = zeros(), everywhere(-top)
    for j in range(count, (count + LANES - 1) // LANES * LANES):
        set_float(scores + 4 * j, _F32(-math.inf))
    for at in range(0, 4 * count, VECTOR_BYTES):
        v = exp(plus(load_f32(scores + at), lowered))
        store_f32(scores + at, v)
        total = plus(total, v)
    return total_of(total)


def attend_f32(job: int, first: int, last: int) -> None:
    """Keys in blocks, with the greatest score so far: what came before is scaled down when a greater one comes."""
    heads, queries = long_at(job + ATT_HEADS), long_at(job + ATT_QUERIES)
    depth, value_depth = long_at(job + ATT_DEPTH), long_at(job + ATT_VALUE_DEPTH)
    k_step, v_step = long_at(job + ATT_K_KEY), long_at(job + ATT_V_KEY)
    scores = block_memory()
    for part in range(first, last):
        b, h, query = part // (heads * queries), part // queries % heads, part % queries
        kv_head, entry = h // long_at(job + ATT_GROUP), b
        if long_at(job + ATT_ENTRIES):
            entry, caches = np.int64(int_at(long_at(job + ATT_ENTRIES) + 4 * b)), long_at(job + ATT_CACHES)
            entry = min(max(entry + caches if entry < 0 else entry, 0), caches - 1)
        q = long_at(job + ATT_Q) + b * long_at(job + ATT_Q_BATCH) + h * long_at(job + ATT_Q_HEAD)
        q += query * long_at(job + ATT_Q_QUERY)
        out = long_at(job + ATT_OUT) + b * long_at(job + ATT_OUT_BATCH) + h * long_at(job + ATT_OUT_HEAD)
        out += query * long_at(job + ATT_OUT_QUERY)
        keys = long_at(job + ATT_K) + entry * long_at(job + ATT_K_BATCH) + kv_head * long_at(job + ATT_K_HEAD)
        values = long_at(job + ATT_V) + entry * long_at(job + ATT_V_BATCH) + kv_head * long_at(job + ATT_V_HEAD)
        for at in range(0, 4 * value_depth, VECTOR_BYTES):
            store_f32(out + at, zeros())
        begin, end = _seen(job, b, query)
        top, weight = _F32(-math.inf), _F32(0)
        for block in range(begin, end, _KEYS):
            count = min(_KEYS, end - block)
            highest = top
            for j in range(count):
                score = _score(job, q, keys + (block + j) * k_step, depth)
                set_float(scores + 4 * j, score)
                highest = max(highest, score)
            if highest > top:
                # exp(-inf) of the first block is 0 times nothing.
                shrink = _F32(math.exp(top - highest))
                weight *= shrink
                for at in range(0, 4 * value_depth, VECTOR_BYTES):
                    store_f32(out + at, scaled(load_f32(out + at), shrink))
                top = highest
            weight += _weights(scores, count, top)
            for at in range(0, 4 * value_depth, VECTOR_BYTES):
                total = load_f32(out + at)
                for j in range(count):
                    v = values + (block + j) * v_step + at
                    total = madd_scalar(load_f32(v), float_at(scores + 4 * j), total)
                store_f32(out + at, total)
        if weight:
            for at in range(0, 4 * value_depth, VECTOR_BYTES):
                store_f32(out + at, scaled(load_f32(out + at), _F32(1) / weight))
