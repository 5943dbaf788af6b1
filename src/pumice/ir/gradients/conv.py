"""Gradients of convolution, pooling and resizing; each of these ops but max_pool is linear, and its gradient's gradient."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients
from pumice.ir.registry import Attrs


def _without(attrs: Attrs, name: str) -> dict[str, object]:
    return {k: v for k, v in attrs.items() if k != name}


def conv(c: Backward) -> Gradients:
    x, w, dy = c.arg(0), c.arg(1), c.dy
    return c.each(
        lambda: dy.op("conv_grad_input", w, size=x.shape[2:], **c.attrs),
        lambda: x.op("conv_grad_weight", dy, kernel=w.shape[2:], **c.attrs),
        lambda: dy.sum([0, *range(2, dy.rank)]),
    )


def conv_grad_input(c: Backward) -> Gradients:
    grad, w, dy, attrs = c.arg(0), c.arg(1), c.dy, _without(c.attrs, "size")
    return c.each(
        lambda: dy.op("conv", w, **attrs),
        lambda: dy.op("conv_grad_weight", grad, kernel=w.shape[2:], **attrs),
    )


def conv_grad_weight(c: Backward) -> Gradients:
    x, grad, dy, attrs = c.arg(0), c.arg(1), c.dy, _without(c.attrs, "kernel")
    return c.each(
        lambda: grad.op("conv_grad_input", dy, size=x.shape[2:], **attrs),
        lambda: x.op("conv", dy, **attrs),
    )


def max_pool(c: Backward) -> Gradients:
    return [c.arg(0).op("max_pool_grad", c.out, c.dy, **c.attrs)]


def mean_pool(c: Backward) -> Gradients:
    return [c.dy.op("mean_pool_grad", size=c.arg(0).shape[2:], **c.attrs)]


def mean_pool_grad(c: Backward) -> Gradients:
    return [c.dy.op("mean_pool", **_without(c.attrs, "size"))]


def upsample(c: Backward) -> Gradients:
    return [c.dy.op("upsample_grad", size=c.arg(0).shape[2:], **_without(c.attrs, "size"))]


def upsample_grad(c: Backward) -> Gradients:
    return [c.dy.op("upsample", size=c.arg(0).shape[2:], **_without(c.attrs, "size"))]
