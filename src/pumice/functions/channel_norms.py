"""Norms whose statistics and weights are per channel or group of channels of [N, C, …]."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.core.dims import divide_exactly, product
from pumice.errors import ShapeError
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, emit, fail, further_result
from pumice.functions.conv import per_channel
from pumice.functions.nn import layer_norm
from pumice.functions.shape import reshape
from pumice.functions.unary import rsqrt
from pumice.tensor import Tensor


def batch_norm(
    x: TensorLike,
    running_mean: TensorLike,
    running_var: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [N, C, …] less its mean, over its standard deviation, per channel; then times weight, plus bias.

    In training mean and variance are those of the batch, else the running ones. Also gives the new running mean and
    variance: in training the old ones moved by `momentum` towards the batch's, of which the variance is divided by one less
    than the number of elements; else the old ones as they are. Statistics are f32 whatever x is.

    >>> import pumice as pm
    >>> x = [[[1.0, 3.0]]]
    >>> y, m, v = pm.interpret(lambda x: pm.batch_norm(x, [0.0], [1.0], training=True, eps=0.0), x)
    >>> y, m, v
    (array([[[-1.,  1.]]], dtype=float32), array([0.2], dtype=float32), array([1.1], dtype=float32))
    """
    t = as_float(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"batch_norm takes x [N, C, …], not {t.type.describe()}")
    wide = convert(t, dtypes.f32)
    old_mean, old_var = (convert(as_tensor(v, dtypes.f32, near=t), dtypes.f32) for v in (running_mean, running_var))
    if training:
        axes = (0, *range(2, t.ndim))
        affine = [None if v is None else convert(as_tensor(v, dtypes.f32, near=t), dtypes.f32) for v in (weight, bias)]
        y = emit("channel_norm", [wide, *affine], eps=eps)
        average, variance = further_result(y, 1), further_result(y, 2)
        count = product(t.shape[a] for a in axes)
        if count == 1:
            raise fail(
                ShapeError,
                f"batch_norm in training takes more than one value per channel, not {t.type.describe()}",
                hint="pass a larger batch; one value has no variance",
                shape=t.shape,
            )
        # Divided by a dim, not by a number computed from it: a graph that keeps the result refuses 0 before it runs.
        values, others = (as_tensor(n, dtypes.f32, near=t) for n in (count, count - 1))
        unbiased = reshape(variance, old_var.shape) * (values / others)
        new_mean = old_mean + (reshape(average, old_mean.shape) - old_mean) * momentum
        new_var = old_var + (unbiased - old_var) * momentum
        return convert(y, t.dtype), new_mean, new_var
    y = (wide - per_channel(old_mean, wide)) * rsqrt(per_channel(old_var, wide) + eps)
    return convert(_scaled(y, weight, bias), t.dtype), old_mean, old_var


def _scaled(y: Tensor, weight: TensorLike | None, bias: TensorLike | None) -> Tensor:
    """y times a weight, plus a bias, both per channel."""
    if weight is not None:
        y = y * per_channel(weight, y)
    return y if bias is None else y + per_channel(bias, y)


def group_norm(
    x: TensorLike, groups: int, weight: TensorLike | None = None, bias: TensorLike | None = None, *, eps: float = 1e-5
) -> Tensor:
    """x [N, C, …] less its mean, over its standard deviation, in each of `groups` groups of channels; then scaled per channel.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.group_norm(x, 2, eps=0.0), [[[1.0, 3.0], [5.0, 4.0]]])
    array([[[-1.,  1.], [ 1., -1.]]], dtype=float32)
    """
    t = as_float(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"group_norm takes x [N, C, …], not {t.type.describe()}")
    each = divide_exactly(t.shape[1], groups) if groups > 0 else None
    if each is None:
        raise fail(ShapeError, f"{t.shape[1]} channels do not make {groups} groups", groups=groups)
    rows = reshape(t, (t.shape[0], groups, each * product(t.shape[2:])))
    return _scaled(reshape(layer_norm(rows, eps=eps), t.shape), weight, bias)
