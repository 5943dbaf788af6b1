"""Selection by value: unique elements, places of nonzeros, bins and segments, and graphs of nearest neighbours."""

from __future__ import annotations

from typing import NamedTuple

from pumice.core import dtypes
from pumice.core.dims import Dim
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.functions.binary import add, divide, equal, floor_divide, less, logical_and, mod, subtract, where
from pumice.functions.build import (
    TensorLike,
    as_dim,
    as_indices,
    as_tensor,
    convert,
    emit,
    fail,
    further_result,
    promote,
    widened,
)
from pumice.functions.create import linspace
from pumice.functions.dtype_info import iinfo
from pumice.functions.index import arange, argsort, compact, full, ones, scatter_add, sort, take, top_k, zeros
from pumice.functions.padding import pad
from pumice.functions.reduce import cumsum
from pumice.functions.shape import concatenate, expand_dims, narrow, ravel, reshape, stack
from pumice.functions.unary import isnan, logical_not, negative
from pumice.tensor import Tensor


def searchsorted(sorted: TensorLike, x: TensorLike, side: str = "left", sorter: TensorLike | None = None) -> Tensor:
    """Where each element of x belongs in a sorted vector (i32): the first place that keeps the order, or the last for "right".

    NaN belongs behind infinity. `sorter` are the positions that sort the vector.

    >>> import pumice as pm
    >>> pm.interpret(pm.searchsorted, [1.0, 3.0, 3.0], [0.0, 3.0, 4.0])
    array([0, 1, 3], dtype=int32)
    """
    if side not in ("left", "right"):
        raise fail(InputError, f"side is 'left' or 'right', not {side!r}", side=side)
    a, b = promote(sorted, x)
    if a.dtype == dtypes.bool_:
        a, b = convert(a, dtypes.u8), convert(b, dtypes.u8)
    return emit("searchsorted", [a if sorter is None else take(a, sorter, 0), b], right=side == "right")


class Unique(NamedTuple):
    """The results of `unique`."""

    values: Tensor
    counts: Tensor
    inverse: Tensor
    number: Tensor


def unique(x: TensorLike, size: Dim | None = None, fill_value: float = 0) -> Unique:
    """The distinct elements of x, ascending: their values and counts [size], where each of x is among them, and their number.

    Shapes are known before values are: `size`, by default the number of elements of x, is the most values there can be. Those
    beyond number [1] are `fill_value`, with the count 0; where there are more than `size`, the greatest are left out, and number
    still counts them. NaNs are equal to each other, as in NumPy's unique.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: tuple(pm.unique(x, size=3)), [7, 5, 7, 7])
    (array([5, 7, 0], ...), array([1, 3, 0], ...), array([1, 0, 1, 1], ...), array([2], dtype=int32))
    """
    t = as_tensor(x)
    is_bool = t.dtype == dtypes.bool_
    flat = ravel(convert(t, dtypes.u8) if is_bool else t)
    count = flat.shape[0]
    most = count if size is None else as_dim(size)
    if count == 0:
        nothing = zeros((most,), "i32")
        return Unique(full((most,), fill_value, t.dtype), nothing, zeros(t.shape, "i32"), zeros((1,), "i32"))
    ordered, order = sort(flat), argsort(flat)
    later, earlier = narrow(ordered, 0, 1, count), narrow(ordered, 0, 0, count - 1)
    differs = later != earlier
    if flat.dtype.is_float:
        # NaN differs from itself, but not from the one before it.
        differs = logical_and(differs, logical_not(logical_and(isnan(later), isnan(earlier))))
    fresh = concatenate([ones((1,), "bool"), differs], 0)
    values, number = compact(ordered, fresh)
    starts, _ = compact(arange(count), fresh)
    named = subtract(cumsum(fresh), 1)
    inverse = reshape(take(named, argsort(order), 0), t.shape)
    place = arange(count)
    ends = where(less(add(place, 1), number), concatenate([narrow(starts, 0, 1, count), zeros((1,), "i32")], 0), count)
    exists = less(place, number)
    counts = where(exists, subtract(ends, starts), 0)
    values = where(exists, values, full((), fill_value, values.dtype))
    found = (_sized(values, most, fill_value), _sized(counts, most, 0))
    return Unique(convert(found[0], t.dtype), found[1], inverse, number)


def _sized(x: Tensor, size: Dim, fill: float) -> Tensor:
    """The first `size` entries of a vector, with a value behind its end."""
    count = x.shape[0]
    if isinstance(size, int) and isinstance(count, int):
        return narrow(x, 0, 0, size) if size <= count else pad(x, (0, size - count), fill)
    if size == count:
        return x
    place = arange(size)
    return where(less(place, count), take(x, place, 0), as_tensor(fill, x.dtype, near=x))


def unique_values(x: TensorLike, size: Dim | None = None, fill_value: float = 0) -> tuple[Tensor, Tensor]:
    """The values of `unique`, and their number.

    >>> import pumice as pm
    >>> pm.interpret(pm.unique_values, [3, 1, 3])
    (array([1, 3, 0], dtype=int32), array([2], dtype=int32))
    """
    found = unique(x, size, fill_value)
    return found.values, found.number


def unique_counts(x: TensorLike, size: Dim | None = None, fill_value: float = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The values and counts of `unique`, and their number.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.unique_counts(x)[1], [3, 1, 3])
    array([1, 2, 0], dtype=int32)
    """
    found = unique(x, size, fill_value)
    return found.values, found.counts, found.number


def unique_inverse(x: TensorLike, size: Dim | None = None, fill_value: float = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The values of `unique`, where each element of x is among them, and their number.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.unique_inverse(x)[1], [3, 1, 3])
    array([1, 0, 1], dtype=int32)
    """
    found = unique(x, size, fill_value)
    return found.values, found.inverse, found.number


unique_all = unique


def nonzero(x: TensorLike, size: Dim | None = None, fill_value: int = -1) -> tuple[Tensor, Tensor]:
    """The places of x that are not zero, one a row of [size, rank] (i32), and their number [1].

    `size`, by default the number of elements, is the most there can be: rows behind the number are `fill_value`, places beyond
    `size` are left out and still counted.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.nonzero(x, size=3), [[0, 5], [7, 0]])
    (array([[ 0,  1],
           [ 1,  0],
           [-1, -1]], dtype=int32), array([2], dtype=int32))
    """
    t = as_tensor(x)
    flags = ravel(convert(t, dtypes.bool_))
    count = flags.shape[0]
    most = count if size is None else as_dim(size)
    packed, number = compact(arange(count), flags)
    flat = _sized(packed, most, 0)
    columns: list[Tensor] = []
    rest = flat
    for d in reversed(t.shape):
        columns.append(mod(rest, d))
        rest = floor_divide(rest, d)
    exists = expand_dims(less(arange(most), number), 1)
    places = stack(columns[::-1], 1) if columns else zeros((most, 0), "i32")
    return where(exists, places, fill_value), number


def bincount(x: TensorLike, weights: TensorLike | None = None, length: Dim = 0) -> Tensor:
    """How often each of 0 … length - 1 occurs in x (i32), or the sums of their weights; values out of range count nowhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.bincount(x, length=4), [0, 2, 2, 9, -1])
    array([1, 0, 2, 0], dtype=int32)
    """
    ids = ravel(as_indices(x))
    if weights is None:
        return segment_sum(ones(ids.shape, "i32"), ids, length)
    w = widened(as_tensor(weights, near=ids))
    return segment_sum(ravel(w), ids, length)


def histogram(
    x: TensorLike, bins: int | TensorLike = 10, range: tuple[float, float] | None = None, weights: TensorLike | None = None
) -> tuple[Tensor, Tensor]:
    """How many elements are in each bin (i32), or the sums of their weights, and the edges; as NumPy's.

    `bins` are edges in ascending order, or a number of equal bins over `range`. A bin has its lower edge, the last one both.
    Elements outside and NaN count nowhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.histogram(x, bins=[0.0, 1.0, 2.0]), [0.0, 0.5, 1.0, 2.0, 3.0])
    (array([2, 2], dtype=int32), array([0., 1., 2.], dtype=float32))
    """
    t = convert(ravel(as_tensor(x)), dtypes.f32)
    if isinstance(bins, int):
        if range is None or bins < 1 or not range[0] < range[1]:
            raise fail(
                InputError,
                f"histogram of {bins} bins over {range}",
                hint="range=(low, high) is needed, since edges are not known before values are; or pass edges",
            )
        edges = linspace(float(range[0]), float(range[1]), bins + 1)
    else:
        edges = convert(as_tensor(bins, near=t), dtypes.f32)
        if edges.ndim != 1 or edges.shape[0] in (0, 1):
            raise fail(ShapeError, f"edges of bins are a vector of at least two, not {edges.type.describe()}")
    count = edges.shape[0] - 1
    place = subtract(searchsorted(edges, t, "right"), 1)
    place = where(equal(t, edges[-1]), as_tensor(count - 1, near=t), place)
    return bincount(place, weights, count), edges


def _segments(x: TensorLike, ids: TensorLike, number: Dim) -> tuple[Tensor, Tensor, Dim]:
    """Rows, their segments with those below 0 put out of range, and the number of segments."""
    near = x if isinstance(x, Tensor) else ids if isinstance(ids, Tensor) else None
    t = as_tensor(x, near=near)
    places = as_indices(ids, near=t)
    count = as_dim(number)
    if t.ndim < 1 or places.ndim != 1 or places.shape[0] != t.shape[0]:
        raise fail(ShapeError, f"takes rows x [M, ...] and ids [M], not {t.type.describe()} and {places.type.describe()}")
    if places.dtype.kind == "int":
        places = convert(places, dtypes.i32)
        # A negative index would count from the end.
        places = where(less(places, 0), as_tensor(count, near=places), places)
    return t, places, count


def segment_sum(x: TensorLike, ids: TensorLike, num_segments: Dim) -> Tensor:
    """The sums of the rows of x [M, ...] by their segment ids [M]; rows whose id is out of range count nowhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, i: pm.segment_sum(x, i, 3), [1.0, 2.0, 4.0, 8.0], [0, 2, 2, 7])
    array([1., 0., 6.], dtype=float32)
    """
    t, places, count = _segments(x, ids, num_segments)
    t = widened(t)
    return scatter_add(zeros((count, *t.shape[1:]), t.dtype), places, t)


def segment_mean(x: TensorLike, ids: TensorLike, num_segments: Dim) -> Tensor:
    """The means of rows by segment, in a float dtype; of an empty segment NaN.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, i: pm.segment_mean(x, i, 2), [1.0, 2.0, 4.0], [0, 1, 1])
    array([1., 3.], dtype=float32)
    """
    total = segment_sum(x, ids, num_segments)
    count = segment_sum(ones(as_tensor(ids).shape, "i32"), ids, num_segments)
    return divide(total, reshape(count, (total.shape[0], *[1] * (total.ndim - 1))))


def segment_max(x: TensorLike, ids: TensorLike, num_segments: Dim) -> Tensor:
    """The greatest of the rows by segment; of an empty segment -inf, or the least integer.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, i: pm.segment_max(x, i, 3), [1.0, 9.0, 4.0], [0, 2, 2])
    array([  1., -inf,   9.], dtype=float32)
    """
    return _segment_extreme(x, ids, num_segments, largest=True)


def segment_min(x: TensorLike, ids: TensorLike, num_segments: Dim) -> Tensor:
    """The least of the rows by segment; of an empty segment inf, or the greatest integer.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, i: pm.segment_min(x, i, 3), [1.0, 9.0, 4.0], [0, 2, 2])
    array([ 1., inf,  4.], dtype=float32)
    """
    return _segment_extreme(x, ids, num_segments, largest=False)


def _segment_extreme(x: TensorLike, ids: TensorLike, number: Dim, *, largest: bool) -> Tensor:
    t, places, count = _segments(x, ids, number)
    if t.dtype == dtypes.bool_:
        raise fail(DTypeError, "the greatest of bools by segment", hint="cast to u8 first")
    if t.dtype.is_float:
        worst: float | int = float("-inf") if largest else float("inf")
    else:
        worst = iinfo(t.dtype).min if largest else iinfo(t.dtype).max
    return emit("scatter_extreme", [full((count, *t.shape[1:]), worst, t.dtype), places, t], axis=0, largest=largest)


def knn_graph(
    points: TensorLike | None = None, k: int = 15, *, distances: TensorLike | None = None, include_self: bool = False
) -> tuple[Tensor, Tensor]:
    """The k nearest neighbours of each point: indices [n, k] (i32) and distances [n, k], nearest first; exact.

    Of points [n, d] all pairs are compared by Euclidean distance, in tiles, without a table of n × n; of a table of distances
    [n, n] the rows are searched. Of equal distances the smaller index comes first; NaN counts as infinite. A k larger than the
    number of candidates, n - 1 or n with `include_self`, is an error.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.knn_graph(x, 1), [[0.0, 0.0], [0.0, 1.0], [5.0, 1.0]])
    (array([[1], [0], [1]], dtype=int32), array([[1.], [1.], [5.]], dtype=float32))
    """
    if (points is None) == (distances is None):
        raise fail(InputError, "knn_graph takes either points or distances")
    if points is not None:
        found = emit("nearest", [convert(as_tensor(points), dtypes.f32)], k=k, include_self=bool(include_self))
        return further_result(found, 1), found
    t = convert(as_tensor(distances), dtypes.f32)  # type: ignore[arg-type]
    if t.ndim != 2 or t.shape[0] != t.shape[1]:
        raise fail(ShapeError, f"distances between n points are [n, n], not {t.type.describe()}")
    n = t.shape[0]
    most = n if include_self else n - 1
    if k < 1 or (isinstance(most, int) and k > most):
        raise fail(ShapeError, f"k = {k} is not in 1…{most}, the points that each has to choose from", k=k)
    near = negative(where(isnan(t), float("inf"), t))
    if not include_self:
        return _without_self(near, n, k)
    values, indices = top_k(near, k)
    return indices, negative(values)


def _without_self(near: Tensor, n: Dim, k: int) -> tuple[Tensor, Tensor]:
    """The greatest of each row without its own place: rows are closed up before they are searched."""
    column = arange(n - 1)
    skip = less(column, expand_dims(arange(n), 1))
    others = where(skip, narrow(near, 1, 0, n - 1), narrow(near, 1, 1, n))
    values, places = top_k(others, k)
    own = expand_dims(arange(n), 1)
    return where(less(places, own), places, add(places, 1)), negative(values)


def masked_rows(x: TensorLike, mask: TensorLike, size: Dim | None = None, fill_value: float = 0) -> tuple[Tensor, Tensor]:
    """The rows of x where a mask [M] holds, packed into [size, ...] with `fill_value` behind them, and their number [1].

    It is x[mask] with a maximum: rows beyond `size` are left out and still counted.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.masked_rows(x, x > 1.5, size=3), [1.0, 2.0, 3.0])
    (array([2., 3., 0.], dtype=float32), array([2], dtype=int32))
    """
    t = as_tensor(x)
    flags = convert(as_tensor(mask, near=t), dtypes.bool_)
    packed, number = compact(t, flags)
    count = t.shape[0]
    most = count if size is None else as_dim(size)
    place = arange(most)
    rows = packed if most == count else take(packed, place, 0)
    exists = reshape(less(place, number), (most, *[1] * (t.ndim - 1)))
    return where(exists, rows, as_tensor(fill_value, t.dtype, near=t)), number
