"""Shared by attention, its gradient and their error models: grouped heads, masks, scores to probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from pumice.core.dims import Expr
from pumice.ir.ops.index import clamped
from pumice.ir.registry import Array, Attrs
from pumice.ir.traits import Sizes

D = TypeVar("D", int, int | Expr)


def usual_layout(arrays: Sequence[Any], attrs: Attrs) -> tuple[Array, Array, Array]:
    """q, k and v as floats [B, H, S, D], keys and values those that each entry of q reads."""
    q, k, v, _, _, _, _, kv_index, k_scale, v_scale = arrays[:10]
    if k_scale is not None:
        k, v = k * k_scale[..., None], v * v_scale[..., None]
    if attrs["layout"] == "bshd":
        q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    if kv_index is not None and len(k):
        entries = clamped(kv_index.reshape(len(kv_index), pages_of(kv_index.shape)), len(k))
        k, v = (_joined_pages(a[entries]) for a in (k, v))
    return q, k, v


def _joined_pages(x: Array) -> Array:
    """[B, pages, H, S, D] as [B, H, pages · S, D]."""
    batch, pages, heads, length, depth = x.shape
    return x.swapaxes(1, 2).reshape(batch, heads, pages * length, depth)


def pages_of(kv_index: tuple[D, ...]) -> D | int:
    """How many entries of keys and values an entry of q reads, by the shape of kv_index.

    >>> pages_of((3,)), pages_of((3, 8))
    (1, 8)
    """
    return kv_index[1] if len(kv_index) == 2 else 1


def head_groups(x: Array, kv_heads: int) -> Array:
    """[B, H, ...] as [B, kv_heads, group, ...]: heads that share keys get an axis of their own, over which matmul broadcasts.

    >>> head_groups(np.zeros((2, 6, 4, 8)), 2).shape
    (2, 2, 3, 4, 8)
    """
    return x.reshape(len(x), kv_heads, x.shape[1] // kv_heads, *x.shape[2:])


def scale_of(attrs: Attrs, depth: int) -> float:
    """The factor of queries times keys."""
    return 1 / math.sqrt(depth) if attrs["scale"] is None else float(attrs["scale"])


def probabilities(
    scores: Array, scale: float, softcap: float | None, bias: Array | None, unseen: Array | None, sinks: Array | None = None
) -> Array:
    """Scores [B, H, Sq, Sk] become softmax weights, in place; rows with every key masked are zeros.

    `sinks` [H] are scores of one more key of each head, which has no value.
    """
    scores *= scale
    if softcap is not None:
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    if bias is not None:
        scores += bias
    if unseen is not None:
        np.copyto(scores, -np.inf, where=unseen)
    # A row with nothing to attend has the maximum -inf; 0 instead leaves its weights at exp(-inf) = 0.
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    scores -= np.where(top == -np.inf, 0, top)
    weights = np.exp(scores, out=scores)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        with np.errstate(over="ignore"):
            total = np.where(total == 0, 0, total + np.exp(sinks[:, None, None] - top))
    weights /= np.where(total == 0, 1, total)
    return weights


def hidden(attrs: Attrs, batch: int, sq: int, sk: int, mask: Array | None, offset: Array | None, kv_len: Array | None) -> Array:
    """Which scores do not count; broadcasts to [B, H, Sq, Sk]."""
    per_batch = (-1, 1, 1, 1)
    key = np.arange(sk)
    start = np.array(sk - sq) if offset is None else offset.astype(np.int64)
    query = start.reshape(per_batch) + np.arange(sq)[:, None]
    found = np.zeros((1, 1, 1, 1), np.bool_)
    if mask is not None:
        found = found | ~mask
    if kv_len is not None:
        found = found | (key >= kv_len.reshape(per_batch))
    if attrs["causal"]:
        found = found | (key > query)
    if attrs["window"] is not None:
        found = found | (key <= query - attrs["window"])
    return found


def attended_pairs(of: Sizes, attrs: Attrs) -> int:
    """Pairs of a query and a key that attention computes a score for, over all heads and entries; data may hide more.

    >>> attended_pairs({"q": (1, 2, 4, 8), "k": (1, 2, 4, 8)}, {"layout": "bhsd", "causal": True})
    20
    """
    head, seq = (2, 1) if attrs["layout"] == "bshd" else (1, 2)
    q, queries, keys = of["q"], of["q"][seq], of["k"][seq] * pages_of(of.get("kv_index", ()))
    pairs = queries * keys
    if attrs["causal"] and "offset" not in of:  # an offset that is given is data
        first = keys - queries + 1
        pairs = sum(max(0, min(keys, first + i)) for i in (0, queries - 1)) * queries // 2 if queries else 0
    return q[0] * q[head] * pairs
