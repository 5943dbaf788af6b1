"""LLVM code of dot products of four bytes in each lane, by the instructions that the level has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen.lanes import LEVEL, call_named, joined
from pumice.backends.host.native.codegen.vector_math import constant

_BYTE, _SHORT, _WORD = (ir.IntType(bits) for bits in (8, 16, 32))
_REGISTER_LANES = LEVEL.register_bits // 32
_IS_512 = LEVEL.register_bits == 512
# The largest number of 16 bits, and that of a byte that a signed one is multiplied by: two products fill what 16 bits hold.
_MOST_SHORT, _MOST_DIGIT = (1 << 15) - 1, 128
MOST_NARROW = 127


def takes_signed(most: int) -> bool:
    """Whether codes up to `most`, were they unsigned, must come as signed bytes for this level."""
    return most > MOST_NARROW and LEVEL.byte_dots != "vpdpbusd"


def spread_word(builder: Any, scalar: Any, lanes: int) -> Any:
    """One number in all of so many lanes."""
    kind = ir.VectorType(scalar.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _WORD(0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


def lanes_of(builder: Any, vector: Any, first: int, count: int) -> Any:
    """Some lanes of a vector."""
    if count == vector.type.count:
        return vector
    places = ir.Constant(ir.VectorType(_WORD, count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def by_registers(builder: Any, emit: Callable[..., Any], *vectors: Any) -> Any:
    """`emit(*pieces)` for each register's share of vectors of as many lanes of 32 bits, joined."""
    count = vectors[0].type.count
    size, pieces = min(_REGISTER_LANES, count), []
    for first in range(0, count, size):
        shares = []
        for v in vectors:
            each = v.type.count // count
            shares.append(lanes_of(builder, v, first * each, size * each))
        pieces.append(emit(*shares))
    return joined(builder, pieces)


def byte_dots(builder: Any, total: Any, codes: Any, factors: Any, signed: bool = False) -> Any:
    """total plus the sums of the products of a lane's four bytes of `codes`, unsigned or `signed`, with those of `factors`.

    `factors` are signed. Levels whose instruction is `maddubs` take codes up to 127 only, `sdot` too; signed ones are no
    smaller than -128, and `maddubs` needs factors from -127 on for them. `vpdpbusd` takes no signed ones.
    """
    if LEVEL.byte_dots == "maddubs":
        return builder.add(total, widened(builder, short_dots(builder, codes, factors, signed)))
    if LEVEL.byte_dots == "vpdpbusd":
        name = f"llvm.x86.avx512.vpdpbusd.{LEVEL.register_bits}"
        return by_registers(builder, lambda t, c, f: call_named(builder, name, t.type, [t, c, f]), total, codes, factors)
    if LEVEL.byte_dots == "sdot":

        def emit(t: Any, c: Any, f: Any) -> Any:
            operands = [builder.bitcast(v, ir.VectorType(_BYTE, 16)) for v in (c, f)]
            return call_named(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", t.type, [t, *operands])

        return by_registers(builder, emit, total, codes, factors)
    return _byte_dots_by_parts(builder, total, codes, factors, signed)


def short_dots(builder: Any, codes: Any, factors: Any, signed: bool) -> Any:
    """Sums of two products each, as 16 bits: for `maddubs` alone."""

    def emit(c: Any, f: Any) -> Any:
        kind = ir.VectorType(_BYTE, 4 * c.type.count)
        c, f = builder.bitcast(c, kind), builder.bitcast(f, kind)
        if signed:
            c, f = _magnitudes(builder, c), _with_signs(builder, f, c)
        name = "llvm.x86.avx512.pmaddubs.w.512" if _IS_512 else "llvm.x86.avx2.pmadd.ub.sw"
        return call_named(builder, name, ir.VectorType(_SHORT, kind.count // 2), [c, f])

    return by_registers(builder, emit, codes, factors)


def _magnitudes(builder: Any, codes: Any) -> Any:
    return call_named(builder, f"llvm.abs.v{codes.type.count}i8", codes.type, [codes, ir.Constant(ir.IntType(1), 0)])


def _with_signs(builder: Any, factors: Any, codes: Any) -> Any:
    """Factors, negative where codes are."""
    if not _IS_512:
        return call_named(builder, "llvm.x86.avx2.psign.b", factors.type, [factors, codes])
    is_negative = builder.icmp_signed("<", codes, constant(codes, 0))
    return builder.select(is_negative, builder.sub(constant(codes, 0), factors), factors)


def widened(builder: Any, shorts: Any) -> Any:
    """Pairs of 16 bits added up as 32 bits: for `maddubs` alone."""
    lanes = shorts.type.count // 2

    def emit(s: Any) -> Any:
        name = "llvm.x86.avx512.pmaddw.d.512" if _IS_512 else "llvm.x86.avx2.pmadd.wd"
        return call_named(builder, name, ir.VectorType(_WORD, s.type.count // 2), [s, constant(s, 1)])

    pieces = [lanes_of(builder, shorts, 2 * i, 2 * _REGISTER_LANES) for i in range(0, lanes, _REGISTER_LANES)]
    return joined(builder, [emit(p) for p in pieces])


def _byte_dots_by_parts(builder: Any, total: Any, codes: Any, factors: Any, signed: bool) -> Any:
    """The same for any processor: no faster than floats, but what is computed can be tested everywhere."""
    for i in range(4):
        code = byte_of(builder, codes, i, signed)
        total = builder.add(total, builder.mul(code, byte_of(builder, factors, i, True)))
    return total


def byte_of(builder: Any, words: Any, i: int, signed: bool) -> Any:
    """Byte i of each lane as a whole number."""
    if signed:
        up = builder.shl(words, constant(words, 24 - 8 * i)) if i < 3 else words
        return builder.ashr(up, constant(words, 24))
    down = builder.lshr(words, constant(words, 8 * i)) if i else words
    return builder.and_(down, constant(words, 255)) if i < 3 else down


class ByteTotals:
    """Sums of products of bytes, exact: in 16 bits for as long as these suffice where `maddubs` gives such."""

    def __init__(self, builder: Any, start: Any, most: int, signed: bool) -> None:
        """`start` has a whole number for each lane; codes are `most` at most in size."""
        self._builder, self._total, self._signed = builder, start, signed
        self._shorts: Any = None
        self._room = max(1, _MOST_SHORT // (2 * _MOST_DIGIT * most))
        self._count = 0

    def add(self, codes: Any, factors: Any) -> None:
        if LEVEL.byte_dots != "maddubs":
            self._total = byte_dots(self._builder, self._total, codes, factors, self._signed)
            return
        made = short_dots(self._builder, codes, factors, self._signed)
        self._shorts = made if self._shorts is None else self._builder.add(self._shorts, made)
        self._count += 1
        if self._count == self._room:
            self._flush()

    def _flush(self) -> None:
        if self._shorts is not None:
            self._total = self._builder.add(self._total, widened(self._builder, self._shorts))
        self._shorts, self._count = None, 0

    def total(self) -> Any:
        """The sums."""
        self._flush()
        return self._total
