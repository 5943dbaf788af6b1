"""Functions that move elements and compute nothing; most cost nothing at run time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pumice.core.dims import Dim, Shape, product, shape_text
from pumice.errors import ShapeError
from pumice.functions.build import (
    Axes,
    ShapeLike,
    TensorLike,
    as_dim,
    as_shape,
    as_tensor,
    axes_of,
    axis_of,
    emit,
    fail,
    promote,
)
from pumice.tensor import Tensor


def reshape(x: TensorLike, shape: ShapeLike) -> Tensor:
    """The same elements in another shape; one dim may be -1 and is worked out from the others.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.reshape(x, (2, -1)), [1, 2, 3, 4])
    array([[1, 2],
           [3, 4]], dtype=int32)
    >>> str(pm.trace(lambda x: pm.reshape(x, (x.shape[0] * 2, -1)), x=pm.spec("B", 8)).nodes[-1].type)
    'f32[2*B,4]'
    """
    t = as_tensor(x)
    wanted = _resolve(t, as_shape(shape))
    return t if wanted == t.shape else emit("reshape", [t], shape=wanted)


def _resolve(t: Tensor, shape: Shape) -> Shape:
    open_axes = [i for i, d in enumerate(shape) if d == -1]
    if not open_axes:
        return shape
    known = product(d for d in shape if d != -1)
    rest = 0 if known == 0 else t.size // known
    # An open dim is one that the others leave no choice about: not beside a 0, and only where the division is exact.
    if len(open_axes) > 1 or known == 0 or rest * known != t.size:
        raise fail(
            ShapeError,
            f"{shape_text(t.shape)} does not reshape to {shape_text(shape)}",
            hint="at most one dim is -1 and the others must divide the number of elements",
            shape=t.shape,
            wanted=shape,
        )
    return tuple(rest if d == -1 else d for d in shape)


def ravel(x: TensorLike) -> Tensor:
    """All elements along one axis; also named `flatten`.

    >>> import pumice as pm
    >>> pm.interpret(pm.ravel, [[1, 2], [3, 4]])
    array([1, 2, 3, 4], dtype=int32)
    """
    return reshape(x, (-1,))


flatten = ravel


def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order, reversed if none is given; also named `permute_dims`.

    >>> import pumice as pm
    >>> pm.interpret(pm.transpose, [[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    t = as_tensor(x)
    perm = tuple(reversed(range(t.ndim))) if axes is None else axes_of(axes, t.ndim)
    if len(perm) != t.ndim:
        raise fail(ShapeError, f"axes {perm} do not name each of the {t.ndim} axes of {shape_text(t.shape)} once")
    return t if perm == tuple(range(t.ndim)) else emit("transpose", [t], perm=perm)


permute_dims = transpose


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.swapaxes(x, 0, 1), [[1, 2, 3]])
    array([[1],
           [2],
           [3]], dtype=int32)
    """
    t = as_tensor(x)
    perm = list(range(t.ndim))
    i, j = axis_of(axis1, t.ndim), axis_of(axis2, t.ndim)
    perm[i], perm[j] = perm[j], perm[i]
    return transpose(t, perm)


def moveaxis(x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Some axes moved to other places, the rest in their order.

    >>> import pumice as pm
    >>> str(pm.trace(lambda x: pm.moveaxis(x, 0, -1), x=pm.spec(2, 3, 4)).nodes[-1].type)
    'f32[3,4,2]'
    """
    t = as_tensor(x)
    origins, places = axes_of(source, t.ndim), axes_of(destination, t.ndim)
    if len(origins) != len(places):
        raise fail(ShapeError, f"{len(origins)} axes cannot move to {len(places)} places")
    perm = [a for a in range(t.ndim) if a not in origins]
    for place, axis in sorted(zip(places, origins, strict=True)):
        perm.insert(place, axis)
    return transpose(t, perm)


def squeeze(x: TensorLike, axis: Axes = None) -> Tensor:
    """Without axes of size 1: those named, or all of them.

    >>> import pumice as pm
    >>> pm.interpret(pm.squeeze, [[[1], [2]]])
    array([1, 2], dtype=int32)
    """
    t = as_tensor(x)
    gone = [a for a, d in enumerate(t.shape) if d == 1] if axis is None else axes_of(axis, t.ndim)
    for a in gone:
        if t.shape[a] != 1:
            raise fail(ShapeError, f"axis {a} of {shape_text(t.shape)} is {t.shape[a]}, only 1 can be squeezed", axis=a)
    return reshape(t, tuple(d for a, d in enumerate(t.shape) if a not in gone))


def expand_dims(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """With new axes of size 1 at those places of the result.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.expand_dims(x, -1), [1, 2])
    array([[1],
           [2]], dtype=int32)
    """
    t = as_tensor(x)
    rank = t.ndim + (len(axis) if isinstance(axis, tuple | list) else 1)
    new = axes_of(axis, rank)
    rest = iter(t.shape)
    return reshape(t, tuple(1 if a in new else next(rest) for a in range(rank)))


def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Repeated along axes of size 1 and along new axes in front, up to `shape`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.broadcast_to(x, (2, 3)), [1, 2, 3])
    array([[1, 2, 3],
           [1, 2, 3]], dtype=int32)
    """
    t, wanted = as_tensor(x), as_shape(shape)
    return t if wanted == t.shape else emit("expand", [t], shape=wanted)


def concatenate(arrays: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """Joined along an axis, or flat and joined where axis is None; also named `concat`.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.concatenate([a, b], axis=1), [[1], [2]], [[3], [4]])
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    parts = promote(*arrays)
    if axis is None:
        parts, axis = [ravel(p) for p in parts], 0
    where = axis_of(axis, parts[0].ndim)
    return parts[0] if len(parts) == 1 else emit("concat", parts, axis=where)


concat = concatenate


def stack(arrays: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Joined along a new axis.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.stack([a, b]), [1, 2], [3, 4])
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    parts = promote(*arrays)
    where = axis_of(axis, parts[0].ndim + 1)
    return concatenate([expand_dims(p, where) for p in parts], where)


def split(x: TensorLike, indices_or_sections: int | Sequence[Dim], axis: int = 0) -> list[Tensor]:
    """Cut along an axis: into that many equal parts, or before each of the given positions.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.split(x, 2), [1, 2, 3, 4])
    (array([1, 2], dtype=int32), array([3, 4], dtype=int32))
    """
    t = as_tensor(x)
    where = axis_of(axis, t.ndim)
    size = t.shape[where]
    if isinstance(indices_or_sections, tuple | list):
        cuts: list[Dim] = [0, *(as_dim(d) for d in indices_or_sections), size]
    else:
        sections = as_dim(indices_or_sections)
        if not isinstance(sections, int) or sections < 1 or size % sections != 0:
            raise fail(ShapeError, f"axis {where} of size {size} does not split into {sections} equal parts", axis=where)
        cuts = [size // sections * i for i in range(sections + 1)]
    return [narrow(t, where, a, b) for a, b in pairwise(cuts)]


def narrow(x: TensorLike, axis: int, start: Dim, stop: Dim) -> Tensor:
    """The elements start…stop-1 of one axis.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.narrow(x, 0, 1, 3), [1, 2, 3, 4])
    array([2, 3], dtype=int32)
    """
    t = as_tensor(x)
    return t[(slice(None),) * axis_of(axis, t.ndim) + (slice(start, stop),)]


def flip(x: TensorLike, axis: Axes = None) -> Tensor:
    """Reversed along axes, or along all.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.flip(x, 1), [[1, 2], [3, 4]])
    array([[2, 1],
           [4, 3]], dtype=int32)
    """
    t = as_tensor(x)
    axes = tuple(sorted(axes_of(axis, t.ndim)))
    return emit("flip", [t], axes=axes) if axes else t


def roll(x: TensorLike, shift: Dim | Sequence[Dim], axis: int | Sequence[int] | None = None) -> Tensor:
    """Shifted along axes, or flat, with what falls off one end put in at the other; one shift for all axes or one for each.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.roll(x, 1), [1, 2, 3])
    array([3, 1, 2], dtype=int32)
    >>> pm.interpret(lambda x: pm.roll(x, (1, 1), axis=(0, 1)), [[1, 2], [3, 4]])
    array([[4, 3],
           [2, 1]], dtype=int32)
    """
    t = as_tensor(x)
    if axis is None:
        total: Dim = 0
        for d in shift if isinstance(shift, tuple | list) else [shift]:
            total = total + as_dim(d)
        return reshape(_rolled(ravel(t), total, 0), t.shape)
    axes = list(axis) if isinstance(axis, tuple | list) else [axis]
    shifts = list(shift) if isinstance(shift, tuple | list) else [as_dim(shift)] * len(axes)
    if len(shifts) != len(axes):
        raise fail(ShapeError, f"{len(shifts)} shifts for {len(axes)} axes", hint="one shift for all axes, or one for each")
    for d, a in zip(shifts, axes, strict=True):
        t = _rolled(t, as_dim(d), axis_of(a, t.ndim))
    return t


def _rolled(t: Tensor, shift: Dim, where: int) -> Tensor:
    size = t.shape[where]
    moved = 0 if size == 0 else as_dim(shift) % size
    if moved == 0:
        return t
    return concatenate([narrow(t, where, size - moved, size), narrow(t, where, 0, size - moved)], where)


def repeat(x: TensorLike, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Each element that many times in a row, along an axis or flat; one number for all or one for each, known while tracing.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.repeat(x, 2), [1, 2])
    array([1, 1, 2, 2], dtype=int32)
    >>> pm.interpret(lambda x: pm.repeat(x, [2, 0, 1]), [1, 2, 3])
    array([1, 1, 3], dtype=int32)
    """
    t = as_tensor(x)
    if axis is None:
        t, axis = ravel(t), 0
    where = axis_of(axis, t.ndim)
    before, size, after = t.shape[:where], t.shape[where], t.shape[where + 1 :]
    if isinstance(repeats, tuple | list | np.ndarray) and np.size(repeats) != 1:
        counts = np.asarray(repeats)
        if counts.dtype.kind not in "iu" or counts.shape != (size,) or counts.min(initial=0) < 0:
            raise fail(
                ShapeError,
                f"repeats {counts.tolist()!r:.60} do not fit an axis of size {size}",
                hint="one int for all, or one that is not negative for each entry of a static axis",
            )
        return emit("gather", [t, as_tensor(np.repeat(np.arange(len(counts)), counts).astype(np.int32), near=t)], axis=where)
    count = as_dim(np.asarray(repeats).item() if isinstance(repeats, tuple | list | np.ndarray) else repeats)
    wide = broadcast_to(expand_dims(t, where + 1), (*before, size, count, *after))
    return reshape(wide, (*before, size * count, *after))


def tile(x: TensorLike, reps: int | Sequence[int]) -> Tensor:
    """The whole tensor repeated along each axis; missing counts are 1, more counts than axes add axes in front.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.tile(x, 2), [1, 2])
    array([1, 2, 1, 2], dtype=int32)
    """
    t = as_tensor(x)
    counts = as_shape(reps)
    rank = max(t.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - t.ndim) + t.shape
    # A copy is a new axis before each old one, merged afterwards.
    split_shape = tuple(d for s in shape for d in (1, s))
    wide = broadcast_to(reshape(t, split_shape), tuple(d for pair in zip(counts, shape, strict=True) for d in pair))
    return reshape(wide, tuple(c * s for c, s in zip(counts, shape, strict=True)))
