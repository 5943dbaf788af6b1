"""Gradients of convolution, pooling and resizing; each of these ops but max_pool is linear, and its gradient's gradient."""

from __future__ import annotations

from pumice.core.precisions import without_fast
from pumice.ir.gradient import Backward, Gradients
from pumice.ir.registry import Attrs


def _without(attrs: Attrs, name: str) -> dict[str, object]:
    return {k: v for k, v in attrs.items() if k != name}


def conv(c: Backward) -> Gradients:
    x, w, dy = c.operands["x"], c.operands["w"], c.dy
    attrs = {**c.attrs, "precision": without_fast(c.attrs["precision"])}
    return c.each(
        x=lambda: dy.op("conv_grad_input", w, size=x.shape[2:], **attrs),
        w=lambda: x.op("conv_grad_weight", dy, kernel=w.shape[2:], **attrs),
        bias=lambda: dy.sum([0, *range(2, dy.rank)]),
    )


def conv_grad_input(c: Backward) -> Gradients:
    grad, w, dy, attrs = c.operands["grad"], c.operands["w"], c.dy, _without(c.attrs, "size")
    return c.each(
        grad=lambda: dy.op("conv", w, **attrs),
        w=lambda: dy.op("conv_grad_weight", grad, kernel=w.shape[2:], **attrs),
    )


def conv_grad_weight(c: Backward) -> Gradients:
    x, grad, dy, attrs = c.operands["x"], c.operands["grad"], c.dy, _without(c.attrs, "kernel")
    return c.each(
        x=lambda: grad.op("conv_grad_input", dy, size=x.shape[2:], **attrs),
        grad=lambda: x.op("conv", dy, **attrs),
    )


def max_pool(c: Backward) -> Gradients:
    return {"x": c.operands["x"].op("max_pool_grad", c.out, c.dy, **c.attrs)}


def mean_pool(c: Backward) -> Gradients:
    return {"x": c.dy.op("mean_pool_grad", size=c.operands["x"].shape[2:], **c.attrs)}


def mean_pool_grad(c: Backward) -> Gradients:
    return {"grad": c.dy.op("mean_pool", **_without(c.attrs, "size"))}


def upsample(c: Backward) -> Gradients:
    return {"x": c.dy.op("upsample_grad", size=c.operands["x"].shape[2:], **_without(c.attrs, "size"))}


def upsample_grad(c: Backward) -> Gradients:
    return {"grad": c.dy.op("upsample", size=c.operands["grad"].shape[2:], **_without(c.attrs, "size"))}
