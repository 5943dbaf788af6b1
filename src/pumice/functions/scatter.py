"""Writing element by element: each update goes to the place that its own index names along an axis."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.core.dims import Dim, product, shape_text
from pumice.errors import ShapeError
from pumice.functions.binary import add, greater_equal, less, logical_and, multiply, where
from pumice.functions.build import TensorLike, as_indices, as_tensor, axis_of, convert, emit, fail, fitted
from pumice.functions.index import arange, scatter_set
from pumice.functions.shape import broadcast_to, ravel, reshape
from pumice.tensor import Tensor


def _operands(x: TensorLike, indices: TensorLike, values: TensorLike, axis: int) -> tuple[Tensor, Tensor, Tensor, int]:
    near = next((v for v in (x, indices, values) if isinstance(v, Tensor)), None)
    t = as_tensor(x, near=near)
    along = axis_of(axis, t.ndim)
    places = as_indices(indices, near=t)
    if places.ndim != t.ndim or any(a != along and p != d for a, (p, d) in enumerate(zip(places.shape, t.shape, strict=True))):
        raise fail(
            ShapeError,
            f"indices {shape_text(places.shape)} do not fit x {shape_text(t.shape)} but for axis {along}",
            hint="all other dims are equal",
        )
    return t, places, broadcast_to(fitted(values, t.dtype, "values of", near=t), places.shape), along


def scatter_along_axis(x: TensorLike, indices: TensorLike, values: TensorLike, axis: int = -1) -> Tensor:
    """x with each value added at the place that its own index names along the axis, as PyTorch's scatter_add.

    The other dims of x, indices and values are equal. Negative indices count from the end; those out of range are dropped.

    >>> import pumice as pm
    >>> pm.interpret(pm.scatter_along_axis, [[0, 0], [0, 0]], [[1, 1], [0, 1]], [[1, 2], [3, 4]])
    array([[0, 3],
           [3, 4]], dtype=int32)
    """
    t, places, new, along = _operands(x, indices, values, axis)
    return emit("scatter_along_axis_add", [t, places, new], axis=along)


def put_along_axis(x: TensorLike, indices: TensorLike, values: TensorLike, axis: int = -1) -> Tensor:
    """x with each value put at the place that its own index names along the axis; the last of equal ones wins.

    The other dims of x, indices and values are equal. Negative indices count from the end; those out of range are dropped.

    >>> import pumice as pm
    >>> pm.interpret(pm.put_along_axis, [[0, 0], [0, 0]], [[1], [0]], [[7], [8]])
    array([[0, 7],
           [8, 0]], dtype=int32)
    """
    t, places, new, along = _operands(x, indices, values, axis)
    size = t.shape[along]
    given = convert(places, dtypes.i32)
    counted = where(less(given, 0), add(given, size), given)
    inside = logical_and(greater_equal(counted, 0), less(counted, size))
    place: Tensor | None = None
    for a, d in enumerate(t.shape):
        rank = t.ndim
        index = counted if a == along else reshape(arange(d), tuple(d if b == a else 1 for b in range(rank)))
        place = index if place is None else add(multiply(place, d), index)
    assert place is not None
    beyond: Dim = product(t.shape)
    where_to = where(inside, broadcast_to(place, places.shape), beyond)
    return reshape(scatter_set(ravel(t), ravel(where_to), ravel(new)), t.shape)
