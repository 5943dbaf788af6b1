"""LLVM code that reads a block of 32 rows of packed weights, generated from the record of its format.

Four bytes of each row are a lane of 32 bits, as tile_layout.py orders them. Codes are put together as bytes, four to a lane, and
only then widened.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir

from pumice.backends.host.memory.tile_layout import TileFormat
from pumice.backends.host.native.codegen import small_floats
from pumice.backends.host.native.codegen.block_unpack import unpacked_codes
from pumice.backends.host.native.codegen.byte_dots import byte_of, takes_signed
from pumice.backends.host.native.codegen.lanes import (
    FLOATS,
    LEVEL,
    call_named,
    fetch_for_reading,
    joined,
    pointer,
)
from pumice.backends.host.native.codegen.vector_math import FUSED, constant, fused
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES
from pumice.core.block_formats import Bits, BlockLayout, SubScales

_BYTE, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 32, 64))
_EVERY_BYTE = 0x01010101
# Bytes between what is computed and what is fetched into the second cache. Blocks have up to 9 KB, and their first elements
# may need bytes at their end: less than a block or two is too late.
AHEAD = 16384
# Elements for which a loop's body has code of its own: the bits of a byte.
STEP = 8
# Unsigned codes are what signed ones are plus this.
RAISED = 128


def _masked(builder: Any, value: Any, bits: Bits, to: int, mask: int, size: int = 8) -> Any:
    """A field moved from its bit `bits.shift` to bit `to`; `mask` is that of the field at bit 0, `size` the bits it is one of."""
    if to > bits.shift:
        value = builder.shl(value, constant(value, to - bits.shift))
    elif to < bits.shift:
        value = builder.lshr(value, constant(value, bits.shift - to))
    return value if bits.width == size else builder.and_(value, constant(value, mask << to))


def look_up(builder: Any, table: Sequence[int], codes: Any) -> Any:
    """Entries of a table of 16 bytes by codes below 16, for any vector of bytes."""
    count = codes.type.count
    width = 64 if LEVEL.has("avx512bw") and count % 64 == 0 else 32
    if count > width:
        parts = [
            builder.shuffle_vector(codes, codes, ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(i, i + width))))
            for i in range(0, count, width)
        ]
        return joined(builder, [look_up(builder, table, part) for part in parts])
    entries = [n & 255 for n in table]
    if LEVEL.has("avx2"):
        name = "llvm.x86.avx512.pshuf.b.512" if width == 64 else "llvm.x86.avx2.pshuf.b"
        return call_named(builder, name, codes.type, [ir.Constant(codes.type, entries * (width // 16)), codes])
    # Halves of the table by one bit of the code after the other.
    found = [constant(codes, n) for n in entries]
    for bit in (1, 2, 4, 8):
        is_set = builder.icmp_unsigned("!=", builder.and_(codes, constant(codes, bit)), constant(codes, 0))
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


def largest_code(layout: BlockLayout) -> int:
    """The largest code if all are raised to be unsigned."""
    if layout.is_signed:
        return 2 * RAISED - 1
    return max(layout.table) - min(layout.table) if layout.table else (1 << layout.bits) - 1


def raised_by(layout: BlockLayout) -> int:
    """By how much codes are too large that are raised to be unsigned."""
    return -min(layout.table) if layout.table else layout.zero + (RAISED if layout.is_signed else 0)


class BlockReader:
    """Emits the code that reads one part of a format for some of a tile's rows.

    `header` is the address of the group, and bytes of the part are as far from `codes` as its layout says; the rows are `lanes`
    ones from `first` on, a number or a value.
    """

    def __init__(self, builder: Any, form: TileFormat, header: Any, codes: Any, lanes: int = LANES, first: Any = None) -> None:
        self._builder, self._form, self._header, self._own = builder, form, header, codes
        self._layout, self.lanes, self._first = form.layout.unpacked, lanes, first
        # Where codes are: in the part itself, or unpacked to bytes of their own.
        self._in_bytes = not form.layout.planes
        self._codes_at = unpacked_codes(builder, form.layout, codes) if self._in_bytes else codes
        # Elements by which a loop is further on: known when the code is made, or by way of the address of codes.
        self._moved, self._extra = self._codes_at, 0
        self._loaded: dict[int, Any] = {}
        self._codes: dict[int, Any] = {}
        self._fetched = 0

    def fetch(self, share: float) -> None:
        """Prefetches the blocks ahead, up to this share of a part."""
        builder, strips = self._builder, LANES // self.lanes
        until = int(share * self._form.part_bytes * LANES)
        for at in range(self._fetched, until, 64 * strips):
            fetch_for_reading(builder, self._at(self._own, AHEAD + at, 64 * strips // LANES), first_cache=False)
            self._fetched = at + 64 * strips

    def move_to(self, n: Any) -> None:
        """Elements are n further on from now on: a whole number of STEPs; a value must not change the bits of their bytes."""
        self._codes, self._loaded = {}, {}
        if isinstance(n, int):
            self._extra = n
        else:
            self._moved = self._builder.add(self._codes_at, self._builder.mul(n, _LONG(LANES)))

    def load_again(self) -> None:
        """Has codes loaded again that were before: to keep them until the next part needs more registers than there are.

        Nothing moves past this: all that is fetched for a block at once would wait for itself.
        """
        self._codes = {}
        self._loaded = {key: value for key, value in self._loaded.items() if key >= 0}
        self._moved = self._builder.asm(ir.FunctionType(_LONG, [_LONG]), "", "=r,0,~{memory}", [self._codes_at], True)

    def _at(self, base: Any, offset: int, unit: int) -> Any:
        """The address of the first of these rows behind a base, if rows have `unit` bytes each."""
        at = self._builder.add(base, _LONG(offset))
        return at if self._first is None else self._builder.add(at, self._builder.mul(self._first, _LONG(unit)))

    def _load(self, base: Any, byte: int, unit: int) -> Any:
        """The bytes from `byte` on that stay together, as a whole number in each lane."""
        kind = ir.VectorType(ir.IntType(8 * unit), self.lanes)
        found = self._builder.load(pointer(self._builder, self._at(base, byte * LANES, unit), kind))
        found.align = 1
        return found if unit == 4 else self._builder.zext(found, ir.VectorType(_WORD, self.lanes))

    def _unit(self, byte: int) -> tuple[int, int]:
        """Where the bytes that stay together with this one start, and how many they are."""
        for s in self._form.sections:
            if s.start <= byte < s.stop:
                return byte - (byte - s.start) % s.unit, s.unit
        raise IndexError(byte)

    def _field(self, bits: Bits, to: int) -> Any:
        """A field of scales in each lane, moved to bit `to`."""
        start, unit = self._unit(bits.byte)
        if start not in self._loaded:
            self._loaded[start] = self._load(self._own if start >= self._form.header else self._header, start, unit)
        inside = replace(bits, shift=bits.shift + 8 * (bits.byte - start))
        return _masked(self._builder, self._loaded[start], inside, to, (1 << bits.width) - 1, 8 * unit)

    # --- codes ---

    def _four(self, k: int) -> Any:
        """The codes of elements k…k+3 as they are stored: as unsigned bytes of each lane."""
        k += self._extra
        builder, found, at = self._builder, None, 0
        if k in self._codes:
            return self._codes[k]
        for plane in self._layout.planes:
            bits = plane.of(k)
            if self._in_bytes:
                found = self._load(self._moved, bits.byte, 4)
                break
            assert self._unit(bits.byte) == (bits.byte, 4), f"four codes from {k} on are not in one word"
            key = -1 - bits.byte
            if key not in self._loaded:
                self._loaded[key] = self._load(self._moved, bits.byte, 4)
            part = _masked(builder, self._loaded[key], bits, at, ((1 << bits.width) - 1) * _EVERY_BYTE)
            found = part if found is None else builder.or_(found, part)
            at += plane.width
        self._codes[k] = found
        return found

    def _signed_four(self, k: int) -> Any:
        """The same as signed bytes of what they stand for."""
        layout = self._layout
        if layout.table:
            return self._look_up(layout.table, self._four(k))
        if layout.zero and not layout.is_signed:
            return self._less(self._four(k), layout.zero)
        return self._four(k)

    def _look_up(self, table: Sequence[int], words: Any) -> Any:
        codes = self._builder.bitcast(words, ir.VectorType(_BYTE, 4 * self.lanes))
        return self._builder.bitcast(look_up(self._builder, table, codes), words.type)

    def _less(self, words: Any, number: int) -> Any:
        """Bytes of each lane less a number."""
        codes = self._builder.bitcast(words, ir.VectorType(_BYTE, 4 * self.lanes))
        return self._builder.bitcast(self._builder.sub(codes, constant(codes, number)), words.type)

    def number(self, k: int) -> Any:
        """Element k of all rows, without scales, as floats."""
        layout, builder, first = self._layout, self._builder, k // 4 * 4
        if layout.code_kind != "whole":
            kinds = {"e4m3": small_floats.from_e4m3, "e5m2": small_floats.from_e5m2}
            return kinds[layout.code_kind](builder, byte_of(builder, self._four(first), k % 4, False))
        if layout.is_signed and layout.zero == -RAISED:
            flipped = builder.xor(self._four(first), constant(self._four(first), RAISED * _EVERY_BYTE))
            return self._float(byte_of(builder, flipped, k % 4, False))
        signed = bool(layout.table or layout.zero or layout.is_signed)
        return self._float(byte_of(builder, self._signed_four(first), k % 4, signed))

    def _float(self, whole: Any) -> Any:
        return self._builder.sitofp(whole, self.floats)

    @property
    def floats(self) -> Any:
        """The type of a float for each row."""
        return ir.VectorType(ir.FloatType(), self.lanes)

    @property
    def most(self) -> int:
        """The largest of `four_codes` in size."""
        return RAISED if self.signed_codes else largest_code(self._form.layout)

    @property
    def signed_codes(self) -> bool:
        """Whether `four_codes` are signed."""
        return takes_signed(largest_code(self._form.layout))

    def raised_codes(self, k: int) -> Any:
        """The codes of elements k…k+3 as unsigned bytes of each lane: `raised_by` more than they stand for."""
        layout, found = self._layout, self._four(k)
        if layout.table:
            return self._look_up([n - min(layout.table) for n in layout.table], found)
        return self._builder.xor(found, constant(found, RAISED * _EVERY_BYTE)) if layout.is_signed else found

    def four_codes(self, k: int) -> Any:
        """The same, signed where this level's dot products of bytes need them so: `raised` more than they stand for."""
        return self._signed_four(k) if self.signed_codes else self.raised_codes(k)

    @property
    def raised(self) -> int:
        """By how much `four_codes` are too large."""
        if self.signed_codes:
            return self._layout.zero if self._layout.is_signed else 0
        return raised_by(self._layout)

    # --- scales ---

    def _float_at(self, byte: int, kind: str) -> Any:
        builder, base = self._builder, self._own if byte >= self._form.header else self._header
        if kind == "nibbles":
            return small_floats.from_half(builder, self._together([Bits(byte + 2 * i, 4, 4) for i in range(4)]))
        found = self._load(base, byte, self._unit(byte)[1])
        if kind == "f16":
            return small_floats.from_half(builder, found)
        if kind == "e8m0":
            return small_floats.half_powers(builder, found)
        if kind == "bf16":
            found = builder.shl(found, constant(found, 16))
        return builder.bitcast(found, self.floats)

    def scale(self) -> Any:
        """The block's scale; None if there is none."""
        return None if self._layout.scale is None else self._float_at(self._layout.scale, self._layout.scale_kind)

    def least(self) -> Any:
        """The block's offset, with its sign; None if there is none."""
        layout, builder = self._layout, self._builder
        if layout.least is None:
            return None
        if layout.least_kind == "zero":
            # A whole number of which 16 bits count, whatever its width.
            zero = self._load(self._header, layout.least, self._unit(layout.least)[1])
            zero = builder.ashr(builder.shl(zero, constant(zero, 16)), constant(zero, 16))
            return builder.fneg(builder.fmul(self.scale(), self._float(zero), flags=FUSED))
        found = self._float_at(layout.least, layout.least_kind)
        return found if layout.least_sign > 0 else builder.fneg(found)

    def sub_scale(self, scales: SubScales | None, part: int) -> Any:
        """The sub-scale of a part as floats; None if there is none."""
        if scales is None:
            return None
        builder, signed = self._builder, scales.is_signed or bool(scales.zero)
        first = part // 4 * 4
        if _are_neighbours(scales.parts[first : first + 4]) and self._unit(scales.parts[first][0].byte)[1] == 4:
            found = byte_of(builder, self._four_scales(scales, first), part % 4, signed and not scales.is_float)
        else:
            found = self._together(scales.parts[part])
            found = builder.sub(found, constant(found, scales.zero)) if scales.zero else found
        if scales.is_float and scales.is_signed:
            return builder.fmul(small_floats.from_e4m3(builder, found), ir.Constant(self.floats, [0.5] * self.lanes))
        if scales.is_float:
            return small_floats.half_of_ue4m3(builder, found)
        if not scales.odd:
            return self._float(found)
        twice, once = (ir.Constant(self.floats, [n * scales.odd] * self.lanes) for n in (2, 1))
        return builder.fadd(builder.fmul(self._float(found), twice), once)

    def _together(self, fields: Sequence[Bits]) -> Any:
        """Fields, the lowest first, as one whole number in each lane."""
        found, at = None, 0
        for bits in fields:
            part = self._field(bits, at)
            found = part if found is None else self._builder.or_(found, part)
            at += bits.width
        return found

    def _four_scales(self, scales: SubScales, first: int) -> Any:
        """The sub-scales of four parts, which are in neighbouring bytes, as bytes of each lane."""
        builder, found, at = self._builder, None, 0
        for bits in scales.parts[first]:
            start, _ = self._unit(bits.byte)
            if start not in self._loaded:
                self._loaded[start] = self._load(self._own if start >= self._form.header else self._header, start, 4)
            part = _masked(builder, self._loaded[start], bits, at, ((1 << bits.width) - 1) * _EVERY_BYTE)
            found = part if found is None else builder.or_(found, part)
            at += bits.width
        return self._less(found, scales.zero) if scales.zero else found


def _are_neighbours(parts: Sequence[tuple[Bits, ...]]) -> bool:
    """Whether the fields of four parts are in four bytes one after the other."""
    if len(parts) < 4:
        return False
    return all(
        field == replace(parts[0][f], byte=parts[0][f].byte + i) for i, part in enumerate(parts) for f, field in enumerate(part)
    )


def times(builder: Any, a: Any, b: Any) -> Any:
    """a b, where None is 1."""
    return b if a is None else a if b is None else builder.fmul(a, b, flags=FUSED)


def add_scaled(builder: Any, scale: Any, value: Any, total: Any) -> Any:
    """total + scale * value, where no scale is 1 and no total is 0."""
    if total is None:
        return times(builder, scale, value)
    return builder.fadd(total, value, flags=FUSED) if scale is None else fused(builder, scale, value, total)


def each_step(
    builder: Any, layout: BlockLayout, count: int, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """`loop` where the bits of elements that are STEP apart are the same ones of other bytes; else code for each of them."""
    if all(plane.run >= count for plane in layout.planes):
        return loop(builder, count, carried, body)
    for n in range(0, count, STEP):
        carried = body(n, carried)
    return carried


def further(builder: Any, address: Any, n: Any, size: int) -> Any:
    """An address n elements of so many bytes further on; n is a number or a value."""
    return builder.add(address, _LONG(n * size) if isinstance(n, int) else builder.mul(n, _LONG(size)))


def emit_values(builder: Any, form: TileFormat, header: Any, codes: Any, values: Any) -> None:
    """Writes the values of a part as [elements, LANES] float32."""
    layout = form.layout
    reader, size = BlockReader(builder, form, header, codes), layout.part_size
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
                to = further(builder, builder.add(values, _LONG((start + i) * VECTOR_BYTES)), n, VECTOR_BYTES)
                builder.store(value, pointer(builder, to, FLOATS.vector)).align = 4
            return []

        each_step(builder, layout, stretch.count, [], store)
