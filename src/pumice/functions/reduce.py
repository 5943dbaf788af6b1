"""Reductions and scans along axes: NumPy's names, `axis` and `keepdims`."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.core.dims import Dim, dim_max, product
from pumice.functions.binary import divide, subtract, where
from pumice.functions.build import Axes, TensorLike, as_float, as_tensor, axes_of, axis_of, convert, emit, widened
from pumice.functions.shape import ravel, reshape
from pumice.functions.unary import sqrt, square
from pumice.tensor import Tensor


def _reduce(op: str, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = tuple(sorted(axes_of(axis, x.ndim)))
    return emit(op, [x], axes=axes, keepdims=bool(keepdims)) if axes else x


def sum(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over axes; of i8 and bool in i32, of u8 in u32.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.sum(x, axis=0), [[1, 2], [3, 4]])
    array([4, 6], dtype=int32)
    """
    return widened(_reduce("reduce_sum", as_tensor(x), axis, keepdims))


def prod(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product over axes; of i8 and bool in i32, of u8 in u32.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.prod(x, axis=0), [[1, 2], [3, 4]])
    array([3, 8], dtype=int32)
    """
    return widened(_reduce("reduce_prod", as_tensor(x), axis, keepdims))


def mean(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over axes; of integers in f32, of nothing NaN.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.mean(x, axis=1), [[1, 2], [3, 4]])
    array([1.5, 3.5], dtype=float32)
    """
    return _reduce("reduce_mean", as_float(x), axis, keepdims)


def max(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element over axes; NaN if there is one.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.max(x, axis=1), [[1, 2], [4, 3]])
    array([2, 4], dtype=int32)
    """
    t = as_tensor(x)
    return _reduce("reduce_any" if t.dtype == dtypes.bool_ else "reduce_max", t, axis, keepdims)


def min(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element over axes; NaN if there is one.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.min(x, axis=1), [[1, 2], [4, 3]])
    array([1, 3], dtype=int32)
    """
    t = as_tensor(x)
    return _reduce("reduce_all" if t.dtype == dtypes.bool_ else "reduce_min", t, axis, keepdims)


def any(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether any element over the axes is nonzero; of nothing False.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.any(x, axis=1), [[0, 0], [0, 3]])
    array([False,  True])
    """
    return _reduce("reduce_any", convert(as_tensor(x), dtypes.bool_), axis, keepdims)


def all(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over the axes are nonzero; of nothing True.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.all(x, axis=1), [[0, 1], [2, 3]])
    array([False,  True])
    """
    return _reduce("reduce_all", convert(as_tensor(x), dtypes.bool_), axis, keepdims)


def var(x: TensorLike, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """The variance over axes: squared distances from the mean, divided by their number less `ddof`.

    >>> import pumice as pm
    >>> pm.interpret(pm.var, [1.0, 2.0, 3.0, 4.0])
    array(1.25, dtype=float32)
    """
    t = as_float(x)
    axes = axes_of(axis, t.ndim)
    squares = square(subtract(t, mean(t, axes, keepdims=True)))
    if ddof == 0:
        return mean(squares, axes, keepdims)
    count: Dim = dim_max(product(t.shape[a] for a in axes) - ddof, 0)
    return divide(sum(squares, axes, keepdims), count)


def std(x: TensorLike, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes: the square root of `var`. Its gradient is 0 where all elements are equal.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.std(x, ddof=1), [1.0, 3.0])
    array(1.4142135, dtype=float32)
    """
    variance = var(x, axis, ddof, keepdims)
    # The square root alone would make it 0 times infinity.
    equal = variance == 0
    return where(equal, 0, sqrt(where(equal, 1, variance)))


def _arg(op: str, x: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    t = as_tensor(x)
    if t.dtype == dtypes.bool_:
        t = convert(t, dtypes.i32)
    if axis is None:
        found = emit(op, [ravel(t)], axis=0, keepdims=False)
        return reshape(found, (1,) * t.ndim) if keepdims else found
    return emit(op, [t], axis=axis_of(axis, t.ndim), keepdims=bool(keepdims))


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position (i32) of the largest element along an axis, or in all of x; the first of equal ones, NaN is largest.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.argmax(x, axis=1), [[1, 5, 5], [9, 2, 3]])
    array([1, 0], dtype=int32)
    """
    return _arg("argmax", x, axis, keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position (i32) of the smallest element along an axis, or in all of x; the first of equal ones, NaN is smallest.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.argmin(x, axis=1), [[1, 5, 1], [9, 2, 3]])
    array([0, 1], dtype=int32)
    """
    return _arg("argmin", x, axis, keepdims)


def cumsum(x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums along an axis, or over all of x; `exclusive` leaves each element itself out, `reverse` runs backwards.

    >>> import pumice as pm
    >>> pm.interpret(pm.cumsum, [1, 2, 3]), pm.interpret(lambda x: pm.cumsum(x, exclusive=True), [1, 2, 3])
    (array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    t = widened(as_tensor(x))
    if axis is None:
        t, axis = ravel(t), 0
    return emit("cumsum", [t], axis=axis_of(axis, t.ndim), exclusive=bool(exclusive), reverse=bool(reverse))
