"""Error models of attention and its gradient: how errors of scores pass through the softmax into sums over keys and queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core.precisions import MATRIX_ROUNDING
from pumice.ir.ops.attention_math import head_groups, hidden, probabilities, scale_of, usual_layout
from pumice.ir.precision import ULP, Array, Evaluation, U, growth


def matrix_rounding(precision: str) -> tuple[float, float]:
    """How far rounding to the 16 bits of a matrix unit takes a number, relative to it and at least; zeros without it."""
    return MATRIX_ROUNDING.get(precision, 0.0), 2.0**-25 if precision == "f16" else 0.0


def _weights(e: Evaluation, q: Array, k: Array, extras: Any) -> tuple[Array, Array, Array]:
    """Probabilities [B, H, Sq, Sk], their errors, and those of the scores."""
    mask, bias, offset, kv_len, *further = extras
    (batch, heads, sq, depth), sk = q.shape, k.shape[2]
    grouped, keys = head_groups(q, k.shape[1]), k[:, :, None].swapaxes(-1, -2)
    scale, softcap = scale_of(e.attrs, depth), e.attrs["softcap"]
    scores = np.matmul(grouped, keys).reshape(batch, heads, sq, sk)
    sizes = np.matmul(np.abs(grouped), np.abs(keys)).reshape(scores.shape) * abs(scale)
    off = U * (growth(depth) * sizes + 2 * np.abs(scores * scale))
    rounding, least = matrix_rounding(e.attrs.get("precision", "exact"))
    if rounding:
        # Queries are scaled before they are rounded.
        lengths = [np.abs(t).sum(axis=-1) for t in (grouped * abs(scale), k[:, :, None])]
        small = least * (lengths[0][..., :, None] + abs(scale) * lengths[1][..., None, :] + least * depth).reshape(scores.shape)
        off = off + (2 * rounding + rounding**2) * sizes + small * (1 + rounding)
    if softcap is not None:
        # tanh takes its operand with a derivative of at most 1, and is off by a few ulp itself.
        off = off + 8 * ULP * np.minimum(softcap, np.abs(scores * scale))
    if bias is not None:
        off = off + U * np.abs(bias)
    unseen = hidden(e.attrs, batch, sq, sk, mask, offset, kv_len)
    p = probabilities(scores.copy(), scale, softcap, bias, unseen, *further)
    # What exp loses grows with its argument, the distance from the greatest score: the logarithm of p, nearly.
    off = off + ULP * (3 + 2 * np.abs(np.log(np.maximum(p, 2.0**-126))))
    off = np.where(p > 0, off, 0.0)
    relative = off + np.sum(p * off, axis=-1, keepdims=True) + U * growth(sk)
    return p, p * relative, off


def attention_error(e: Evaluation) -> Array:
    """Each value is off by its probability's error, and their sum by its roundings."""
    q, k, v, mask, bias, offset, kv_len, *_ = e.arrays
    q, k, v = usual_layout(e.arrays, e.attrs)
    if not e.result.size or not k.size:
        return np.zeros_like(e.result)
    p, off, _ = _weights(e, q, k, (mask, bias, offset, kv_len, *e.arrays[10:]))
    values = np.abs(v)[:, :, None]
    spread = off + U * growth(k.shape[2]) * p
    rounding, least = matrix_rounding(e.attrs["precision"])
    if rounding:
        # Weights relative to the largest are rounded, and so are values.
        spread = spread + (2 * rounding + rounding**2) * (p + off) + np.where(p > 0, least, 0.0)
        values = values + least
    found = np.matmul(head_groups(spread, k.shape[1]), values).reshape(*q.shape[:3], v.shape[3])
    return np.asarray(found.swapaxes(1, 2) if e.attrs["layout"] == "bshd" else found)


def attention_gradient_error(e: Evaluation) -> tuple[Array, ...]:
    """The same steps as the reference, each with the errors it takes over and those it adds."""
    q, k, v, dy, *extras = e.arrays
    swapped = e.attrs["layout"] == "bshd"
    if swapped:
        q, k, v, dy = (a.swapaxes(1, 2) for a in (q, k, v, dy))
    (_, _, sq, depth), (_, kv_heads, sk, _) = q.shape, k.shape
    if not q.size or not k.size:
        return tuple(np.zeros_like(r) for r in e.results)
    group = q.shape[1] // kv_heads
    p, p_off, score_off = _weights(e, q, k, extras)
    grads, values = head_groups(dy, kv_heads), v[:, :, None].swapaxes(-1, -2)
    dp = np.matmul(grads, values).reshape(p.shape)
    dp_off = U * growth(v.shape[3]) * np.matmul(np.abs(grads), np.abs(values)).reshape(p.shape)
    weighted, weighted_off = dp * p, dp_off * p + np.abs(dp) * p_off
    total = weighted.sum(axis=-1, keepdims=True)
    total_off = weighted_off.sum(axis=-1, keepdims=True) + U * growth(sk) * np.abs(weighted).sum(axis=-1, keepdims=True)
    inner = np.abs(weighted - p * total)
    inner_off = weighted_off + p_off * np.abs(total) + p * total_off + 2 * U * (np.abs(weighted) + p * np.abs(total))
    scale, softcap = scale_of(e.attrs, depth), e.attrs["softcap"]
    if softcap is not None:
        scores = np.matmul(head_groups(q, kv_heads), k[:, :, None].swapaxes(-1, -2)).reshape(p.shape)
        capped = np.tanh(scores * (scale / softcap))
        slope = 1 - capped * capped
        inner, inner_off = inner * slope, inner_off * slope + inner * 2 * np.abs(capped) * (score_off / softcap + 8 * ULP)
    inner, inner_off = (head_groups(a * abs(scale), kv_heads) for a in (inner, inner_off + 2 * U * inner))
    queries, keys, weights = np.abs(head_groups(q, kv_heads)), np.abs(k)[:, :, None], head_groups(p, kv_heads)

    def per_query(sums: int, part: Array, off: Array, other: Array) -> Array:
        return np.asarray(np.matmul(off + U * growth(sums) * part, other))

    found = (
        per_query(sk, inner, inner_off, keys).reshape(q.shape),
        per_query(sq * group, inner.swapaxes(-1, -2), inner_off.swapaxes(-1, -2), queries).sum(axis=2),
        per_query(sq * group, weights.swapaxes(-1, -2), head_groups(p_off, kv_heads).swapaxes(-1, -2), np.abs(grads)).sum(axis=2),
    )
    return tuple(a.swapaxes(1, 2) if swapped else a for a in found)


def rope_error(e: Evaluation) -> Array:
    """Two products and their sum; entries that do not rotate are copies."""
    x, cos, sin = e.arrays
    rotary: int = e.attrs["rotary_dim"]
    first = e.again([np.abs(x), np.abs(cos), -np.abs(sin)])
    second = e.again([np.abs(x), np.abs(cos), np.abs(sin)])
    # One of them adds in the first half of each pair, the other in the second.
    sizes = np.maximum(first, second) * U
    sizes[..., rotary:] = 0
    return np.asarray(sizes)
