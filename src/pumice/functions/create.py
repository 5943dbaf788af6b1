"""Constructors of the array API standard: eye, linspace, meshgrid, triangles, empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, dim_max, dim_min
from pumice.errors import InputError, ShapeError
from pumice.functions.binary import add, divide, equal, greater_equal, less_equal, multiply, subtract, where
from pumice.functions.build import ShapeLike, TensorLike, as_dim, as_tensor, axis_of, convert, fail
from pumice.functions.index import arange, asarray, take_along_axis, zeros, zeros_like
from pumice.functions.joins import broadcast_shapes
from pumice.functions.padding import pad
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import broadcast_to, expand_dims, moveaxis, narrow, reshape, squeeze, swapaxes
from pumice.tensor import Tensor


def empty(shape: ShapeLike, dtype: Any = "f32") -> Tensor:
    """A tensor of that shape; it holds zeros, as results must not depend on what was in memory.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.empty((2,)), 0)
    array([0., 0.], dtype=float32)
    """
    return zeros(shape, dtype)


def empty_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """`empty` of x's shape and dtype.

    >>> import pumice as pm
    >>> pm.interpret(pm.empty_like, [1, 2])
    array([0, 0], dtype=int32)
    """
    return zeros_like(x, dtype)


def from_dlpack(x: Any) -> Tensor:
    """An array of another library as a constant, without a copy where memory allows; inputs of a run may be such arrays too.

    >>> import pumice as pm
    >>> import numpy as np
    >>> pm.interpret(lambda x: x + pm.from_dlpack(np.array([1, 2], np.int32)), [10, 20])
    array([11, 22], dtype=int32)
    """
    return asarray(np.from_dlpack(x))


def eye(n_rows: Dim, n_cols: Dim | None = None, k: int = 0, dtype: Any = "f32") -> Tensor:
    """Ones on the k-th diagonal above the main one, zeros elsewhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.eye(2, 3, k=1), 0)
    array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    columns = n_rows if n_cols is None else n_cols
    return convert(equal(_distance(n_rows, columns), k), dtypes.dtype(dtype))


def _distance(rows: Dim, columns: Dim) -> Tensor:
    """How far each place is above the main diagonal."""
    return subtract(arange(as_dim(columns)), expand_dims(arange(as_dim(rows)), 1))


def tril(x: TensorLike, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal of the last two axes.

    >>> import pumice as pm
    >>> pm.interpret(pm.tril, [[1, 2], [3, 4]])
    array([[1, 0],
           [3, 4]], dtype=int32)
    """
    t = _matrix(x, "tril")
    return where(less_equal(_distance(*t.shape[-2:]), k), t, as_tensor(0, t.dtype, near=t))


def triu(x: TensorLike, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal of the last two axes.

    >>> import pumice as pm
    >>> pm.interpret(pm.triu, [[1, 2], [3, 4]])
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    t = _matrix(x, "triu")
    return where(greater_equal(_distance(*t.shape[-2:]), k), t, as_tensor(0, t.dtype, near=t))


def _matrix(x: TensorLike, name: str) -> Tensor:
    t = as_tensor(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"{name} takes matrices [..., n, m], not {t.type.describe()}")
    return t


def linspace(start: TensorLike, stop: TensorLike, num: Dim = 50, endpoint: bool = True, dtype: Any = None) -> Tensor:
    """`num` evenly spaced numbers from start to stop, along a new first axis; without stop itself where endpoint is False.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linspace(0, 1, 5), 0)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = as_dim(num)
    if isinstance(count, int) and count < 0:
        raise fail(ShapeError, f"linspace cannot have {count} numbers")
    wanted = dtypes.f32 if dtype is None else dtypes.dtype(dtype)
    if isinstance(count, int) and isinstance(start, int | float) and isinstance(stop, int | float):
        return convert(as_tensor(np.linspace(start, stop, count, endpoint).astype(np.float32)), wanted)
    first, last = (convert(as_tensor(v), dtypes.f32) for v in (start, stop))
    shape = broadcast_shapes(first.shape, last.shape)
    steps = count - 1 if endpoint else count
    number = convert(reshape(arange(count), (count, *[1] * len(shape))), dtypes.f32)
    spread = multiply(number, divide(subtract(last, first), 1 if steps == 0 else steps))
    values = broadcast_to(add(first, spread), (count, *shape))
    # The last number is stop itself, not a rounding of it.
    return convert(where(equal(number, steps), last, values) if endpoint and steps != 0 else values, wanted)


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of a grid: each vector along an axis of its own; "xy" has the second vector along the first axis.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, y: pm.meshgrid(x, y), [1, 2], [3, 4, 5])[1]
    array([[3, 3],
           [4, 4],
           [5, 5]], dtype=int32)
    """
    if indexing not in ("xy", "ij"):
        raise fail(InputError, f"indexing is 'xy' or 'ij', not {indexing!r}", indexing=indexing)
    tensors = [as_tensor(a) for a in arrays]
    vectors = [t if t.ndim == 1 else reshape(t, (1,)) if t.ndim == 0 else _not_a_vector(t) for t in tensors]
    shape = tuple(v.shape[0] for v in vectors)
    rank = len(vectors)
    grids = [
        broadcast_to(reshape(v, tuple(v.shape[0] if a == k else 1 for a in range(rank))), shape) for k, v in enumerate(vectors)
    ]
    return [swapaxes(g, 0, 1) for g in grids] if indexing == "xy" and rank > 1 else grids


def _not_a_vector(t: Tensor) -> Tensor:
    raise fail(ShapeError, f"meshgrid takes vectors, not {t.type.describe()}", hint="flatten it with pm.ravel")


def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements on the diagonal of two axes, `offset` above the main one, along a new last axis.

    >>> import pumice as pm
    >>> pm.interpret(pm.diagonal, [[1, 2], [3, 4]]), pm.interpret(lambda x: pm.diagonal(x, 1), [[1, 2], [3, 4]])
    (array([1, 4], dtype=int32), array([2], dtype=int32))
    """
    t = as_tensor(x)
    a, b = axis_of(axis1, t.ndim), axis_of(axis2, t.ndim)
    if a == b:
        raise fail(ShapeError, f"the axes of a diagonal must differ, both are {a}")
    t = moveaxis(t, (a, b), (-2, -1))
    rows, columns = t.shape[-2:]
    first_row, first_column = max(0, -offset), max(0, offset)
    length = dim_max(dim_min(rows - first_row, columns - first_column), 0)
    if length == 0:
        return reshape(narrow(narrow(t, -1, 0, 0), -2, 0, 1 if rows != 0 else 0), (*t.shape[:-2], 0))
    taken = narrow(t, -2, first_row, first_row + length)
    places = reshape(arange(first_column, first_column + length), (*[1] * (t.ndim - 2), length, 1))
    return squeeze(take_along_axis(taken, broadcast_to(places, (*t.shape[:-2], length, 1)), -1), -1)


def diag(x: TensorLike, k: int = 0) -> Tensor:
    """A matrix with the vector x on its k-th diagonal, or the k-th diagonal of a matrix.

    >>> import pumice as pm
    >>> pm.interpret(pm.diag, [1, 2])
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    t = as_tensor(x)
    if t.ndim == 2:
        return diagonal(t, k)
    if t.ndim != 1:
        raise fail(ShapeError, f"diag takes a vector or a matrix, not {t.type.describe()}")
    size = t.shape[0] + abs(k)
    wide = pad(t, (max(0, k), max(0, -k)))
    return where(equal(_distance(size, size), k), wide, as_tensor(0, t.dtype, near=t))


def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal, as `pm.linalg.trace` has it: `pm.trace` traces functions."""
    return reduce_sum(diagonal(x, offset, axis1, axis2), -1)
