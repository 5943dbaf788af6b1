"""Gradients of matmuls over groups of rows: matmuls over the same groups."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients


def _nothing() -> None:
    """Sizes have no gradient."""


def grouped_matmul(c: Backward) -> Gradients:
    x, w, sizes, dy = c.arg(0), c.arg(1), c.arg(2), c.dy
    return c.each(
        lambda: dy.op("grouped_matmul", w.swap_last(), sizes),
        lambda: x.op("grouped_matmul_grad_weight", dy, sizes),
        _nothing,
    )


def grad_weight(c: Backward) -> Gradients:
    x, of_result, sizes, dy = c.arg(0), c.arg(1), c.arg(2), c.dy
    return c.each(
        lambda: of_result.op("grouped_matmul", dy.swap_last(), sizes),
        lambda: x.op("grouped_matmul", dy, sizes),
        _nothing,
    )
