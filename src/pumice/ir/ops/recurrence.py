"""Recurrences of sequence models: a state that every token changes, and what is read from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import ShapeError
from pumice.ir.gradients import recurrence as gradients
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.precision import ULP, Evaluation, U, growth
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_shape
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

# --- selective scan ---


def _infer_selective(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    x, delta, a, b, c = given(types[:5])
    starts, state = types[5:]
    for t in (*given(types[:5]), *given([state])):
        require_kind(t, "float")
    if x.rank != 3 or a.rank != 2:
        raise ShapeError(f"x is [batch, steps, channels] and a [channels, size], not {x.shape} and {a.shape}")
    batch, steps, channels = x.shape
    size = a.shape[1]
    if not isinstance(size, int):
        raise ShapeError(f"the size of a channel's state is a number, not {size}")
    same_shape(delta.shape, x.shape, "delta and x")
    same_shape(a.shape, (channels, size), "a, and [channels, size]")
    same_shape(b.shape, (batch, steps, size), "b, and [batch, steps, size]")
    same_shape(c.shape, (batch, steps, size), "c, and [batch, steps, size]")
    if starts is not None:
        require_kind(starts, "bool")
        same_shape(starts.shape, (batch, steps), "starts, and [batch, steps]")
    if state is not None:
        same_shape(state.shape, (batch, channels, size), "state, and [batch, channels, size]")
    return x, TensorType(dtypes.f32, (batch, channels, size))


def _selective(arrays: Sequence[Any], attrs: Attrs, outs: object) -> tuple[Array, Array]:
    x, delta, a, b, c, starts, state = arrays
    batch, steps, channels = x.shape
    h = np.zeros((batch, channels, a.shape[1]), x.dtype) if state is None else np.array(state, x.dtype)
    y = np.empty_like(x)
    for t in range(steps):
        if starts is not None:
            h[starts[:, t]] = 0
        dt = delta[:, t, :, None]
        h *= np.exp(dt * a)
        h += dt * x[:, t, :, None] * b[:, t, None]
        y[:, t] = np.einsum("bhn,bn->bh", h, c[:, t])
    return y, h


def _selective_error(e: Evaluation) -> tuple[Array, ...]:
    """Sums over steps and the state; the exponents are off by a few ulps of themselves, which counts where they are large."""
    x, delta, a, b, c, starts, state = e.arrays
    sizes = [np.abs(x), np.abs(delta), np.where(delta.sum() < 0, -1, 1) * a, np.abs(b), np.abs(c), starts]
    sizes.append(None if state is None else np.abs(state))
    plain = e.evaluate(sizes, e.attrs, e.outs)
    moved = [e.evaluate([*sizes[:2], sizes[2] + s * 4 * ULP * np.abs(sizes[2]), *sizes[3:]], e.attrs, e.outs) for s in (-1, 1)]
    terms = growth(x.shape[1]) * 4 * ULP, growth(a.shape[1]) * ULP
    return tuple(
        sum(terms) * p + growth(x.shape[1]) * np.maximum(*(np.abs(m[k] - p) for m in moved)) for k, p in enumerate(plain)
    )


def _selective_operands(batch: int, steps: int, channels: int, size: int, dtype: dtypes.DType = dtypes.f32) -> list[Array]:
    x, b, c = (sample_array(s, dtype, k) for k, s in enumerate([(batch, steps, channels), *[(batch, steps, size)] * 2]))
    # Long sequences forget slowly, or nothing would be left of a chunk's state in the next one.
    length = 1.0 if steps <= 64 else 0.02
    delta = (length * (0.1 + np.abs(sample_array((batch, steps, channels), seed=3)))).astype(dtype.np)
    a = -(0.1 + np.abs(sample_array((channels, size), seed=4))).astype(dtype.np)
    return [x, delta, a, b, c]


def _selective_samples() -> Iterator[Sample]:
    state = sample_array((2, 5, 4), seed=5)
    starts = np.zeros((2, 7), np.bool_)
    starts[0, 3] = starts[1, 0] = True
    yield sample("with a state", [*_selective_operands(2, 7, 5, 4), None, state])
    yield sample("sequences that start", [*_selective_operands(2, 7, 5, 4), starts, state])
    yield sample("one step", [*_selective_operands(1, 1, 67, 16), None, sample_array((1, 67, 16))])
    yield sample("no state", [*_selective_operands(2, 3, 4, 1), None, None])
    yield sample("a large state", [*_selective_operands(1, 5, 3, 34), None, None])
    yield sample("chunks", [*_selective_operands(1, 150, 3, 2), None, sample_array((1, 3, 2))])
    long = np.arange(150)[None] % 70 == 66
    yield sample("chunks that start", [*_selective_operands(1, 150, 3, 2), long, None])
    yield sample("chunks of a large state", [*_selective_operands(1, 131, 2, 17), None, None])
    yield sample("f16", [*_selective_operands(1, 6, 3, 4, dtypes.f16), None, None])
    yield sample("no steps", [*_selective_operands(2, 0, 3, 4), None, sample_array((2, 3, 4))])


def _selective_flops(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> int:
    batch, steps, channels = of["x"]
    return 8 * batch * steps * channels * of["a"][1]


register(
    OpSpec(
        "selective_scan",
        "recurrence",
        "Mamba's recurrence: h = exp(delta · a) · h + delta · x · b and y = h · c, and the last h",
        ("x", "delta", "a", "b", "c", "starts?", "state?"),
        _infer_selective,
        _selective,
        Routine("selective_scan"),
        _selective_samples,
        cost="compute",
        rules="x and delta are [batch, steps, channels], a [channels, size], b and c [batch, steps, size], state and the last h"
        " [batch, channels, size], in f32. Where starts holds, h is 0 before that step, whatever it was. Without steps the last"
        " h is the state. Long sequences run in chunks of steps side by side.",
        composed=gradients.selective_scan,
        error=_selective_error,
        results=("y", "state"),
        traits=Traits(flops=_selective_flops),
    )
)

# --- linear attention and the delta rule ---


def _infer_attention(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    return _infer_steps(dict(zip(("q", "k", "v", "decay", "state"), types, strict=True)))


def _infer_delta(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    return _infer_steps(dict(zip(("q", "k", "v", "a", "b", "decay", "state"), types, strict=True)))


def _infer_steps(types: Mapping[str, TensorType | None]) -> tuple[TensorType, TensorType]:
    q, v = types["q"], types["v"]
    assert q is not None and v is not None
    for found in given(list(types.values())):
        require_kind(found, "float")
    if v.rank != 4 or q.rank != 4:
        raise ShapeError(f"q and v are [batch, steps, heads, size], not {q.shape} and {v.shape}")
    batch, steps, heads, values = v.shape
    keys = q.shape[3]
    if not (isinstance(heads, int) and isinstance(keys, int) and isinstance(values, int)):
        raise ShapeError(f"heads and their sizes are numbers, not {heads}, {keys} and {values}")
    if keys < 1:
        raise ShapeError("the vectors of q have no entries: a head has one key or more", operand="q")
    for name in ("q", "k", "a", "b", "decay"):
        if (t := types.get(name)) is None:
            continue
        sizes = (keys, 1) if name == "decay" else (keys,)
        fits = t.rank == 4 and t.shape[:2] == (batch, steps) and t.shape[3] in sizes
        if not fits or not isinstance(t.shape[2], int) or t.shape[2] < 1 or heads % t.shape[2]:
            asked = f"[{batch}, {steps}, a divisor of {heads}, {' or '.join(map(str, sizes))}]"
            raise ShapeError(f"{name} has the shape {t.shape} and not {asked}", operand=name)
    state = types["state"]
    if state is not None:
        same_shape(state.shape, (batch, heads, keys, values), "state, and [batch, heads, keys, values]")
    return v, TensorType(dtypes.f32, (batch, heads, keys, values))


def state_steps(of: Mapping[str, Any]) -> tuple[Array, Array]:
    """Both recurrences, one step after the other."""
    v, keys = of["v"], of["q"].shape[3]
    batch, steps, heads, values = v.shape

    def by_head(name: str) -> Any:
        x = of.get(name)
        return None if x is None else np.repeat(x, heads // x.shape[2], axis=2)

    q, k, decay, a, b = (by_head(name) for name in ("q", "k", "decay", "a", "b"))
    state = np.zeros((batch, heads, keys, values), v.dtype) if of["state"] is None else np.array(of["state"], v.dtype)
    y = np.empty_like(v)
    for t in range(steps):
        change = k[:, t, :, :, None] * v[:, t, :, None]
        if a is not None:
            change += a[:, t, :, :, None] * np.matmul(b[:, t, :, None], state)
        if decay is not None:
            state *= decay[:, t, :, :, None]
        state += change
        y[:, t] = np.matmul(q[:, t, :, None], state)[:, :, 0]
    return y, state


def _attention(arrays: Sequence[Any], attrs: Attrs, outs: object) -> tuple[Array, Array]:
    return state_steps(dict(zip(("q", "k", "v", "decay", "state"), arrays, strict=True)))


def _delta(arrays: Sequence[Any], attrs: Attrs, outs: object) -> tuple[Array, Array]:
    return state_steps(dict(zip(("q", "k", "v", "a", "b", "decay", "state"), arrays, strict=True)))


def _error(e: Evaluation) -> tuple[Array, ...]:
    """Sums over steps and keys, relative to the same with absolute values."""
    sizes = e.evaluate([None if x is None else np.abs(x) for x in e.arrays], e.attrs, e.outs)
    steps, keys = e.arrays[0].shape[1], e.arrays[0].shape[3]
    return tuple((3 * growth(steps) + growth(keys)) * U * s for s in sizes)


def _attention_operands(
    batch: int, steps: int, heads: int, keys: int, values: int, groups: int = 0, decays: int = 1, dtype: dtypes.DType = dtypes.f32
) -> list[Any]:
    q, k = (sample_array((batch, steps, groups or heads, keys), dtype, seed) for seed in (1, 2))
    forgets = -0.3 if steps <= 64 else -0.006
    decay = np.exp(forgets * np.abs(sample_array((batch, steps, heads, decays), seed=3))).astype(dtype.np)
    return [q, k, sample_array((batch, steps, heads, values), dtype, 4), decay]


def _attention_samples() -> Iterator[Sample]:
    def state(*shape: int) -> Array:
        return sample_array(shape, seed=5)

    yield sample("with a state", [*_attention_operands(2, 7, 2, 5, 3), state(2, 2, 5, 3)])
    yield sample("decay by key", [*_attention_operands(2, 9, 2, 5, 3, decays=5), state(2, 2, 5, 3)])
    yield sample("shared keys", [*_attention_operands(1, 5, 4, 3, 6, groups=2), None])
    yield sample("no decay", [*_attention_operands(1, 11, 1, 4, 4)[:3], None, None])
    yield sample("one step of large heads", [*_attention_operands(1, 1, 2, 70, 37), state(1, 2, 70, 37)])
    yield sample("chunks", [*_attention_operands(1, 150, 2, 3, 2), state(1, 2, 3, 2)])
    yield sample("chunks with a decay by key", [*_attention_operands(1, 131, 1, 3, 2, decays=3), None])
    yield sample("f16", [*_attention_operands(1, 6, 2, 3, 4, dtype=dtypes.f16), None])
    yield sample("no steps", [*_attention_operands(2, 0, 2, 3, 4), state(2, 2, 3, 4)])


def _delta_samples() -> Iterator[Sample]:
    for label, batch, steps, heads, keys, values, groups, decays in (
        ("with a state", 2, 7, 2, 5, 3, 0, 1),
        ("decay by key", 1, 9, 2, 4, 3, 0, 4),
        ("shared keys", 1, 5, 4, 3, 6, 2, 1),
        ("one step of large heads", 1, 1, 2, 70, 37, 0, 1),
        ("many steps", 1, 37, 1, 3, 5, 0, 1),
        ("chunks", 1, 150, 1, 3, 5, 0, 1),
        ("chunks with a decay by key", 1, 131, 2, 20, 3, 1, 20),
    ):
        q, k, v, decay = _attention_operands(batch, steps, heads, keys, values, groups, decays)
        k = k / np.linalg.norm(k, axis=3, keepdims=True)
        a = -np.float32(0.4 if steps <= 64 else 0.02) * np.repeat(k, heads // k.shape[2], axis=2)
        yield sample(label, [q, k, v, a, k, decay, sample_array((batch, heads, keys, values), seed=5)])
    q, k, v, _ = _attention_operands(1, 6, 2, 3, 4)
    yield sample("no decay", [q, k, v, -k / 20, k, None, None])


def _flops(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> int:
    batch, steps, heads, values = of["v"]
    return (10 if "a" in of else 6) * batch * steps * heads * values * of["q"][3]


_SHAPES = (
    "v is [batch, steps, heads, values], q and k [batch, steps, heads, keys], decay [batch, steps, heads, keys or 1], 1 where it"
    " is absent; all but v may have fewer heads, each for as many of v's side by side. state and the last S are [batch, heads,"
    " keys, values], in f32."
)
register(
    OpSpec(
        "linear_attention",
        "recurrence",
        "linear attention with decay: S = decay · S + k v and y = q S, and the last S",
        ("q", "k", "v", "decay?", "state?"),
        _infer_attention,
        _attention,
        Routine("linear_attention"),
        _attention_samples,
        cost="compute",
        rules=_SHAPES + " Long sequences run in chunks of steps side by side.",
        composed=gradients.linear_attention,
        error=_error,
        results=("y", "state"),
        traits=Traits(flops=_flops),
    )
)
register(
    OpSpec(
        "delta_rule",
        "recurrence",
        "linear attention that also corrects what it holds: S = decay · S + a (b S) + k v and y = q S, and the last S",
        ("q", "k", "v", "a", "b", "decay?", "state?"),
        _infer_delta,
        _delta,
        Routine("linear_attention"),
        _delta_samples,
        cost="compute",
        rules=_SHAPES
        + " a and b are as k; b reads S before the step. Long sequences run in chunks of steps side by side, where heads and"
        " sequences are too few to keep a device busy. The gradient needs a number of steps, not a symbol.",
        composed=gradients.delta_rule,
        error=_error,
        results=("y", "state"),
        traits=Traits(flops=_flops),
    )
)
