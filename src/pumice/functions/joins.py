"""Functions over several shapes or arrays: broadcasting, stacking, taking axes apart."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.core.dims import Shape, shape_text
from pumice.errors import PumiceError, ShapeError
from pumice.functions.build import ShapeLike, TensorLike, as_shape, as_tensor, axis_of, fail, promote
from pumice.functions.shape import broadcast_to, concatenate, reshape, swapaxes
from pumice.ir.rules import broadcast
from pumice.tensor import Tensor


def broadcast_shapes(*shapes: ShapeLike) -> Shape:
    """The shape that tensors of these shapes broadcast to.

    >>> import pumice as pm
    >>> pm.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return broadcast(*(as_shape(s) for s in shapes))
    except PumiceError as e:
        raise fail(type(e), e.message, hint=e.hint) from None


def broadcast_arrays(*arrays: TensorLike) -> list[Tensor]:
    """The arrays, each repeated to their common shape.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.broadcast_arrays(a, b), [1, 2], [[3], [4]])[0]
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    near = next((a for a in arrays if isinstance(a, Tensor)), None)
    tensors = [as_tensor(a, near=near) for a in arrays]
    shape = broadcast_shapes(*(t.shape for t in tensors))
    return [broadcast_to(t, shape) for t in tensors]


def unstack(x: TensorLike, axis: int = 0) -> tuple[Tensor, ...]:
    """The entries along a static axis, one by one.

    >>> import pumice as pm
    >>> pm.interpret(pm.unstack, [[1, 2], [3, 4]])
    (array([1, 2], dtype=int32), array([3, 4], dtype=int32))
    """
    t = as_tensor(x)
    where = axis_of(axis, t.ndim)
    size = t.shape[where]
    if not isinstance(size, int):
        raise fail(ShapeError, f"axis {where} of {shape_text(t.shape)} is symbolic, so its entries cannot be listed")
    return tuple(t[(slice(None),) * where + (k,)] for k in range(size))


def vstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Joined along the first axis; vectors count as rows.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.vstack([a, b]), [1, 2], [3, 4])
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    parts = promote(*arrays)
    return concatenate([reshape(p, (1, p.size)) if p.ndim < 2 else p for p in parts], 0)


def hstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Joined along the second axis, vectors along their only one.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.hstack([a, b]), [1, 2], [3, 4])
    array([1, 2, 3, 4], dtype=int32)
    """
    parts = [reshape(p, (1,)) if p.ndim == 0 else p for p in promote(*arrays)]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


def matrix_transpose(x: TensorLike) -> Tensor:
    """The last two axes exchanged.

    >>> import pumice as pm
    >>> pm.interpret(pm.matrix_transpose, [[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    t = as_tensor(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"takes matrices [..., n, m], not {t.type.describe()}")
    return swapaxes(t, -1, -2)
