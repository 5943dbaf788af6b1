"""Elementwise functions of the array API standard beyond arithmetic: hyperbolic inverses, signs, neighbours, classification."""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.functions.binary import add, divide, equal, logical_or, maximum, minimum, multiply, subtract, where
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, emit, promote
from pumice.functions.unary import absolute, exp, isinf, isnan, log1p, negative, sqrt, square
from pumice.tensor import Tensor


def _float(op: str, x: TensorLike) -> Tensor:
    return emit(op, [as_float(x)])


def _wide_pair(x1: TensorLike, x2: TensorLike) -> tuple[Tensor, Tensor, DType]:
    """Two operands in f32, so that several steps round once, and the dtype of the result."""
    a, b = (as_float(t) for t in promote(x1, x2))
    return convert(a, dtypes.f32), convert(b, dtypes.f32), a.dtype


def log10(x: TensorLike) -> Tensor:
    """Logarithm to base 10.

    >>> import pumice as pm
    >>> pm.interpret(pm.log10, [1.0, 1000.0])
    array([0., 3.], dtype=float32)
    """
    return _float("log10", x)


def arcsinh(x: TensorLike) -> Tensor:
    """Inverse hyperbolic sine; also named `asinh`.

    >>> import pumice as pm
    >>> pm.interpret(pm.arcsinh, [0.0, 1.0])
    array([0.       , 0.8813736], dtype=float32)
    """
    return _float("asinh", x)


def arccosh(x: TensorLike) -> Tensor:
    """Inverse hyperbolic cosine, NaN below 1; also named `acosh`.

    >>> import pumice as pm
    >>> pm.interpret(pm.arccosh, [1.0, 2.0])
    array([0.      , 1.316958], dtype=float32)
    """
    return _float("acosh", x)


def arctanh(x: TensorLike) -> Tensor:
    """Inverse hyperbolic tangent: infinite at -1 and 1, NaN beyond; also named `atanh`.

    >>> import pumice as pm
    >>> pm.interpret(pm.arctanh, [0.0, 0.5, 1.0])
    array([0.        , 0.54930615,        inf], dtype=float32)
    """
    return _float("atanh", x)


asinh, acosh, atanh = arcsinh, arccosh, arctanh


def positive(x: TensorLike) -> Tensor:
    """x itself, as a tensor.

    >>> import pumice as pm
    >>> pm.interpret(pm.positive, [1, -2])
    array([ 1, -2], dtype=int32)
    """
    return as_tensor(x)


def isfinite(x: TensorLike) -> Tensor:
    """Whether x is neither NaN nor an infinity.

    >>> import pumice as pm
    >>> pm.interpret(pm.isfinite, [1.0, float("inf"), float("nan")])
    array([ True, False, False])
    """
    return _float("isfinite", x)


def signbit(x: TensorLike) -> Tensor:
    """Whether the sign of x is set, which -0.0 has.

    >>> import pumice as pm
    >>> pm.interpret(pm.signbit, [1.0, -0.0, -2.0])
    array([False,  True,  True])
    """
    t = as_tensor(x)
    return emit("signbit", [t]) if t.dtype.is_float else emit("lt", [as_float(t), as_tensor(0.0, near=t)])


def copysign(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The size of x1 with the sign of x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.copysign, [1.0, -2.0], [-0.0, 3.0])
    array([-1.,  2.], dtype=float32)
    """
    a, b = (as_float(t) for t in promote(x1, x2))
    size = absolute(a)
    return where(signbit(b), negative(size), size)


def nextafter(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The next f32 after x1 towards x2; numbers of other dtypes are converted first.

    >>> import pumice as pm
    >>> pm.interpret(pm.nextafter, [1.0], [2.0])
    array([1.0000001], dtype=float32)
    """
    a, b, _ = _wide_pair(x1, x2)
    return emit("next_after", [a, b])


def hypot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """√(x1² + x2²) without overflow; infinite if either is, even beside NaN. Its gradient at (0, 0) is 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.hypot, [3.0, 3e30], [4.0, 4e30])
    array([5.e+00, 5.e+30], dtype=float32)
    """
    a, b, dtype = _wide_pair(x1, x2)
    a, b = absolute(a), absolute(b)
    large, small = maximum(a, b), minimum(a, b)
    zero = equal(large, 0)
    scaled = multiply(large, sqrt(add(square(divide(small, where(zero, 1.0, large))), 1.0)))
    # Infinity wins over NaN, as in IEEE 754.
    infinite = logical_or(isinf(a), isinf(b))
    return convert(where(infinite, float("inf"), where(zero, 0.0, scaled)), dtype)


def logaddexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """log(e^x1 + e^x2) without overflow.

    >>> import pumice as pm
    >>> pm.interpret(pm.logaddexp, [0.0, 1000.0], [0.0, 1000.0])
    array([6.9314718e-01, 1.0006932e+03], dtype=float32)
    """
    a, b, dtype = _wide_pair(x1, x2)
    large = maximum(a, b)
    # Two equal infinities have no difference; the distance 0 gives the right result for them too.
    alike = equal(a, b)
    distance = absolute(subtract(where(alike, 0.0, a), where(alike, 0.0, b)))
    return convert(add(large, log1p(exp(negative(distance)))), dtype)


def nan_to_num(x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with numbers in place of NaN and infinities: by default 0, and the greatest and least finite values.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.nan_to_num(x, posinf=9.0), [1.0, float("nan"), float("inf")])
    array([1., 0., 9.], dtype=float32)
    """
    t = as_tensor(x)
    if not t.dtype.is_float:
        return t
    greatest = float(greatest_of(t.dtype))
    high = greatest if posinf is None else posinf
    low = -greatest if neginf is None else neginf
    infinite = where(t > 0, high, low)
    return where(isnan(t), nan, where(isinf(t), infinite, t))


def greatest_of(dtype: DType) -> float:
    """The greatest finite value of a float dtype.

    >>> greatest_of(dtypes.f16)
    65504.0
    """
    if dtype.name == "bf16":
        import ml_dtypes  # only bf16 needs it

        return float(ml_dtypes.finfo(dtype.np).max)  # type: ignore[no-untyped-call]
    return float(np.finfo(dtype.np).max)
