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


# --- channels of a batch ---


def channel_norm(c: Backward) -> Gradients:
    x, attrs = c.operands["x"], {"eps": c.attrs["eps"]}
    dy, of_mean, of_variance = c.dys
    _, mean, variance = c.out.results
    if dy is None:  # mean and variance do not depend on weight and bias
        found = {name: c.operands[name].full(0.0) for name in ("weight", "bias") if c.needs(name)}
    else:
        dx, weight, bias = dy.ops("channel_norm_gradient", x, mean, variance, c.operands.get("weight"), **attrs)
        found = c.each(x=lambda: dx, weight=lambda: weight, bias=lambda: bias)
    if not c.needs("x"):
        return found
    # Mean and variance are seldom used; each element has its share in them.
    x = x.wide()
    axes, channel = _others(x), (1, x.shape[1], *[1] * (x.rank - 2))
    share = 1.0 / x.full(1.0).sum(axes, keep=True)
    parts = [found["x"]] if "x" in found else []
    if of_mean is not None:
        parts.append((of_mean.reshape(channel) * share).expand(x.shape))
    if of_variance is not None:
        parts.append((x - mean.reshape(channel)) * (of_variance.reshape(channel) * share) * 2.0)
    if parts:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        found["x"] = total
    return found


def _others(x: Val) -> tuple[int, ...]:
    """All axes but that of the channels."""
    return (0, *range(2, x.rank))


def composed_channel_norm(attrs: Mapping[str, Any], operands: Mapping[str, Val]) -> tuple[Val, Val, Val]:
    """What channel_norm is composed of."""
    x, weight, bias = operands["x"].wide(), operands.get("weight"), operands.get("bias")
    axes, channel = _others(x), (1, x.shape[1], *[1] * (x.rank - 2))
    mean = x.mean(axes, keep=True)
    centred = x - mean
    variance = centred.op("square").mean(axes, keep=True)
    y = centred * (variance + float(attrs["eps"])).op("rsqrt")
    y = y if weight is None else y * weight.wide().reshape(channel)
    y = y if bias is None else y + bias.wide().reshape(channel)
    return y, mean.reshape(x.shape[1:2]), variance.reshape(x.shape[1:2])


def channel_norm_gradient(attrs: Mapping[str, Any], operands: Mapping[str, Val]) -> tuple[Val, Val, Val]:
    """What channel_norm_gradient is composed of."""
    dy, x, weight = operands["dy"].wide(), operands["x"].wide(), operands.get("weight")
    axes, channel = _others(x), (1, x.shape[1], *[1] * (x.rank - 2))
    mean, variance = (operands[name].wide().reshape(channel) for name in ("mean", "variance"))
    scale = (variance + float(attrs["eps"])).op("rsqrt")
    normal = (x - mean) * scale
    along, total = (dy * normal).mean(axes, keep=True), dy.mean(axes, keep=True)
    factor = scale if weight is None else scale * weight.wide().reshape(channel)
    dx = factor * (dy - total - normal * along)
    return dx, (dy * normal).sum(axes), dy.sum(axes)
