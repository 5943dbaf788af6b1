"""LLVM code that moves what is convolved: windows gathered into tiles, and rows of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.conv_products import HALF, WIDE, finished_value
from pumice.backends.host.native.codegen.lanes import ADDRESS, FLOATS, define, pointer
from pumice.backends.host.native.codegen.loops import first_lanes, load, loop, masked_load, splat, store

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTS = ir.VectorType(_FLOAT, WIDE), ir.VectorType(_WORD, WIDE)


# What neighbours a tile's positions have in the source, as their table says behind all else: none, the next element, or within
# each half of the tile the next but one. Then come the places of the first position of both halves.
ANYWHERE, NEXT, NEXT_BUT_ONE = range(3)
_ORDER_AT = 4 * 4 * WIDE + 8 * WIDE + 8


def _every_other(builder: Any, at: Any, masks: tuple[Any, Any]) -> Any:
    """Half a tile of positions two elements apart, from two vectors of which those lanes are wanted that the masks have.

    The second begins one element early, so that it ends with the last position.
    """
    vector, quarter = ir.VectorType(_FLOAT, HALF), HALF // 2
    places = (at, builder.add(at, _LONG(4 * (HALF - 1))))
    pair = [masked_load(builder, place, vector, mask) for place, mask in zip(places, masks, strict=True)]
    order = [2 * i if i < quarter else HALF + 2 * (i - quarter) + 1 for i in range(HALF)]
    return builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_WORD, HALF), order))


def _half_tiles(builder: Any, inside: Any) -> list[tuple[Any, tuple[Any, Any]]]:
    """For each half of a tile whether nothing of it is inside the source, and the masks of its two vectors."""
    found, quarter, bits = [], HALF // 2, ir.IntType(HALF)
    ints = ir.VectorType(_WORD, HALF)
    for begin in (0, HALF):
        known = builder.shuffle_vector(inside, inside, ir.Constant(ints, list(range(begin, begin + HALF))))
        nothing = ir.Constant(known.type, [0] * HALF)
        evens = [i // 2 if i % 2 == 0 else HALF for i in range(HALF)]
        odds = [quarter + i // 2 if i % 2 else HALF for i in range(HALF)]
        first, second = (builder.shuffle_vector(known, nothing, ir.Constant(ints, order)) for order in (evens, odds))
        found.append((builder.icmp_unsigned("==", builder.bitcast(known, bits), bits(0)), (first, second)))
    return found


@define(types.void, ADDRESS, *[types.intp] * 6, ADDRESS, types.intp, types.intp, ADDRESS, types.intp)
def gather_columns(
    builder: Any, table: Any, shift_z: Any, shift_y: Any, shift_x: Any, size_z: Any, size_y: Any, size_x: Any,
    source: Any, channel: Any, channels: Any, to: Any, pitch: Any,
) -> None:  # fmt: skip
    """One number of the windows at WIDE positions in so many channels: 0 where it is outside the source.

    `table` has the image's first element and the three coordinates of each position, and what is above. What neighbours in memory
    is read at once, with a mask at borders; so is every other number of a row.
    """
    places = []
    inside = None
    for axis, (shift, size) in enumerate(((shift_z, size_z), (shift_y, size_y), (shift_x, size_x))):
        place = load(builder, builder.add(table, _LONG(4 * WIDE * (axis + 1))), _INTS)
        moved = builder.add(place, splat(builder, builder.trunc(shift, _WORD), _INTS))
        within = builder.icmp_unsigned("<", moved, splat(builder, builder.trunc(size, _WORD), _INTS))
        inside = within if inside is None else builder.and_(inside, within)
        places.append(moved)
    kind, *firsts = (builder.load(pointer(builder, builder.add(table, _LONG(_ORDER_AT + 8 * i)), _LONG)) for i in range(3))
    further = builder.add(builder.mul(builder.add(builder.mul(shift_z, size_y), shift_y), size_x), shift_x)
    known = builder.bitcast(inside, ir.IntType(WIDE))
    nothing, whole = (builder.icmp_unsigned("==", known, known.type(value)) for value in (0, -1))
    names = ("neighbours", "borders", "near", "strided", "distant", "anywhere", "done")
    neighbours, borders, near, strided, distant, anywhere, done = (builder.append_basic_block(name) for name in names)

    def place_of(first: Any, none: Any) -> Any:
        """Where nothing is inside, an address that is there: to mask a fault takes some processors hundreds of cycles."""
        at = builder.select(none, _LONG(0), builder.add(first, further))
        return builder.add(source, builder.shl(at, _LONG(2)))

    def copy(values: Callable[[Any], Any]) -> None:
        def step(at: Any, place: Any) -> list[Any]:
            values_at = values(at)
            for i, value in enumerate(values_at):
                store(builder, builder.add(place, _LONG(4 * i * WIDE // len(values_at))), value)
            return [builder.add(at, channel), builder.add(place, pitch)]

        loop(builder, channels, [_LONG(0), to], step)
        builder.branch(done)

    builder.cbranch(builder.icmp_signed("==", kind, _LONG(NEXT)), near, distant)
    builder.position_at_end(near)
    start = place_of(firsts[0], nothing)
    builder.cbranch(whole, neighbours, borders)
    builder.position_at_end(neighbours)
    copy(lambda at: [load(builder, builder.add(start, at), _FLOATS)])
    builder.position_at_end(borders)
    copy(lambda at: [masked_load(builder, builder.add(start, at), _FLOATS, inside)])

    builder.position_at_end(distant)
    builder.cbranch(builder.icmp_signed("==", kind, _LONG(NEXT_BUT_ONE)), strided, anywhere)
    builder.position_at_end(strided)
    pairs = [(place_of(first, none), masks) for first, (none, masks) in zip(firsts, _half_tiles(builder, inside), strict=True)]
    copy(lambda at: [_every_other(builder, builder.add(first, at), masks) for first, masks in pairs])

    builder.position_at_end(anywhere)
    wide_y, wide_x = (splat(builder, builder.trunc(s, _WORD), _INTS) for s in (size_y, size_x))
    index = builder.add(builder.mul(builder.add(builder.mul(places[0], wide_y), places[1]), wide_x), places[2])
    index = builder.add(index, load(builder, table, _INTS))
    # What is outside reads the first element, which is there, and becomes 0 afterwards.
    safe = builder.select(inside, index, ir.Constant(_INTS, [0] * WIDE))
    offsets = [builder.shl(builder.sext(builder.extract_element(safe, _WORD(i)), _LONG), _LONG(2)) for i in range(WIDE)]

    def collect(at: Any) -> list[Any]:
        found = ir.Constant(_FLOATS, ir.Undefined)
        begin = builder.add(source, at)
        for i, offset in enumerate(offsets):
            one = builder.load(pointer(builder, builder.add(begin, offset), _FLOAT))
            found = builder.insert_element(found, one, _WORD(i))
        return [builder.select(inside, found, ir.Constant(_FLOATS, None))]

    copy(collect)
    builder.position_at_end(done)


@define(types.void, ADDRESS, ADDRESS, types.intp, types.float32, types.float32, ADDRESS, types.float32, types.float32)
def finish_row(builder: Any, source: Any, to: Any, count: Any, scale: Any, shift: Any, other: Any, low: Any, high: Any) -> None:
    """`count` results times a number, plus another, plus what is at `other` unless that is 0, between two limits, to a place."""
    has_other = builder.icmp_signed("!=", other, _LONG(0))
    readable = builder.select(has_other, other, source)

    def step(lanes: int) -> Callable[..., list[Any]]:
        vector = ir.VectorType(_FLOAT, lanes)
        mask = splat(builder, has_other, ir.VectorType(ir.IntType(1), lanes))

        def put(at: Any) -> list[Any]:
            beside = builder.select(mask, load(builder, builder.add(readable, at), vector), ir.Constant(vector, None))
            value = load(builder, builder.add(source, at), vector)
            store(builder, builder.add(to, at), finished_value(builder, value, scale, shift, beside, low, high))
            return [builder.add(at, _LONG(4 * lanes))]

        return put

    # What does not fill a vector is stored one by one: stores with a mask take some processors longer than eight of these.
    (at,) = loop(builder, builder.sdiv(count, _LONG(HALF)), [_LONG(0)], step(HALF))
    loop(builder, builder.srem(count, _LONG(HALF)), [at], step(1))


@define(types.void, ADDRESS, ADDRESS, types.intp)
def copy_row(builder: Any, to: Any, source: Any, count: Any) -> None:
    """`count` floats to a place, and zeros behind them up to a whole half tile."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any, left: Any) -> list[Any]:
        found = masked_load(builder, builder.add(source, at), vector, first_lanes(builder, left, HALF))
        store(builder, builder.add(to, at), found)
        return [builder.add(at, _LONG(4 * HALF)), builder.sub(left, _LONG(HALF))]

    loop(builder, builder.sdiv(builder.add(count, _LONG(HALF - 1)), _LONG(HALF)), [_LONG(0), count], step)


@define(types.void, ADDRESS, ADDRESS, ADDRESS, types.intp)
def split_row(builder: Any, evens: Any, odds: Any, source: Any, count: Any) -> None:
    """Every other of `count` floats to one place, those between them to another, and zeros behind them as above."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any, to: Any, left: Any) -> list[Any]:
        pair = []
        for half in range(2):
            mask = first_lanes(builder, builder.sub(left, _LONG(half * HALF)), HALF)
            pair.append(masked_load(builder, builder.add(source, builder.add(at, _LONG(4 * half * HALF))), vector, mask))
        for first, place in enumerate((evens, odds)):
            order = ir.Constant(ir.VectorType(_WORD, HALF), list(range(first, 2 * HALF, 2)))
            store(builder, builder.add(place, to), builder.shuffle_vector(*pair, order))
        moved = builder.add(at, _LONG(8 * HALF)), builder.add(to, _LONG(4 * HALF))
        return [*moved, builder.sub(left, _LONG(2 * HALF))]

    loop(builder, builder.sdiv(builder.add(count, _LONG(2 * HALF - 1)), _LONG(2 * HALF)), [_LONG(0), _LONG(0), count], step)


@define(types.void, ADDRESS, ADDRESS, types.intp)
def put_row(builder: Any, to: Any, source: Any, count: Any) -> None:
    """`count` floats to a place, and what comes after them up to a whole half tile."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any) -> list[Any]:
        store(builder, builder.add(to, at), load(builder, builder.add(source, at), vector))
        return [builder.add(at, _LONG(4 * HALF))]

    loop(builder, builder.sdiv(builder.add(count, _LONG(HALF - 1)), _LONG(HALF)), [_LONG(0)], step)


@define(FLOATS, FLOATS, types.float32, types.float32, types.float32, types.float32)
def finished(builder: Any, value: Any, scale: Any, shift: Any, low: Any, high: Any) -> Any:
    """As `finish_row`, with nothing beside."""
    return finished_value(builder, value, scale, shift, None, low, high)
