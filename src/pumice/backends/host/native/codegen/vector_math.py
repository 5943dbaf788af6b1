"""Arithmetic of vectors as LLVM instructions; the functions take a builder and work for any number of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen.approximations import ERF_P, ERF_Q, ERFC, GELU_ZERO

# A product and a sum may become one instruction that rounds once.
FUSED = ("contract",)
# exp(r) on [-ln 2 / 2, ln 2 / 2] to about one unit in the last place.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
# The powers of e that are normal numbers.
_LEAST_POWER, _LARGEST_POWER = -87.3, 88.37
_LN2, _LN2_HIGH, _LN2_LOW = math.log(2), 0.693359375, -2.12194440e-4
_ROUNDER = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
# tanh(x)/x - 1 in x² below _TANH_SMALL, by powers from the highest.
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH_SMALL = 0.625


def constant(like: Any, value: float) -> Any:
    """That number in every lane of a vector like another."""
    return ir.Constant(like.type, [value] * like.type.count)


def ints(like: Any) -> Any:
    """The type of ints in as many lanes."""
    return ir.VectorType(ir.IntType(32), like.type.count)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c."""
    return builder.fadd(builder.fmul(a, b, flags=FUSED), c, flags=FUSED)


def polynomial(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """By Horner's rule, from the highest power."""
    value = constant(x, coefficients[0])
    for c in coefficients[1:]:
        value = fused(builder, value, x, constant(x, c))
    return value


def below(builder: Any, x: Any, limit: float) -> Any:
    return builder.fcmp_ordered("<", x, constant(x, limit))


def above(builder: Any, x: Any, limit: float) -> Any:
    return builder.fcmp_ordered(">", x, constant(x, limit))


def clamp(builder: Any, x: Any, low: float, high: float) -> Any:
    """x within bounds; NaN stays."""
    x = builder.select(above(builder, x, high), constant(x, high), x)
    return builder.select(below(builder, x, low), constant(x, low), x)


def call(builder: Any, name: str, *operands: Any) -> Any:
    """An intrinsic of LLVM's of vectors of one type."""
    kind = operands[0].type
    full = f"llvm.{name}.v{kind.count}f32"
    found = builder.module.globals.get(full)
    if found is None:
        found = ir.Function(builder.module, ir.FunctionType(kind, [o.type for o in operands]), full)
    return builder.call(found, operands)


def exponential(builder: Any, x: Any) -> Any:
    """exp(x), NaN for NaN; beyond the range of normal numbers, about the smallest or the greatest of them."""
    x = clamp(builder, x, _LEAST_POWER, _LARGEST_POWER)
    shifted = builder.fadd(builder.fmul(x, constant(x, 1.4426950408889634)), constant(x, _ROUNDER))
    whole = builder.fsub(shifted, constant(x, _ROUNDER))
    rest = fused(builder, whole, constant(x, -_LN2_LOW), fused(builder, whole, constant(x, -_LN2_HIGH), x))
    value = polynomial(builder, rest, _EXP)
    value = fused(builder, builder.fmul(rest, rest), value, builder.fadd(rest, constant(x, 1.0)))
    # The integer, still in the low bits, goes to the exponent.
    power = builder.shl(builder.bitcast(shifted, ints(x)), ir.Constant(ints(x), [23] * x.type.count))
    return builder.bitcast(builder.add(builder.bitcast(value, ints(x)), power), x.type)


def exp(builder: Any, x: Any) -> Any:
    """exp(x) in the whole range, infinities and denormal results included."""
    high, low = above(builder, x, 88.0), below(builder, x, -87.0)
    nearer = builder.select(high, builder.fsub(x, constant(x, _LN2)), x)
    nearer = builder.select(low, builder.fadd(x, constant(x, 24 * _LN2)), nearer)
    factor = builder.select(high, constant(x, 2.0), constant(x, 1.0))
    factor = builder.select(low, constant(x, 2.0**-24), factor)
    found = builder.fmul(exponential(builder, nearer), factor)
    return builder.select(below(builder, x, -104.0), constant(x, 0.0), found)


def sqrt(builder: Any, x: Any) -> Any:
    return call(builder, "sqrt", x)


def absolute(builder: Any, x: Any) -> Any:
    return call(builder, "fabs", x)


def rsqrt(builder: Any, x: Any) -> Any:
    return builder.fdiv(constant(x, 1.0), sqrt(builder, x))


def sigmoid(builder: Any, x: Any) -> Any:
    return builder.fdiv(constant(x, 1.0), builder.fadd(exp(builder, builder.fneg(x)), constant(x, 1.0)))


def silu(builder: Any, x: Any) -> Any:
    return _gated(builder, x, builder.fneg(x))


def _gated(builder: Any, x: Any, power: Any) -> Any:
    """x / (1 + exp(power)); where that overflows x times 0, however large x is."""
    found = builder.fdiv(x, builder.fadd(exponential(builder, power), constant(x, 1.0)))
    return builder.select(above(builder, power, _LARGEST_POWER), builder.fmul(x, constant(x, 0.0)), found)


def tanh(builder: Any, x: Any) -> Any:
    """By exp(2|x|), and near 0, where that would cancel, by a polynomial."""
    size = absolute(builder, x)
    grown = exponential(builder, builder.fadd(size, size))
    large = builder.fsub(constant(x, 1.0), builder.fdiv(constant(x, 2.0), builder.fadd(grown, constant(x, 1.0))))
    large = call(builder, "copysign", large, x)
    square = builder.fmul(x, x)
    small = fused(builder, builder.fmul(x, square), polynomial(builder, square, _TANH), x)
    return builder.select(below(builder, size, _TANH_SMALL), small, large)


def erf(builder: Any, x: Any) -> Any:
    x = clamp(builder, x, -4.0, 4.0)
    square = builder.fmul(x, x)
    top = builder.fmul(polynomial(builder, square, ERF_P), x)
    return builder.fdiv(top, polynomial(builder, square, ERF_Q))


def gelu(builder: Any, x: Any) -> Any:
    """x Φ(x), with Φ(-|x|) from the tail, which does not cancel for negative x."""
    size = absolute(builder, x)
    size = builder.select(above(builder, size, GELU_ZERO), constant(x, GELU_ZERO), size)
    t = builder.fdiv(constant(x, 1.0), fused(builder, size, constant(x, 0.5 * math.sqrt(0.5)), constant(x, 1.0)))
    power = builder.fsub(polynomial(builder, t, ERFC), builder.fmul(builder.fmul(size, size), constant(x, 0.5)))
    tail = builder.fmul(exponential(builder, power), builder.fmul(t, constant(x, 0.5)))
    tail = builder.select(below(builder, power, _LEAST_POWER), constant(x, 0.0), tail)
    share = builder.select(below(builder, x, 0.0), tail, builder.fsub(constant(x, 1.0), tail))
    return builder.fmul(x, share)


def gelu_tanh(builder: Any, x: Any) -> Any:
    """(1 + tanh u)/2 = 1/(1 + exp(-2u)), which does not cancel for negative x."""
    scale = -2 * math.sqrt(2 / math.pi)
    inner = fused(builder, builder.fmul(x, x), constant(x, 0.044715 * scale), constant(x, scale))
    return _gated(builder, x, builder.fmul(x, inner))


def _extreme(builder: Any, a: Any, b: Any, order: str) -> Any:
    first = builder.or_(builder.fcmp_ordered(order, a, b), builder.fcmp_unordered("uno", a, a))
    return builder.select(first, a, b)


def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The greater; NaN if either is."""
    return _extreme(builder, a, b, ">=")


def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The lesser; NaN if either is."""
    return _extreme(builder, a, b, "<=")
