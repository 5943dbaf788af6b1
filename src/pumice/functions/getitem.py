"""x[...]: ints, slices, None and Ellipsis become one slice and one reshape; integer tensors become a gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, dim_min, product, shape_text
from pumice.core.records import dataclass
from pumice.errors import DTypeError, IndexRangeError, ShapeError
from pumice.functions.binary import add, less, maximum, minimum, multiply, where
from pumice.functions.build import as_dim, as_indices, convert, emit, fail
from pumice.functions.shape import reshape
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Cut:
    """What one axis keeps: a normalised slice, and whether the axis stays."""

    start: Dim
    stop: Dim
    step: int
    keep: bool


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index] with ints, slices (any step), None, Ellipsis, symbolic dims, and integer tensors or arrays on neighbouring axes.

    Several index tensors broadcast together and pick one element each, as in NumPy. A mask of bools that is known while tracing
    picks where it holds; how many a traced mask picks is known only in a run: see `pm.compact` and `pm.nonzero`.

    Slices of a symbolic axis clamp when the graph runs, as NumPy's do: of size T, `x[-3:]` has the size min(T, 3). `x[-1:]` has
    the size 1 and needs an element. Bounds that are expressions are not clamped: `x[T - 3:]` has the size 3 and needs as many.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: x[1:, None, ::-1], [[1, 2], [3, 4]])
    array([[[4, 3]]], dtype=int32)
    >>> str(pm.trace(lambda x: x[-1], x=pm.spec("T", 4)).nodes[-1].type)
    'f32[4]'
    >>> pm.interpret(lambda x, i, j: x[i, j], [[1, 2], [3, 4]], [0, 1], [1, 0])
    array([2, 3], dtype=int32)
    """
    items = _expanded(x, _without_masks(x, index if isinstance(index, tuple) else (index,)))
    cuts: list[_Cut] = []
    shape: list[Dim] = []
    chosen: list[tuple[int, Any]] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(cuts)
        dim = x.shape[axis]
        if isinstance(item, slice):
            cuts.append(_slice(item, dim, axis))
            shape.append(-1)
        elif _is_dim(item):
            cuts.append(_at(as_dim(item), dim, axis))
        else:
            chosen.append((len(shape), item))
            cuts.append(_Cut(0, dim, 1, True))
            shape.append(-1)
    taken = _cut(x, cuts)
    kept = iter([d for d, c in zip(taken.shape, cuts, strict=True) if c.keep])
    taken = reshape(taken, tuple(next(kept) if d == -1 else d for d in shape))
    if not chosen:
        return taken
    if len(chosen) == 1:
        axis, values = chosen[0]
        return emit("gather", [taken, index_tensor(values, taken, axis)], axis=axis)
    return _pick(taken, chosen[0][0], [values for _, values in chosen])


def _pick(x: Tensor, axis: int, indices: list[Any]) -> Tensor:
    """Elements at several indices, one for each axis from `axis` on, as a gather from these axes joined."""
    place: Tensor | None = None
    for k, values in enumerate(indices):
        size = x.shape[axis + k]
        given = convert(index_tensor(values, x, axis + k), dtypes.i32)
        # Each index is clamped in its own axis: beyond it lies another row.
        counted = where(less(given, 0), add(given, size), given)
        clamped = minimum(maximum(counted, 0), size - 1)
        place = clamped if place is None else add(multiply(place, size), clamped)
    assert place is not None
    end = axis + len(indices)
    joined = reshape(x, (*x.shape[:axis], product(x.shape[axis:end]), *x.shape[end:]))
    return emit("gather", [joined, place], axis=axis)


def _without_masks(x: Tensor, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with masks of bools replaced by the places where they hold."""
    out: list[Any] = []
    for item in index:
        if isinstance(item, Tensor) and item.dtype == dtypes.bool_:
            raise fail(
                DTypeError,
                "a traced mask picks a number of elements that is known only in a run",
                hint="pm.compact packs rows to the front, pm.nonzero(mask, size=...) gives places, pm.where keeps the shape",
            )
        array = None if isinstance(item, Tensor | Expr | slice) or item is None or item is Ellipsis else np.asarray(item)
        if array is None or array.dtype != np.bool_ or array.ndim == 0:
            out.append(item)
            continue
        axis = sum(1 for i in out if i is not None)
        covered = x.shape[axis : axis + array.ndim]
        if Ellipsis not in [i for i in index if not isinstance(i, Tensor | np.ndarray)] and covered != array.shape:
            raise fail(IndexRangeError, f"a mask of shape {shape_text(array.shape)} for axes of {shape_text(covered)}")
        out.extend(np.nonzero(array))
    return tuple(out)


def index_tensor(indices: Any, x: Tensor, axis: int) -> Tensor:
    """Indices into an axis of x as a tensor; those known while tracing are checked against a static axis."""
    size = x.shape[axis]
    if not isinstance(indices, Tensor | Expr):
        array = np.asarray(indices)
        if isinstance(size, int) and array.size and array.dtype.kind in "iu":
            worst = int(array.max()) if array.max() >= size else int(array.min())
            if not -size <= worst < size:
                raise fail(
                    IndexRangeError,
                    f"index {worst} is out of range for axis {axis} of size {size}",
                    index=worst,
                    axis=axis,
                    size=size,
                )
        if array.size == 0:
            indices = array.astype(np.int32)
    return as_indices(indices, near=x)


def _is_dim(item: Any) -> bool:
    return isinstance(item, int | Expr | np.integer) and not isinstance(item, bool)


def _expanded(x: Tensor, index: tuple[Any, ...]) -> list[Any]:
    """The index with the Ellipsis, given or implied at the end, written out as whole slices."""
    used = sum(1 for i in index if i is not None and i is not Ellipsis)
    dots = [p for p, i in enumerate(index) if i is Ellipsis]
    if used > x.ndim or len(dots) > 1:
        raise fail(
            IndexRangeError,
            f"{used} indices and {len(dots)} ellipses for {shape_text(x.shape)}, which has {x.ndim} axes",
            hint="at most one index per axis and one Ellipsis",
        )
    at = dots[0] if dots else len(index)
    items = [*index[:at], *[slice(None)] * (x.ndim - used), *index[at + 1 :]]
    tensors = [p for p, i in enumerate(items) if not (i is None or isinstance(i, slice) or _is_dim(i))]
    if len(tensors) > 1 and not _joined(tensors):
        raise fail(ShapeError, "index tensors with something else between them", hint="move their axes together first")
    if tensors and not _joined([p for p, i in enumerate(items) if _is_dim(i) or p in tensors]):
        # NumPy moves such axes to the front; a rule that surprises is better refused.
        raise fail(ShapeError, "an int and a tensor index with a slice between them", hint="index in two steps")
    return items


def _joined(positions: list[int]) -> bool:
    return positions[-1] - positions[0] == len(positions) - 1


def _cut(x: Tensor, cuts: list[_Cut]) -> Tensor:
    whole = all(c.start == 0 and c.stop == d and c.step == 1 for c, d in zip(cuts, x.shape, strict=True))
    if whole:
        return x
    starts, stops, steps = (tuple(getattr(c, part) for c in cuts) for part in ("start", "stop", "step"))
    return emit("slice", [x], starts=starts, stops=stops, steps=steps)


def _at(index: Dim, dim: Dim, axis: int) -> _Cut:
    if isinstance(index, int) and isinstance(dim, int) and not -dim <= index < dim:
        raise fail(
            IndexRangeError, f"index {index} is out of range for axis {axis} of size {dim}", index=index, axis=axis, size=dim
        )
    start = _from_end(index, dim)
    return _Cut(start, start + 1, 1, False)


def _slice(s: slice, dim: Dim, axis: int) -> _Cut:
    step = 1 if s.step is None else as_dim(s.step)
    if not isinstance(step, int) or step == 0:
        raise fail(ShapeError, f"the step of a slice must be an int other than 0, not {s.step}", axis=axis)
    start, stop = (None if b is None else as_dim(b) for b in (s.start, s.stop))
    if isinstance(dim, int) and not isinstance(start, Expr) and not isinstance(stop, Expr):
        first, end, _ = slice(start, stop, step).indices(dim)
        if not range(first, end, step):
            return _Cut(0, 0, 1, True)
        return _Cut(first, end, step, True)
    if step > 0:
        # The last element is an exception: x[-1:] has the size 1, not min(T, 1), and refuses an empty axis when it runs.
        begin: Dim = 0 if start is None else dim - 1 if start == -1 else _first(start, dim)
        return _Cut(begin, dim if stop is None else _end(stop, dim), step, True)
    # Downwards, the end of an upward slice of the same elements is one above the start, and its start one above the end.
    high = dim if start is None or start == -1 else _end(start + 1, dim) if isinstance(start, int) else _from_end(start, dim) + 1
    low: Dim = 0
    if stop is not None:
        low = dim if stop == -1 else _first(stop + 1, dim) if isinstance(stop, int) else _from_end(stop, dim) + 1
    return _Cut(high - 1, low - 1, step, True)


def _from_end(bound: Dim, dim: Dim) -> Dim:
    negative = bound < 0 if isinstance(bound, int) else all(coef < 0 for _, coef in bound.terms)
    return bound + dim if negative else bound


def _first(start: Dim, dim: Dim) -> Dim:
    """Where a slice begins: an int from the end stays in the axis, an expression is taken at its word."""
    if isinstance(start, int) and isinstance(dim, Expr) and start < 0:
        return dim - dim_min(dim, -start)
    return _from_end(start, dim)


def _end(stop: Dim, dim: Dim) -> Dim:
    """The end of a slice; an int past a symbolic size is cut to it, an expression is taken at its word."""
    stop = _from_end(stop, dim)
    return dim_min(dim, stop) if isinstance(stop, int) and isinstance(dim, Expr) else stop
