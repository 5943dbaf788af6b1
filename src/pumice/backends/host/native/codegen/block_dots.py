"""LLVM code of the dot products of a block of 32 rows of packed weights with one row of x, generated from the format's record.

Codes are multiplied by x first, and scales are applied once for each part: in float32, or with x in fixed point, of which
digits.py has the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen.block_code import STEP, BlockReader, add_scaled, loop
from pumice.backends.host.native.codegen.lanes import CAN_DEAL, FLOATS, INTS, byte_dots, pointer, spread
from pumice.backends.host.native.codegen.vector_math import FUSED, fused
from pumice.backends.host.native.sizes import LANES
from pumice.core.block_formats import BlockLayout, Stretch

_LONG = ir.IntType(64)


@dataclass(frozen=True, slots=True)
class DigitRow:
    """Addresses of what is known of the elements of x that a block meets: factors, sums by digits, and digits."""

    factors: Any
    digit_sums: Any
    digits: Any


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
        self._least: Any = None

    def add(self, part: int, dot: Any) -> None:
        """Adds the dot product of a part's codes with x."""
        builder, layout = self._builder, self._layout
        self._whole = add_scaled(builder, self._reader.sub_scale(layout.scales, part), dot, self._whole)
        if layout.least is not None:
            size = layout.part_size
            sixteens = [float_at(builder, self._sums, (part * size // 16 + i) * 4) for i in range(size // 16)]
            total = sixteens[0]
            for more in sixteens[1:]:
                total = builder.fadd(total, more)
            everywhere = spread(builder, total, FLOATS.vector)
            self._least = add_scaled(builder, self._reader.sub_scale(layout.leasts, part), everywhere, self._least)

    def finish(self, total: Any) -> Any:
        """total plus the block's dot product with x."""
        total = add_scaled(self._builder, self._reader.scale(), self._whole, total)
        least = self._reader.least()
        return total if least is None else fused(self._builder, least, self._least, total)


def is_dealt(layout: BlockLayout) -> bool:
    """Whether the lanes of dot products in float32 are dealt; codes that are whole bytes are spread as they are loaded."""
    return CAN_DEAL and layout.planes[0].width < 8


def emit_float_dot(builder: Any, layout: BlockLayout, x: Any, sums: Any, w: Any, total: Any) -> Any:
    """total plus the dot products of a block's rows with x in float32, in lanes that may be dealt.

    `sums` are those of each 16 elements of x.
    """

    def dots_of(reader: BlockReader, stretch: Stretch) -> dict[int, Any]:
        starts, size = stretch.starts, layout.part_size

        def add(n: Any, chains: list[Any]) -> list[Any]:
            reader.move_to(n)
            at = builder.add(x, builder.mul(n, _LONG(4)))
            made = list(chains)
            for i, (c, start) in itertools.product(range(STEP), enumerate(starts)):
                chain = c if len(starts) > 1 else i % 2
                factor = spread(builder, float_at(builder, at, 4 * (start + i)), FLOATS.vector)
                made[chain] = fused(builder, reader.number(start + i), factor, made[chain])
            return made

        # Two chains of sums at a time: the processor need not wait for the last addition.
        first, second = loop(builder, stretch.count, [ir.Constant(FLOATS.vector, None)] * 2, add)
        parts = [start // size for start in starts]
        if len(set(parts)) > 1:
            return dict(zip(parts, (first, second)))
        return {parts[0]: builder.fadd(first, second, flags=FUSED)}

    return _emit(BlockReader(builder, layout, w, is_dealt(layout)), builder, layout, sums, total, dots_of)


def _emit(
    reader: BlockReader,
    builder: Any,
    layout: BlockLayout,
    sums: Any,
    total: Any,
    dots_of: Callable[[BlockReader, Stretch], dict[int, Any]],
) -> Any:
    """`dots_of(reader, stretch)` emits the dot products of the codes of each part in a stretch with x."""
    scaled, done = _Sums(reader, builder, layout, sums), 0
    for stretch in layout.stretches():
        done += stretch.count * len(stretch.starts)
        reader.fetch(done / layout.elements)
        for part, dot in dots_of(reader, stretch).items():
            scaled.add(part, dot)
    return scaled.finish(total)


def emit_digit_dot(builder: Any, layout: BlockLayout, sums: Any, x: DigitRow, w: Any, total: Any) -> Any:
    """The same for x in fixed point, by dot products of bytes."""

    def dots_of(reader: BlockReader, stretch: Stretch) -> dict[int, Any]:
        starts, size = stretch.starts, layout.part_size
        parts = list(dict.fromkeys(start // size for start in starts))

        def add(n: Any, totals: list[Any]) -> list[Any]:
            reader.move_to(n)
            at = builder.add(x.digits, n)
            made = list(totals)
            for i, start in itertools.product(range(0, STEP, 4), starts):
                codes, k, first = reader.four_codes(start + i), start + i, 4 * parts.index(start // size)
                for digit in range(first, first + 4):
                    factor = int_at(builder, at, k // 32 * 128 + k % 32 + 32 * (digit - first))
                    made[digit] = byte_dots(builder, made[digit], codes, factor)
            return made

        begin = [total for part in parts for total in _begin(builder, x, reader.raised, part * size, size)]
        made = loop(builder, stretch.count, begin, add)
        return {p: _value(builder, made[4 * i : 4 * i + 4], x, p * size) for i, p in enumerate(parts)}

    return _emit(BlockReader(builder, layout, w), builder, layout, sums, total, dots_of)


def _begin(builder: Any, x: DigitRow, raised: int, first: int, count: int) -> list[Any]:
    """Totals by the four digits of x: what `raised`, by which all codes are too large, will add is taken away first."""
    totals = [ir.Constant(INTS.vector, None)] * 4
    for i in (0, 2) if raised else ():
        sums = [int_at(builder, x.digit_sums, 8 * (first // 16 + n) + 2 * i) for n in range(count // 16)]
        total = sums[0] if len(sums) == 1 else builder.add(*sums)
        totals[i] = spread(builder, builder.mul(total, total.type(-raised)), INTS.vector)
    return totals


def _value(builder: Any, totals: Sequence[Any], x: DigitRow, first: int) -> Any:
    """A dot product as floats, out of its totals by digits, which are exact."""
    eight = ir.Constant(INTS.vector, [8] * LANES)
    t0, t1, t2, t3 = totals
    low, high = (builder.sitofp(builder.add(a, builder.shl(b, eight)), FLOATS.vector) for a, b in ((t0, t1), (t2, t3)))
    both = fused(builder, high, ir.Constant(FLOATS.vector, [65536.0] * LANES), low)
    factor = float_at(builder, x.factors, first // 32 * 4)
    return builder.fmul(both, spread(builder, factor, FLOATS.vector), flags=FUSED)
