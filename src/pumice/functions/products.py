"""Products of vectors and tensors, in the names of NumPy and the array API standard: tensordot, vecdot, cross, outer."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.core.dims import shape_text
from pumice.errors import ShapeError
from pumice.functions.binary import multiply, subtract
from pumice.functions.build import TensorLike, axes_of, axis_of, fail, promote
from pumice.functions.joins import broadcast_arrays
from pumice.functions.matmul import dot_general, matmul
from pumice.functions.shape import concatenate, expand_dims, moveaxis, narrow, ravel, squeeze
from pumice.tensor import Tensor


def tensordot(x1: TensorLike, x2: TensorLike, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The product summed over the last `axes` axes of x1 and the first of x2, or over pairs of axes.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.tensordot(a, b, 1), [[1, 2], [3, 4]], [1, 1])
    array([3, 7], dtype=int32)
    """
    a, b = promote(x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise fail(ShapeError, f"tensordot over {axes} axes of {shape_text(a.shape)} and {shape_text(b.shape)}")
        ours, theirs = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        left, right = ((v,) if isinstance(v, int) else v for v in axes)
        ours, theirs = axes_of(left, a.ndim), axes_of(right, b.ndim)
    return dot_general(a, b, (ours, theirs))


def vecdot(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Tensor:
    """The dot products of the vectors along an axis; the other axes broadcast.

    >>> import pumice as pm
    >>> pm.interpret(pm.vecdot, [[1, 2], [3, 4]], [1, 1])
    array([3, 7], dtype=int32)
    """
    a, b = promote(x1, x2)
    a, b = (moveaxis(t, axis_of(axis, t.ndim), -1) for t in (a, b))
    if a.shape[-1] != b.shape[-1]:
        raise fail(ShapeError, f"vectors of {a.shape[-1]} and {b.shape[-1]} elements have no dot product")
    return squeeze(matmul(expand_dims(a, -2), expand_dims(b, -1)), (-2, -1))


def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The product of each element of x1 with each of x2, [M, N]; both are taken flat.

    >>> import pumice as pm
    >>> pm.interpret(pm.outer, [1, 2], [3, 4])
    array([[3, 4],
           [6, 8]], dtype=int32)
    """
    a, b = promote(x1, x2)
    return multiply(expand_dims(ravel(a), 1), ravel(b))


def cross(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Tensor:
    """The cross products of the vectors of three elements along an axis; the other axes broadcast.

    >>> import pumice as pm
    >>> pm.interpret(pm.cross, [1, 0, 0], [0, 1, 0])
    array([0, 0, 1], dtype=int32)
    """
    a, b = broadcast_arrays(*promote(x1, x2))
    where = axis_of(axis, a.ndim)
    if a.shape[where] != 3:
        raise fail(ShapeError, f"cross takes vectors of 3 elements, axis {where} of {shape_text(a.shape)} has {a.shape[where]}")

    def turned(t: Tensor, by: int) -> Tensor:
        return concatenate([narrow(t, where, by, 3), narrow(t, where, 0, by)], where)

    return subtract(multiply(turned(a, 1), turned(b, 2)), multiply(turned(a, 2), turned(b, 1)))


def kron(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Each element of x1 times all of x2, as one large matrix; an array with fewer axes has leading ones of size 1.

    >>> import pumice as pm
    >>> pm.interpret(pm.kron, [1, 2], [1, 1, 0])
    array([1, 1, 0, 2, 2, 0], dtype=int32)
    >>> pm.interpret(pm.kron, [[1, 2]], [[1, 1]])
    array([[1, 1, 2, 2]], dtype=int32)
    """
    a, b = promote(x1, x2)
    rank = max(a.ndim, b.ndim)
    a, b = (expand_dims(t, tuple(range(rank - t.ndim))) if t.ndim < rank else t for t in (a, b))
    wide = multiply(expand_dims(a, tuple(range(1, 2 * rank, 2))), expand_dims(b, tuple(range(0, 2 * rank, 2))))
    return wide.reshape(tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


def dot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """NumPy's dot: the last axis of x1 with the last but one of x2, or its only one.

    >>> import pumice as pm
    >>> pm.interpret(pm.dot, [1, 2], [3, 4])
    array(11, dtype=int32)
    """
    a, b = promote(x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(a, b)
    return dot_general(a, b, ((a.ndim - 1,), (max(b.ndim - 2, 0),)))
