"""Gradients of layer_norm and rms_norm, as ops of their own and as compositions of other ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.ir.gradient import Backward, Gradients, Val


def layer_norm(c: Backward) -> Gradients:
    return _norm(c, centred=True, bias=c.needs("bias"))


def rms_norm(c: Backward) -> Gradients:
    return _norm(c, centred=False, bias=False)


def _norm(c: Backward, *, centred: bool, bias: bool) -> Gradients:
    x = c.operands["x"]
    attrs = {"axes": c.attrs["axes"], "eps": c.attrs["eps"], "centred": centred}
    found: dict[str, Val] = {}
    if c.needs("weight"):
        found["weight"], of_bias = c.dy.ops("norm_parameter_gradient", x, **attrs)
        if bias:
            found["bias"] = of_bias
    elif bias:
        found["bias"] = c.dy.wide().sum(range(c.dy.rank - c.attrs["axes"]))
    if c.needs("x"):
        found["x"] = c.dy.op("norm_gradient", x, c.operands.get("weight"), **attrs)
    return found


def _normal(x: Val, attrs: Mapping[str, Any]) -> tuple[Val, Val]:
    """x normalised, and the factor that this took."""
    row = tuple(range(x.rank - attrs["axes"], x.rank))
    centred = x - x.mean(row, keep=True) if attrs["centred"] else x
    scale = ((centred * centred).mean(row, keep=True) + float(attrs["eps"])).op("rsqrt")
    return centred * scale, scale


def norm_gradient(attrs: Mapping[str, Any], operands: Mapping[str, Val]) -> Val:
    """What norm_gradient is composed of."""
    dy, x, weight = operands["dy"], operands["x"], operands.get("weight")
    wide, row = x.wide(), tuple(range(x.rank - attrs["axes"], x.rank))
    normal, scale = _normal(wide, attrs)
    dn = dy.wide() if weight is None else dy.wide() * weight.wide()
    kept = dn - dn.mean(row, keep=True) if attrs["centred"] else dn
    return scale * (kept - normal * (dn * normal).mean(row, keep=True))


def norm_parameter_gradient(attrs: Mapping[str, Any], operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """What norm_parameter_gradient is composed of."""
    dy, x = operands["dy"], operands["x"]
    normal, _ = _normal(x.wide(), attrs)
    rows = range(x.rank - attrs["axes"])
    return (dy.wide() * normal).sum(rows), dy.wide().sum(rows)
