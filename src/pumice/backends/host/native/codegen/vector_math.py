"""Arithmetic of vectors as LLVM instructions; the functions take a builder and work for any number of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pumice.backends.host.native import levels

# A product and a sum may become one instruction that rounds once.
FUSED = ("contract",)
# (exp(r) - 1 - r)/r² on [-ln 2, ln 2], fitted for the least error relative to exp(r), 3e-8; powers from the highest.
_EXP = (1.961160e-4, 1.41044706e-3, 8.33610352e-3, 4.16612700e-2, 1.66666135e-1, 5.00000358e-1)
# Beyond these exp is infinite, or rounds to 0.
_LEAST_POWER, _LARGEST_POWER = -104.0, 89.0
_LN4_HIGH, _LN4_LOW = 1.38671875, -4.24388880e-4  # ln 4; multiples of the first part are exact
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


def call(builder: Any, name: str, *operands: Any) -> Any:
    """An intrinsic of LLVM's of vectors of one type."""
    kind = operands[0].type
    full = f"llvm.{name}.v{kind.count}f32"
    found = builder.module.globals.get(full)
    if found is None:
        found = ir.Function(builder.module, ir.FunctionType(kind, [o.type for o in operands]), full)
    return builder.call(found, operands)


def exp(builder: Any, x: Any) -> Any:
    """exp(x) in the whole range, infinities and denormal results included."""
    x = x if _is_negative(x) else minimum(builder, x, constant(x, _LARGEST_POWER))
    return _power_of_e(builder, maximum(builder, x, constant(x, _LEAST_POWER)))


def _is_negative(x: Any) -> bool:
    """Whether x is computed as -|…|."""
    inner = x.operands[0] if isinstance(x, ir.Instruction) and x.opname == "fneg" else None
    return isinstance(inner, ir.CallInstr) and inner.callee.name.startswith("llvm.fabs")


def _power_of_e(builder: Any, x: Any) -> Any:
    """exp(x) within the bounds, as 4ⁿ exp(r) with |r| at most ln 2."""
    shifted = fused(builder, x, constant(x, 0.5 / math.log(2)), constant(x, _ROUNDER))
    n = builder.fsub(shifted, constant(x, _ROUNDER))
    r = fused(builder, n, constant(x, -_LN4_LOW), fused(builder, n, constant(x, -_LN4_HIGH), x))
    value = fused(builder, builder.fmul(r, r), polynomial(builder, r, _EXP), builder.fadd(r, constant(x, 1.0)))
    # n is still in the low bits, from which it goes to an exponent. 4ⁿ itself may be no number, but 2ⁿ twice is.
    bits = builder.shl(builder.bitcast(shifted, ints(x)), ir.Constant(ints(x), [23] * x.type.count))
    power = builder.bitcast(builder.add(bits, ir.Constant(ints(x), [127 << 23] * x.type.count)), x.type)
    return builder.fmul(builder.fmul(value, power), power, flags=FUSED)


def nearest(builder: Any, x: Any) -> Any:
    """Rounded to whole numbers, half to even."""
    if levels.current().rounds:
        return call(builder, "rint", x)
    # Beyond 2**23 all floats are whole; a sum with it has no room for a fraction.
    large = call(builder, "copysign", constant(x, 2.0**23), x)
    rounded = builder.fsub(builder.fadd(x, large), large)
    return builder.select(below(builder, absolute(builder, x), 2.0**23), rounded, x)


def sqrt(builder: Any, x: Any) -> Any:
    return call(builder, "sqrt", x)


def absolute(builder: Any, x: Any) -> Any:
    return call(builder, "fabs", x)


def tanh(builder: Any, x: Any) -> Any:
    """By exp(2|x|), and near 0, where that would cancel, by a polynomial."""
    size = absolute(builder, x)
    grown = _power_of_e(builder, minimum(builder, builder.fadd(size, size), constant(x, _LARGEST_POWER)))
    large = builder.fsub(constant(x, 1.0), builder.fdiv(constant(x, 2.0), builder.fadd(grown, constant(x, 1.0), flags=FUSED)))
    large = call(builder, "copysign", large, x)
    square = builder.fmul(x, x)
    small = fused(builder, builder.fmul(x, square), polynomial(builder, square, _TANH), x)
    return builder.select(below(builder, size, _TANH_SMALL), small, large)


def _extreme(builder: Any, a: Any, b: Any, order: str) -> Any:
    if isinstance(b, ir.Constant):  # a number: one instruction, which gives its second operand where there is a NaN
        return builder.select(builder.fcmp_ordered(order[0], b, a), b, a)
    first = builder.or_(builder.fcmp_ordered(order, a, b), builder.fcmp_unordered("uno", a, a))
    return builder.select(first, a, b)


def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The greater; NaN if either is."""
    return _extreme(builder, a, b, ">=")


def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The lesser; NaN if either is."""
    return _extreme(builder, a, b, "<=")
