"""Gradients of reductions, scans and softmax."""

from __future__ import annotations

from pumice.core.dims import product
from pumice.ir.gradient import Backward, Gradients, in_f32


def sum_(c: Backward) -> Gradients:
    return {"x": c.dy.restore(c.operands["x"].shape, c.attrs["axes"])}


@in_f32
def mean(c: Backward) -> Gradients:
    shape, axes = c.operands["x"].shape, c.attrs["axes"]
    count = product(shape[a] for a in axes)
    each = c.dy * (1 / count) if isinstance(count, int) and count else c.dy / c.dy.scalar(count)
    return {"x": each.restore(shape, axes)}


@in_f32
def extreme(c: Backward) -> Gradients:
    """Elements that tie for the extreme share evenly; where it is NaN, those that are."""
    x, axes = c.operands["x"], c.attrs["axes"]
    chosen = x.eq(c.out.keep(x.shape, axes)).op("logical_or", x.op("isnan"))
    ties = chosen.cast(x.dtype).sum(axes, keep=True)
    return {"x": chosen.choose(c.dy.keep(x.shape, axes) / ties, 0.0)}


@in_f32
def prod(c: Backward) -> Gradients:
    """The product of all others: it is not 0 at a lone zero, so zeros are counted and left out."""
    x, axes = c.operands["x"], c.attrs["axes"]
    zero = x.eq(0.0)
    zeros = zero.cast(x.dtype).sum(axes, keep=True)
    factors = zero.choose(1.0, x)
    product_ = factors.op("reduce_prod", axes=axes, keepdims=True)
    scaled = c.dy.keep(x.shape, axes) * product_
    at_zero = zeros.eq(1.0).choose(scaled, 0.0)
    elsewhere = zeros.eq(0.0).choose(scaled, 0.0) / factors
    return {"x": zero.choose(at_zero, elsewhere)}


@in_f32
def cumsum(c: Backward) -> Gradients:
    return {"x": c.dy.op("cumsum", axis=c.attrs["axis"], exclusive=c.attrs["exclusive"], reverse=not c.attrs["reverse"])}


@in_f32
def softmax(c: Backward) -> Gradients:
    weighted = c.dy * c.out
    return {"x": weighted - c.out * weighted.sum((c.attrs["axis"],), keep=True)}


@in_f32
def log_softmax(c: Backward) -> Gradients:
    return {"x": c.dy - c.out.op("exp") * c.dy.sum((c.attrs["axis"],), keep=True)}
