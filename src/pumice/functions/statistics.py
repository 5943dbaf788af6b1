"""Sums and statistics of the array API standard and NumPy: counts, differences, integrals, logsumexp, quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim
from pumice.errors import InputError, ShapeError
from pumice.functions.binary import add, equal, less, logical_and, logical_or, minimum, multiply, subtract, where
from pumice.functions.build import Axes, TensorLike, as_float, as_tensor, axes_of, axis_of, convert, fail, promote
from pumice.functions.index import full, sort, take, zeros
from pumice.functions.reduce import any as reduce_any
from pumice.functions.reduce import cumsum
from pumice.functions.reduce import max as reduce_max
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.scans import cumprod
from pumice.functions.shape import concatenate, expand_dims, moveaxis, narrow, ravel, reshape, squeeze
from pumice.functions.unary import exp, floor, isinf, isnan, log
from pumice.tensor import Tensor


def count_nonzero(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements over the axes are not zero, in i32.

    >>> import pumice as pm
    >>> pm.interpret(pm.count_nonzero, [[0, 1], [2, 0]])
    array(2, dtype=int32)
    """
    return reduce_sum(convert(as_tensor(x), dtypes.bool_), axis, keepdims)


def cumulative_sum(x: TensorLike, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """`cumsum` under its name in the array API standard; `include_initial` puts a 0 in front.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.cumulative_sum(x, include_initial=True), [1, 2])
    array([0, 1, 3], dtype=int32)
    """
    t = as_tensor(x)
    along = _only_axis(t, axis, "cumulative_sum")
    return _with_initial(cumsum(t, along, dtype=dtype), along, 0 if include_initial else None)


def cumulative_prod(x: TensorLike, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """`cumprod` under its name in the array API standard; `include_initial` puts a 1 in front.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.cumulative_prod(x, include_initial=True), [2, 3])
    array([1, 2, 6], dtype=int32)
    """
    t = as_tensor(x)
    along = _only_axis(t, axis, "cumulative_prod")
    found = cumprod(t if dtype is None else convert(t, dtypes.dtype(dtype)), along)
    found = found if dtype is None else convert(found, dtypes.dtype(dtype))
    return _with_initial(found, along, 1 if include_initial else None)


def _only_axis(t: Tensor, axis: int | None, name: str) -> int:
    if axis is None and t.ndim != 1:
        raise fail(ShapeError, f"{name} of rank {t.ndim} needs an axis", hint="axis=…, or pm.ravel first")
    return axis_of(0 if axis is None else axis, t.ndim)


def _with_initial(x: Tensor, axis: int, value: int | None) -> Tensor:
    """x with one more entry in front of an axis, unless it is None."""
    if value is None:
        return x
    return concatenate([full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), value, x.dtype), x], axis)


def diff(
    x: TensorLike, n: int = 1, axis: int = -1, prepend: TensorLike | None = None, append: TensorLike | None = None
) -> Tensor:
    """The differences of neighbours along an axis, n times over; `prepend` and `append` are joined to it first.

    >>> import pumice as pm
    >>> pm.interpret(pm.diff, [1, 4, 9, 16])
    array([3, 5, 7], dtype=int32)
    """
    if n < 0:
        raise fail(InputError, f"diff takes a number of times from 0 on, not {n}", n=n)
    t = as_tensor(x)
    along = axis_of(axis, t.ndim)
    ends = [None if v is None else _end(v, t, along) for v in (prepend, append)]
    t = concatenate([v for v in (ends[0], t, ends[1]) if v is not None], along)
    for _ in range(n):
        size = t.shape[along]
        if size == 0:
            return t
        upper, lower = narrow(t, along, 1, size), narrow(t, along, 0, size - 1)
        t = upper != lower if t.dtype == dtypes.bool_ else subtract(upper, lower)
    return t


def _end(value: TensorLike, x: Tensor, axis: int) -> Tensor:
    end = as_tensor(value, x.dtype, near=x)
    return end if end.ndim else end + zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), end.dtype)


def trapezoid(y: TensorLike, x: TensorLike | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral of y along an axis by the trapezoidal rule, at the places x or at distances of dx.

    >>> import pumice as pm
    >>> pm.interpret(pm.trapezoid, [1.0, 2.0, 3.0])
    array(4., dtype=float32)
    """
    t = as_float(y)
    along = axis_of(axis, t.ndim)
    size = t.shape[along]
    sums = add(narrow(t, along, 1, size), narrow(t, along, 0, size - 1))
    if x is None:
        return multiply(reduce_sum(sums, along), dx / 2)
    places = as_float(as_tensor(x, t.dtype, near=t))
    steps = diff(places, axis=-1 if places.ndim == 1 else along)
    if places.ndim == 1:
        steps = reshape(steps, tuple(steps.shape[0] if a == along else 1 for a in range(t.ndim)))
    return multiply(reduce_sum(multiply(sums, steps), along), 0.5)


def isin(x1: TensorLike, x2: TensorLike, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 equals one of x2's; NaN equals nothing.

    >>> import pumice as pm
    >>> pm.interpret(pm.isin, [1, 2, 3], [3, 1])
    array([ True, False,  True])
    """
    a, b = promote(x1, x2)
    found = reduce_any(equal(expand_dims(a, -1), ravel(b)), -1)
    return found == False if invert else found  # noqa: E712  elementwise


def logsumexp(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log Σ eˣ over axes, without overflow; of nothing, and of nothing but -inf, -inf.

    >>> import pumice as pm
    >>> pm.interpret(pm.logsumexp, [1000.0, 1000.0])
    array(1000.6932, dtype=float32)
    """
    given = as_float(x)
    t = convert(given, dtypes.f32)
    axes = axes_of(axis, t.ndim)
    if not axes:
        return given
    largest = reduce_max(t, axes, keepdims=True, initial=float("-inf"))
    # Infinity less infinity is NaN; from 0 the sum is the infinity that it should be.
    shift = where(isinf(largest), 0.0, largest)
    total = add(log(reduce_sum(exp(subtract(t, shift)), axes, keepdims=True)), shift)
    return convert(total if keepdims else squeeze(total, axes), given.dtype)


def quantile(x: TensorLike, q: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The q-quantiles along an axis, or of all elements, between neighbours by linear interpolation as in NumPy.

    q is a number in 0…1 or a vector of them, whose axis comes first in the result. NaN if there is one; of nothing an error.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.quantile(x, [0.0, 0.25, 1.0]), [4.0, 1.0, 3.0, 2.0])
    array([1.  , 1.75, 4.  ], dtype=float32)
    """
    t = as_float(x)
    rank = t.ndim
    if axis is None:
        t, along = ravel(t), 0
    else:
        t, along = moveaxis(t, axis_of(axis, rank), -1), axis_of(axis, rank)
    size: Dim = t.shape[-1]
    if size == 0:
        raise fail(ShapeError, "an empty axis has no quantiles")
    if not isinstance(q, Tensor) and not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= 1)):
        raise fail(InputError, f"quantiles are asked for by numbers in 0…1, not {q!r:.60}")
    wanted = convert(as_tensor(q, dtypes.f32, near=t), dtypes.f32)
    if wanted.ndim > 1:
        raise fail(ShapeError, f"q is a number or a vector, not {wanted.type.describe()}")
    place = multiply(wanted, as_tensor(size - 1, dtypes.f32, near=t))
    below = floor(place)
    low = convert(below, dtypes.i32)
    high = minimum(add(low, 1), as_tensor(size - 1, near=t))
    ordered = sort(t, -1)
    a, b = take(ordered, low, -1), take(ordered, high, -1)
    share = convert(subtract(place, below), t.dtype)
    # Two equal neighbours, infinite ones too, have nothing between them; from minus infinity to a number all is infinitely low.
    lone = logical_or(equal(a, b), logical_and(equal(a, -math.inf), less(b, math.inf)))
    mixed = where(lone, a, add(a, multiply(subtract(b, a), share)))
    mixed = where(equal(share, 0), a, mixed)
    missing = isnan(narrow(ordered, -1, size - 1, size))
    found = where(missing if wanted.ndim else squeeze(missing, -1), float("nan"), mixed)
    if wanted.ndim:
        found = moveaxis(found, -1, 0)
    if not keepdims:
        return found
    lead = wanted.ndim
    ones = tuple(range(lead, lead + rank)) if axis is None else (lead + along,)
    return expand_dims(found, ones) if ones else found


def median(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The middle element along an axis, or of all elements: the mean of two where their number is even.

    >>> import pumice as pm
    >>> pm.interpret(pm.median, [3.0, 1.0, 2.0, 10.0])
    array(2.5, dtype=float32)
    """
    return quantile(x, 0.5, axis, keepdims)
