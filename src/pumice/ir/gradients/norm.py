"""Gradients of layer_norm and rms_norm, as ops of their own and as compositions of other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.ir.gradient import Backward, Gradients, Val


def layer_norm(c: Backward) -> Gradients:
    return _norm(c, centred=True)


def rms_norm(c: Backward) -> Gradients:
    return _norm(c, centred=False)


def _norm(c: Backward, *, centred: bool) -> Gradients:
    x, weight = c.arg(0), c.inputs[1]
    attrs = {"axes": c.attrs["axes"], "eps": c.attrs["eps"], "centred": centred}
    of_weight: Val | None = None
    of_bias: Val | None = None
    need_bias = len(c.needed) > 2 and c.needed[2]
    if c.needed[1]:
        of_weight, of_bias = c.dy.ops("norm_parameter_gradient", x, **attrs)
    elif need_bias:
        of_bias = c.dy.wide().sum(range(c.dy.rank - c.attrs["axes"]))
    of_x = c.dy.op("norm_gradient", x, weight, **attrs) if c.needed[0] else None
    return [of_x, of_weight, of_bias if need_bias else None][: len(c.inputs)]


def _normal(x: Val, attrs: Mapping[str, Any]) -> tuple[Val, Val]:
    """x normalised, and the factor that this took."""
    row = tuple(range(x.rank - attrs["axes"], x.rank))
    centred = x - x.mean(row, keep=True) if attrs["centred"] else x
    scale = ((centred * centred).mean(row, keep=True) + float(attrs["eps"])).op("rsqrt")
    return centred * scale, scale


def norm_gradient(attrs: Mapping[str, Any], operands: Sequence[Val | None]) -> Val:
    """What norm_gradient is composed of."""
    dy, x, weight = operands
    assert dy is not None and x is not None
    wide, row = x.wide(), tuple(range(x.rank - attrs["axes"], x.rank))
    normal, scale = _normal(wide, attrs)
    dn = dy.wide() if weight is None else dy.wide() * weight.wide()
    kept = dn - dn.mean(row, keep=True) if attrs["centred"] else dn
    return scale * (kept - normal * (dn * normal).mean(row, keep=True))


def norm_parameter_gradient(attrs: Mapping[str, Any], operands: Sequence[Val | None]) -> tuple[Val, Val]:
    """What norm_parameter_gradient is composed of."""
    dy, x = operands
    assert dy is not None and x is not None
    normal, _ = _normal(x.wide(), attrs)
    rows = range(x.rank - attrs["axes"])
    return (dy.wide() * normal).sum(rows), dy.wide().sum(rows)
