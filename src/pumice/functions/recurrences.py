"""Recurrences of sequence models: selective scan, linear attention with decay, Mamba-2's SSD, the delta rule."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.errors import ShapeError
from pumice.functions.binary import where
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, emit, fail, further_result, promote
from pumice.functions.shape import broadcast_to, expand_dims, repeat, reshape
from pumice.functions.unary import exp, silu
from pumice.tensor import Tensor

Pair = tuple[Tensor, Tensor]


def _both(op: str, operands: list[Tensor | None]) -> Pair:
    first = emit(op, operands)
    return first, further_result(first, 1)


def _state(value: TensorLike | None) -> Tensor | None:
    return None if value is None else convert(as_float(value), dtypes.f32)


def selective_scan(
    x: TensorLike,
    delta: TensorLike,
    a: TensorLike,
    b: TensorLike,
    c: TensorLike,
    d: TensorLike | None = None,
    z: TensorLike | None = None,
    state: TensorLike | None = None,
    starts: TensorLike | None = None,
) -> Pair:
    """Mamba's recurrence h = exp(delta · a) · h + delta · x · b with y = h · c; gives y and the last h.

    - `x`, `delta`: [batch, steps, channels]; `a`: [channels, size], negative in all models; `b`, `c`: [batch, steps, size]
    - `d` [channels]: adds d · x to y; `z` [batch, steps, channels]: y is multiplied by silu(z)
    - `state` [batch, channels, size]: the h before the first step, 0 unless given
    - `starts` bool [batch, steps]: where it holds, h is 0 before the step

    >>> import numpy as np
    >>> import pumice as pm
    >>> ones = np.ones((1, 3, 1), np.float32)
    >>> y, h = pm.interpret(lambda x: pm.selective_scan(x, ones, np.zeros((1, 1), np.float32), ones, ones), ones)
    >>> y[0, :, 0], h
    (array([1., 2., 3.], dtype=float32), array([[[3.]]], dtype=float32))
    """
    steps = promote(*(as_float(v) for v in (x, delta, a, b, c)))
    marks = None if starts is None else convert(as_tensor(starts), dtypes.bool_)
    y, last = _both("selective_scan", [*steps, marks, _state(state)])
    if d is not None:
        y = y + as_float(d) * steps[0]
    return (y if z is None else y * silu(z)), last


def _restarted(operands: dict[str, Tensor | None], starts: TensorLike | None, like: Tensor) -> dict[str, Tensor | None]:
    """The operands of a recurrence whose state is 0 before the steps that start."""
    if starts is None:
        return operands
    marks = convert(as_tensor(starts), dtypes.bool_)
    if marks.ndim != 2:
        raise fail(ShapeError, f"starts is [batch, steps], not {marks.shape}", hint="one for each step of each sequence")
    batch, steps = like.shape[:2]
    marks = broadcast_to(marks, (batch, steps))
    each = reshape(marks, (batch, steps, 1, 1))
    decay = operands["decay"]
    found = dict(operands, decay=where(each, 0.0, broadcast_to(1.0, (batch, steps, 1, 1)) if decay is None else decay))
    if (a := operands.get("a")) is not None:
        found["a"] = where(each, 0.0, a)
    state = operands["state"]
    if state is not None and steps != 0:
        # Chosen, not multiplied: what a sequence begins with may be anything, NaN too.
        found["state"] = where(reshape(marks[:, 0], (batch, 1, 1, 1)), 0.0, state)
    return found


def linear_attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    decay: TensorLike | None = None,
    state: TensorLike | None = None,
    starts: TensorLike | None = None,
    scale: float = 1.0,
) -> Pair:
    """Linear attention S = decay · S + k vᵀ with y = scale · qᵀ S; gives y [batch, steps, heads, values] and the last S.

    - `v`: [batch, steps, heads, values]; `q`, `k`: [batch, steps, heads, keys]
    - `decay`: [batch, steps, heads, keys or 1], the factor itself, not its logarithm; none without
    - `state` [batch, heads, keys, values]: the S before the first step, 0 unless given
    - `starts` bool [batch, steps]: where it holds, S is 0 before the step

    q, k and decay may have fewer heads, of which each serves as many of v's side by side.

    >>> import numpy as np
    >>> import pumice as pm
    >>> ones = np.ones((1, 3, 1, 1), np.float32)
    >>> y, s = pm.interpret(lambda q: pm.linear_attention(q, ones, ones, 0.5 * ones), ones)
    >>> y[0, :, 0, 0]
    array([1.  , 1.5 , 1.75], dtype=float32)
    """
    tensors = promote(*(as_float(t) for t in (q, k, v)))
    factor = None if decay is None else convert(as_float(decay), tensors[0].dtype)
    of = _restarted({"decay": factor, "state": _state(state)}, starts, tensors[2])
    if scale != 1.0:
        tensors[0] = tensors[0] * scale
    return _both("linear_attention", [*tensors, of["decay"], of["state"]])


def ssd(
    x: TensorLike,
    delta: TensorLike,
    a: TensorLike,
    b: TensorLike,
    c: TensorLike,
    d: TensorLike | None = None,
    state: TensorLike | None = None,
    starts: TensorLike | None = None,
) -> Pair:
    """Mamba-2's recurrence, a selective scan with one decay a head: S = exp(delta · a) · S + delta · b xᵀ with y = cᵀ S + d · x.

    - `x`: [batch, steps, heads, values]; `delta`: [batch, steps, heads]; `a`, `d`: [heads]
    - `b`, `c`: [batch, steps, groups, size], a group for as many heads side by side
    - `state`: [batch, heads, size, values], and `starts`, as for `linear_attention`, which this is a case of

    Its gradient is computed by matmuls within chunks.

    >>> import numpy as np
    >>> import pumice as pm
    >>> x, ones = np.ones((1, 3, 2, 1), np.float32), np.ones((1, 3, 1, 4), np.float32)
    >>> y, s = pm.interpret(lambda x: pm.ssd(x, np.ones((1, 3, 2), np.float32), np.zeros(2, np.float32), ones, ones), x)
    >>> y[0, :, 1, 0], s.shape
    (array([ 4.,  8., 12.], dtype=float32), (1, 2, 4, 1))
    """
    values, step = as_float(x), expand_dims(as_float(delta), 3)
    decay = exp(step * reshape(as_float(a), (-1, 1)))
    y, last = linear_attention(c, b, values * step, decay, state, starts)
    return (y if d is None else y + values * reshape(as_float(d), (-1, 1))), last


def delta_rule(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    a: TensorLike,
    b: TensorLike,
    decay: TensorLike | None = None,
    state: TensorLike | None = None,
    starts: TensorLike | None = None,
) -> Pair:
    """Linear attention that corrects what its state holds: S = decay · S + a (bᵀ S) + k vᵀ with y = qᵀ S; gives y and the last S.

    Shapes are those of `linear_attention`, a and b are as k, and b reads the S before the step. RWKV-7 is this with its decay by
    key, b the negated removal key and a that key times its learning rate. Its gradient runs by chunks
    and needs a number of steps, not a symbol.

    >>> import numpy as np
    >>> import pumice as pm
    >>> one = np.ones((1, 2, 1, 1), np.float32)
    >>> y, s = pm.interpret(lambda v: pm.delta_rule(one, one, v, -one, one), [[[[3.0]], [[5.0]]]])
    >>> y[0, :, 0, 0]
    array([3., 5.], dtype=float32)
    """
    tensors = promote(*(as_float(t) for t in (q, k, v, a, b)))
    factor = None if decay is None else convert(as_float(decay), tensors[0].dtype)
    of = _restarted({"a": tensors[3], "decay": factor, "state": _state(state)}, starts, tensors[2])
    return _both("delta_rule", [*tensors[:3], of["a"], tensors[4], of["decay"], of["state"]])


def gated_delta_net(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    g: TensorLike,
    beta: TensorLike,
    state: TensorLike | None = None,
    starts: TensorLike | None = None,
    scale: float | None = None,
) -> Pair:
    """The gated delta net: S = exp(g) · S, then S = S + k (beta · (v - kᵀ S))ᵀ, with y = scale · qᵀ S; gives y and the last S.

    Shapes are those of `linear_attention`; `g`, logarithms of the decay, and `beta` are [batch, steps, heads]. `scale` is
    1/√keys unless given. Keys are taken as they are; models normalise them.

    >>> import numpy as np
    >>> import pumice as pm
    >>> one, zero = np.ones((1, 2, 1, 1), np.float32), np.zeros((1, 2, 1), np.float32)
    >>> y, s = pm.interpret(lambda v: pm.gated_delta_net(one, one, v, zero, zero + 1), [[[[3.0]], [[5.0]]]])
    >>> y[0, :, 0, 0]
    array([3., 5.], dtype=float32)
    """
    queries, keys, values = promote(*(as_float(t) for t in (q, k, v)))
    decay, rate = exp(expand_dims(as_float(g), 3)), expand_dims(as_float(beta), 3)
    heads, size = values.shape[2], keys.shape[3]
    own, groups = keys, keys.shape[2]
    if isinstance(heads, int) and isinstance(groups, int) and 0 < groups < heads:
        own = repeat(keys, heads // groups, axis=2)
    factor = size**-0.5 if scale is None else scale
    return delta_rule(queries * factor, keys, values * rate, own * (-rate * decay), keys, decay, state, starts)
