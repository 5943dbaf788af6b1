"""The gradient of attention: probabilities recomputed from q and k, for a block of queries at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pumice.core import dtypes
from pumice.core.dims import Dim, Shape
from pumice.core.records import dataclass
from pumice.ir.gradient import Backward, Gradients, Val
from pumice.ir.gradients.index import read_back

# Below every score that can matter, and finite: a row of -inf only would make softmax NaN.
_HIDDEN = -1e30
# Scores that exist at a time, and the most blocks to cut the queries into for it.
_SCORES, _MAX_BLOCKS = 1 << 23, 16


def attention(c: Backward) -> Gradients:
    """In one op, unless more is wanted than the gradients of q, k and v."""
    given, wanted = c.operands, {name for name in c.operands if c.needs(name)}
    if not wanted <= {"q", "k", "v"} or given.keys() & {"kv_index", "k_scale", "v_scale", "sinks"}:
        return _composed(c.attrs, given, c.dy, wanted)
    extras = (given.get(name) for name in ("mask", "bias", "offset", "kv_len"))
    attrs = {name: value for name, value in c.attrs.items() if name not in ("precision", "own_rows")}
    dq, dk, dv = given["q"].ops("attention_gradient", given["k"], given["v"], c.dy, *extras, **attrs)
    return {"q": dq, "k": dk, "v": dv}


def composed_gradient(attrs: Mapping[str, Any], operands: Mapping[str, Val]) -> tuple[Val, ...]:
    """What attention_gradient is composed of."""
    found = _composed(attrs, operands, operands["dy"], {"q", "k", "v"})
    return tuple(found[name].wide() for name in ("q", "k", "v"))


def _composed(attrs: Mapping[str, Any], given: Mapping[str, Val], dy: Val, wanted: Set[str]) -> dict[str, Val]:
    """One block after the other, so that the scores of all queries never exist together."""
    kv_index, swapped = given.get("kv_index"), attrs["layout"] == "bshd"

    def entries(t: Val, scale: Val | None) -> Val:
        """Keys or values as floats, [B, Hkv, Sk, depth], one entry for each of q."""
        full = t.wide() if scale is None else t.cast(dtypes.f32) * scale.reshape((*scale.shape, 1))
        if kv_index is None:
            return _heads_first(full, swapped)
        if kv_index.rank == 1:
            return _heads_first(full.op("gather", kv_index, axis=0), swapped)
        return _join_pages(full.op("gather", kv_index, axis=0), swapped)

    keys, values = (entries(given[t], given.get(scale)) for t, scale in (("k", "k_scale"), ("v", "v_scale")))
    queries, dy = (_heads_first(t.wide(), swapped) for t in (given["q"], dy))
    parts: list[Val] = []
    found: dict[str, Val] = {}

    def add(name: str, t: Val) -> None:
        found[name] = found[name] + t if name in found else t

    for start, stop in _blocks(queries.shape, keys.shape[2], whole="bias" in wanted):
        block = _Block(attrs, given, queries, keys, values, dy, start, stop)
        if "bias" in wanted:
            found["bias"] = block.ds
        if "q" in wanted:
            parts.append(block.of_queries())
        if "sinks" in wanted:
            add("sinks", block.of_sinks())
        if wanted & {"k", "k_scale"}:
            add("k", block.of_keys())
        if wanted & {"v", "v_scale"}:
            add("v", block.of_values())
    for name in ("k", "v"):
        if name in found:
            # From [B, Hkv, Sk, depth] to the layout and entries of k or v.
            if kv_index is not None and kv_index.rank == 2:
                t = _split_pages(found[name], given[name].shape[1 if swapped else 2], kv_index.shape[1], swapped)
            else:
                t = _heads_first(found[name], swapped)
            found[name] = t if kv_index is None else read_back(t, given[name].shape, kv_index, 0)
    if parts:
        found["q"] = _heads_first(parts[0] if len(parts) == 1 else parts[0].op("concat", *parts[1:], axis=2), swapped)
    for name, scale in (("k", "k_scale"), ("v", "v_scale")):
        if scale in wanted:
            found[scale] = (found[name] * given[name].cast(dtypes.f32)).sum((3,))
    return found


def _heads_first(t: Val, swapped: bool) -> Val:
    return t.transpose((0, 2, 1, 3)) if swapped else t


def _join_pages(t: Val, swapped: bool) -> Val:
    """Pages of keys or values, [B, P, page, Hkv, depth] or with heads before positions → [B, Hkv, P · page, depth]."""
    t = t.transpose((0, 3, 1, 2, 4) if swapped else (0, 2, 1, 3, 4))
    batch, heads, pages, page, depth = t.shape
    return t.reshape((batch, heads, pages * page, depth))


def _split_pages(t: Val, page: Dim, pages: Dim, swapped: bool) -> Val:
    """What `_join_pages` has joined, as it was."""
    batch, heads, _, depth = t.shape
    t = t.reshape((batch, heads, pages, page, depth))
    return t.transpose((0, 2, 3, 1, 4) if swapped else (0, 2, 1, 3, 4))


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

    attrs: Mapping[str, Any]
    given: Mapping[str, Val]
    all_queries: Val
    keys: Val
    values: Val
    all_dy: Val
    start: Dim
    stop: Dim

    def __post_init__(self) -> None:
        attrs, keys = self.attrs, self.keys
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
        if (bias := self._extra("bias")) is not None:
            s = s + bias.wide()
        shown = self._shown(s)
        if shown is None:
            self.p = self._softmax(s)
        else:
            self.p = shown.choose(self._softmax(shown.choose(s, _HIDDEN)), 0.0)
        weighted = (self.dy @ self.values.swap_last()).reshape(scores) * self.p
        self.total = weighted.sum((3,), keep=True)
        self.ds = weighted - self.p * self.total
        raw = self.ds if capped is None else self.ds * (1.0 - capped * capped)
        self.inner = (raw * scale).reshape((*self.stacked, sk))

    def _softmax(self, s: Val) -> Val:
        """Probabilities of the keys, less what the sinks take."""
        sinks = self.given.get("sinks")
        if sinks is None:
            return s.op("softmax", axis=3)
        batch, heads, sq, sk = s.shape
        column = sinks.wide().reshape((1, heads, 1, 1)).op("expand", shape=(batch, heads, sq, 1))
        return s.op("concat", column, axis=3).op("softmax", axis=3).slice_axis(3, 0, sk)

    def of_sinks(self) -> Val:
        """A sink's value is 0: its score has the gradient of its probability times what the others give."""
        return ((self.p.sum((3,), keep=True) - 1.0) * self.total).sum((0, 2, 3))

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

    def _extra(self, name: str) -> Val | None:
        """The mask or the bias."""
        t = self.given.get(name)
        return t if t is None or t.rank < 2 else self._rows(t, t.rank - 2)

    def _shown(self, s: Val) -> Val | None:
        """Where a query sees a key, broadcastable to the scores [B, H, Sq, Sk]; None where it sees all."""
        causal, window = self.attrs["causal"], self.attrs["window"]
        offset, kv_len = self.given.get("offset"), self.given.get("kv_len")
        sk = s.shape[3]
        mask = self._extra("mask")
        conditions = [] if mask is None else [mask]
        if "bias" in self.given:
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
