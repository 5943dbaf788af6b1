"""LLVM code of depthwise 3x3 convolution: some rows of results at a time, from a plane that is read where it is."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.conv_products import finished_value
from pumice.backends.host.native.codegen.lanes import ADDRESS, define, pointer
from pumice.backends.host.native.codegen.loops import first_lanes, load, loop, masked_load, masked_store, splat, store
from pumice.backends.host.native.codegen.vector_math import FUSED

_LANES, _TAPS = 16, 3
_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_WORD, _LANES)
# Rows of results that are computed together from the same numbers, by the stride.
TOGETHER, TOGETHER_BY_TWO = 4, 2


def _inside(builder: Any, place: Any, width: Any) -> Any:
    """Which of the elements from `place` on are in a row."""
    numbers = [splat(builder, builder.trunc(number, _WORD), _INTS) for number in (place, width)]
    return builder.icmp_unsigned("<", builder.add(numbers[0], ir.Constant(_INTS, list(range(_LANES)))), numbers[1])


def _rows_filter(stride: int, count_y: int) -> Any:
    """A function for so many rows of results."""
    # Where the vectors begin that a window's taps are taken from.
    starts = tuple(range(_TAPS)) if stride == 1 else (0, _LANES, 2, _LANES + 2)

    def taps(builder: Any, found: list[Any]) -> list[Any]:
        if stride == 1:
            return found
        even, odd = (ir.Constant(_INTS, list(range(first, 2 * _LANES, 2))) for first in (0, 1))
        pairs = ((found[:2], even), (found[:2], odd), (found[2:], even))
        return [builder.shuffle_vector(*pair, order) for pair, order in pairs]

    places = (ADDRESS, ADDRESS, ADDRESS, *[types.intp] * 5)
    words = (ADDRESS, types.float32, types.float32, ADDRESS, types.float32, types.float32)

    @define(types.void, *places, *words)
    def filter_rows(
        builder: Any, out: Any, plane: Any, zeros: Any, top: Any, height: Any, width: Any, count: Any, low: Any,
        weights: Any, scale: Any, shift: Any, other: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        """Rows of `count` results, whose first window begins at row `top` of a plane, `low` elements before its first.

        `zeros` stands for rows outside of it. Results are finished as those of other convolutions.
        """
        has_other = builder.icmp_signed("!=", other, _LONG(0))
        row = builder.shl(width, _LONG(2))
        sources = []
        for r in range((count_y - 1) * stride + _TAPS):
            y = builder.add(top, _LONG(r))
            is_there = builder.icmp_unsigned("<", y, height)
            sources.append(builder.select(is_there, builder.add(plane, builder.mul(y, row)), zeros))
        factors = []
        for i in range(_TAPS * _TAPS):
            number = builder.load(pointer(builder, builder.add(weights, _LONG(4 * i)), _FLOAT))
            factors.append(splat(builder, number, _VECTOR))

        def sums(first: Any, is_whole: bool) -> list[Any]:
            """Those of a vector of windows in each row, the first of which begins at element `first`."""
            at = [builder.add(first, _LONG(start)) for start in starts]
            masks = [None if is_whole else _inside(builder, place, width) for place in at]
            offsets = [builder.shl(place, _LONG(2)) for place in at]
            totals: list[Any] = [None] * count_y
            for r, source in enumerate(sources):
                found = []
                for offset, mask in zip(offsets, masks, strict=True):
                    place = builder.add(source, offset)
                    found.append(load(builder, place, _VECTOR) if mask is None else masked_load(builder, place, _VECTOR, mask))
                for x, value in enumerate(taps(builder, found)):
                    for y in range(count_y):
                        tap = r - y * stride
                        if 0 <= tap < _TAPS:
                            product = builder.fmul(value, factors[_TAPS * tap + x], flags=FUSED)
                            totals[y] = product if totals[y] is None else builder.fadd(totals[y], product, flags=FUSED)
            return totals

        def step(at: Any) -> list[Any]:
            first, left = builder.sub(builder.mul(at, _LONG(stride)), low), builder.sub(count, at)
            shifts = [builder.shl(builder.add(at, builder.mul(count, _LONG(y))), _LONG(2)) for y in range(count_y)]
            ends = builder.icmp_signed("<=", builder.add(first, _LONG(starts[-1] + _LANES)), width)
            whole = builder.and_(builder.icmp_signed(">=", left, _LONG(_LANES)), builder.icmp_signed(">=", first, _LONG(0)))
            inner, border, done = (builder.append_basic_block(name) for name in ("inner", "border", "done"))
            builder.cbranch(builder.and_(builder.and_(whole, ends), builder.not_(has_other)), inner, border)
            builder.position_at_end(inner)
            for by, total in zip(shifts, sums(first, True), strict=True):
                store(builder, builder.add(out, by), finished_value(builder, total, scale, shift, None, least, most))
            builder.branch(done)
            builder.position_at_end(border)
            mask, totals = first_lanes(builder, left, _LANES), sums(first, False)
            beside, alone = (builder.append_basic_block(name) for name in ("beside", "alone"))
            builder.cbranch(has_other, beside, alone)
            for block in (beside, alone):
                builder.position_at_end(block)
                for by, total in zip(shifts, totals, strict=True):
                    there = masked_load(builder, builder.add(other, by), _VECTOR, mask) if block is beside else None
                    value = finished_value(builder, total, scale, shift, there, least, most)
                    masked_store(builder, builder.add(out, by), value, mask)
                builder.branch(done)
            builder.position_at_end(done)
            return [builder.add(at, _LONG(_LANES))]

        chunks = builder.sdiv(builder.add(count, _LONG(_LANES - 1)), _LONG(_LANES))
        loop(builder, chunks, [_LONG(0)], step)

    return filter_rows


filter_row, filter_rows = _rows_filter(1, 1), _rows_filter(1, TOGETHER)
filter_row_by_two, filter_rows_by_two = _rows_filter(2, 1), _rows_filter(2, TOGETHER_BY_TWO)
