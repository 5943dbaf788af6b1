"""Activation functions beyond relu, gelu and silu, composed of other functions."""

from __future__ import annotations

from pumice.errors import ShapeError
from pumice.functions.binary import clip, minimum, multiply, where
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, fail
from pumice.functions.shape import reshape, split
from pumice.functions.unary import expm1, sigmoid, softplus, tanh
from pumice.tensor import Tensor


def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else negative_slope · x.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.leaky_relu(x, 0.5), [-2.0, 3.0])
    array([-1.,  3.], dtype=float32)
    """
    t = as_float(x)
    return where(t > 0, t, multiply(t, negative_slope))


def prelu(x: TensorLike, weight: TensorLike) -> Tensor:
    """leaky_relu with a slope that is learnt: one, or one for each channel along axis 1.

    >>> import pumice as pm
    >>> pm.interpret(pm.prelu, [[-2.0, -2.0]], [0.5, 0.25])
    array([[-1. , -0.5]], dtype=float32)
    """
    t = as_float(x)
    slope = convert(as_tensor(weight, t.dtype, near=t), t.dtype)
    if slope.ndim == 1 and slope.shape[0] != 1 and t.ndim > 1:
        slope = reshape(slope, (slope.shape[0], *[1] * (t.ndim - 2)))
    if slope.ndim > t.ndim:
        raise fail(ShapeError, f"prelu's weight {slope.type.describe()} has more axes than x {t.type.describe()}")
    return where(t > 0, t, multiply(t, slope))


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha · (eˣ - 1).

    >>> import pumice as pm
    >>> pm.interpret(pm.elu, [-1.0, 2.0])
    array([-0.63212055,  2.        ], dtype=float32)
    """
    t = as_float(x)
    # What the other branch would make of large x must not reach the gradient as infinity times 0.
    return where(t > 0, t, multiply(expm1(minimum(t, 0.0)), alpha))


def selu(x: TensorLike) -> Tensor:
    """elu scaled such that activations keep their mean and variance.

    >>> import pumice as pm
    >>> pm.interpret(pm.selu, [-1.0, 2.0])
    array([-1.1113307,  2.101402 ], dtype=float32)
    """
    return multiply(elu(x, 1.6732632423543772), 1.0507009873554805)


def mish(x: TensorLike) -> Tensor:
    """x · tanh(softplus(x)).

    >>> import pumice as pm
    >>> pm.interpret(pm.mish, [0.0, 1.0])
    array([0.       , 0.8650984], dtype=float32)
    """
    t = as_float(x)
    return multiply(t, tanh(softplus(t)))


def hardsigmoid(x: TensorLike) -> Tensor:
    """x / 6 + 1/2, held between 0 and 1.

    >>> import pumice as pm
    >>> pm.interpret(pm.hardsigmoid, [-3.0, 0.0, 3.0])
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return multiply(clip(as_float(x) + 3.0, 0.0, 6.0), 1 / 6)


def hardswish(x: TensorLike) -> Tensor:
    """x · hardsigmoid(x).

    >>> import pumice as pm
    >>> pm.interpret(pm.hardswish, [-3.0, 1.0, 3.0])
    array([-0.       ,  0.6666667,  3.       ], dtype=float32)
    """
    t = as_float(x)
    return multiply(t, hardsigmoid(t))


def glu(x: TensorLike, axis: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second.

    >>> import pumice as pm
    >>> pm.interpret(pm.glu, [4.0, 0.0])
    array([2.], dtype=float32)
    """
    first, second = split(as_float(x), 2, axis)
    return multiply(first, sigmoid(second))
