"""LLVM code of convolution's matmuls: tiles of windows times slabs of weights, and what happens to the sums before they stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import ADDRESS, LEVEL, define, fetch_for_reading, fetch_for_writing, pointer
from pumice.backends.host.native.codegen.loops import first_lanes, load, loop, masked_load, masked_store, splat, store
from pumice.backends.host.native.codegen.vector_math import FUSED
from pumice.backends.host.native.conv_sizes import conv_sizes

SIZES = conv_sizes(LEVEL.is_wide)
ROWS, WIDE = SIZES.rows, SIZES.lanes
_LONG, _FLOAT = ir.IntType(64), ir.FloatType()
# Bytes between the weights that are multiplied and those that are asked for: they come from memory, and processors look no
# further ahead than a page.
_AHEAD = 3072


def finished_value(builder: Any, value: Any, scale: Any, shift: Any, other: Any, low: Any, high: Any) -> Any:
    """Times a number, plus another, plus what stands beside it, between two limits."""
    vector = value.type
    wide = [splat(builder, s, vector) for s in (scale, shift, low, high)]
    value = builder.fadd(builder.fmul(value, wide[0], flags=FUSED), wide[1], flags=FUSED)
    value = value if other is None else builder.fadd(value, other)
    # Comparisons that are false for NaN, so that it stays.
    value = builder.select(builder.fcmp_ordered("<", value, wide[2]), wide[2], value)
    return builder.select(builder.fcmp_ordered(">", value, wide[3]), wide[3], value)


def _float_at(builder: Any, at: Any) -> Any:
    return builder.load(pointer(builder, at, _FLOAT))


class _TileSums:
    """The sums of `rows` slab rows and `width` positions in registers: slab [count, ROWS] transposed times tile [count, WIDE]."""

    def __init__(self, builder: Any, rows: int, width: int) -> None:
        self.builder, self.rows, self.vector = builder, rows, ir.VectorType(_FLOAT, width)

    def begin(self, places: list[Any], more: Any) -> list[Any]:
        """Zeros, or what is at the places if there is `more` to be added to it."""
        b, before = self.builder, self.builder.block
        there, start = (b.append_basic_block(name) for name in ("there", "start"))
        b.cbranch(more, there, start)
        b.position_at_end(there)
        found = [load(b, place, self.vector) for place in places]
        b.branch(start)
        b.position_at_end(start)
        sums = [b.phi(self.vector) for _ in places]
        for phi, value in zip(sums, found, strict=True):
            phi.add_incoming(ir.Constant(self.vector, None), before)
            phi.add_incoming(value, there)
        return sums

    def add(self, slab: Any, tile: Any, count: Any, sums: list[Any]) -> list[Any]:
        b = self.builder

        def step(at: Any, place: Any, *totals: Any) -> list[Any]:
            values = load(b, place, self.vector)
            fetch_for_reading(b, b.add(at, _LONG(_AHEAD)))
            found = []
            for r, total in enumerate(totals):
                weight = _float_at(b, b.add(at, _LONG(4 * r)))
                product = b.fmul(values, splat(b, weight, self.vector), flags=FUSED)
                found.append(b.fadd(total, product, flags=FUSED))
            return [b.add(at, _LONG(SIZES.slab_bytes)), b.add(place, _LONG(SIZES.tile_bytes)), *found]

        return loop(b, count, [slab, tile, *sums], step)[2:]


def _multiplier(rows: int, width: int) -> Any:
    """A function for so many rows and positions: out = slab times tile, or more of it."""

    @define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS, types.intp, types.boolean)
    def multiply(builder: Any, slab: Any, tile: Any, count: Any, out: Any, out_row: Any, more: Any) -> None:
        places = [builder.add(out, builder.mul(out_row, _LONG(r))) for r in range(rows)]
        sums = _TileSums(builder, rows, width)
        for place, total in zip(places, sums.add(slab, tile, count, sums.begin(places, more)), strict=True):
            store(builder, place, total)

    return multiply


def _finisher(rows: int) -> Any:
    """The same for whole tiles, with results that are finished as `finish_rows` does before they are stored."""
    words = (ADDRESS, ADDRESS, ADDRESS, types.float32, types.float32)

    @define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS, types.intp, types.boolean, *words)
    def multiply(
        builder: Any, slab: Any, tile: Any, count: Any, out: Any, out_row: Any, more: Any,
        scale: Any, shift: Any, other: Any, low: Any, high: Any,
    ) -> None:  # fmt: skip
        shifts = [builder.mul(out_row, _LONG(r)) for r in range(rows)]
        places = [builder.add(out, s) for s in shifts]
        for place in places:
            # What is there, or the place for what will be, is on its way while the loop runs.
            for at in range(0, 4 * WIDE, 64):
                fetch_for_writing(builder, builder.add(place, _LONG(at)))
        registers = _TileSums(builder, rows, WIDE)
        sums = registers.add(slab, tile, count, registers.begin(places, more))
        beside, alone, end = (builder.append_basic_block(name) for name in ("beside", "alone", "end"))
        builder.cbranch(builder.icmp_signed("!=", other, _LONG(0)), beside, alone)
        for block in (beside, alone):
            builder.position_at_end(block)
            for r, (place, total) in enumerate(zip(places, sums, strict=True)):
                factor, move = (_float_at(builder, builder.add(at, _LONG(4 * r))) for at in (scale, shift))
                there = load(builder, builder.add(other, shifts[r]), registers.vector) if block is beside else None
                store(builder, place, finished_value(builder, total, factor, move, there, low, high))
            builder.branch(end)
        builder.position_at_end(end)

    return multiply


HALF = WIDE // 2
# A function for each even number of rows, the most first: for tiles, for half tiles, and for tiles whose results are finished.
multiply_tile = tuple(_multiplier(rows, WIDE) for rows in range(ROWS, 0, -2))
multiply_half = tuple(_multiplier(rows, HALF) for rows in range(ROWS, 0, -2))
multiply_finished = tuple(_finisher(rows) for rows in range(ROWS, 0, -2))


@define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS, types.intp)
def multiply_one(builder: Any, slab: Any, tile: Any, count: Any, out: Any, out_row: Any) -> None:
    """The same for a single position, whose results of all rows are one vector; several sums, as each waits for itself."""
    vector = ir.VectorType(_FLOAT, 16)
    mask = ir.Constant(ir.VectorType(ir.IntType(1), 16), [int(r < ROWS) for r in range(16)])

    def add(at: Any, place: Any, total: Any) -> Any:
        weights = masked_load(builder, at, vector, mask)
        product = builder.fmul(weights, splat(builder, _float_at(builder, place), vector), flags=FUSED)
        return builder.fadd(total, product, flags=FUSED)

    def some(step: int) -> Callable[..., list[Any]]:
        def body(at: Any, place: Any, *totals: Any) -> list[Any]:
            found = list(totals)
            for i in range(step):
                found[i] = add(
                    builder.add(at, _LONG(i * SIZES.slab_bytes)), builder.add(place, _LONG(i * SIZES.tile_bytes)), found[i]
                )
            moved = [builder.add(at, _LONG(step * SIZES.slab_bytes)), builder.add(place, _LONG(step * SIZES.tile_bytes))]
            return [*moved, *found]

        return body

    values = loop(builder, builder.sdiv(count, _LONG(8)), [slab, tile, *[ir.Constant(vector, None)] * 8], some(8))
    _, _, *totals = loop(builder, builder.srem(count, _LONG(8)), values, some(1))
    while len(totals) > 1:
        totals = [builder.fadd(a, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    for r in range(ROWS):
        place = builder.add(out, builder.mul(out_row, _LONG(r)))
        builder.store(builder.extract_element(totals[0], ir.IntType(32)(r)), pointer(builder, place, _FLOAT))


@define(types.void, ADDRESS, types.intp, types.intp, ADDRESS, types.intp, types.boolean, types.boolean,
        ADDRESS, ADDRESS, ADDRESS, types.float32, types.float32)  # fmt: skip
def finish_rows(
    builder: Any, block: Any, rows: Any, width: Any, out: Any, out_row: Any, more: Any, ends: Any,
    scale: Any, shift: Any, other: Any, low: Any, high: Any,
) -> None:  # fmt: skip
    """Rows of a block [rows, WIDE], the first `width` of each, to their places, `out_row` bytes apart.

    They are added to what is there if there is `more`. If that `ends` the sum, a row is multiplied with its number at `scale`,
    plus that at `shift`, plus what is at `other`, which is 0 or has the places' strides, and is kept between two limits.
    """
    has_other = builder.and_(ends, builder.icmp_signed("!=", other, _LONG(0)))
    readable = builder.select(has_other, other, out)
    neutral = [ir.Constant(_FLOAT, v) for v in (1.0, 0.0, float("-inf"), float("inf"))]
    limits = [builder.select(ends, given, none) for given, none in zip((low, high), neutral[2:], strict=True)]

    def finish(lanes: int, mask: Any, r: Any, to: Any, beside: Any, source: Any) -> None:
        """As many results as lanes; memory that is not wanted is not read where there is a mask, and not used elsewhere."""
        vector = ir.VectorType(_FLOAT, lanes)
        zeros, flags = ir.Constant(vector, None), ir.VectorType(ir.IntType(1), lanes)

        def wanted(at: Any, is_wanted: Any) -> Any:
            lane_flags = splat(builder, is_wanted, flags)
            if mask is not None:
                return masked_load(builder, at, vector, builder.and_(mask, lane_flags))
            return builder.select(lane_flags, load(builder, at, vector), zeros)

        def number(at: Any, none: Any) -> Any:
            there = _float_at(builder, builder.select(ends, builder.add(at, builder.mul(r, _LONG(4))), source))
            return builder.select(ends, there, none)

        factor, move = number(scale, neutral[0]), number(shift, neutral[1])
        value = builder.fadd(load(builder, source, vector), wanted(to, more))
        value = finished_value(builder, value, factor, move, wanted(beside, has_other), limits[0], limits[1])
        if mask is None:
            store(builder, to, value)
        else:
            masked_store(builder, to, value, mask)

    def row(r: Any, to: Any, beside: Any, source: Any) -> list[Any]:
        if LEVEL.is_wide:
            finish(WIDE, first_lanes(builder, width, WIDE), r, to, beside, source)
        else:
            # What does not fill a vector is stored one by one: stores with a mask are slow on some processors.
            step = _LONG(4 * HALF)

            def whole(*at: Any) -> list[Any]:
                finish(HALF, None, r, *at)
                return [builder.add(a, step) for a in at]

            def one(*at: Any) -> list[Any]:
                finish(1, None, r, *at)
                return [builder.add(a, _LONG(4)) for a in at]

            places = loop(builder, builder.sdiv(width, _LONG(HALF)), [to, beside, source], whole)
            loop(builder, builder.srem(width, _LONG(HALF)), places, one)
        moved = [builder.add(at, out_row) for at in (to, beside)]
        return [builder.add(r, _LONG(1)), *moved, builder.add(source, _LONG(SIZES.tile_bytes))]

    loop(builder, rows, [_LONG(0), out, readable, block], row)


@define(types.void, ADDRESS, types.intp, types.intp, types.intp, ADDRESS)
def copy_columns(builder: Any, source: Any, row: Any, count: Any, width: Any, to: Any) -> None:
    """A tile [count, WIDE] of `width` neighbours in each of `count` rows, `row` bytes apart, with zeros behind them."""
    vector = ir.VectorType(_FLOAT, WIDE)
    mask = first_lanes(builder, width, WIDE)
    whole, part, end = (builder.append_basic_block(name) for name in ("whole", "part", "end"))
    builder.cbranch(builder.icmp_signed("==", width, _LONG(WIDE)), whole, part)
    for block in (whole, part):
        builder.position_at_end(block)

        def step(at: Any, place: Any, is_whole: bool = block is whole) -> list[Any]:
            found = load(builder, at, vector) if is_whole else masked_load(builder, at, vector, mask)
            store(builder, place, found)
            return [builder.add(at, row), builder.add(place, _LONG(SIZES.tile_bytes))]

        loop(builder, count, [source, to], step)
        builder.branch(end)
    builder.position_at_end(end)
