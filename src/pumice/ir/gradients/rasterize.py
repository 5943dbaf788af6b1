"""The gradient of rasterised splats: an op of its own over the same pairs of splat and tile."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients


def rasterize(c: Backward) -> Gradients:
    of = c.operands
    lists = (of["pairs"], of["bounds"], of["rows"])
    return c.each(splats=lambda: of["splats"].op("rasterize_gradient", *lists, c.out, c.dy, **c.attrs))
