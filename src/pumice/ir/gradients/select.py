"""Gradients of selections: to the elements that were chosen, and to the points between which distances are."""

from __future__ import annotations

from pumice.core import dtypes
from pumice.ir.gradient import Backward, Gradients, Val, in_f32
from pumice.ir.gradients.index import along_axis, is_written, read_back


@in_f32
def scatter_extreme(c: Backward) -> Gradients:
    """In equal parts to all that equal the result; what came to no place has none."""
    x, indices, updates, axis = c.operands["x"], c.operands["indices"], c.operands["updates"], c.attrs["axis"]
    if x.shape[axis] == 0:
        return c.each(x=lambda: c.dy, updates=lambda: c.dy.full(0.0, updates.shape))
    inside = along_axis(is_written(indices, x.shape[axis]), x.rank, axis)
    mine = x.eq(c.out).cast(dtypes.f32)
    theirs = updates.eq(c.out.op("gather", indices, axis=axis)).both(inside).cast(dtypes.f32)
    parts = mine.op("scatter_add", indices, theirs, axis=axis)
    none = parts.eq(0.0)
    share = none.choose(0.0, c.dy / none.choose(1.0, parts))
    return c.each(x=lambda: share * mine, updates=lambda: share.op("gather", indices, axis=axis) * theirs)


def nearest(c: Backward) -> Gradients:
    dy, _ = c.dys
    if dy is None:
        return {"x": None}
    x = c.operands["x"]
    distances, indices = c.out.results
    n, k, d = *indices.shape, x.shape[1]

    def wide(v: Val) -> Val:
        return v.reshape((n, k, 1))

    others = x.op("gather", indices, axis=0)
    # Equal points have no direction between them.
    zero = distances.eq(0.0)
    pull = wide(zero.choose(0.0, dy / zero.choose(1.0, distances))) * (x.reshape((n, 1, d)) - others)
    return {"x": pull.sum((1,)) - read_back(pull, x.shape, indices, 0)}
