"""Gradients of matmuls and of rotary embedding."""

from __future__ import annotations

from pumice.core.dims import product
from pumice.core.precisions import without_fast
from pumice.ir.gradient import Backward, Gradients, Val


def matmul(c: Backward) -> Gradients:
    a, b, dy = c.operands["a"], c.operands["b"], c.dy
    # Vectors become matrices of one row or column, and so does the gradient of the result.
    left = a.reshape((1, *a.shape)) if a.rank == 1 else a
    right = b.reshape((*b.shape, 1)) if b.rank == 1 else b
    lead = dy.shape[: dy.rank - (a.rank > 1) - (b.rank > 1)]
    dy = dy.reshape((*lead, left.shape[-2], right.shape[-1]))

    def times(x: Val, y: Val) -> Val:
        return x.op("matmul", y, precision=c.attrs["precision"])

    def of_left() -> Val:
        return times(dy, right.swap_last()).sum_to(left.shape).reshape(a.shape)

    def of_right() -> Val:
        if right.rank == 2 and left.rank > 2:
            # One matmul over all rows, instead of one per batch entry and their sum.
            flat = left.reshape((product(left.shape[:-1]), left.shape[-1]))
            rows = dy.reshape((product(dy.shape[:-1]), dy.shape[-1]))
            if dy.builder.nodes[right.id].op == "transpose":
                # The next transpose cancels this one: the gradient of the weight itself needs no copy.
                return times(rows.swap_last(), flat).swap_last()
            return times(flat.swap_last(), rows).reshape(b.shape)
        return times(left.swap_last(), dy).sum_to(right.shape).reshape(b.shape)

    return c.each(a=of_left, b=of_right)


def qmatmul(c: Backward) -> Gradients:
    return {"x": c.dy.op("matmul", c.operands["w"].op("dequantize"), precision=without_fast(c.attrs["precision"]))}


def rope(c: Backward) -> Gradients:
    """The inverse rotation of dy; and the gradients of the tables."""
    x, cos, sin, dy = c.operands["x"], c.operands["cos"], c.operands["sin"], c.dy
    rotary, interleaved = c.attrs["rotary_dim"], c.attrs["interleaved"]

    def pair(v: Val) -> tuple[Val, Val]:
        last, wide = v.rank - 1, v.wide()
        if interleaved:
            return wide.slice_axis(last, 0, rotary, 2), wide.slice_axis(last, 1, rotary, 2)
        return wide.slice_axis(last, 0, rotary // 2), wide.slice_axis(last, rotary // 2, rotary)

    def of_cos() -> Val:
        (a, b), (da, db) = pair(x), pair(dy)
        return a * da + b * db

    def of_sin() -> Val:
        (a, b), (da, db) = pair(x), pair(dy)
        return a * db - b * da

    return c.each(x=lambda: dy.op("rope", cos, -sin, rotary_dim=rotary, interleaved=interleaved), cos=of_cos, sin=of_sin)
