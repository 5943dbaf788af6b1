"""Gradients of elementwise ops; at kinks and ties they are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable

from pumice.ir.gradient import Backward, Gradients, Rule, Val, in_f32

_LN2, _LN10 = math.log(2.0), math.log(10.0)


def _gelu_slope(x: Val) -> Val:
    normal = (x * math.sqrt(0.5)).op("erf") * 0.5 + 0.5
    density = (x * x * -0.5).op("exp") * (1 / math.sqrt(2 * math.pi))
    return normal + x * density


def _gelu_tanh_slope(x: Val) -> Val:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = (x * scale * (square * cubic + 1.0)).op("tanh")
    inner = (square * (3 * cubic) + 1.0) * scale
    return (t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * inner


def _silu_slope(x: Val) -> Val:
    s = x.op("sigmoid")
    return s * (x * (1.0 - s) + 1.0)


# dy, x, y → the gradient of x.
_UNARY: dict[str, Callable[[Val, Val, Val], Val]] = {
    "neg": lambda dy, x, y: -dy,
    "abs": lambda dy, x, y: x.gt(0.0).choose(dy, x.lt(0.0).choose(-dy, 0.0)),  # 0 for NaN, whose sign is NaN
    "square": lambda dy, x, y: dy * x * 2.0,
    "relu": lambda dy, x, y: y.le(0.0).choose(0.0, dy),  # NaN passes
    "exp": lambda dy, x, y: dy * y,
    "exp2": lambda dy, x, y: dy * y * _LN2,
    "expm1": lambda dy, x, y: dy * (y + 1.0),
    "log": lambda dy, x, y: dy / x,
    "log2": lambda dy, x, y: dy / (x * _LN2),
    "log10": lambda dy, x, y: dy / (x * _LN10),
    "log1p": lambda dy, x, y: dy / (x + 1.0),
    "sqrt": lambda dy, x, y: dy / (y * 2.0),
    "rsqrt": lambda dy, x, y: dy * y * y * y * -0.5,
    "reciprocal": lambda dy, x, y: -(dy * y * y),
    "sin": lambda dy, x, y: dy * x.op("cos"),
    "cos": lambda dy, x, y: -(dy * x.op("sin")),
    "tan": lambda dy, x, y: dy * (y * y + 1.0),
    "asin": lambda dy, x, y: dy * (1.0 - x * x).op("rsqrt"),
    "acos": lambda dy, x, y: -(dy * (1.0 - x * x).op("rsqrt")),
    "atan": lambda dy, x, y: dy / (x * x + 1.0),
    "sinh": lambda dy, x, y: dy * x.op("cosh"),
    "cosh": lambda dy, x, y: dy * x.op("sinh"),
    "tanh": lambda dy, x, y: dy * (1.0 - y * y),
    "asinh": lambda dy, x, y: dy / y.op("cosh"),
    "acosh": lambda dy, x, y: dy / y.op("sinh"),
    "atanh": lambda dy, x, y: dy / (1.0 - x * x),
    "erf": lambda dy, x, y: dy * (-(x * x)).op("exp") * (2 / math.sqrt(math.pi)),
    "sigmoid": lambda dy, x, y: dy * y * (1.0 - y),
    "gelu": lambda dy, x, y: dy * _gelu_slope(x),
    "gelu_tanh": lambda dy, x, y: dy * _gelu_tanh_slope(x),
    "silu": lambda dy, x, y: dy * _silu_slope(x),
    "softplus": lambda dy, x, y: dy * x.op("sigmoid"),
}


def _of_one(gradient: Callable[[Val, Val, Val], Val]) -> Rule:
    return in_f32(lambda c: {"x": gradient(c.dy, c.operands["x"], c.out)})


UNARY: dict[str, Rule] = {name: _of_one(gradient) for name, gradient in _UNARY.items()}


# --- two operands ---


def _add(c: Backward) -> Gradients:
    return c.each(a=lambda: c.dy, b=lambda: c.dy)


def _sub(c: Backward) -> Gradients:
    return c.each(a=lambda: c.dy, b=lambda: -c.dy.sum_to(c.operands["b"].shape))


@in_f32
def _mul(c: Backward) -> Gradients:
    return c.each(a=lambda: c.dy * c.operands["b"], b=lambda: c.dy * c.operands["a"])


@in_f32
def _div(c: Backward) -> Gradients:
    b = c.operands["b"]
    return c.each(a=lambda: c.dy / b, b=lambda: -(c.dy * c.out / b))


@in_f32
def _mod(c: Backward) -> Gradients:
    return c.each(a=lambda: c.dy, b=lambda: -(c.dy * c.operands["a"].op("floor_div", c.operands["b"])))


@in_f32
def _pow(c: Backward) -> Gradients:
    a, b = c.operands["a"], c.operands["b"]

    def of_exponent() -> Val:
        # 0 to any power from 0 on has no slope in the exponent; log(0) would make it NaN.
        flat = a.eq(0.0).both(b.ge(0.0))
        return flat.choose(0.0, c.dy * c.out * flat.choose(1.0, a).op("log"))

    # Where the exponent is 0 the slope is 0 for any base: 0 to the power -1 must not be computed.
    return c.each(a=lambda: b.eq(0.0).choose(0.0, c.dy * b * a.op("pow", b - 1.0)), b=of_exponent)


def _extreme(greater: bool) -> Rule:
    @in_f32
    def rule(c: Backward) -> Gradients:
        a, b = c.operands["a"], c.operands["b"]

        def share(mine: Val, other: Val) -> Val:
            """All where mine is the extreme, half where both are."""
            beaten = mine.lt(other) if greater else mine.gt(other)
            return beaten.choose(0.0, mine.eq(other).choose(c.dy * 0.5, c.dy))

        return c.each(a=lambda: share(a, b), b=lambda: share(b, a))

    return rule


@in_f32
def _atan2(c: Backward) -> Gradients:
    a, b = c.operands["a"], c.operands["b"]
    squares = a * a + b * b
    origin = squares.eq(0.0)
    scaled = origin.choose(0.0, c.dy / origin.choose(1.0, squares))
    return c.each(a=lambda: scaled * b, b=lambda: -(scaled * a))


BINARY: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "pow": _pow,
    "max": _extreme(greater=True),
    "min": _extreme(greater=False),
    "atan2": _atan2,
}

# --- where, clamp, cast ---


def where(c: Backward) -> Gradients:
    cond = c.operands["cond"]
    return c.each(a=lambda: cond.choose(c.dy, 0.0), b=lambda: cond.choose(0.0, c.dy))


@in_f32
def clamp(c: Backward) -> Gradients:
    """All of it within the bounds and on them, nothing beyond."""
    x, dy = c.operands["x"], c.dy
    for bound, inside in ((c.attrs["lo"], x.ge), (c.attrs["hi"], x.le)):
        if bound is not None:
            dy = inside(float(bound)).choose(dy, 0.0)
    return {"x": dy}


def cast(c: Backward) -> Gradients:
    return {"x": c.dy}


def identity(c: Backward) -> Gradients:
    return {"x": c.dy}
