"""Functions of neural networks: softmax, norms, rotary positions, attention, dropout."""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Expr
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.functions.binary import add, where
from pumice.functions.build import (
    TensorLike,
    as_float,
    as_indices,
    as_tensor,
    axis_of,
    convert,
    emit,
    fail,
    promote,
    promote_dtypes,
)
from pumice.functions.index import arange
from pumice.functions.random import bernoulli
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import expand_dims
from pumice.functions.unary import cos, negative, sin
from pumice.tensor import Tensor


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """eˣ divided by its sum along an axis, without overflow.

    >>> import pumice as pm
    >>> pm.interpret(pm.softmax, [0.0, 0.0])
    array([0.5, 0.5], dtype=float32)
    """
    t = as_float(x)
    return emit("softmax", [t], axis=axis_of(axis, t.ndim))


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, precise where that is near 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.log_softmax, [0.0, 0.0])
    array([-0.6931472, -0.6931472], dtype=float32)
    """
    t = as_float(x)
    return emit("log_softmax", [t], axis=axis_of(axis, t.ndim))


def layer_norm(
    x: TensorLike, weight: TensorLike | None = None, bias: TensorLike | None = None, *, axes: int = 1, eps: float = 1e-5
) -> Tensor:
    """x less its mean, over its standard deviation, along the last `axes` axes; then times weight, plus bias.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.layer_norm(x, eps=0.0), [1.0, 3.0])
    array([-1.,  1.], dtype=float32)
    """
    t = as_float(x)
    return emit("layer_norm", [t, _affine(weight, t), _affine(bias, t)], axes=axes, eps=float(eps))


def rms_norm(x: TensorLike, weight: TensorLike | None = None, *, axes: int = 1, eps: float = 1e-6) -> Tensor:
    """x over the root of its mean square along the last `axes` axes; then times weight.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.rms_norm(x, eps=0.0), [3.0, 3.0])
    array([1., 1.], dtype=float32)
    """
    t = as_float(x)
    return emit("rms_norm", [t, _affine(weight, t)], axes=axes, eps=float(eps))


def _affine(value: TensorLike | None, x: Tensor) -> Tensor | None:
    return None if value is None else convert(as_tensor(value, x.dtype, near=x), x.dtype)


def rope(
    x: TensorLike,
    positions: TensorLike | None = None,
    *,
    offset: TensorLike = 0,
    rotary_dim: int | None = None,
    theta: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """Rotary position embedding of x [..., S, D].

    `positions` are integers that broadcast to x's shape without the last axis, by default offset, offset + 1, … along
    the axis S; `offset` may be an int, a dim or a tensor. The first `rotary_dim` entries of D rotate, by default all: pairs
    (i, i + rotary_dim/2), or (2i, 2i + 1) where `interleaved`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.rope(x, offset=0), [[1.0, 0.0], [1.0, 0.0]])
    array([[1.        , 0.        ],
           [0.5403023 , 0.84147096]], dtype=float32)
    """
    t = as_float(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"rope takes x [..., S, D], not {t.type.describe()}")
    width = t.shape[-1] if rotary_dim is None else rotary_dim
    if not isinstance(width, int) or width < 2 or width % 2:
        raise fail(ShapeError, f"rope turns pairs, so rotary_dim must be static, even and positive, not {width}")
    if positions is None:
        where_to = _sequence(t, offset)
    else:
        where_to = as_indices(positions, near=t)
    frequencies = (float(theta) ** (-np.arange(0, width, 2) / width)).astype(np.float32)
    angles = convert(expand_dims(where_to, -1), dtypes.f32) * frequencies
    return emit("rope", [t, cos(angles), sin(angles)], rotary_dim=width, interleaved=bool(interleaved))


def _sequence(x: Tensor, offset: TensorLike) -> Tensor:
    size = x.shape[-2]
    if isinstance(offset, int | Expr):
        return arange(offset, offset + size)
    return add(arange(size), as_indices(offset, near=x))


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    *,
    mask: TensorLike | None = None,
    bias: TensorLike | None = None,
    causal: bool = False,
    offset: TensorLike | None = None,
    kv_len: TensorLike | None = None,
    kv_index: TensorLike | None = None,
    k_scale: TensorLike | None = None,
    v_scale: TensorLike | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: TensorLike | None = None,
    layout: str = "bhsd",
    own_rows: bool = False,
) -> Tensor:
    """softmax(scale · q kᵀ) v for each head, with fewer key heads than query heads if they divide them.

    `layout` "bhsd" is [batch, heads, sequence, depth], "bshd" [batch, sequence, heads, depth]; `scale` is 1/√depth unless
    given. `mask` (True = attend) and `bias` broadcast to [batch, heads, queries, keys] in either layout. `causal` lets the
    query i see keys up to `offset` + i, where offset is keys - queries unless given; `window` leaves it the last that
    many of them; keys from `kv_len` on are unseen; `offset` and `kv_len` are one number or one per batch entry. With
    `kv_index`, one per batch entry, the entry b reads entry kv_index[b] of k and v, which may have more or fewer entries; with
    a page table [batch, pages] it reads the entries kv_index[b, 0], kv_index[b, 1], … one after the other.
    `softcap` c bounds scores to c · tanh(score / c). A query that sees no key gives zeros. k and v may have another float
    dtype than q, as a half-precision cache has, or be i8 with `k_scale` and `v_scale`: f32 factors, one for each vector.
    `sinks` are scores, one for each head, of a key without a value, which takes its share of the softmax.
    `own_rows` promises that of the rows that `scatter_set` puts into k and v in the same run, one for each batch entry, each
    entry sees its own alone: a GPU may then do both in one kernel.

    >>> import pumice as pm
    >>> q, kv = pm.spec("B", 8, "T", 64), pm.spec("B", 2, "T", 64)
    >>> g = pm.trace(lambda q, k, v: pm.attention(q, k, v, causal=True), q=q, k=kv, v=kv)
    >>> str(g.nodes[-1].type)
    'f32[B,8,T,64]'
    """
    keys = list(promote(k, v, near=q if isinstance(q, Tensor) else None))
    if k_scale is None and v_scale is None:
        keys = [as_float(t) for t in keys]
    query = as_float(as_tensor(q, near=keys[0]))
    # Only the query is widened to the common dtype: keys and values may be a large cache.
    near = convert(query, promote_dtypes(query.dtype, keys[0].dtype))
    extra = [
        None if mask is None else _attention_mask(mask, near),
        None if bias is None else as_float(as_tensor(bias, dtypes.f32, near=near)),
        None if offset is None else convert(as_indices(offset, near), dtypes.i32),
        None if kv_len is None else convert(as_indices(kv_len, near), dtypes.i32),
        None if kv_index is None else convert(as_indices(kv_index, near), dtypes.i32),
        *(None if s is None else convert(as_float(as_tensor(s, dtypes.f32, near=near)), dtypes.f32) for s in (k_scale, v_scale)),
    ]
    if sinks is not None:
        extra.append(as_float(as_tensor(sinks, dtypes.f32, near=near)))
    return emit(
        "attention",
        [near, *keys, *extra],
        layout=layout,
        causal=bool(causal),
        window=window,
        scale=None if scale is None else float(scale),
        softcap=None if softcap is None else float(softcap),
        own_rows=bool(own_rows),
    )


def _attention_mask(mask: TensorLike, near: Tensor) -> Tensor:
    t = as_tensor(mask, near=near)
    if t.dtype.is_float:
        # A mask of 0 and -inf, cast to bool, would attend to just what it should hide.
        raise fail(DTypeError, f"a mask is bool or integers, not {t.dtype}", hint="add numbers to the scores with bias=")
    return convert(t, dtypes.bool_)


def cross_entropy(logits: TensorLike, targets: TensorLike) -> Tensor:
    """For each row of logits [..., classes] the negative log-probability of its target, in f32.

    Targets are integers of the logits' shape without the last axis. A row whose target is outside 0…classes-1, such as -100,
    has the loss 0 and no gradient. Neither the loss nor its gradient builds a table of one-hot rows. Float targets of the
    logits' shape are probabilities of the classes.

    >>> import pumice as pm
    >>> pm.interpret(pm.cross_entropy, [[0.0, 0.0], [0.0, 0.0]], [1, -100])
    array([0.6931472, 0.       ], dtype=float32)
    """
    t = as_float(logits)
    wanted = as_tensor(targets, near=t)
    if wanted.dtype.is_float and wanted.shape == t.shape and t.ndim:
        chances = convert(wanted, dtypes.f32)
        # A class that never occurs adds nothing, whatever its logit is: 0 times infinity would be NaN.
        terms = where(chances == 0, 0.0, chances * log_softmax(convert(t, dtypes.f32)))
        return negative(reduce_sum(terms, -1))
    return emit("cross_entropy", [t, as_indices(wanted, near=t)])


def dropout(x: TensorLike, key: Tensor, rate: float) -> Tensor:
    """x with each element set to 0 at the given rate and the others divided by 1 - rate; the same key drops the same ones.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.dropout(x, pm.random.key(0), 0.5), [1.0, 1.0, 1.0, 1.0])
    array([2., 2., 2., 0.], dtype=float32)
    """
    if not 0.0 <= rate < 1.0:
        raise fail(InputError, f"the dropout rate must be in 0…1, without 1, not {rate}", rate=rate)
    t = as_float(x)
    if rate == 0.0:
        return t
    return where(bernoulli(key, 1.0 - rate, t.shape), t / (1.0 - rate), 0)
