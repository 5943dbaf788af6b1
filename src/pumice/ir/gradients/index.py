"""Gradients of reading and writing by index: a gather's gradient is a scatter-add, and the other way round."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, Shape, product
from pumice.ir.gradient import Backward, Gradients, Val


def _counted(indices: Val, size: Dim) -> Val:
    """Indices as i32, negative ones counted from the end, still out of range where they were."""
    if indices.dtype.kind == "uint":
        # u32 indices beyond i32 must stay beyond the axis.
        wide = indices.cast(dtypes.u32)
        return wide.op("min", wide.scalar(size)).cast(dtypes.i32)
    wide = indices.cast(dtypes.i32)
    return wide.lt(0).choose(wide + wide.scalar(size), wide)


def _read_index(indices: Val, size: Dim) -> Val:
    """The index that a read uses: beyond the ends it is the nearest end."""
    found = _counted(indices, size)
    last = size - 1
    if not isinstance(last, Expr):
        return found.op("clamp", lo=0.0, hi=float(last))
    return found.op("max", 0).op("min", found.scalar(last))


def is_written(indices: Val, size: Dim) -> Val:
    """Whether a write at the index happens: beyond the ends it is dropped."""
    found = _counted(indices, size)
    return found.ge(0).both(found.lt(found.scalar(size)))


def along_axis(v: Val, rank: int, axis: int) -> Val:
    """A 1-D value as one that broadcasts along an axis."""
    return v.reshape(tuple(v.shape[0] if i == axis else 1 for i in range(rank)))


def read_back(dy: Val, shape: Shape, indices: Val, axis: int) -> Val:
    """The gradient of a value of `shape` of which `indices` read an axis: each entry added up where it came from."""
    count = product(indices.shape)
    rows = _read_index(indices, shape[axis]).reshape((count,))
    updates = dy.reshape((*shape[:axis], count, *shape[axis + 1 :]))
    return updates.full(0.0, shape).op("scatter_add", rows, updates, axis=axis)


def gather(c: Backward) -> Gradients:
    return {"x": read_back(c.dy, c.operands["x"].shape, c.operands["indices"], c.attrs["axis"])}


def embedding(c: Backward) -> Gradients:
    return {"table": read_back(c.dy, c.operands["table"].shape, c.operands["ids"], 0)}


def take_along_axis(c: Backward) -> Gradients:
    x, indices, axis = c.operands["x"], c.operands["indices"], c.attrs["axis"]
    places = _read_index(indices, x.shape[axis])
    return {"x": c.dy.full(0.0, x.shape).op("scatter_along_axis_add", places, c.dy, axis=axis)}


def order(c: Backward) -> Gradients:
    """Of sort and top_k: gradients are scattered back to the original positions. Their indices have no gradient."""
    dy, _ = c.dys
    if dy is None:
        return {"x": None}
    _, indices = c.out.results
    return {"x": dy.full(0.0, c.operands["x"].shape).op("scatter_along_axis_add", indices, dy, axis=c.attrs["axis"])}


def scatter_along_axis_add(c: Backward) -> Gradients:
    x, indices, axis = c.operands["x"], c.operands["indices"], c.attrs["axis"]

    def of_updates() -> Val:
        if x.shape[axis] == 0:
            return c.dy.full(0.0, indices.shape)
        return is_written(indices, x.shape[axis]).choose(c.dy.op("take_along_axis", indices, axis=axis), 0.0)

    return c.each(x=lambda: c.dy, updates=of_updates)


def scatter_add(c: Backward) -> Gradients:
    x, indices, axis = c.operands["x"], c.operands["indices"], c.attrs["axis"]

    def of_updates() -> Val:
        if x.shape[axis] == 0:
            return c.dy.full(0.0, c.operands["updates"].shape)
        hit = along_axis(is_written(indices, x.shape[axis]), x.rank, axis)
        return hit.choose(c.dy.op("gather", indices, axis=axis), 0.0)

    return c.each(x=lambda: c.dy, updates=of_updates)


def scatter_set(c: Backward) -> Gradients:
    """For x the elements that were not overwritten, for the updates those that won."""
    x, indices, updates, axis = c.operands["x"], c.operands["indices"], c.operands["updates"], c.attrs["axis"]
    size, count = x.shape[axis], indices.shape[0]

    def of_updates() -> Val:
        if size == 0:
            return c.dy.full(0.0, updates.shape)
        number = c.dy.arange(0, count)
        winner = number.full(-1, (size,)).op("scatter_set", indices, number, axis=0)
        won = winner.op("gather", indices, axis=0).eq(number).both(is_written(indices, size))
        return along_axis(won, x.rank, axis).choose(c.dy.op("gather", indices, axis=axis), 0.0)

    return c.each(
        x=lambda: c.dy.op("scatter_set", indices, c.dy.full(0.0, updates.shape), axis=axis),
        updates=of_updates,
    )


def compact(c: Backward) -> Gradients:
    """What came for a packed row goes to where it was; rows that were left out get zeros. The count has no gradient."""
    dy, _ = c.dys
    if dy is None or not c.needs("x"):
        return {"x": None}
    keep = c.operands["keep"]
    place = keep.cast(dtypes.i32).op("cumsum", axis=0, exclusive=True, reverse=False)
    return {"x": along_axis(keep, dy.rank, 0).choose(dy.op("gather", place, axis=0), 0.0)}
