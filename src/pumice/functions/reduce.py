"""Reductions and scans along axes: NumPy's names, `axis` and `keepdims`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pumice.core import dtypes
from pumice.core.dims import dim_max, product
from pumice.errors import InputError
from pumice.functions.binary import add, divide, maximum, minimum, multiply, subtract
from pumice.functions.binary import where as where_
from pumice.functions.build import Axes, TensorLike, as_float, as_tensor, axes_of, axis_of, convert, emit, fail, widened
from pumice.functions.shape import broadcast_to, ravel, reshape
from pumice.functions.unary import sqrt, square
from pumice.tensor import Tensor


def _reduce(op: str, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = tuple(sorted(axes_of(axis, x.ndim)))
    return emit(op, [x], axes=axes, keepdims=bool(keepdims)) if axes else x


def _masked(x: Tensor, mask: TensorLike | None, neutral: float | int) -> Tensor:
    """x with the neutral value where the mask does not hold."""
    return x if mask is None else where_(mask, x, as_tensor(neutral, x.dtype, near=x))


def sum(
    x: TensorLike,
    axis: Axes = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The sum over axes; of i8 and bool in i32, of u8 in u32, or in `dtype`; `initial` is added, `where` chooses elements.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.sum(x, axis=0), [[1, 2], [3, 4]])
    array([4, 6], dtype=int32)
    >>> pm.interpret(lambda x: pm.sum(x, dtype="f32", initial=0.5, where=x > 1), [1, 2, 3])
    array(5.5, dtype=float32)
    """
    t = _masked(_in_dtype(x, dtype), where, 0)
    return _joined(add, widened(_reduce("reduce_sum", t, axis, keepdims)), initial, dtype)


def _in_dtype(x: TensorLike, dtype: Any) -> Tensor:
    return as_tensor(x) if dtype is None else convert(as_tensor(x), dtypes.dtype(dtype))


def _joined(join: Callable[[TensorLike, TensorLike], Tensor], x: Tensor, initial: TensorLike | None, dtype: Any) -> Tensor:
    found = x if initial is None else join(x, initial)
    return found if dtype is None else convert(found, dtypes.dtype(dtype))


def prod(
    x: TensorLike,
    axis: Axes = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The product over axes; of i8 and bool in i32, of u8 in u32, or in `dtype`; `initial` multiplies, `where` chooses elements.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.prod(x, axis=0), [[1, 2], [3, 4]])
    array([3, 8], dtype=int32)
    """
    t = _masked(_in_dtype(x, dtype), where, 1)
    return _joined(multiply, widened(_reduce("reduce_prod", t, axis, keepdims)), initial, dtype)


def mean(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, *, dtype: Any = None, where: TensorLike | None = None
) -> Tensor:
    """The mean over axes, of the elements that `where` chooses; of integers in f32, of nothing NaN.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.mean(x, axis=1), [[1, 2], [3, 4]])
    array([1.5, 3.5], dtype=float32)
    """
    t = as_float(_in_dtype(x, dtype))
    if where is None:
        return _reduce("reduce_mean", t, axis, keepdims)
    return divide(sum(t, axis, keepdims, where=where), _chosen(where, t, axis, keepdims))


def _chosen(mask: TensorLike, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    """How many elements a mask chooses along the axes of x."""
    spread = broadcast_to(convert(as_tensor(mask, near=x), dtypes.bool_), x.shape)
    return convert(sum(spread, axis, keepdims), x.dtype)


def max(
    x: TensorLike,
    axis: Axes = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The largest element over axes; NaN if there is one. `initial` counts as an element too, `where` chooses and needs it.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.max(x, axis=1), [[1, 2], [4, 3]])
    array([2, 4], dtype=int32)
    >>> pm.interpret(lambda x: pm.max(x, axis=1, initial=0, where=x > 2), [[1, 2], [4, 3]])
    array([0, 4], dtype=int32)
    """
    t = _chosen_extreme(as_tensor(x), initial, where)
    if initial is None:
        return _reduce("reduce_any" if t.dtype == dtypes.bool_ else "reduce_max", t, axis, keepdims)
    return _extreme("reduce_max", maximum, t, axis, keepdims, initial)


def min(
    x: TensorLike,
    axis: Axes = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The smallest element over axes; NaN if there is one. `initial` counts as an element too, `where` chooses and needs it.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.min(x, axis=1), [[1, 2], [4, 3]])
    array([1, 3], dtype=int32)
    """
    t = _chosen_extreme(as_tensor(x), initial, where)
    if initial is None:
        return _reduce("reduce_all" if t.dtype == dtypes.bool_ else "reduce_min", t, axis, keepdims)
    return _extreme("reduce_min", minimum, t, axis, keepdims, initial)


def _extreme(
    op: str, join: Callable[[TensorLike, TensorLike], Tensor], x: Tensor, axis: Axes, keepdims: bool, initial: TensorLike
) -> Tensor:
    """The extreme over axes and a value that counts as an element; axes may be empty."""
    axes = axes_of(axis, x.ndim)
    wide = convert(x, dtypes.i32) if x.dtype == dtypes.bool_ else x
    if 0 in [x.shape[a] for a in axes]:
        kept = tuple(1 if a in axes else d for a, d in enumerate(x.shape) if keepdims or a not in axes)
        return broadcast_to(as_tensor(initial, x.dtype, near=x), kept)
    return join(convert(_reduce(op, wide, axes, keepdims), x.dtype), initial)


def _chosen_extreme(x: Tensor, initial: TensorLike | None, mask: TensorLike | None) -> Tensor:
    if mask is None:
        return x
    if initial is None:
        raise fail(InputError, "where= may choose nothing, of which there is no extreme", hint="say what it is with initial=")
    return where_(mask, x, convert(as_tensor(initial, x.dtype, near=x), x.dtype))


def any(x: TensorLike, axis: Axes = None, keepdims: bool = False, *, where: TensorLike | None = None) -> Tensor:
    """Whether any element over the axes is nonzero; of nothing False.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.any(x, axis=1), [[0, 0], [0, 3]])
    array([False,  True])
    """
    return _reduce("reduce_any", _masked(convert(as_tensor(x), dtypes.bool_), where, False), axis, keepdims)


def all(x: TensorLike, axis: Axes = None, keepdims: bool = False, *, where: TensorLike | None = None) -> Tensor:
    """Whether all elements over the axes are nonzero; of nothing True.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.all(x, axis=1), [[0, 1], [2, 3]])
    array([False,  True])
    """
    return _reduce("reduce_all", _masked(convert(as_tensor(x), dtypes.bool_), where, True), axis, keepdims)


def var(
    x: TensorLike,
    axis: Axes = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    dtype: Any = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The variance over axes: squared distances from the mean, divided by their number less `ddof`, also named `correction`.

    >>> import pumice as pm
    >>> pm.interpret(pm.var, [1.0, 2.0, 3.0, 4.0])
    array(1.25, dtype=float32)
    """
    t = as_float(_in_dtype(x, dtype))
    axes = axes_of(axis, t.ndim)
    less = ddof if correction is None else correction
    squares = square(subtract(t, mean(t, axes, keepdims=True, where=where)))
    if where is not None:
        count = maximum(subtract(_chosen(where, t, axes, keepdims), less), 0)
        return divide(sum(squares, axes, keepdims, where=where), count)
    if less == 0:
        return mean(squares, axes, keepdims)
    number = product(t.shape[a] for a in axes)
    if isinstance(less, int):
        return divide(sum(squares, axes, keepdims), dim_max(number - less, 0))
    return divide(sum(squares, axes, keepdims), maximum(subtract(as_tensor(number, t.dtype, near=t), less), 0.0))


def std(
    x: TensorLike,
    axis: Axes = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    dtype: Any = None,
    where: TensorLike | None = None,
) -> Tensor:
    """The standard deviation over axes: the square root of `var`. Its gradient is 0 where all elements are equal.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.std(x, ddof=1), [1.0, 3.0])
    array(1.4142135, dtype=float32)
    """
    variance = var(x, axis, ddof, keepdims, correction=correction, dtype=dtype, where=where)
    # The square root alone would make it 0 times infinity.
    equal = variance == 0
    return where_(equal, 0, sqrt(where_(equal, 1, variance)))


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


def cumsum(
    x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False, *, dtype: Any = None
) -> Tensor:
    """Running sums along an axis, or over all of x; `exclusive` leaves each element itself out, `reverse` runs backwards.

    >>> import pumice as pm
    >>> pm.interpret(pm.cumsum, [1, 2, 3]), pm.interpret(lambda x: pm.cumsum(x, exclusive=True), [1, 2, 3])
    (array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    t = widened(_in_dtype(x, dtype))
    if axis is None:
        t, axis = ravel(t), 0
    found = emit("cumsum", [t], axis=axis_of(axis, t.ndim), exclusive=bool(exclusive), reverse=bool(reverse))
    return found if dtype is None else convert(found, dtypes.dtype(dtype))
