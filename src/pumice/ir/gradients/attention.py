"""The gradient of attention: probabilities recomputed from q and k, for a block of queries at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.core import dtypes
from pumice.core.dims import Dim, Shape
from pumice.ir.gradient import Backward, Gradients, Val
from pumice.ir.gradients.index import read_back

# Below every score that can matter, and finite: a row of -inf only would make softmax NaN.
_HIDDEN = -1e30
# Scores that exist at a time, and the most blocks to cut the queries into for it.
_SCORES, _MAX_BLOCKS = 1 << 23, 16


def attention(c: Backward) -> Gradients:
    """In one op, unless more is wanted than the gradients of q, k and v."""
    q, k, v, mask, bias, offset, kv_len, *stored = c.inputs
    assert q is not None and k is not None and v is not None
    if not any(c.needed[:3]) or c.needed[4] or any(t is not None for t in stored):
        return composed(c)
    found = q.ops("attention_gradient", k, v, c.dy, mask, bias, offset, kv_len, **c.attrs)
    return [*(t if need else None for t, need in zip(found, c.needed, strict=False)), *[None] * 7]


def composed_gradient(attrs: Mapping[str, Any], operands: Sequence[Val | None]) -> tuple[Val, ...]:
    """What attention_gradient is composed of."""
    q, k, v, dy, *extras = operands
    assert q is not None and k is not None and v is not None and dy is not None
    needed = (True, True, True, *[False] * 7)
    # The rule has no use for attention's own result, only for its gradient.
    found = composed(Backward((dy,), (q, k, v, *extras, None, None, None), dy, attrs, needed))
    return tuple(t.wide() for t in found if t is not None)


def composed(c: Backward) -> Gradients:
    """One block after the other, so that the scores of all queries never exist together."""
    q, k, v, _, _, _, _, kv_index, k_scale, v_scale = c.inputs
    assert q is not None and k is not None and v is not None
    swapped = c.attrs["layout"] == "bshd"
    keys, values = (_entries(c, t, s) for t, s in ((k, k_scale), (v, v_scale)))
    queries, dy = (_heads_first(t.wide(), swapped) for t in (q, c.dy))
    need_q, need_k, need_v, need_bias = (c.needed[0], c.needed[1] or c.needed[8], c.needed[2] or c.needed[9], c.needed[4])
    parts: list[Val] = []
    dk: Val | None = None
    dv: Val | None = None
    db: Val | None = None
    for start, stop in _blocks(queries.shape, keys.shape[2], whole=need_bias):
        block = _Block(c, queries, keys, values, dy, start, stop)
        if need_bias:
            db = block.ds
        if need_q:
            parts.append(block.of_queries())
        if need_k:
            dk = block.of_keys() if dk is None else dk + block.of_keys()
        if need_v:
            dv = block.of_values() if dv is None else dv + block.of_values()

    def back(t: Val | None, stored: Val) -> Val | None:
        """A gradient of [B, Hkv, Sk, depth] in the layout and entries of k or v."""
        if t is None:
            return None
        t = _heads_first(t, swapped)
        return t if kv_index is None else read_back(t, stored.shape, kv_index, 0)

    def of_scale(t: Val | None, stored: Val) -> Val | None:
        return None if t is None else (t * stored.cast(dtypes.f32)).sum((3,))

    dk, dv = back(dk, k), back(dv, v)
    dq = None if not parts else _heads_first(parts[0] if len(parts) == 1 else parts[0].op("concat", *parts[1:], axis=2), swapped)
    of_scales = [of_scale(t, stored) if need else None for t, stored, need in ((dk, k, c.needed[8]), (dv, v, c.needed[9]))]
    return [dq, dk, dv, None, db, None, None, None, *of_scales]


def _heads_first(t: Val, swapped: bool) -> Val:
    return t.transpose((0, 2, 1, 3)) if swapped else t


def _entries(c: Backward, t: Val, scale: Val | None) -> Val:
    """Keys or values as floats, [B, Hkv, Sk, depth], one entry for each of q."""
    full = t.wide() if scale is None else t.cast(dtypes.f32) * scale.reshape((*scale.shape, 1))
    kv_index = c.inputs[7]
    return _heads_first(full if kv_index is None else full.op("gather", kv_index, axis=0), c.attrs["layout"] == "bshd")


def _blocks(queries: Shape, sk: Dim, *, whole: bool) -> list[tuple[Dim, Dim]]:
    """Ranges of queries whose scores are few enough; all at once where the number of queries is not known."""
    sq = queries[2]
    if whole or not isinstance(sq, int):
        return [(0, sq)]
    scores = math.prod(d for d in (*queries[:3], sk) if isinstance(d, int))
    count = max(1, min(_MAX_BLOCKS, -(-scores // _SCORES), sq))
    size = -(-sq // count)
    return [(start, min(start + size, sq)) for start in range(0, max(sq, 1), max(size, 1))]


@dataclass
class _Block:
    """Some queries against all keys.

    Heads that share keys are stacked along the queries, [B, Hkv, G·Sq, …], so that everything is a batched matmul.
    """

    c: Backward
    all_queries: Val
    keys: Val
    values: Val
    all_dy: Val
    start: Dim
    stop: Dim

    def __post_init__(self) -> None:
        attrs, keys = self.c.attrs, self.keys
        queries, dy = (self._rows(t, 2) for t in (self.all_queries, self.all_dy))
        self.shape = batch, heads, sq, depth = queries.shape
        kv_heads, sk = keys.shape[1:3]
        assert isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(depth, int)
        scores, self.stacked = (batch, heads, sq, sk), (batch, kv_heads, heads // kv_heads * sq)
        self.queries, self.dy = queries.reshape((*self.stacked, depth)), dy.reshape((*self.stacked, self.values.shape[3]))
        scale = 1 / math.sqrt(depth) if attrs["scale"] is None else attrs["scale"]
        s = (self.queries @ keys.swap_last()).reshape(scores) * scale
        capped = None
        if attrs["softcap"] is not None:
            capped = (s * (1 / attrs["softcap"])).op("tanh")
            s = capped * attrs["softcap"]
        if (bias := self._extra(4)) is not None:
            s = s + bias.wide()
        shown = self._shown(s)
        if shown is None:
            self.p = s.op("softmax", axis=3)
        else:
            self.p = shown.choose(shown.choose(s, _HIDDEN).op("softmax", axis=3), 0.0)
        weighted = (self.dy @ self.values.swap_last()).reshape(scores) * self.p
        self.ds = weighted - self.p * weighted.sum((3,), keep=True)
        raw = self.ds if capped is None else self.ds * (1.0 - capped * capped)
        self.inner = (raw * scale).reshape((*self.stacked, sk))

    def of_queries(self) -> Val:
        return (self.inner @ self.keys).reshape(self.shape)

    def of_keys(self) -> Val:
        return self.inner.swap_last() @ self.queries

    def of_values(self) -> Val:
        return self.p.reshape((*self.stacked, self.inner.shape[3])).swap_last() @ self.dy

    def _rows(self, t: Val, axis: int) -> Val:
        """This block's part of what has an axis of queries; an axis of 1 is for all of them."""
        size = self.all_queries.shape[2]
        if t.shape[axis] == 1 != size or (self.start, self.stop) == (0, size):
            return t
        return t.slice_axis(axis, self.start, self.stop)

    def _extra(self, position: int) -> Val | None:
        """The mask (3) or the bias (4)."""
        t = self.c.inputs[position]
        return t if t is None or t.rank < 2 else self._rows(t, t.rank - 2)

    def _shown(self, s: Val) -> Val | None:
        """Where a query sees a key, broadcastable to the scores [B, H, Sq, Sk]; None where it sees all."""
        causal, window, offset, kv_len = self.c.attrs["causal"], self.c.attrs["window"], self.c.inputs[5], self.c.inputs[6]
        sk = s.shape[3]
        mask = self._extra(3)
        conditions = [] if mask is None else [mask]
        if self.c.inputs[4] is not None:
            conditions.append(s.gt(float("-inf")))
        key = s.arange(0, sk)
        if kv_len is not None:
            conditions.append(key.lt(_per_entry(kv_len)))
        if causal or window is not None:
            # The key position of each query: offset + its number, or counted so that the last query sees the last key.
            first = 0 if offset is not None else sk - self.all_queries.shape[2]
            at = s.arange(first + self.start, first + self.stop).reshape((s.shape[2], 1))
            if offset is not None:
                at = at + _per_entry(offset)
            if causal:
                conditions.append(key.le(at))
            if window is not None:
                conditions.append(key.gt(at - window))
        return _all(conditions)


def _all(conditions: Sequence[Val]) -> Val | None:
    if not conditions:
        return None
    found = conditions[0]
    for condition in conditions[1:]:
        found = found.both(condition)
    return found


def _per_entry(v: Val) -> Val:
    """One number, or one per batch entry, as it broadcasts to [B, H, Sq, Sk]."""
    shape: Shape = () if v.rank == 0 else (v.shape[0], 1, 1, 1)
    return v.reshape(shape)
