"""Elementwise functions of one tensor. Where mathematics needs fractions, integers and bools become f32 first."""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.errors import DTypeError
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, emit, fail
from pumice.tensor import Tensor


def _float(op: str, x: TensorLike) -> Tensor:
    return emit(op, [as_float(x)])


def _any(op: str, x: TensorLike) -> Tensor:
    return emit(op, [as_tensor(x)])


def _whole(op: str, x: TensorLike) -> Tensor:
    t = as_tensor(x)
    return t if t.dtype.is_integer else emit(op, [as_float(t)])


def negative(x: TensorLike) -> Tensor:
    """-x.

    >>> import pumice as pm
    >>> pm.interpret(pm.negative, [1.0, -2.0])
    array([-1.,  2.], dtype=float32)
    """
    return _any("neg", x)


def absolute(x: TensorLike) -> Tensor:
    """|x|; also named `abs`.

    >>> import pumice as pm
    >>> pm.interpret(pm.absolute, [1.0, -2.0])
    array([1., 2.], dtype=float32)
    """
    return _any("abs", x)


abs = absolute


def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1 by the sign of x; NaN stays NaN.

    >>> import pumice as pm
    >>> pm.interpret(pm.sign, [-3.0, 0.0, 2.0])
    array([-1.,  0.,  1.], dtype=float32)
    """
    return _any("sign", x)


def square(x: TensorLike) -> Tensor:
    """x².

    >>> import pumice as pm
    >>> pm.interpret(pm.square, [3, -4])
    array([ 9, 16], dtype=int32)
    """
    return _any("square", x)


def relu(x: TensorLike) -> Tensor:
    """x where it is positive, else 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.relu, [-1.0, 2.0])
    array([0., 2.], dtype=float32)
    """
    return _any("relu", x)


def exp(x: TensorLike) -> Tensor:
    """eˣ.

    >>> import pumice as pm
    >>> pm.interpret(pm.exp, [0.0, 1.0])
    array([1.       , 2.7182817], dtype=float32)
    """
    return _float("exp", x)


def exp2(x: TensorLike) -> Tensor:
    """2ˣ.

    >>> import pumice as pm
    >>> pm.interpret(pm.exp2, [0.0, 3.0])
    array([1., 8.], dtype=float32)
    """
    return _float("exp2", x)


def expm1(x: TensorLike) -> Tensor:
    """eˣ - 1, precise near 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.expm1, [0.0, 1.0])
    array([0.       , 1.7182819], dtype=float32)
    """
    return _float("expm1", x)


def log(x: TensorLike) -> Tensor:
    """Natural logarithm.

    >>> import pumice as pm
    >>> pm.interpret(pm.log, [1.0, 4.0])
    array([0.       , 1.3862944], dtype=float32)
    """
    return _float("log", x)


def log2(x: TensorLike) -> Tensor:
    """Logarithm to base 2.

    >>> import pumice as pm
    >>> pm.interpret(pm.log2, [1.0, 8.0])
    array([0., 3.], dtype=float32)
    """
    return _float("log2", x)


def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), precise near 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.log1p, [0.0, 1.0])
    array([0.       , 0.6931472], dtype=float32)
    """
    return _float("log1p", x)


def sqrt(x: TensorLike) -> Tensor:
    """Square root; NaN below 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.sqrt, [4, 9])
    array([2., 3.], dtype=float32)
    """
    return _float("sqrt", x)


def rsqrt(x: TensorLike) -> Tensor:
    """1 / √x.

    >>> import pumice as pm
    >>> pm.interpret(pm.rsqrt, [4.0, 1.0])
    array([0.5, 1. ], dtype=float32)
    """
    return _float("rsqrt", x)


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x.

    >>> import pumice as pm
    >>> pm.interpret(pm.reciprocal, [4.0, -1.0])
    array([ 0.25, -1.  ], dtype=float32)
    """
    return _float("reciprocal", x)


def sin(x: TensorLike) -> Tensor:
    """Sine of x in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.sin, [0.0, 1.0])
    array([0.        , 0.84147096], dtype=float32)
    """
    return _float("sin", x)


def cos(x: TensorLike) -> Tensor:
    """Cosine of x in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.cos, [0.0, 1.0])
    array([1.       , 0.5403023], dtype=float32)
    """
    return _float("cos", x)


def tan(x: TensorLike) -> Tensor:
    """Tangent of x in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.tan, [0.0, 1.0])
    array([0.       , 1.5574077], dtype=float32)
    """
    return _float("tan", x)


def arcsin(x: TensorLike) -> Tensor:
    """Inverse sine, in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.arcsin, [0.0, 1.0])
    array([0.       , 1.5707964], dtype=float32)
    """
    return _float("asin", x)


def arccos(x: TensorLike) -> Tensor:
    """Inverse cosine, in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.arccos, [1.0, 0.0])
    array([0.       , 1.5707964], dtype=float32)
    """
    return _float("acos", x)


def arctan(x: TensorLike) -> Tensor:
    """Inverse tangent, in radians.

    >>> import pumice as pm
    >>> pm.interpret(pm.arctan, [0.0, 1.0])
    array([0.       , 0.7853982], dtype=float32)
    """
    return _float("atan", x)


asin, acos, atan = arcsin, arccos, arctan


def sinh(x: TensorLike) -> Tensor:
    """Hyperbolic sine.

    >>> import pumice as pm
    >>> pm.interpret(pm.sinh, [0.0, 1.0])
    array([0.       , 1.1752012], dtype=float32)
    """
    return _float("sinh", x)


def cosh(x: TensorLike) -> Tensor:
    """Hyperbolic cosine.

    >>> import pumice as pm
    >>> pm.interpret(pm.cosh, [0.0, 1.0])
    array([1.       , 1.5430807], dtype=float32)
    """
    return _float("cosh", x)


def tanh(x: TensorLike) -> Tensor:
    """Hyperbolic tangent.

    >>> import pumice as pm
    >>> pm.interpret(pm.tanh, [0.0, 1.0])
    array([0.       , 0.7615942], dtype=float32)
    """
    return _float("tanh", x)


def erf(x: TensorLike) -> Tensor:
    """The error function.

    >>> import pumice as pm
    >>> pm.interpret(pm.erf, [0.0, 1.0])
    array([0.       , 0.8427008], dtype=float32)
    """
    return _float("erf", x)


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + e⁻ˣ).

    >>> import pumice as pm
    >>> pm.interpret(pm.sigmoid, [0.0, 1.0])
    array([0.5      , 0.7310586], dtype=float32)
    """
    return _float("sigmoid", x)


def silu(x: TensorLike) -> Tensor:
    """x · sigmoid(x).

    >>> import pumice as pm
    >>> pm.interpret(pm.silu, [0.0, 1.0])
    array([0.       , 0.7310586], dtype=float32)
    """
    return _float("silu", x)


def softplus(x: TensorLike) -> Tensor:
    """log(1 + eˣ), without overflow.

    >>> import pumice as pm
    >>> pm.interpret(pm.softplus, [0.0, 100.0])
    array([  0.6931472, 100.       ], dtype=float32)
    """
    return _float("softplus", x)


def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """The nearest number with that many decimals, by default a whole one; halves go to the even neighbour.

    As NumPy's it multiplies and divides by a power of ten, which may round by itself. Integers have no decimals to lose.

    >>> import pumice as pm
    >>> pm.interpret(pm.round, [0.5, 1.5, -2.7])
    array([ 0.,  2., -3.], dtype=float32)
    >>> pm.interpret(lambda x: pm.round(x, 1), [0.25, 1.26])
    array([0.2, 1.3], dtype=float32)
    """
    if decimals == 0:
        return _whole("round", x)
    t = as_tensor(x)
    if t.dtype.is_integer:
        if decimals > 0:
            return t
        raise fail(DTypeError, f"round of {t.dtype} to {decimals} decimals", hint="cast to f32 first", dtype=t.dtype.name)
    wide = convert(as_float(t), dtypes.f32)
    power = as_tensor(10.0 ** max(decimals, -decimals), dtypes.f32, near=wide)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return convert(emit(back, [emit("round", [emit(there, [wide, power])]), power]), as_float(t).dtype)


def floor(x: TensorLike) -> Tensor:
    """The whole number at or below x.

    >>> import pumice as pm
    >>> pm.interpret(pm.floor, [1.5, -1.5])
    array([ 1., -2.], dtype=float32)
    """
    return _whole("floor", x)


def ceil(x: TensorLike) -> Tensor:
    """The whole number at or above x.

    >>> import pumice as pm
    >>> pm.interpret(pm.ceil, [1.5, -1.5])
    array([ 2., -1.], dtype=float32)
    """
    return _whole("ceil", x)


def trunc(x: TensorLike) -> Tensor:
    """x without its fraction.

    >>> import pumice as pm
    >>> pm.interpret(pm.trunc, [1.5, -1.5])
    array([ 1., -1.], dtype=float32)
    """
    return _whole("trunc", x)


def logical_not(x: TensorLike) -> Tensor:
    """Whether x is zero or False.

    >>> import pumice as pm
    >>> pm.interpret(pm.logical_not, [0, 3])
    array([ True, False])
    """
    return _any("logical_not", x)


def isnan(x: TensorLike) -> Tensor:
    """Whether x is NaN.

    >>> import pumice as pm
    >>> pm.interpret(pm.isnan, [1.0, float('nan')])
    array([False,  True])
    """
    return _float("isnan", x)


def isinf(x: TensorLike) -> Tensor:
    """Whether x is an infinity.

    >>> import pumice as pm
    >>> pm.interpret(pm.isinf, [1.0, float('inf')])
    array([False,  True])
    """
    return _float("isinf", x)


def gelu(x: TensorLike, approximate: bool = False) -> Tensor:
    """x · Φ(x), the Gaussian error linear unit; `approximate` takes the tanh formula.

    >>> import pumice as pm
    >>> pm.interpret(pm.gelu, [0.0, 1.0])
    array([0.       , 0.8413448], dtype=float32)
    """
    return _float("gelu_tanh" if approximate else "gelu", x)


def invert(x: TensorLike) -> Tensor:
    """Every bit flipped; of bools, not x.

    >>> import pumice as pm
    >>> pm.interpret(pm.invert, [0, 5])
    array([-1, -6], dtype=int32)
    """
    t = as_tensor(x)
    if t.dtype == dtypes.bool_:
        return emit("logical_not", [t])
    ones = -1 if t.dtype.kind == "int" else int(np.iinfo(t.dtype.np).max) if t.dtype.is_integer else 0
    return emit("bit_xor", [t, as_tensor(ones, t.dtype, near=t)])


bitwise_invert = invert


def astype(x: TensorLike, dtype: object) -> Tensor:
    """x converted: floats to ints cut the fraction and saturate, ints to narrower ints wrap, anything to bool is x != 0.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.astype(x, "i32"), [1.9, -1.9, 1e20])
    array([         1,         -1, 2147483647], dtype=int32)
    """
    return convert(as_tensor(x), dtypes.dtype(dtype))


cast = astype
