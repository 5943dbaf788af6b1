"""Recurrences in other ops, whose gradients they have: by scans over states, and by matmuls within chunks of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from pumice.core.dims import Dim, ceildiv
from pumice.core.records import dataclass
from pumice.errors import ShapeError
from pumice.ir.gradient import Val
from pumice.ir.registry import Attrs

_CHUNK = 32
# Where every key has a decay of its own, pairs of steps have one for each key: fewer of them at once.
_CHUNK_BY_KEY = 16


def _wide(operands: Mapping[str, Val]) -> dict[str, Val]:
    return {name: v.wide() for name, v in operands.items()}


def _last(states: Val, initial: Val | None) -> Val:
    """The last of states along axis 1, or the initial one where there are none."""
    steps = states.shape[1]
    shape = (states.shape[0], *states.shape[2:])
    if steps == 0:
        return states.scalar(0.0).expand(shape) if initial is None else initial
    return states.slice_axis(1, steps - 1, steps).reshape(shape)


def selective_scan(attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """All states at once, as a linear scan over the steps."""
    dtype, of = operands["x"].dtype, _wide({k: v for k, v in operands.items() if k != "starts"})
    x, delta, a, b, c = (of[name] for name in ("x", "delta", "a", "b", "c"))
    batch, steps, channels = x.shape
    size = a.shape[1]
    full = (batch, steps, channels, size)
    by_channel, by_size = (batch, steps, channels, 1), (batch, steps, 1, size)
    decay = (delta.reshape(by_channel) * a.reshape((1, 1, channels, size))).op("exp")
    if "starts" in operands:
        decay = operands["starts"].reshape((batch, steps, 1, 1)).choose(0.0, decay)
    drive = ((delta * x).reshape(by_channel) * b.reshape(by_size)).expand(full)
    state = of.get("state")
    states = decay.expand(full).op("linear_scan", drive, state, axis=1, exclusive=False, reverse=False)
    y = (states * c.reshape(by_size)).sum((3,))
    return y.cast(dtype), _last(states, state)


def linear_attention(attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """One decay for all keys: matmuls within chunks and a scan over them. A decay by key: all states by a linear scan."""
    dtype, of = operands["v"].dtype, _wide(operands)
    v, state = of["v"], of.get("state")
    heads, keys = v.shape[2], of["q"].shape[3]
    q, k = (_by_head(of[name], heads) for name in ("q", "k"))
    decay = _by_head(of["decay"], heads) if "decay" in of else v.scalar(1.0).expand((*v.shape[:3], 1))
    if decay.shape[3] == 1:
        y, last = _in_chunks(q, k, v, decay, state)
        return y.cast(dtype), last
    full = (*v.shape[:3], keys, v.shape[3])
    outer = k.reshape((*k.shape, 1)) * v.reshape((*v.shape[:3], 1, v.shape[3]))
    states = decay.reshape((*decay.shape, 1)).expand(full).op("linear_scan", outer, state, axis=1, exclusive=False, reverse=False)
    y = (states * q.reshape((*q.shape, 1))).sum((3,))
    return y.cast(dtype), _last(states, state)


def _by_head(x: Val, heads: Dim) -> Val:
    """x with each of its heads repeated for the heads that share it."""
    batch, steps, own, size = x.shape
    if own == heads:
        return x
    assert isinstance(heads, int) and isinstance(own, int)
    each = heads // own
    return x.reshape((batch, steps, own, 1, size)).expand((batch, steps, own, each, size)).reshape((batch, steps, heads, size))


@dataclass(frozen=True)
class _Chunks:
    """Steps cut into chunks, and what decays leave within them.

    `between` [.., length, length, 1 or keys] is what is left at step t of what step s added, `since` [.., length, 1 or keys] what
    is left of the state that the chunk begins with.
    """

    steps: Dim
    length: int
    count: Dim
    decay: Val

    @classmethod
    def of(cls, decay: Val) -> _Chunks:
        """For decays [batch, steps, heads, 1 or keys]."""
        steps, most = decay.shape[1], _CHUNK if decay.shape[3] == 1 else _CHUNK_BY_KEY
        length = most if not isinstance(steps, int) else max(1, min(most, steps))
        plain = cls(steps, length, ceildiv(steps, length), decay)
        return replace(plain, decay=plain.split(decay, 1.0))

    def split(self, x: Val, fill: float = 0.0) -> Val:
        """[batch, steps, heads, size] → [batch, chunks, heads, length, size], with steps that change nothing at the end."""
        batch, _, heads, size = x.shape
        missing = self.count * self.length - self.steps
        if missing != 0:
            x = x.op("pad", lo=(0, 0, 0, 0), hi=(0, missing, 0, 0), value=fill)
        return x.reshape((batch, self.count, self.length, heads, size)).transpose((0, 1, 3, 2, 4))

    def joined(self, y: Val) -> Val:
        """The other way round."""
        batch, _, heads, _, size = y.shape
        y = y.transpose((0, 1, 3, 2, 4)).reshape((batch, self.count * self.length, heads, size))
        return y.slice_axis(1, 0, self.steps)

    @cached_property
    def between(self) -> Val:
        later, earlier = (self.decay.arange(0, self.length).reshape(shape) for shape in ((self.length, 1, 1), (self.length, 1)))
        batch, chunks, heads, length, size = self.decay.shape
        decay = self.decay.reshape((batch, chunks, heads, length, 1, size)).expand((batch, chunks, heads, length, length, size))
        products = later.gt(earlier).choose(decay, 1.0).op("cumprod", axis=3, exclusive=False, reverse=False)
        return later.ge(earlier).choose(products, 0.0)

    @cached_property
    def since(self) -> Val:
        return self.decay.op("cumprod", axis=3, exclusive=False, reverse=False)

    def last(self, x: Val) -> Val:
        """What `between` or `since` is at the last step, that axis left out of the former."""
        found = x.slice_axis(3, self.length - 1, self.length)
        return found if x.rank == 5 else found.reshape((*x.shape[:3], *x.shape[4:]))

    def before(self, x: Val, first: float) -> Val:
        """What `between` or `since` is before each step instead of after it; `first` before the first one."""
        lo = tuple(int(axis == 3) for axis in range(x.rank))
        return x.op("pad", lo=lo, hi=(0,) * x.rank, value=first).slice_axis(3, 0, self.length)

    def pairs(self, x: Val, y: Val, left: Val) -> Val:
        """x[t] · y[s] with what is left at t of s, [.., length, length]."""
        if left.shape[-1] == 1:
            return (x @ y.swap_last()) * left.reshape(left.shape[:-1])
        *front, length, keys = x.shape
        by_key = x.reshape((*front, length, 1, keys)) * y.reshape((*front, 1, length, keys)) * left
        return by_key.sum((by_key.rank - 1,))


def _in_chunks(q: Val, k: Val, v: Val, decay: Val, state: Val | None) -> tuple[Val, Val]:
    chunks = _Chunks.of(decay)
    q, k, v = (chunks.split(x) for x in (q, k, v))
    inside = chunks.pairs(q, k, chunks.between) @ v
    added = (k * chunks.last(chunks.between)).swap_last() @ v
    carry = chunks.last(chunks.since).expand(added.shape)
    before = carry.op("linear_scan", added, state, axis=1, exclusive=True, reverse=False)
    after = carry.op("linear_scan", added, state, axis=1, exclusive=False, reverse=False)
    return chunks.joined(inside + (q * chunks.since) @ before), _last(after, state)


def delta_rule(attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """Within chunks a triangular system for what b reads at each step; between chunks products of matrices, in pairs of pairs.

    A chunk makes M S + N of the state S that it begins with.
    """
    dtype, of = operands["v"].dtype, _wide(operands)
    v, state = of["v"], of.get("state")
    steps, heads, keys = v.shape[1], v.shape[2], of["q"].shape[3]
    if not isinstance(steps, int):
        raise ShapeError(
            f"the gradient of delta_rule needs a number of steps, not {steps}", hint="trace it with the length of the sequences"
        )
    decay = _by_head(of["decay"], heads) if "decay" in of else v.scalar(1.0).expand((*v.shape[:3], 1))
    initial = v.scalar(0.0).expand((v.shape[0], heads, keys, v.shape[3])) if state is None else state
    if steps == 0:
        return v.cast(dtype), initial
    chunks = _Chunks.of(decay)
    q, k, a, b = (chunks.split(_by_head(of[name], heads)) for name in "qkab")
    v = chunks.split(v)
    until, whole = chunks.before(chunks.between, 0.0), chunks.before(chunks.since, 1.0)
    known = (b * whole).op("concat", chunks.pairs(b, k, until) @ v, axis=4)
    # What is read depends on what was read before: (1 - among) read = known, for the state's part and for the values'.
    among = chunks.pairs(b, a, until)
    read = (-among).op("triangular_solve", known, lower=True, transpose=False, unit=True)
    of_state, of_values = read.slice_axis(4, 0, keys), read.slice_axis(4, keys, keys + v.shape[4])
    left = chunks.last(chunks.between)
    kept_k, kept_a = (k * left).swap_last(), (a * left).swap_last()
    rows = v.arange(0, keys)
    unit = rows.reshape((keys, 1)).eq(rows)
    decayed = chunks.last(chunks.since).swap_last().expand((*v.shape[:3], keys, keys))
    matrices = unit.choose(decayed, 0.0) + kept_a @ of_state
    before, last = _carried(matrices, kept_k @ v + kept_a @ of_values, initial)
    y = (q * chunks.since) @ before + chunks.pairs(q, k, chunks.between) @ v
    y = y + chunks.pairs(q, a, chunks.between) @ (of_state @ before + of_values)
    return chunks.joined(y).cast(dtype), last


def _carried(matrices: Val, added: Val, initial: Val) -> tuple[Val, Val]:
    """S = M S + N along axis 1: the S before each, and the last one; twice as many are put together each time."""
    count = matrices.shape[1]
    assert isinstance(count, int)
    first = initial.reshape((initial.shape[0], 1, *initial.shape[1:]))
    given = matrices.slice_axis(1, 0, 1) @ first
    added = added + given.op("pad", lo=(0,) * 5, hi=(0, count - 1, 0, 0, 0), value=0.0)
    distance = 1
    while distance < count:
        later, earlier = matrices.slice_axis(1, distance, count), added.slice_axis(1, 0, count - distance)
        added = added.slice_axis(1, 0, distance).op("concat", added.slice_axis(1, distance, count) + later @ earlier, axis=1)
        joined = later @ matrices.slice_axis(1, 0, count - distance)
        matrices = matrices.slice_axis(1, 0, distance).op("concat", joined, axis=1)
        distance *= 2
    before = first if count == 1 else first.op("concat", added.slice_axis(1, 0, count - 1), axis=1)
    return before, _last(added, None)
