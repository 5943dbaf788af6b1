"""LLVM code that moves what is convolved: windows gathered into tiles, and rows of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.conv_products import HALF, WIDE, finished_value
from pumice.backends.host.native.codegen.lanes import ADDRESS, FLOATS, call_named, define, pointer
from pumice.backends.host.native.codegen.loops import first_lanes, load, loop, masked_load, splat, store

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTS = ir.VectorType(_FLOAT, WIDE), ir.VectorType(_WORD, WIDE)
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class _EveryOther:
    """Half a tile whose positions are two elements apart, if it `is_regular`: where the first is, and which are inside the source."""

    is_regular: Any
    first: Any
    masks: tuple[Any, Any]

    def values(self, builder: Any, source: Any) -> Any:
        """Zeros where nothing is inside. The second load begins one element early, so that it ends with the last position."""
        vector, quarter = ir.VectorType(_FLOAT, HALF), HALF // 2
        at = builder.add(source, self.first)
        pair = [
            masked_load(builder, builder.add(at, _LONG(4 * skip)), vector, mask)
            for skip, mask in zip((0, HALF - 1), self.masks, strict=True)
        ]
        order = [2 * i if i < quarter else HALF + 2 * (i - quarter) + 1 for i in range(HALF)]
        return builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_WORD, HALF), order))


def _by_two(builder: Any, index: Any, inside: Any) -> list[_EveryOther]:
    """Both halves of a tile's places."""
    found, quarter = [], HALF // 2
    ints = ir.VectorType(_WORD, HALF)
    for begin in (0, HALF):
        lanes = ir.Constant(ints, list(range(begin, begin + HALF)))
        places, known = (builder.shuffle_vector(v, v, lanes) for v in (index, inside))
        starts = builder.sub(places, ir.Constant(ints, [2 * i for i in range(HALF)]))
        low, high = (
            call_named(
                builder, f"llvm.vector.reduce.{name}.v{HALF}i32", _WORD,
                [builder.select(known, starts, ir.Constant(ints, [other] * HALF))],
            )
            for name, other in (("smin", _MOST), ("smax", _LEAST))
        )  # fmt: skip
        none = builder.icmp_signed(">", low, high)
        first = builder.shl(builder.sext(builder.select(none, _WORD(0), low), _LONG), _LONG(2))
        # The lanes that the two loads are wanted for: even ones of the first, odd ones of the second.
        nothing = ir.Constant(known.type, [0] * HALF)
        orders = ([i // 2 if i % 2 == 0 else HALF for i in range(HALF)], [quarter + i // 2 if i % 2 else HALF for i in range(HALF)])
        masks = [builder.shuffle_vector(known, nothing, ir.Constant(ints, order)) for order in orders]
        found.append(_EveryOther(builder.icmp_signed(">=", low, high), first, (masks[0], masks[1])))
    return found


@define(types.void, ADDRESS, *[types.intp] * 6, ADDRESS, types.intp, types.intp, ADDRESS, types.intp)
def gather_columns(
    builder: Any, table: Any, shift_z: Any, shift_y: Any, shift_x: Any, size_z: Any, size_y: Any, size_x: Any,
    source: Any, channel: Any, channels: Any, to: Any, pitch: Any,
) -> None:  # fmt: skip
    """One number of the windows at WIDE positions in so many channels: 0 where it is outside the source.

    `table` has the image's first element and the three coordinates of each position. What neighbours in memory is read at once,
    with a mask at borders; so is every other number of a row.
    """
    image, z, y, x = (load(builder, builder.add(table, _LONG(4 * WIDE * i)), _INTS) for i in range(4))
    places = []
    inside = None
    for place, shift, size in ((z, shift_z, size_z), (y, shift_y, size_y), (x, shift_x, size_x)):
        moved = builder.add(place, splat(builder, builder.trunc(shift, _WORD), _INTS))
        within = builder.icmp_unsigned("<", moved, splat(builder, builder.trunc(size, _WORD), _INTS))
        inside = within if inside is None else builder.and_(inside, within)
        places.append(moved)
    wide_y, wide_x = (splat(builder, builder.trunc(s, _WORD), _INTS) for s in (size_y, size_x))
    index = builder.add(builder.mul(builder.add(builder.mul(places[0], wide_y), places[1]), wide_x), places[2])
    index = builder.add(index, image)
    start = builder.sub(index, ir.Constant(_INTS, list(range(WIDE))))
    ends = []
    for name, other in (("smin", _MOST), ("smax", _LEAST)):
        known = builder.select(inside, start, ir.Constant(_INTS, [other] * WIDE))
        ends.append(call_named(builder, f"llvm.vector.reduce.{name}.v{WIDE}i32", _WORD, [known]))
    low, high = ends
    bits = ir.IntType(WIDE)
    whole = builder.icmp_unsigned("==", builder.bitcast(inside, bits), bits(-1))
    side = builder.icmp_signed(">=", low, high)
    neighbours, borders, scattered, done = (builder.append_basic_block(n) for n in ("neighbours", "borders", "scattered", "done"))
    near = builder.append_basic_block("near")
    builder.cbranch(side, near, scattered)
    builder.position_at_end(near)
    # Where nothing is inside, an address that is there: to mask a fault takes some processors hundreds of cycles.
    safe_low = builder.select(builder.icmp_signed(">", low, high), _WORD(0), low)
    first = builder.add(source, builder.shl(builder.sext(safe_low, _LONG), _LONG(2)))
    builder.cbranch(whole, neighbours, borders)

    builder.position_at_end(neighbours)

    def copy(at: Any, place: Any) -> list[Any]:
        store(builder, place, load(builder, at, _FLOATS))
        return [builder.add(at, channel), builder.add(place, pitch)]

    loop(builder, channels, [first, to], copy)
    builder.branch(done)

    builder.position_at_end(borders)
    zeros = ir.Constant(_FLOATS, None)

    def copy_some(at: Any, place: Any) -> list[Any]:
        store(builder, place, masked_load(builder, at, _FLOATS, inside))
        return [builder.add(at, channel), builder.add(place, pitch)]

    loop(builder, channels, [first, to], copy_some)
    builder.branch(done)

    builder.position_at_end(scattered)
    halves = _by_two(builder, index, inside)
    strided, anywhere = (builder.append_basic_block(n) for n in ("strided", "anywhere"))
    builder.cbranch(builder.and_(*(half.is_regular for half in halves)), strided, anywhere)

    builder.position_at_end(strided)

    def copy_strided(at: Any, place: Any) -> list[Any]:
        for i, half in enumerate(halves):
            store(builder, builder.add(place, _LONG(4 * HALF * i)), half.values(builder, at))
        return [builder.add(at, channel), builder.add(place, pitch)]

    loop(builder, channels, [source, to], copy_strided)
    builder.branch(done)

    builder.position_at_end(anywhere)
    # What is outside reads the first element, which is there, and becomes 0 afterwards.
    safe = builder.select(inside, index, ir.Constant(_INTS, [0] * WIDE))
    offsets = [builder.shl(builder.sext(builder.extract_element(safe, _WORD(i)), _LONG), _LONG(2)) for i in range(WIDE)]

    def collect(at: Any, place: Any) -> list[Any]:
        found = ir.Constant(_FLOATS, ir.Undefined)
        for i, offset in enumerate(offsets):
            one = builder.load(pointer(builder, builder.add(at, offset), _FLOAT))
            found = builder.insert_element(found, one, _WORD(i))
        store(builder, place, builder.select(inside, found, zeros))
        return [builder.add(at, channel), builder.add(place, pitch)]

    loop(builder, channels, [source, to], collect)
    builder.branch(done)
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
