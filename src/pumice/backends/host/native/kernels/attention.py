"""Numba kernels of attention of many queries and its gradient: a part is a head of a batch entry, in the gradient one of keys.

The matmuls are small and half of each is hidden by a causal mask, so that a BLAS would spend most of its time elsewhere. Rows
of scores are padded to whole vectors. What a query sees are the keys from one to another: neither end ever falls from one query
to the next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    LEVEL,
    copy_bytes,
    everywhere,
    exp,
    float_at,
    int_at,
    keep_lanes,
    larger,
    largest_of,
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
    store_f32,
    times,
    total_of,
    zeros,
)
from pumice.backends.host.native.kernels.matmul import SQUARE, turn_square
from pumice.backends.host.native.kernels.pages import entry_of, load_bytes
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import ATTENTION_ROWS, GRADIENT_QUERIES, LANES, VECTOR_BYTES, padded_keys

_F32 = np.float32

(
    MANY_Q,
    MANY_K,
    MANY_V,
    MANY_DY,
    MANY_OUT,
    MANY_DK,
    MANY_DV,
    MANY_K_SCALE,
    MANY_V_SCALE,
    MANY_OFFSET,
    MANY_LENGTH,
    MANY_TABLE,
    MANY_OFFSET_STEP,
    MANY_LENGTH_STEP,
    MANY_CAUSAL,
    MANY_WINDOW,
    MANY_KV_HEADS,
    MANY_GROUP,
    MANY_QUERIES,
    MANY_PAGE,
    MANY_PAGES,
    MANY_CACHES,
    MANY_DEPTH,
    MANY_VALUE_DEPTH,
    MANY_SCALE,
) = (8 * i for i in range(25))
# Then for each of the first nine the bytes from one batch entry, head and row to the next.
_STRIDES = 8 * 25
# Rows of a matmul that are computed together: their sums stay in registers. And how much is summed up before they change.
_AT_A_TIME = 6 if LEVEL.is_wide else 2
_SUMMED = 64


@inlined
def _at(job: int, which: int, entry: int, head: int) -> Any:
    """Where a head of one of the first nine begins."""
    strides = job + _STRIDES + 3 * which
    return long_at(job + which) + entry * long_at(strides) + head * long_at(strides + 8)


@inlined
def _row_bytes(job: int, which: int) -> Any:
    return long_at(job + _STRIDES + 3 * which + 16)


@inlined
def _multiply_six(
    a: int, a_row: int, a_step: int, rows: int, b: int, b_step: int, count: int, out: int, out_row: int, add: bool
) -> None:
    last = rows - 1
    a1, a2, a3 = a + a_row * min(1, last), a + a_row * min(2, last), a + a_row * min(3, last)
    a4, a5 = a + a_row * min(4, last), a + a_row * min(5, last)
    o1, o2, o3 = out + out_row * min(1, last), out + out_row * min(2, last), out + out_row * min(3, last)
    o4, o5 = out + out_row * min(4, last), out + out_row * min(5, last)
    s0, s1, s2, s3, s4, s5 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
    if add:
        s0, s1, s2 = load_f32(out), load_f32(o1), load_f32(o2)
        s3, s4, s5 = load_f32(o3), load_f32(o4), load_f32(o5)
    for i in range(count):
        v, step = load_f32(b + b_step * i), a_step * i
        s0 = madd_scalar(v, float_at(a + step), s0)
        s1 = madd_scalar(v, float_at(a1 + step), s1)
        s2 = madd_scalar(v, float_at(a2 + step), s2)
        s3 = madd_scalar(v, float_at(a3 + step), s3)
        s4 = madd_scalar(v, float_at(a4 + step), s4)
        s5 = madd_scalar(v, float_at(a5 + step), s5)
    store_f32(out, s0)
    store_f32(o1, s1)
    store_f32(o2, s2)
    store_f32(o3, s3)
    store_f32(o4, s4)
    store_f32(o5, s5)


@inlined
def _multiply_two(
    a: int, a_row: int, a_step: int, rows: int, b: int, b_step: int, count: int, out: int, out_row: int, add: bool
) -> None:
    a1, o1 = a + a_row * (rows - 1), out + out_row * (rows - 1)
    s0, s1 = zeros(), zeros()
    if add:
        s0, s1 = load_f32(out), load_f32(o1)
    for i in range(count):
        v, step = load_f32(b + b_step * i), a_step * i
        s0 = madd_scalar(v, float_at(a + step), s0)
        s1 = madd_scalar(v, float_at(a1 + step), s1)
    store_f32(out, s0)
    store_f32(o1, s1)


@inlined
def _matmul(
    a: int, a_row: int, a_step: int, rows: int, b: int, b_step: int, begin: int, end: int,
    out: int, out_row: int, left: int, right: int, add: bool,
) -> None:  # fmt: skip
    """Up to 6 rows of a matmul, out = a b or more of it, in columns left…right-1 by whole vectors; begin…end-1 are summed over.

    Rows that are too many for what is computed together are the last one again.
    """
    for at in range(4 * (left // LANES * LANES), 4 * right, VECTOR_BYTES):
        if _AT_A_TIME == ATTENTION_ROWS:
            _multiply_six(
                a + a_step * begin, a_row, a_step, rows, b + b_step * begin + at, b_step, end - begin, out + at, out_row, add
            )
            continue
        if begin >= end and not add:
            for r in range(rows):
                store_f32(out + out_row * r + at, zeros())
        for start in range(begin, end, _SUMMED):
            count, more = min(_SUMMED, end - start), add or start > begin
            for r in range(0, rows, _AT_A_TIME):
                left_at, right_at, to = a + a_row * r + a_step * start, b + b_step * start + at, out + out_row * r + at
                few = min(_AT_A_TIME, rows - r)
                _multiply_two(left_at, a_row, a_step, few, right_at, b_step, count, to, out_row, more)


@inlined
def _turn(x: int, x_row: int, rows: int, columns: int, out: int, padded: int) -> None:
    """The transpose of rows of whole vectors; its own rows end with zeros up to a whole vector."""
    for c in range(0, columns, SQUARE):
        for r in range(0, rows, SQUARE):
            turn_square(x + x_row * r + 4 * c, x_row, min(SQUARE, rows - r), out + 4 * (padded * c + r), 4 * padded)
    for c in range(columns):
        for r in range(rows, (rows + LANES - 1) // LANES * LANES):
            set_float(out + 4 * (padded * c + r), _F32(0))


@inlined
def _gather(x: int, x_row: int, rows: int, columns: int, out: int) -> None:
    """Copies rows next to one another: those of one head are far apart in memory, and push each other out of the L1 cache."""
    for r in range(rows):
        copy_bytes(out + 4 * columns * r, x + x_row * r, 4 * columns)


@inlined
def _clear(row: int, low: int, high: int, padded: int) -> None:
    """Zeros in the vectors of a row that hold nothing of low…high-1."""
    for at in range(0, low // LANES * LANES, LANES):
        store_f32(row + 4 * at, zeros())
    for at in range((high + LANES - 1) // LANES * LANES, padded, LANES):
        store_f32(row + 4 * at, zeros())


@inlined
def _scale_row(row: int, count: int, factor: Any) -> None:
    for at in range(0, 4 * count, VECTOR_BYTES):
        store_f32(row + at, scaled(load_f32(row + at), factor))


@inlined
def _inside(v: Any, at: int, low: int, high: int, other: Any) -> Any:
    """A vector of a row from byte `at` on, with another number in place of elements outside low…high-1."""
    first = at // 4
    return v if first >= low and first + LANES <= high else keep_lanes(v, low - first, high - first, other)


@inlined
def _exponentials(row: int, low: int, high: int, padded: int, scale: Any) -> Any:
    """exp(x - the greatest x) of the elements low…high-1 of a row times a factor, 0 for the others; one over their sum."""
    if low >= high:
        low = high = 0
    _clear(row, low, high, padded)
    begin, end = 4 * (low // LANES * LANES), 4 * high
    top = everywhere(_F32(-math.inf))
    for at in range(begin, end, VECTOR_BYTES):
        v = scaled(load_f32(row + at), scale)
        top = larger(_inside(v, at, low, high, _F32(-math.inf)), top)
    lowered, sums = everywhere(-largest_of(top)), zeros()
    for at in range(begin, end, VECTOR_BYTES):
        v = exp(madd_scalar(load_f32(row + at), scale, lowered))
        v = _inside(v, at, low, high, _F32(0))
        store_f32(row + at, v)
        sums = plus(sums, v)
    return _F32(1) / total_of(sums)


@inlined
def _softmax(row: int, low: int, high: int, padded: int, scale: Any) -> None:
    """Of the elements low…high-1 of a row times a factor; the others become 0."""
    share = _exponentials(row, low, high, padded, scale)
    if low < high:
        begin = low // LANES * LANES
        _scale_row(row + 4 * begin, high - begin, share)


@inlined
def _softmax_gradient(p: int, d: int, low: int, high: int, padded: int, scale: Any) -> None:
    """d becomes p (d - Σ p d) times a factor."""
    if low >= high:
        low = high = 0
    _clear(d, low, high, padded)
    begin, end, sums = 4 * (low // LANES * LANES), 4 * high, zeros()
    for at in range(begin, end, VECTOR_BYTES):
        sums = madd(load_f32(p + at), load_f32(d + at), sums)
    total = everywhere(total_of(sums))
    for at in range(begin, end, VECTOR_BYTES):
        store_f32(d + at, scaled(times(less(load_f32(d + at), total), load_f32(p + at)), scale))


@inlined
def _keys(job: int) -> Any:
    return long_at(job + MANY_PAGE) * long_at(job + MANY_PAGES)


@inlined
def _place(job: int, entry: int) -> Any:
    """The key that stands where the first query of an entry does, and the number of keys that are there."""
    keys, offset, length = _keys(job), long_at(job + MANY_OFFSET), long_at(job + MANY_LENGTH)
    start, count = keys - long_at(job + MANY_QUERIES), keys
    if offset:
        start = np.int64(int_at(offset + entry * long_at(job + MANY_OFFSET_STEP)))
    if length:
        count = max(0, min(keys, np.int64(int_at(length + entry * long_at(job + MANY_LENGTH_STEP)))))
    return start, count


@inlined
def _high(job: int, start: int, length: int, query: int) -> Any:
    """One past the last key that a query sees."""
    return max(0, min(length, start + query + 1)) if long_at(job + MANY_CAUSAL) else length


@inlined
def _low(job: int, start: int, length: int, query: int) -> Any:
    """The first key that a query sees."""
    window = long_at(job + MANY_WINDOW)
    return min(max(0, start + query - window + 1), _high(job, start, length, query)) if window else np.int64(0)


_padded = inlined(padded_keys)


@inlined
def _gather_pages(
    job: int, which: int, scale: int, b: int, head: int, begin: int, end: int, depth: int, out: int, size: int, load: Any
) -> None:
    """Keys or values begin…end-1 of a head as rows of float32, each in its place; elements of one byte times their factors."""
    page, row, key = long_at(job + MANY_PAGE), _row_bytes(job, which), begin
    while key < end:
        number = key // page
        entry = entry_of(long_at(job + MANY_TABLE), long_at(job + MANY_PAGES), long_at(job + MANY_CACHES), b, number)
        inside = key - number * page
        count = min(end - key, page - inside)
        x, to = _at(job, which, entry, head) + row * inside, out + 4 * depth * key
        for r in range(count):
            factor = float_at(_at(job, scale, entry, head) + (inside + r) * _row_bytes(job, scale)) if size == 1 else _F32(1)
            for at in range(0, depth, LANES):
                v = load(x + row * r + size * at)
                store_f32(to + 4 * (depth * r + at), scaled(v, factor) if size == 1 else v)
        key += count


@inlined
def _attend_many(job: int, first: int, last: int, size: int, load: Any) -> None:
    """Keys are turned by way of the memory of values."""
    kv_heads, group, queries = long_at(job + MANY_KV_HEADS), long_at(job + MANY_GROUP), long_at(job + MANY_QUERIES)
    depth, value_depth, scale = long_at(job + MANY_DEPTH), long_at(job + MANY_VALUE_DEPTH), float_at(job + MANY_SCALE)
    q_row, out_row, most = _row_bytes(job, MANY_Q), _row_bytes(job, MANY_OUT), _padded(_keys(job))
    turned = take_work(job)
    values = turned + 4 * most * depth
    scores = values + 4 * most * max(depth, value_depth)
    shares = scores + 4 * most * ATTENTION_ROWS
    padded = most
    for part in range(first, last):
        b, head = part // (kv_heads * group), part % (kv_heads * group)
        start, length = _place(job, b)
        if part == first or head % group == 0:
            h, end = head // group, _high(job, start, length, queries - 1)
            begin = _low(job, start, length, 0) // LANES * LANES
            # Sequences seldom fill their pages: rows of the keys that there are stay close together.
            padded = _padded(end)
            _gather_pages(job, MANY_K, MANY_K_SCALE, b, h, begin, end, depth, values, size, load)
            _turn(values + 4 * depth * begin, 4 * depth, end - begin, depth, turned + 4 * begin, padded)
            _gather_pages(job, MANY_V, MANY_V_SCALE, b, h, begin, end, value_depth, values, size, load)
        q, out = _at(job, MANY_Q, b, head), _at(job, MANY_OUT, b, head)
        for i in range(0, queries, ATTENTION_ROWS):
            rows = min(ATTENTION_ROWS, queries - i)
            low, high = _low(job, start, length, i), _high(job, start, length, i + rows - 1)
            _matmul(q + q_row * i, q_row, 4, rows, turned, 4 * padded, 0, depth, scores, 4 * padded, low, high, False)
            for r in range(rows):
                begin, end = _low(job, start, length, i + r), _high(job, start, length, i + r)
                share = _exponentials(scores + 4 * padded * r, begin, end, padded, scale)
                set_float(shares + 4 * r, share if begin < end else _F32(0))
            to, v_row = out + out_row * i, 4 * value_depth
            _matmul(scores, 4 * padded, 4, rows, values, v_row, low, high, to, out_row, 0, value_depth, False)
            # Scores would have to be divided by their sum; there are more of them than results.
            for r in range(rows):
                _scale_row(to + out_row * r, value_depth, float_at(shares + 4 * r))
    give_work(job, turned)


def attend_many_f32(job: int, first: int, last: int) -> None:
    _attend_many(job, first, last, 4, load_f32)


def attend_many_f16(job: int, first: int, last: int) -> None:
    _attend_many(job, first, last, 2, load_f16)


def attend_many_bf16(job: int, first: int, last: int) -> None:
    _attend_many(job, first, last, 2, load_bf16)


def attend_many_i8(job: int, first: int, last: int) -> None:
    _attend_many(job, first, last, 1, load_bytes)


def attention_gradient_f32(job: int, first: int, last: int) -> None:
    kv_heads, group = long_at(job + MANY_KV_HEADS), long_at(job + MANY_GROUP)
    queries, keys = long_at(job + MANY_QUERIES), _keys(job)
    depth, value_depth, scale = long_at(job + MANY_DEPTH), long_at(job + MANY_VALUE_DEPTH), float_at(job + MANY_SCALE)
    padded, most = _padded(keys), min(GRADIENT_QUERIES, queries)
    q_row, k_row, dy_row = 4 * depth, 4 * depth, 4 * value_depth
    dq_row, dk_row, dv_row = _row_bytes(job, MANY_OUT), _row_bytes(job, MANY_DK), _row_bytes(job, MANY_DV)
    step = 4 * padded
    keys_turned = take_work(job)
    values_turned = keys_turned + step * depth
    k = values_turned + step * value_depth
    p = k + step * depth
    d = p + step * most
    q = d + step * most
    dy = q + q_row * most
    for part in range(first, last):
        b, h = part // kv_heads, part % kv_heads
        start, length = _place(job, b)
        dk, dv = _at(job, MANY_DK, b, h), _at(job, MANY_DV, b, h)
        _gather(_at(job, MANY_K, b, h), _row_bytes(job, MANY_K), keys, depth, k)
        _turn(k, k_row, keys, depth, keys_turned, padded)
        _turn(_at(job, MANY_V, b, h), _row_bytes(job, MANY_V), keys, value_depth, values_turned, padded)
        for head in range(h * group, (h + 1) * group):
            for block in range(0, queries, GRADIENT_QUERIES):
                count = min(most, queries - block)
                q_step, dy_step = _row_bytes(job, MANY_Q), _row_bytes(job, MANY_DY)
                _gather(_at(job, MANY_Q, b, head) + q_step * block, q_step, count, depth, q)
                _gather(_at(job, MANY_DY, b, head) + dy_step * block, dy_step, count, value_depth, dy)
                dq = _at(job, MANY_OUT, b, head) + dq_row * block
                for i in range(0, count, ATTENTION_ROWS):
                    rows, at = min(ATTENTION_ROWS, count - i), block + i
                    low, high = _low(job, start, length, at), _high(job, start, length, at + rows - 1)
                    pi, di = p + step * i, d + step * i
                    _matmul(q + q_row * i, q_row, 4, rows, keys_turned, step, 0, depth, pi, step, low, high, False)
                    _matmul(dy + dy_row * i, dy_row, 4, rows, values_turned, step, 0, value_depth, di, step, low, high, False)
                    for r in range(rows):
                        begin, end = _low(job, start, length, at + r), _high(job, start, length, at + r)
                        _softmax(pi + step * r, begin, end, padded, scale)
                        _softmax_gradient(pi + step * r, di + step * r, begin, end, padded, scale)
                    _matmul(di, step, 4, rows, k, k_row, low, high, dq + dq_row * i, dq_row, 0, depth, False)
                more = head > h * group or block > 0
                begin = 0
                for j in range(0, keys, ATTENTION_ROWS):
                    rows = min(ATTENTION_ROWS, keys - j)
                    # The queries that see any of these keys.
                    while begin < count and _high(job, start, length, block + begin) <= j:
                        begin += 1
                    end = count
                    while end > begin and _low(job, start, length, block + end - 1) >= j + rows:
                        end -= 1
                    _matmul(d + 4 * j, 4, step, rows, q, q_row, begin, end, dk + dk_row * j, dk_row, 0, depth, more)
                    _matmul(p + 4 * j, 4, step, rows, dy, dy_row, begin, end, dv + dv_row * j, dv_row, 0, value_depth, more)
    give_work(job, keys_turned)
