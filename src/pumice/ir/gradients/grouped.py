"""Gradients of matmuls over groups of rows: matmuls over the same groups. Their sizes have none."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients


def grouped_matmul(c: Backward) -> Gradients:
    x, w, sizes, dy = c.operands["x"], c.operands["w"], c.operands["sizes"], c.dy
    return c.each(
        x=lambda: dy.op("grouped_matmul", w.swap_last(), sizes),
        w=lambda: x.op("grouped_matmul_grad_weight", dy, sizes),
    )


def grouped_qmatmul(c: Backward) -> Gradients:
    return {"x": c.dy.op("grouped_matmul", c.operands["w"].op("dequantize"), c.operands["sizes"])}


def grad_weight(c: Backward) -> Gradients:
    x, of_result, sizes, dy = c.operands["x"], c.operands["dy"], c.operands["sizes"], c.dy
    return c.each(
        x=lambda: of_result.op("grouped_matmul", dy.swap_last(), sizes),
        dy=lambda: x.op("grouped_matmul", dy, sizes),
    )
