"""Reading and writing by index tensors, sorting, and constructors such as arange and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Expr
from pumice.errors import DTypeError, ShapeError
from pumice.functions.binary import equal
from pumice.functions.binary import where as choose
from pumice.functions.build import (
    ShapeLike,
    TensorLike,
    as_indices,
    as_tensor,
    axis_of,
    convert,
    emit,
    fail,
    fitted,
    further_result,
)
from pumice.functions.getitem import index_tensor
from pumice.functions.shape import broadcast_to, expand_dims, narrow, ravel
from pumice.tensor import Tensor


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """The entries of an axis at integer indices of any shape; of x flattened where axis is None.

    Negative indices count from the end; beyond that, indices known while tracing are refused and others clamp.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.take(x, [2, -1, 0], axis=0), [10, 20, 30])
    array([30, 30, 10], dtype=int32)
    """
    t = as_tensor(x)
    if axis is None:
        t, axis = ravel(t), 0
    where = axis_of(axis, t.ndim)
    return emit("gather", [t, index_tensor(indices, t, where)], axis=where)


def gather(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """`take` along axis 0 unless told otherwise.

    >>> import pumice as pm
    >>> pm.interpret(pm.gather, [[1, 2], [3, 4]], [1, 1])
    array([[3, 4],
           [3, 4]], dtype=int32)
    """
    return take(x, indices, axis)


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int = -1) -> Tensor:
    """For each position the entry of the axis that its own index names; the other dims of x and indices are equal.

    >>> import pumice as pm
    >>> pm.interpret(pm.take_along_axis, [[1, 2], [3, 4]], [[1], [0]])
    array([[2],
           [3]], dtype=int32)
    """
    t = as_tensor(x)
    return emit("take_along_axis", [t, as_indices(indices, near=t)], axis=axis_of(axis, t.ndim))


def embedding(table: TensorLike, ids: TensorLike, padding_idx: int | None = None) -> Tensor:
    """The rows of a table [V, D] at `ids` of any shape; rows of a quantised table come out as f32.

    The row `padding_idx` is read like any other and has no gradient, as in PyTorch.

    >>> import pumice as pm
    >>> pm.interpret(pm.embedding, [[1.0, 2.0], [3.0, 4.0]], [1, 0, 1])
    array([[3., 4.],
           [1., 2.],
           [3., 4.]], dtype=float32)
    """
    t = as_tensor(table)
    rows = as_indices(ids, near=t)
    found = emit("embedding", [t, rows])
    if padding_idx is None:
        return found
    padding = expand_dims(equal(rows, t.shape[0] + padding_idx if padding_idx < 0 else padding_idx), -1)
    return choose(padding, emit("stop_gradient", [found]), found)


def one_hot(ids: TensorLike, depth: int, dtype: Any = "f32") -> Tensor:
    """A new last axis of that depth with 1 at each id and 0 elsewhere; ids out of range give zeros.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.one_hot(x, 3), [2, 0])
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    return emit("one_hot", [as_indices(ids)], depth=depth, dtype=dtypes.dtype(dtype).name)


def scatter_add(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0) -> Tensor:
    """x with each slice of `updates` added at its index of the axis; indices are 1-D, equal ones add up.

    >>> import pumice as pm
    >>> pm.interpret(pm.scatter_add, [0.0, 0.0, 0.0], [2, 0, 2], [1.0, 2.0, 3.0])
    array([2., 0., 4.], dtype=float32)
    """
    return _scatter("scatter_add", x, indices, updates, axis)


def scatter_set(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0) -> Tensor:
    """x with each slice of `updates` put at its index of the axis; indices are 1-D, the last of equal ones wins.

    >>> import pumice as pm
    >>> pm.interpret(pm.scatter_set, [0.0, 0.0, 0.0], [2, 0], [1.0, 2.0])
    array([2., 0., 1.], dtype=float32)
    """
    return _scatter("scatter_set", x, indices, updates, axis)


def _scatter(op: str, x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int) -> Tensor:
    near = next((v for v in (x, indices, updates) if isinstance(v, Tensor)), None)
    t = as_tensor(x, near=near)
    where = axis_of(axis, t.ndim)
    places = index_tensor(indices, t, where)
    new = fitted(updates, t.dtype, "updates of", near=t)
    shape = t.shape[:where] + places.shape + t.shape[where + 1 :]
    return emit(op, [t, places, broadcast_to(new, shape)], axis=where)


def argsort(x: TensorLike, axis: int | None = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The positions (i32) that sort an axis, or all elements where it is None; equal ones keep their order, NaN comes last.

    >>> import pumice as pm
    >>> pm.interpret(pm.argsort, [3, 1, 2])
    array([1, 2, 0], dtype=int32)
    """
    t = as_tensor(x)
    # Those of False and True are those of 0 and 1.
    return further_result(sort(convert(t, dtypes.u8) if t.dtype.kind == "bool" else t, axis, descending, stable), 1)


def sort(x: TensorLike, axis: int | None = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """An axis, or all elements where it is None, in ascending or descending order, NaN last.

    With `argsort` of the same it is sorted once. The order is stable whether or not that is asked for.

    >>> import pumice as pm
    >>> pm.interpret(pm.sort, [3, 1, 2])
    array([1, 2, 3], dtype=int32)
    """
    t = as_tensor(x)
    if axis is None:
        t, axis = ravel(t), 0
    if t.dtype.kind == "bool":
        return convert(sort(convert(t, dtypes.u8), axis, descending, stable), dtypes.bool_)
    return emit("sort", [t], axis=axis_of(axis, t.ndim), descending=bool(descending))


def top_k(x: TensorLike, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements of an axis, largest first, and their positions (i32); of equal ones the first comes first.

    With largest=False the k smallest, smallest first. NaN counts as largest. A k larger than the axis is an error.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.top_k(x, 2), [3, 1, 4, 2])
    (array([4, 3], dtype=int32), array([2, 0], dtype=int32))
    >>> pm.interpret(lambda x: pm.top_k(x, 2, largest=False), [3, 1, 4, 2])
    (array([1, 2], dtype=int32), array([1, 3], dtype=int32))
    """
    t = as_tensor(x)
    if not largest:
        where = axis_of(axis, t.ndim)
        size = t.shape[where]
        if isinstance(size, int) and k > size:
            raise fail(ShapeError, f"k = {k} is more than the {size} elements of axis {where}", k=k, axis=where)
        ordered = sort(t, where)
        return narrow(ordered, where, 0, k), narrow(further_result(ordered, 1), where, 0, k)
    values = emit("top_k", [t], k=k, axis=axis_of(axis, t.ndim))
    return values, further_result(values, 1)


def compact(x: TensorLike, keep: TensorLike) -> tuple[Tensor, Tensor]:
    """The rows of x [M, ...] whose flag in keep [M] is set, packed to the front of [M, ...], and their number, [1] in i32.

    The rest of the rows are zeros. Shapes stay static, and the work that follows need not: pass the count on as the sizes of
    `grouped_matmul`, which then multiplies those rows alone.

    >>> import pumice as pm
    >>> pm.interpret(pm.compact, [5, 6, 7, 8], [True, False, True, False])
    (array([5, 7, 0, 0], dtype=int32), array([2], dtype=int32))
    """
    values = emit("compact", [as_tensor(x), as_tensor(keep)])
    return values, further_result(values, 1)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """start, start + step, … up to but without stop; start and stop may be symbolic dims. i32 unless a number is fractional.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: x + pm.arange(3), [10, 20, 30])
    array([10, 21, 32], dtype=int32)
    """
    first, end = (0, start) if stop is None else (start, stop)
    numbers = [_plain_number(v) for v in (first, end, step)]
    chosen = (
        dtypes.dtype(dtype) if dtype is not None else dtypes.f32 if any(isinstance(v, float) for v in numbers) else dtypes.i32
    )
    return emit("arange", [], start=numbers[0], stop=numbers[1], step=numbers[2], dtype=chosen.name)


def _plain_number(value: Any) -> int | float | Expr:
    if isinstance(value, Tensor | bool):
        raise fail(
            ShapeError,
            f"{value!r} is no number that is known while tracing",
            hint="ends are numbers or dims; scale and shift a range by tensors afterwards",
        )
    return int(value) if isinstance(value, np.integer) else value


def asarray(x: TensorLike, dtype: Any = None) -> Tensor:
    """x as a tensor: numbers and arrays become constants, a symbolic dim its value as a traced scalar, tensors stay themselves.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: x.sum() / pm.asarray(x.shape[0], "f32"), [1.0, 2.0])
    array(1.5, dtype=float32)
    """
    if dtype is None:
        return as_tensor(x)
    chosen = dtypes.dtype(dtype)
    if isinstance(x, float) and chosen.is_integer:
        if not x.is_integer():
            raise fail(DTypeError, f"{x} does not fit {chosen}", hint="round it first, or use a float dtype", value=x)
        x = int(x)
    return convert(as_tensor(x, chosen), chosen)


def full(shape: ShapeLike, fill_value: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of that shape with the same value everywhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: x + pm.full((2,), 7), [1, 2])
    array([8, 9], dtype=int32)
    """
    return broadcast_to(asarray(fill_value, dtype), shape)


def zeros(shape: ShapeLike, dtype: Any = "f32") -> Tensor:
    """A tensor of zeros.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.zeros(x.shape), [1, 2])
    array([0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype)


def ones(shape: ShapeLike, dtype: Any = "f32") -> Tensor:
    """A tensor of ones.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.ones(x.shape), [1, 2])
    array([1., 1.], dtype=float32)
    """
    return full(shape, 1, dtype)


def full_like(x: TensorLike, fill_value: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of x's shape, and of its dtype unless another is given, with the same value everywhere.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.full_like(x, 7), [1.0, 2.0])
    array([7., 7.], dtype=float32)
    """
    t = as_tensor(x)
    return full(t.shape, fill_value if dtype is not None else fitted(fill_value, t.dtype, "values of", near=t), dtype)


def zeros_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of zeros of x's shape and dtype.

    >>> import pumice as pm
    >>> pm.interpret(pm.zeros_like, [1, 2])
    array([0, 0], dtype=int32)
    """
    return full_like(x, 0, dtype)


def ones_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of ones of x's shape and dtype.

    >>> import pumice as pm
    >>> pm.interpret(pm.ones_like, [1, 2])
    array([1, 1], dtype=int32)
    """
    return full_like(x, 1, dtype)
