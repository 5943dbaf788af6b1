"""LLVM code that reads a block of 32 rows of packed weights, generated from the record of its format.

The bytes of a block are stored side by side for all rows, LANES apart: byte j of every row is one vector of bytes. Codes are put
together as bytes, four to a lane of 32 bits, and only then widened.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen import small_floats
from pumice.backends.host.native.codegen.lanes import (
    FLOATS,
    INTS,
    call_named,
    deal,
    dealt_bytes,
    fetch_for_reading,
    has_feature,
    joined,
    pointer,
    turned,
)
from pumice.backends.host.native.codegen.vector_math import FUSED, fused
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES
from pumice.core.block_formats import Bits, BlockLayout, Plane, SubScales

_BYTE, _SHORT, _LONG = (ir.IntType(bits) for bits in (8, 16, 64))
_BYTES = ir.VectorType(_BYTE, LANES)
_EVERY_BYTE = 0x01010101
# Bytes between what is computed and what is fetched: enough for memory to answer, few enough to stay in the first cache.
AHEAD = 4096
# Elements for which a loop's body has code of its own: the bits of a byte.
STEP = 8
# Unsigned codes are what signed ones are plus this.
RAISED = 128


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _masked(builder: Any, value: Any, bits: Bits, to: int, mask: int) -> Any:
    """A field moved from its bit `bits.shift` to bit `to`; `mask` is that of the field at bit 0, in every element."""
    kind = value.type
    if to > bits.shift:
        value = builder.shl(value, _constant(kind, to - bits.shift))
    elif to < bits.shift:
        value = builder.lshr(value, _constant(kind, bits.shift - to))
    return value if bits.width == 8 else builder.and_(value, _constant(kind, mask << to))


def look_up(builder: Any, table: Sequence[int], codes: Any) -> Any:
    """Entries of a table of 16 bytes by codes below 16, for any vector of bytes."""
    count = codes.type.count
    width = 64 if has_feature("avx512bw") and count % 64 == 0 else 32
    if count > width:
        parts = [
            builder.shuffle_vector(codes, codes, ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(i, i + width))))
            for i in range(0, count, width)
        ]
        return joined(builder, [look_up(builder, table, part) for part in parts])
    entries = [n & 255 for n in table]
    if has_feature("avx2"):
        name = "llvm.x86.avx512.pshuf.b.512" if width == 64 else "llvm.x86.avx2.pshuf.b"
        return call_named(builder, name, codes.type, [ir.Constant(codes.type, entries * (width // 16)), codes])
    # Halves of the table by one bit of the code after the other.
    found = [_constant(codes.type, n) for n in entries]
    for bit in (1, 2, 4, 8):
        is_set = builder.icmp_unsigned("!=", builder.and_(codes, _constant(codes.type, bit)), _constant(codes.type, 0))
        found = [builder.select(is_set, found[i + 1], found[i]) for i in range(0, len(found), 2)]
    return found[0]


def loop(builder: Any, count: int, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Runs `body(n, carried)`, which gives what it carries on, for n from 0 in steps of STEP; what the last one gives."""
    before = builder.block
    inside, end = (builder.function.append_basic_block(name) for name in ("elements", "after_elements"))
    builder.branch(inside)
    builder.position_at_end(inside)
    n = builder.phi(_LONG)
    n.add_incoming(_LONG(0), before)
    values = []
    for value in carried:
        values.append(builder.phi(value.type))
        values[-1].add_incoming(value, before)
    made = body(n, values)
    after = builder.add(n, _LONG(STEP))
    n.add_incoming(after, builder.block)
    for value, new in zip(values, made, strict=True):
        value.add_incoming(new, builder.block)
    builder.cbranch(builder.icmp_signed("<", after, _LONG(count)), inside, end)
    builder.position_at_end(end)
    return made


class BlockReader:
    """Emits the code that reads one block of 32 rows at the address `w`; `dealt` gives the lanes of floats in that order."""

    def __init__(self, builder: Any, layout: BlockLayout, w: Any, dealt: bool = False) -> None:
        self._builder, self._layout, self._w, self._dealt = builder, layout, w, dealt
        # The address of the codes, beyond `w` by as many elements as a loop is at, and the same for single bits in order.
        self._codes = self._ordered = w
        self._kept: dict[int, Any] = {}
        self._fetched = 0

    def fetch(self, share: float) -> None:
        """Prefetches the blocks ahead, up to this share of a block."""
        until = int(share * self._layout.nbytes * LANES)
        for at in range(self._fetched, until, 64):
            fetch_for_reading(self._builder, self._builder.add(self._w, _LONG(AHEAD + at)))
            self._fetched = at + 64

    def move_to(self, n: Any) -> None:
        """Elements are n further on from now on: a whole number of STEPs that does not change the bits of their bytes."""
        builder = self._builder
        self._codes = builder.add(self._w, builder.mul(n, _LONG(LANES)))
        self._ordered = builder.add(self._w, builder.mul(n, _LONG(LANES // 8)))
        self._kept = {}

    def _row(self, base: Any, byte: int, count: int = 1) -> Any:
        """Byte `byte` of all rows, or `count` bytes one after the other."""
        kind = ir.VectorType(_BYTE, count * LANES)
        found = self._builder.load(pointer(self._builder, self._builder.add(base, _LONG(byte * LANES)), kind))
        found.align = 1
        return found

    def _base(self, plane: Plane) -> Any:
        return self._ordered if plane.run == 1 else self._codes

    # --- one element of all rows ---

    def _together(self, fields: Sequence[tuple[Any, Bits]]) -> Any:
        """Fields at addresses, lowest first, as bytes."""
        found, at = None, 0
        for base, bits in fields:
            part = _masked(self._builder, self._row(base, bits.byte), bits, at, (1 << bits.width) - 1)
            found = part if found is None else self._builder.or_(found, part)
            at += bits.width
        return found

    def number(self, k: int) -> Any:
        """Element k of all rows, without scales, as floats."""
        layout, builder = self._layout, self._builder
        codes = self._together([(self._base(plane), plane.of(k)) for plane in layout.planes])
        if layout.table:
            codes = look_up(builder, layout.table, codes)
        elif layout.zero:
            codes = builder.sub(codes, _constant(_BYTES, layout.zero))
        return self._float(codes, signed=bool(layout.table or layout.zero or layout.is_signed))

    def _ints(self, codes: Any, signed: bool = False) -> Any:
        """Bytes as ints."""
        if self._dealt:
            return dealt_bytes(self._builder, codes, signed)
        return (self._builder.sext if signed else self._builder.zext)(codes, INTS.vector)

    def _float(self, codes: Any, signed: bool) -> Any:
        return self._builder.sitofp(self._ints(codes, signed), FLOATS.vector)

    # --- four elements of all rows ---

    def _four_rows(self, byte: int) -> Any:
        """Four bytes for each lane, the first lowest; kept, as other elements have bits in them too."""
        if byte not in self._kept:
            self._kept[byte] = turned(self._builder, self._row(self._codes, byte, 4))
        return self._kept[byte]

    def _four_bits(self, bits: Bits, to: int) -> Any:
        """Single bits of four neighbours in one byte of each row, moved to bit `to` of the bytes of a lane."""
        builder = self._builder
        row = builder.zext(self._row(self._ordered, bits.byte), INTS.vector)
        nibble = builder.and_(builder.lshr(row, _constant(INTS.vector, bits.shift)), _constant(INTS.vector, 15))
        spread_bits = builder.mul(nibble, _constant(INTS.vector, sum(1 << (to + 7 * i) for i in range(4))))
        return builder.and_(spread_bits, _constant(INTS.vector, _EVERY_BYTE << to))

    def four_codes(self, k: int) -> Any:
        """The codes of elements k…k+3 as unsigned bytes of each lane: `raised` more than they stand for."""
        layout, builder, found, at = self._layout, self._builder, None, 0
        for plane in layout.planes:
            bits = plane.of(k)
            if plane.run == 1:
                part = self._four_bits(bits, at)
            else:
                part = _masked(builder, self._four_rows(bits.byte), bits, at, ((1 << bits.width) - 1) * _EVERY_BYTE)
            found = part if found is None else builder.or_(found, part)
            at += plane.width
        if layout.table:
            wide = ir.VectorType(_BYTE, 4 * LANES)
            codes = builder.bitcast(found, wide)
            return builder.bitcast(look_up(builder, [n + RAISED for n in layout.table], codes), INTS.vector)
        if layout.is_signed:
            return builder.xor(found, _constant(INTS.vector, RAISED * _EVERY_BYTE))
        return found

    @property
    def raised(self) -> int:
        """By how much `four_codes` are too large."""
        return RAISED if self._layout.table or self._layout.is_signed else self._layout.zero

    # --- scales ---

    def _f16(self, byte: int) -> Any:
        wide = ir.VectorType(_SHORT, LANES)
        rows = (self._row(self._w, byte + i) for i in range(2))
        low, high = (self._builder.zext(deal(self._builder, r) if self._dealt else r, wide) for r in rows)
        return small_floats.from_half(self._builder, self._builder.or_(low, self._builder.shl(high, _constant(wide, 8))))

    def scale(self) -> Any:
        """The block's scale; None if there is none."""
        layout, builder = self._layout, self._builder
        if layout.scale is None:
            return None
        if layout.scale_kind == "f16":
            return self._f16(layout.scale)
        if layout.scale_kind == "e8m0":
            return small_floats.half_powers(builder, self._ints(self._row(self._w, layout.scale)))
        found = builder.bitcast(turned(builder, self._row(self._w, layout.scale, 4)), FLOATS.vector)
        return deal(builder, found) if self._dealt else found

    def least(self) -> Any:
        """The block's offset, with its sign; None if there is none."""
        if self._layout.least is None:
            return None
        found = self._f16(self._layout.least)
        return found if self._layout.least_sign > 0 else self._builder.fneg(found)

    def sub_scale(self, scales: SubScales | None, part: int) -> Any:
        """The sub-scale of a part as floats; None if there is none."""
        if scales is None:
            return None
        found = self._together([(self._w, bits) for bits in scales.parts[part]])
        if scales.is_float:
            return small_floats.half_of_ue4m3(self._builder, self._ints(found))
        codes = self._builder.sub(found, _constant(_BYTES, scales.zero)) if scales.zero else found
        return self._float(codes, signed=True)


def times(builder: Any, a: Any, b: Any) -> Any:
    """a b, where None is 1."""
    return b if a is None else a if b is None else builder.fmul(a, b, flags=FUSED)


def add_scaled(builder: Any, scale: Any, value: Any, total: Any) -> Any:
    """total + scale * value, where no scale is 1 and no total is 0."""
    if total is None:
        return times(builder, scale, value)
    return builder.fadd(total, value, flags=FUSED) if scale is None else fused(builder, scale, value, total)


def emit_values(builder: Any, layout: BlockLayout, w: Any, values: Any) -> None:
    """Writes the values of a block as [elements, LANES] float32."""
    reader, size = BlockReader(builder, layout, w), layout.part_size
    scale, least, done = reader.scale(), reader.least(), 0
    for stretch in layout.stretches():
        done += stretch.count * len(stretch.starts)
        reader.fetch(done / layout.elements)
        parts = {start // size for start in stretch.starts}
        steps = {p: times(builder, scale, reader.sub_scale(layout.scales, p)) for p in parts}
        lows = {p: None if least is None else times(builder, least, reader.sub_scale(layout.leasts, p)) for p in parts}

        def store(
            n: Any, _: list[Any], starts: tuple[int, ...] = stretch.starts, steps: Any = steps, lows: Any = lows
        ) -> list[Any]:
            reader.move_to(n)
            for i, start in itertools.product(range(STEP), starts):
                value = builder.fmul(reader.number(start + i), steps[start // size], flags=FUSED)
                low = lows[start // size]
                value = value if low is None else builder.fadd(value, low, flags=FUSED)
                to = builder.add(values, builder.mul(builder.add(n, _LONG(start + i)), _LONG(VECTOR_BYTES)))
                builder.store(value, pointer(builder, to, FLOATS.vector)).align = 4
            return []

        loop(builder, stretch.count, [], store)
