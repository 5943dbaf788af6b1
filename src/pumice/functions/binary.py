"""Elementwise functions of two or three tensors: they broadcast as NumPy does and promote dtypes first."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.functions.build import TensorLike, as_float, as_tensor, convert, emit, promote
from pumice.tensor import Tensor

# NumPy's arithmetic on bools.
_ON_BOOL = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}


def _binary(op: str, a: TensorLike, b: TensorLike) -> Tensor:
    x, y = promote(a, b)
    return emit(_ON_BOOL.get(op, op) if x.dtype == dtypes.bool_ else op, [x, y])


def _logical(op: str, a: TensorLike, b: TensorLike) -> Tensor:
    x, y = promote(a, b)
    return emit(op, [convert(x, dtypes.bool_), convert(y, dtypes.bool_)])


def _bits(on_bool: str, on_ints: str, a: TensorLike, b: TensorLike) -> Tensor:
    x, y = promote(a, b)
    return emit(on_bool if x.dtype == dtypes.bool_ else on_ints, [x, y])


def add(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 + x2; of bools, or.

    >>> import pumice as pm
    >>> pm.interpret(pm.add, [1, 2], [10, 20])
    array([11, 22], dtype=int32)
    """
    return _binary("add", x1, x2)


def subtract(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 - x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.subtract, [1, 2], [10, 20])
    array([ -9, -18], dtype=int32)
    """
    return _binary("sub", x1, x2)


def multiply(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 · x2; of bools, and.

    >>> import pumice as pm
    >>> pm.interpret(pm.multiply, [1, 2], [10, 20])
    array([10, 40], dtype=int32)
    """
    return _binary("mul", x1, x2)


def divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 / x2 as a float; integers become f32 first.

    >>> import pumice as pm
    >>> pm.interpret(pm.divide, [1, 3], [2, 2])
    array([0.5, 1.5], dtype=float32)
    """
    x, y = promote(x1, x2)
    return emit("div", [as_float(x), as_float(y)])


def floor_divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The whole number at or below x1 / x2; integers divided by 0 give 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.floor_divide, [7, -7], [2, 2])
    array([ 3, -4], dtype=int32)
    """
    return _binary("floor_div", x1, x2)


def mod(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 - x2 · floor(x1 / x2): the remainder with the sign of x2; integers modulo 0 give 0.

    >>> import pumice as pm
    >>> pm.interpret(pm.mod, [7, -7], [3, 3])
    array([1, 2], dtype=int32)
    """
    return _binary("mod", x1, x2)


remainder = mod


def power(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 to the power of x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.power, [2.0, 3.0], [3.0, 2.0])
    array([8., 9.], dtype=float32)
    """
    if isinstance(x2, int) and x2 == 2 and isinstance(x1, Tensor) and x1.dtype != dtypes.bool_:
        return emit("square", [x1])
    return _binary("pow", x1, x2)


pow = power


def maximum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The larger of x1 and x2; NaN if either is.

    >>> import pumice as pm
    >>> pm.interpret(pm.maximum, [1, 5], [3, 2])
    array([3, 5], dtype=int32)
    """
    return _binary("max", x1, x2)


def minimum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The smaller of x1 and x2; NaN if either is.

    >>> import pumice as pm
    >>> pm.interpret(pm.minimum, [1, 5], [3, 2])
    array([1, 2], dtype=int32)
    """
    return _binary("min", x1, x2)


def arctan2(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The angle of the point (x2, x1), in radians from -π to π.

    >>> import pumice as pm
    >>> pm.interpret(pm.arctan2, [1.0, -1.0], [0.0, 0.0])
    array([ 1.5707964, -1.5707964], dtype=float32)
    """
    x, y = promote(x1, x2)
    return emit("atan2", [as_float(x), as_float(y)])


atan2 = arctan2


def equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 == x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.equal, [1, 2], [1, 3])
    array([ True, False])
    """
    return _binary("eq", x1, x2)


def not_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 != x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.not_equal, [1, 2], [1, 3])
    array([False,  True])
    """
    return _binary("ne", x1, x2)


def less(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 < x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.less, [1, 2], [1, 3])
    array([False,  True])
    """
    return _binary("lt", x1, x2)


def less_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 <= x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.less_equal, [1, 2], [1, 1])
    array([ True, False])
    """
    return _binary("le", x1, x2)


def greater(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 > x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.greater, [1, 2], [1, 1])
    array([False,  True])
    """
    return _binary("gt", x1, x2)


def greater_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 >= x2.

    >>> import pumice as pm
    >>> pm.interpret(pm.greater_equal, [1, 2], [1, 3])
    array([ True, False])
    """
    return _binary("ge", x1, x2)


def logical_and(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Whether both are nonzero.

    >>> import pumice as pm
    >>> pm.interpret(pm.logical_and, [0, 2], [1, 3])
    array([False,  True])
    """
    return _logical("logical_and", x1, x2)


def logical_or(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Whether either is nonzero.

    >>> import pumice as pm
    >>> pm.interpret(pm.logical_or, [0, 2], [0, 3])
    array([False,  True])
    """
    return _logical("logical_or", x1, x2)


def logical_xor(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Whether exactly one is nonzero.

    >>> import pumice as pm
    >>> pm.interpret(pm.logical_xor, [0, 2], [1, 3])
    array([ True, False])
    """
    return _logical("logical_xor", x1, x2)


def bitwise_and(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Bits set in both; of bools, and.

    >>> import pumice as pm
    >>> pm.interpret(pm.bitwise_and, [6, 3], [3, 3])
    array([2, 3], dtype=int32)
    """
    return _bits("logical_and", "bit_and", x1, x2)


def bitwise_or(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Bits set in either; of bools, or.

    >>> import pumice as pm
    >>> pm.interpret(pm.bitwise_or, [6, 3], [3, 3])
    array([7, 3], dtype=int32)
    """
    return _bits("logical_or", "bit_or", x1, x2)


def bitwise_xor(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Bits set in exactly one; of bools, exclusive or.

    >>> import pumice as pm
    >>> pm.interpret(pm.bitwise_xor, [6, 3], [3, 3])
    array([5, 0], dtype=int32)
    """
    return _bits("logical_xor", "bit_xor", x1, x2)


def left_shift(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 shifted left by x2 bits.

    >>> import pumice as pm
    >>> pm.interpret(pm.left_shift, [1, 3], [4, 1])
    array([16,  6], dtype=int32)
    """
    return _binary("shift_left", x1, x2)


bitwise_left_shift = left_shift


def right_shift(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 shifted right by x2 bits; signed integers keep their sign.

    >>> import pumice as pm
    >>> pm.interpret(pm.right_shift, [16, -8], [2, 1])
    array([ 4, -4], dtype=int32)
    """
    return _binary("shift_right", x1, x2)


bitwise_right_shift = right_shift


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """x where the condition holds, else y.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.where(x > 0, x, 0), [-1.0, 2.0])
    array([0., 2.], dtype=float32)
    """
    near = next((v for v in (condition, x, y) if isinstance(v, Tensor)), None)
    test = convert(as_tensor(condition, near=near), dtypes.bool_)
    return emit("where", [test, *promote(x, y, near=test)])


def clip(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x held between min and max; None leaves a side open.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.clip(x, 0, 1), [-0.5, 0.5, 1.5])
    array([0. , 0.5, 1. ], dtype=float32)
    """
    t = as_tensor(x)
    numbers = [v for v in (min, max) if isinstance(v, int | float)]
    given = [v for v in (min, max) if v is not None]
    if len(numbers) == len(given):
        if any(isinstance(v, float) for v in numbers):
            t = as_float(t)
        lo, hi = (None if v is None else float(v) for v in (min, max))  # type: ignore[arg-type]
        return emit("clamp", [t], lo=lo, hi=hi)
    if min is not None:
        t = maximum(t, min)
    return t if max is None else minimum(t, max)
