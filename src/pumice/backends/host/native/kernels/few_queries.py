"""Numba kernels of attention of few queries, as in a token step: a part is one query of some heads that share their keys.

Keys and values pass by a few at a time, so that they are in the first cache for all heads of a part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import (
    block_memory,
    everywhere,
    exp,
    float_at,
    int_at,
    keep_lanes,
    larger,
    largest_of,
    load_bf16,
    load_f16,
    load_f32,
    long_at,
    madd,
    madd_scalar,
    plus,
    prefetch,
    scaled,
    set_float,
    store_f32,
    tanh,
    total_of,
    zeros,
)
from pumice.backends.host.native.kernels.pages import entry_of, load_bytes
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES

_F32 = np.float32
(
    ATT_Q,
    ATT_K,
    ATT_V,
    ATT_OUT,
    ATT_STARTS,
    ATT_LENGTHS,
    ATT_TABLE,
    ATT_K_SCALE,
    ATT_V_SCALE,
    ATT_HEADS,
    ATT_GROUP,
    ATT_TOGETHER,
    ATT_QUERIES,
    ATT_PAGE,
    ATT_PAGES,
    ATT_CACHES,
    ATT_DEPTH,
    ATT_VALUE_DEPTH,
    ATT_SCALE,
    ATT_SOFTCAP,
    ATT_CAUSAL,
    ATT_WINDOW,
) = (8 * i for i in range(22))
# Then the bytes from one batch entry, head and row to the next.
Q_STRIDES, K_STRIDES, V_STRIDES, OUT_STRIDES, K_SCALE_STRIDES, V_SCALE_STRIDES = (8 * (22 + 3 * i) for i in range(6))
# Scores that are kept at a time, of all heads of a part; behind them the greatest score and the sum of weights of each head.
_SCORES, _MOST_TOGETHER = 7168, 32
_TOPS, _SUMS = 4 * _SCORES, 4 * (_SCORES + _MOST_TOGETHER)
# Keys that pass by at a time.
_KEYS = 32


@inlined
def _at(job: int, which: int, strides: int, entry: int, head: int, row: int) -> Any:
    """Where a row of a head of an operand begins."""
    place = long_at(job + which) + entry * long_at(job + strides) + head * long_at(job + strides + 8)
    return place + row * long_at(job + strides + 16)


@inlined
def _seen(job: int, b: int, query: int) -> Any:
    """The keys that a query sees: first and one past the last."""
    keys, queries = long_at(job + ATT_PAGE) * long_at(job + ATT_PAGES), long_at(job + ATT_QUERIES)
    starts, lengths, window = long_at(job + ATT_STARTS), long_at(job + ATT_LENGTHS), long_at(job + ATT_WINDOW)
    start = np.int64(int_at(starts + 4 * b)) if starts else keys - queries
    stop = min(keys, np.int64(int_at(lengths + 4 * b))) if lengths else keys
    if long_at(job + ATT_CAUSAL):
        stop = min(stop, start + query + 1)
    first = max(0, start + query - window + 1) if window else 0
    return first, max(first, stop)


@inlined
def _run(job: int, b: int, key: int, end: int) -> Any:
    """The entry that holds a key, where in it, and how many keys from it on pass by: next to one another, and before `end`."""
    size = long_at(job + ATT_PAGE)
    page = key // size
    entry = entry_of(long_at(job + ATT_TABLE), long_at(job + ATT_PAGES), long_at(job + ATT_CACHES), b, page)
    inside = key - page * size
    return entry, inside, min(min(end - key, size - inside), _KEYS)


@inlined
def _ahead(job: int, which: int, strides: int, b: int, head: int, key: int, end: int, here: int) -> Any:
    """The bytes from some keys or values to those that pass by next, from `key` on."""
    if key >= end:
        return np.int64(0)
    entry, inside, _ = _run(job, b, key, end)
    return _at(job, which, strides, entry, head, inside) - here


@inlined
def _fetch(row: int, ahead: int, nbytes: int) -> None:
    """Prefetches a row of keys or values that is so many bytes ahead; 0 is nothing to fetch."""
    if ahead:
        for at in range(0, nbytes, 64):
            prefetch(row + ahead + at)


@inlined
def _dots_of(q: int, k: int, step: int, count: int, ahead: int, to: int, depth: int, size: int, load: Any) -> None:
    """The dot products of a query with keys `step` bytes apart, two of them at a time: q is loaded once for both."""
    j = 0
    while j < count:
        # The last of an odd number of keys is also its own neighbour.
        first = k + j * step
        second = first + (step if j + 1 < count else 0)
        _fetch(first, ahead, size * depth)
        _fetch(second, ahead, size * depth)
        a, b, at = zeros(), zeros(), 0
        while at < depth:
            v = load_f32(q + 4 * at)
            a = madd(v, load(first + size * at), a)
            b = madd(v, load(second + size * at), b)
            at += LANES
        set_float(to + 4 * j, total_of(a))
        if j + 1 < count:
            set_float(to + 4 * j + 4, total_of(b))
        j += 2


@inlined
def _dots(job: int, q: int, b: int, head: int, begin: int, end: int, dots: int, pitch: int, size: int, load: Any) -> None:
    """The dot products of queries of heads that share their keys with the keys begin…end-1; those of a head in a row."""
    depth, step, key = long_at(job + ATT_DEPTH), long_at(job + K_STRIDES + 16), begin
    while key < end:
        entry, inside, count = _run(job, b, key, end)
        k = _at(job, ATT_K, K_STRIDES, entry, head, inside)
        ahead = _ahead(job, ATT_K, K_STRIDES, b, head, key + count, end, k)
        for h in range(long_at(job + ATT_TOGETHER)):
            x, to = q + h * long_at(job + Q_STRIDES + 8), dots + h * pitch + 4 * (key - begin)
            # With a depth that is known the loop over it is written out.
            if depth == 64:
                _dots_of(x, k, step, count, ahead, to, 64, size, load)
            elif depth == 128:
                _dots_of(x, k, step, count, ahead, to, 128, size, load)
            else:
                _dots_of(x, k, step, count, ahead, to, depth, size, load)
            ahead = 0
        key += count


@inlined
def _scale(job: int, which: int, strides: int, b: int, head: int, begin: int, end: int, numbers: int) -> None:
    """A number for each of the keys begin…end-1 times the factor of its key or value."""
    key = begin
    while key < end:
        entry, inside, count = _run(job, b, key, end)
        factor, step, to = _at(job, which, strides, entry, head, inside), long_at(job + strides + 16), numbers + 4 * (key - begin)
        for j in range(count):
            set_float(to + 4 * j, float_at(to + 4 * j) * float_at(factor + j * step))
        key += count


@inlined
def _scores(job: int, count: int, dots: int) -> Any:
    """Dot products become scores; gives the greatest. Those past the end, up to a whole vector, become -inf."""
    scale, cap, top = float_at(job + ATT_SCALE), float_at(job + ATT_SOFTCAP), everywhere(_F32(-math.inf))
    for j in range(0, count, LANES):
        v = scaled(load_f32(dots + 4 * j), scale)
        if cap:
            v = scaled(tanh(scaled(v, _F32(1) / cap)), cap)
        if j + LANES > count:
            v = keep_lanes(v, 0, count - j, _F32(-math.inf))
        top = larger(v, top)
        store_f32(dots + 4 * j, v)
    return largest_of(top)


@inlined
def _weights(scores: int, count: int, top: Any) -> Any:
    """Scores become exp(score - top), those past the end next to nothing; gives their sum."""
    total, lowered = zeros(), everywhere(-top)
    for at in range(0, 4 * count, VECTOR_BYTES):
        v = exp(plus(load_f32(scores + at), lowered))
        store_f32(scores + at, v)
        total = plus(total, v)
    return total_of(total)


@inlined
def _add_pair(v: int, step: int, count: int, ahead: int, weights: int, out: int, size: int, other: int, load: Any) -> None:
    """Adds values times their weights, in two vectors `other` elements apart: one alone would wait for its last addition."""
    a, b = load_f32(out), load_f32(out + 4 * other)
    for j in range(count):
        _fetch(v + j * step, ahead, size * (LANES + other))
        w = float_at(weights + 4 * j)
        a = madd_scalar(load(v + j * step), w, a)
        b = madd_scalar(load(v + j * step + size * other), w, b)
    store_f32(out + 4 * other, b)
    store_f32(out, a)


@inlined
def _add_values(
    job: int, b: int, head: int, begin: int, end: int, weights: int, pitch: int, out: int, size: int, load: Any
) -> None:
    """Adds the values begin…end-1 times their weights to the results of heads that share them."""
    depth, step, key = long_at(job + ATT_VALUE_DEPTH), long_at(job + V_STRIDES + 16), begin
    while key < end:
        entry, inside, count = _run(job, b, key, end)
        v = _at(job, ATT_V, V_STRIDES, entry, head, inside)
        ahead = _ahead(job, ATT_V, V_STRIDES, b, head, key + count, end, v)
        for h in range(long_at(job + ATT_TOGETHER)):
            w, to, at = weights + h * pitch + 4 * (key - begin), out + h * long_at(job + OUT_STRIDES + 8), 0
            while at < depth:
                if at + LANES < depth:
                    _add_pair(v + size * at, step, count, ahead, w, to + 4 * at, size, LANES, load)
                    at += LANES
                else:
                    _add_pair(v + size * at, step, count, ahead, w, to + 4 * at, size, 0, load)
                at += LANES
            ahead = 0
        key += count


@inlined
def _scale_row(row: int, count: int, factor: Any) -> None:
    for at in range(0, 4 * count, VECTOR_BYTES):
        store_f32(row + at, scaled(load_f32(row + at), factor))


@inlined
def _attend(job: int, first: int, last: int, size: int, load: Any) -> None:
    """Keys in blocks, with the greatest score so far: what came before is scaled down when a greater one comes.

    Elements of keys and values have `size` bytes; those of one byte come with factors.
    """
    queries, depth, together = long_at(job + ATT_QUERIES), long_at(job + ATT_VALUE_DEPTH), long_at(job + ATT_TOGETHER)
    several, out_head = long_at(job + ATT_HEADS) // together, long_at(job + OUT_STRIDES + 8)
    most = _SCORES // together // LANES * LANES
    memory, pitch = block_memory(), 4 * most
    for part in range(first, last):
        b, h, query = part // (several * queries), part // queries % several * together, part % queries
        head = h // long_at(job + ATT_GROUP)
        q, out = _at(job, ATT_Q, Q_STRIDES, b, h, query), _at(job, ATT_OUT, OUT_STRIDES, b, h, query)
        for i in range(together):
            set_float(memory + _TOPS + 4 * i, _F32(-math.inf))
            set_float(memory + _SUMS + 4 * i, _F32(0))
            for at in range(0, 4 * depth, VECTOR_BYTES):
                store_f32(out + i * out_head + at, zeros())
        block, end = _seen(job, b, query)
        while block < end:
            stop = min(end, block + most)
            _dots(job, q, b, head, block, stop, memory, pitch, size, load)
            for i in range(together):
                scores = memory + i * pitch
                if size == 1:
                    _scale(job, ATT_K_SCALE, K_SCALE_STRIDES, b, head, block, stop, scores)
                before, total = float_at(memory + _TOPS + 4 * i), float_at(memory + _SUMS + 4 * i)
                top = max(before, _scores(job, stop - block, scores))
                if top > before:
                    # exp(-inf) of the first block is 0 times nothing.
                    shrink = _F32(math.exp(before - top))
                    total *= shrink
                    _scale_row(out + i * out_head, depth, shrink)
                    set_float(memory + _TOPS + 4 * i, top)
                set_float(memory + _SUMS + 4 * i, total + _weights(scores, stop - block, top))
                if size == 1:
                    _scale(job, ATT_V_SCALE, V_SCALE_STRIDES, b, head, block, stop, scores)
            _add_values(job, b, head, block, stop, memory, pitch, out, size, load)
            block = stop
        for i in range(together):
            total = float_at(memory + _SUMS + 4 * i)
            if total:
                _scale_row(out + i * out_head, depth, _F32(1) / total)


def attend_f32(job: int, first: int, last: int) -> None:
    _attend(job, first, last, 4, load_f32)


def attend_f16(job: int, first: int, last: int) -> None:
    _attend(job, first, last, 2, load_f16)


def attend_bf16(job: int, first: int, last: int) -> None:
    _attend(job, first, last, 2, load_bf16)


def attend_i8(job: int, first: int, last: int) -> None:
    _attend(job, first, last, 1, load_bytes)
