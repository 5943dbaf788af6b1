"""LLVM code of the dot products of a block of 32 rows of packed weights with one row of x, generated from the format's record.

Codes are multiplied by x first, and scales are applied once for each part: in float32, or with x in fixed point, of which
digits.py has the rules.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from pumice.backends.host.memory.tile_layout import TileFormat
from pumice.backends.host.native.codegen.block_code import STEP, BlockReader, add_scaled, each_step, further, largest_code
from pumice.backends.host.native.codegen.byte_dots import MOST_NARROW, ByteTotals, lanes_of, spread_word
from pumice.backends.host.native.codegen.lanes import FLOATS, LEVEL, joined, pointer, spread
from pumice.backends.host.native.codegen.vector_math import FUSED, constant, fused
from pumice.backends.host.native.sizes import LANES
from pumice.core.block_formats import BlockLayout, Stretch

_LONG = ir.IntType(64)
# Elements of x that share a factor.
_TOGETHER = 32
# Blocks of so many elements are little code for all rows; larger ones have it for some rows, in a loop.
_SMALL = 64


@dataclass(frozen=True, slots=True)
class RowOfX:
    """Addresses of what is known of the elements of x that a block meets: itself, its sums, and for `count` digits of it
    factors, sums by digits, and the digits."""

    floats: Any
    sums: Any
    factors: Any
    digit_sums: Any
    digits: Any
    count: int = 0


def float_at(builder: Any, address: Any, offset: int) -> Any:
    """The float32 that is so many bytes behind an address."""
    return builder.load(pointer(builder, builder.add(address, _LONG(offset)), ir.FloatType()))


def int_at(builder: Any, address: Any, offset: int) -> Any:
    """The same for whole numbers."""
    return builder.load(pointer(builder, builder.add(address, _LONG(offset)), ir.IntType(32)))


class _Sums:
    """The sums of a block: by parts first, then with the block's scale and offset."""

    def __init__(self, reader: BlockReader, builder: Any, layout: BlockLayout, sums: Any) -> None:
        self._reader, self._builder, self._layout, self._sums = reader, builder, layout, sums
        self._whole: Any = None
        self._inner: Any = None
        self._least: Any = None

    def add(self, part: int, dot: Any) -> None:
        """Adds the dot product of a part's codes with x, which is still to be multiplied by a factor."""
        builder, layout = self._builder, self._layout
        self._inner = add_scaled(builder, self._reader.sub_scale(layout.scales, part), dot, self._inner)
        if layout.least is not None:
            size = layout.part_size
            sixteens = [float_at(builder, self._sums, (part * size // 16 + i) * 4) for i in range(size // 16)]
            total = sixteens[0]
            for more in sixteens[1:]:
                total = builder.fadd(total, more)
            everywhere = spread_word(builder, total, self._reader.lanes)
            self._least = add_scaled(builder, self._reader.sub_scale(layout.leasts, part), everywhere, self._least)

    def scale(self, factor: Any = None) -> None:
        """Multiplies what was added by a factor."""
        factor = None if factor is None else spread_word(self._builder, factor, self._reader.lanes)
        self._whole, self._inner = add_scaled(self._builder, factor, self._inner, self._whole), None

    def finish(self, total: Any) -> Any:
        """total plus the block's dot product with x."""
        total = add_scaled(self._builder, self._reader.scale(), self._whole, total)
        least = self._reader.least()
        return total if least is None else fused(self._builder, least, self._least, total)


# --- in float32 ---


def emit_float_dot(builder: Any, form: TileFormat, x: RowOfX, header: Any, codes: Any, total: Any) -> Any:
    """total plus the dot products of a part's rows with x in float32."""
    layout, done = form.layout, 0
    reader = BlockReader(builder, form, header, codes)
    sums = _Sums(reader, builder, layout, x.sums)
    for stretch in layout.stretches():
        done += stretch.count * len(stretch.starts)
        reader.fetch(done / layout.elements)
        for part, dot in _float_dots(builder, reader, layout, stretch, x.floats).items():
            sums.add(part, dot)
    sums.scale()
    return sums.finish(total)


def _float_dots(builder: Any, reader: BlockReader, layout: BlockLayout, stretch: Stretch, x: Any) -> dict[int, Any]:
    """The dot products of the codes of each part in a stretch with x."""
    starts, size = stretch.starts, layout.part_size

    def add(n: Any, chains: list[Any]) -> list[Any]:
        reader.move_to(n)
        at, made = further(builder, x, n, 4), list(chains)
        for i, (c, start) in itertools.product(range(STEP), enumerate(starts)):
            chain = c if len(starts) > 1 else i % 2
            factor = spread(builder, float_at(builder, at, 4 * (start + i)), FLOATS.vector)
            made[chain] = fused(builder, reader.number(start + i), factor, made[chain])
        return made

    # Two chains of sums at a time: the processor need not wait for the last addition.
    first, second = each_step(builder, layout, stretch.count, [ir.Constant(FLOATS.vector, None)] * 2, add)
    parts = [start // size for start in starts]
    if len(set(parts)) > 1:
        return dict(zip(parts, (first, second)))
    return {parts[0]: builder.fadd(first, second, flags=FUSED)}


# --- in fixed point ---


def dots_by_bytes(form: TileFormat, exact: bool) -> bool:
    """Whether dot products of bytes are the faster way for a format at this level.

    `maddubs` gives sums in 16 bits, which must be widened for every four products of codes of eight bits: with three digits
    floats are as fast. With one digit signs go from codes to factors, which must not be -128.
    """
    if LEVEL.byte_dots == "none" or form.layout.code_kind != "whole":
        return False
    return LEVEL.byte_dots != "maddubs" or not exact or largest_code(form.layout) <= MOST_NARROW


def _lanes_at_once(digits: int) -> int:
    """Rows whose sums fit in the registers: by digits, of a part, of all parts and of offsets, beside codes and x."""
    lanes, most = LANES, LEVEL.register_bits // 32
    while lanes > most and (digits + 4) * lanes // most + 2 > LEVEL.registers:
        lanes //= 2
    return lanes


def emit_digit_dot(builder: Any, form: TileFormat, x: RowOfX, header: Any, codes: Any, total: Any) -> Any:
    """The same for x in fixed point, by dot products of bytes."""
    # Codes that are unpacked first are unpacked for all rows.
    lanes = _lanes_at_once(x.count) if form.layout.planes else LANES
    if lanes == LANES:
        return _some_rows(builder, form, x, BlockReader(builder, form, header, codes), total)
    if form.layout.elements <= _SMALL:
        made = []
        for first in range(0, LANES, lanes):
            reader = BlockReader(builder, form, header, codes, lanes, _LONG(first))
            made.append(_some_rows(builder, form, x, reader, lanes_of(builder, total, first, lanes)))
        return joined(builder, made)
    with builder.goto_entry_block():
        memory = builder.ptrtoint(builder.alloca(FLOATS.vector), _LONG)
    builder.store(total, pointer(builder, memory, FLOATS.vector)).align = 4
    before = builder.block
    inside, end = (builder.function.append_basic_block(name) for name in ("rows", "after_rows"))
    builder.branch(inside)
    builder.position_at_end(inside)
    first = builder.phi(_LONG)
    first.add_incoming(_LONG(0), before)
    at = pointer(builder, builder.add(memory, builder.mul(first, _LONG(4))), ir.VectorType(ir.FloatType(), lanes))
    some = builder.load(at)
    some.align = 4
    reader = BlockReader(builder, form, header, codes, lanes, first)
    builder.store(_some_rows(builder, form, x, reader, some), at).align = 4
    after = builder.add(first, _LONG(lanes))
    first.add_incoming(after, builder.block)
    builder.cbranch(builder.icmp_signed("<", after, _LONG(LANES)), inside, end)
    builder.position_at_end(end)
    found = builder.load(pointer(builder, memory, FLOATS.vector))
    found.align = 4
    return found


def _some_rows(builder: Any, form: TileFormat, x: RowOfX, reader: BlockReader, total: Any) -> Any:
    layout = form.layout
    sums, size = _Sums(reader, builder, layout, x.sums), layout.part_size
    for block in range(layout.elements // _TOGETHER):
        first = block * _TOGETHER
        reader.fetch((first + _TOGETHER) / layout.elements)
        for start in range(first, first + _TOGETHER, size):
            reader.load_again()
            sums.add(start // size, _digit_dot(builder, reader, x, start, size))
        sums.scale(float_at(builder, x.factors, 4 * block))
    return sums.finish(total)


def _digit_dot(builder: Any, reader: BlockReader, x: RowOfX, first: int, count: int) -> Any:
    """The dot product of a part's codes with the whole numbers that x stands for by a factor, as floats."""
    totals = [ByteTotals(builder, s, reader.most, reader.signed_codes) for s in _begin(builder, x, reader, first, count)]
    for k in range(first, first + count, 4):
        codes = reader.four_codes(k)
        for digit, total in enumerate(totals):
            at = k // _TOGETHER * _TOGETHER * x.count + _TOGETHER * digit + k % _TOGETHER
            total.add(codes, spread_word(builder, int_at(builder, x.digits, at), reader.lanes))
    found, value = [t.total() for t in totals], None
    for i in range(0, x.count, 2):
        pair = found[i]
        if i + 1 < x.count:
            pair = builder.add(pair, builder.shl(found[i + 1], constant(pair, 8)))
        value = add_scaled(builder, _power(reader, i), builder.sitofp(pair, reader.floats), value)
    return value


def _power(reader: BlockReader, digit: int) -> Any:
    """What a digit counts, None for the first."""
    return ir.Constant(reader.floats, [256.0**digit] * reader.lanes) if digit else None


def _begin(builder: Any, x: RowOfX, reader: BlockReader, first: int, count: int) -> list[Any]:
    """Totals by the digits of x: what `raised`, by which all codes are too large, will add is taken away first."""
    kind = ir.VectorType(ir.IntType(32), reader.lanes)
    totals = [ir.Constant(kind, None)] * x.count
    for i in range(0, x.count, 2) if reader.raised else ():
        sums = [int_at(builder, x.digit_sums, 8 * (first // 16 + n) + 2 * i) for n in range(count // 16)]
        total = sums[0] if len(sums) == 1 else builder.add(*sums)
        totals[i] = spread_word(builder, builder.mul(total, total.type(-reader.raised)), reader.lanes)
    return totals
