"""Gradients of matmuls over groups of rows: matmuls over the same groups. Their sizes have none."""

from __future__ import annotations

from pumice.core.precisions import without_fast
from pumice.ir.gradient import Backward, Gradients


def grouped_matmul(c: Backward) -> Gradients:
    x, w, sizes, dy = c.operands["x"], c.operands["w"], c.operands["sizes"], c.dy
    return c.each(
        x=lambda: dy.op("grouped_matmul", w.swap_last(), sizes, **c.attrs),
        w=lambda: x.op("grouped_matmul_grad_weight", dy, sizes, **c.attrs),
    )


def grouped_qmatmul(c: Backward) -> Gradients:
    weights, sizes = c.operands["w"].op("dequantize"), c.operands["sizes"]
    return {"x": c.dy.op("grouped_matmul", weights, sizes, precision=without_fast(c.attrs["precision"]))}


def grad_weight(c: Backward) -> Gradients:
    x, of_result, sizes, dy = c.operands["x"], c.operands["dy"], c.operands["sizes"], c.dy
    return c.each(
        x=lambda: of_result.op("grouped_matmul", dy.swap_last(), sizes, **c.attrs),
        dy=lambda: x.op("grouped_matmul", dy, sizes, **c.attrs),
    )
