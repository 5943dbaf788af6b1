"""LLVM code that turns vectors of small floats, given as bits, into float32."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pumice.backends.host.native import levels
from pumice.backends.host.native.codegen.vector_math import constant

_WIDENS_F16 = levels.current().widens_f16


def _floats(like: Any) -> Any:
    return ir.VectorType(ir.FloatType(), like.type.count)


def from_half(builder: Any, bits: Any) -> Any:
    """f16 numbers in the low 16 bits of each lane."""
    if not _WIDENS_F16:
        return _from_half_bits(builder, bits)
    count, short = bits.type.count, ir.IntType(16)
    if bits.type.element != short:
        bits = builder.trunc(bits, ir.VectorType(short, count))
    return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), count)), _floats(bits))


def _from_half_bits(builder: Any, bits: Any) -> Any:
    """The same without an instruction for it: exponent and mantissa move to where f32 has them, and a factor mends the bias."""
    wide = ir.VectorType(ir.IntType(32), bits.type.count)
    bits = bits if bits.type == wide else builder.zext(bits, wide)
    size = builder.shl(builder.and_(bits, constant(bits, 0x7FFF)), constant(bits, 13))
    sign = builder.shl(builder.and_(bits, constant(bits, 0x8000)), constant(bits, 16))
    value = builder.fmul(builder.bitcast(size, _floats(bits)), ir.Constant(_floats(bits), [2.0**112] * bits.type.count))
    # Infinities and NaNs have the largest exponent, which is another one in f32.
    special = builder.icmp_unsigned(">=", size, constant(bits, 0x7C00 << 13))
    found = builder.select(special, builder.or_(size, constant(bits, 0x7F800000)), builder.bitcast(value, wide))
    return builder.bitcast(builder.or_(found, sign), _floats(bits))


def from_e5m2(builder: Any, codes: Any) -> Any:
    """The upper halves of f16."""
    return from_half(builder, builder.shl(codes, constant(codes, 8)))


def _e4m3_without_sign(builder: Any, size: Any, factor: float) -> Any:
    """As f16 with another bias."""
    value = from_half(builder, builder.shl(size, constant(size, 7)))
    return builder.fmul(value, constant(value, 256.0 * factor))


def from_e4m3(builder: Any, codes: Any) -> Any:
    """The largest code is NaN."""
    size, sign = builder.and_(codes, constant(codes, 127)), builder.and_(codes, constant(codes, 128))
    value = _e4m3_without_sign(builder, size, 1.0)
    value = builder.select(builder.icmp_unsigned("!=", sign, constant(codes, 0)), builder.fneg(value), value)
    nan = constant(value, float("nan"))
    return builder.select(builder.icmp_unsigned("==", size, constant(codes, 127)), nan, value)


def half_of_ue4m3(builder: Any, codes: Any) -> Any:
    """Half of an e4m3 number without a sign, of which the largest code is 0."""
    value = _e4m3_without_sign(builder, builder.and_(codes, constant(codes, 127)), 0.5)
    return builder.select(builder.icmp_unsigned("==", codes, constant(codes, 127)), constant(value, 0.0), value)


def half_powers(builder: Any, exponents: Any) -> Any:
    """Half of the power of two that a biased exponent stands for."""
    small = builder.shl(constant(exponents, 1 << 21), builder.and_(exponents, constant(exponents, 1)))
    large = builder.shl(builder.sub(exponents, constant(exponents, 1)), constant(exponents, 23))
    is_small = builder.icmp_unsigned("<", exponents, constant(exponents, 2))
    return builder.bitcast(builder.select(is_small, small, large), _floats(exponents))
