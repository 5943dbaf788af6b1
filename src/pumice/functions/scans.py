"""Scans: running products, extremes and sums of exponentials, linear recurrences, and `scan`, of which they are cases."""

from __future__ import annotations

from typing import Any

from pumice.core import dtypes
from pumice.errors import InputError
from pumice.functions.build import TensorLike, as_float, as_tensor, axis_of, convert, emit, fail, promote, widened
from pumice.functions.reduce import cumsum
from pumice.functions.shape import broadcast_to, ravel
from pumice.ir.rules import broadcast
from pumice.tensor import Tensor


def _along(op: str, t: Tensor, axis: int | None, exclusive: bool, reverse: bool) -> Tensor:
    if axis is None:
        t, axis = ravel(t), 0
    return emit(op, [t], axis=axis_of(axis, t.ndim), exclusive=bool(exclusive), reverse=bool(reverse))


def cumprod(x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running products along an axis, or over all of x; `exclusive` leaves each element itself out, `reverse` runs backwards.

    >>> import pumice as pm
    >>> pm.interpret(pm.cumprod, [1, 2, 3, 4]), pm.interpret(lambda x: pm.cumprod(x, reverse=True), [1, 2, 3])
    (array([ 1,  2,  6, 24], dtype=int32), array([6, 6, 3], dtype=int32))
    """
    return _along("cumprod", widened(as_tensor(x)), axis, exclusive, reverse)


def _numbers(x: TensorLike) -> Tensor:
    t = as_tensor(x)
    return convert(t, dtypes.i32) if t.dtype == dtypes.bool_ else t


def cummax(x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The greatest element so far along an axis, or over all of x; from a NaN on it is NaN.

    >>> import pumice as pm
    >>> pm.interpret(pm.cummax, [1, 3, 2, 5])
    array([1, 3, 3, 5], dtype=int32)
    """
    return _along("cummax", _numbers(x), axis, exclusive, reverse)


def cummin(x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The least element so far along an axis, or over all of x; from a NaN on it is NaN.

    >>> import pumice as pm
    >>> pm.interpret(pm.cummin, [4, 3, 5, 1])
    array([4, 3, 3, 1], dtype=int32)
    """
    return _along("cummin", _numbers(x), axis, exclusive, reverse)


def logcumsumexp(x: TensorLike, axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """log(cumsum(exp(x))) along an axis, or over all of x, without overflow.

    >>> import pumice as pm
    >>> pm.interpret(pm.logcumsumexp, [500.0, 500.0, 0.0])
    array([500.     , 500.69315, 500.69315], dtype=float32)
    """
    return _along("logcumsumexp", as_float(x), axis, exclusive, reverse)


def linear_scan(
    a: TensorLike,
    b: TensorLike,
    axis: int = -1,
    initial: TensorLike | None = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Tensor:
    """The recurrence h = a · h + b along an axis, from `initial` on, which is 0 unless given and has all axes but this one.

    `exclusive` gives the h that each element meets; `reverse` begins at the end. It runs in parallel over the axis.

    >>> import pumice as pm
    >>> pm.interpret(lambda b: pm.linear_scan(0.5, b, initial=8.0), [1.0, 1.0, 1.0])
    array([5.  , 3.5 , 2.75], dtype=float32)
    """
    first, second = promote(as_float(a), as_float(b))
    shape = broadcast(first.shape, second.shape)
    where = axis_of(axis, len(shape))
    start = None
    if initial is not None:
        first, second, start = promote(first, second, as_float(initial))
        start = broadcast_to(start, (*shape[:where], *shape[where + 1 :]))
    steps = [broadcast_to(t, shape) for t in (first, second)]
    return emit("linear_scan", [*steps, start], axis=where, exclusive=bool(exclusive), reverse=bool(reverse))


_BY_MONOID = {"add": cumsum, "mul": cumprod, "max": cummax, "min": cummin, "logaddexp": logcumsumexp}


def scan(x: Any, monoid: str = "add", axis: int | None = None, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """What an associative operation makes of all elements up to each one, along an axis or over all of x.

    `monoid` is "add", "mul", "max", "min", "logaddexp", or "affine", whose elements are maps h → a · h + b: x is then the
    pair (a, b), and the result what becomes of h = 0. `exclusive` leaves each element itself out, so that the first result is the
    operation's identity; `reverse` runs backwards. On a GPU the threads of a workgroup share a row.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.scan(x, "max", axis=1), [[1, 3, 2], [6, 4, 5]])
    array([[1, 3, 3],
           [6, 6, 6]], dtype=int32)
    >>> pm.interpret(lambda b: pm.scan((2.0, b), "affine", axis=0), [1.0, 1.0, 1.0])
    array([1., 3., 7.], dtype=float32)
    """
    if monoid == "affine":
        if not isinstance(x, tuple | list) or len(x) != 2:
            raise fail(InputError, "a scan of affine maps takes the pair (a, b)", hint='pm.scan((a, b), "affine", axis=1)')
        a, b = promote(*(as_float(v) for v in x))
        if axis is None:
            shape = broadcast(a.shape, b.shape)
            a, b, axis = (*(ravel(broadcast_to(t, shape)) for t in (a, b)), 0)
        return linear_scan(a, b, axis, exclusive=exclusive, reverse=reverse)
    found = _BY_MONOID.get(monoid)
    if found is None:
        known = " ".join([*_BY_MONOID, "affine"])
        raise fail(InputError, f"there is no scan by {monoid!r:.40}", hint=f"one of {known}")
    return found(x, axis, exclusive, reverse)
