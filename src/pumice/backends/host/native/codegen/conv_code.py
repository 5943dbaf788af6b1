"""LLVM code of convolution's inner loops: windows gathered into tiles, and tiles times weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import ADDRESS, FLOATS, LEVEL, call_named, define, pointer
from pumice.backends.host.native.codegen.vector_math import FUSED
from pumice.backends.host.native.conv_sizes import conv_sizes

SIZES = conv_sizes(LEVEL.is_wide)
ROWS, WIDE = SIZES.rows, SIZES.lanes
_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTS = ir.VectorType(_FLOAT, WIDE), ir.VectorType(_WORD, WIDE)
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def _splat(builder: Any, scalar: Any, vector: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _WORD(0))
    lanes = ir.Constant(ir.VectorType(_WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


def _load(builder: Any, at: Any, vector: Any) -> Any:
    found = builder.load(pointer(builder, at, vector))
    found.align = 4
    return found


def _store(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, value.type)).align = 4


def _masked_load(builder: Any, at: Any, vector: Any, mask: Any) -> Any:
    operands = [pointer(builder, at, vector), _WORD(4), mask, ir.Constant(vector, None)]
    return call_named(builder, f"llvm.masked.load.v{vector.count}f32.p0", vector, operands)


def _loop(builder: Any, count: Any, values: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
    """`values` after `body` has changed them `count` times, which may be 0."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    phis = [builder.phi(v.type) for v in (count, *values)]
    for phi, v in zip(phis, (count, *values), strict=True):
        phi.add_incoming(v, before)
    builder.cbranch(builder.icmp_signed(">", phis[0], _LONG(0)), inside, after)
    builder.position_at_end(inside)
    changed = [builder.sub(phis[0], _LONG(1)), *body(*phis[1:])]
    for phi, v in zip(phis, changed, strict=True):
        phi.add_incoming(v, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis[1:]


@define(types.void, ADDRESS, *[types.intp] * 6, ADDRESS, types.intp, types.intp, ADDRESS, types.intp)
def gather_columns(
    builder: Any, table: Any, shift_z: Any, shift_y: Any, shift_x: Any, size_z: Any, size_y: Any, size_x: Any,
    source: Any, channel: Any, channels: Any, to: Any, pitch: Any,
) -> None:  # fmt: skip
    """One number of the windows at WIDE positions in so many channels: 0 where it is outside the source.

    `table` has the image's first element and the three coordinates of each position. What neighbours in memory is read at once,
    with a mask at borders.
    """
    image, z, y, x = (_load(builder, builder.add(table, _LONG(4 * WIDE * i)), _INTS) for i in range(4))
    places = []
    inside = None
    for place, shift, size in ((z, shift_z, size_z), (y, shift_y, size_y), (x, shift_x, size_x)):
        moved = builder.add(place, _splat(builder, builder.trunc(shift, _WORD), _INTS))
        within = builder.icmp_unsigned("<", moved, _splat(builder, builder.trunc(size, _WORD), _INTS))
        inside = within if inside is None else builder.and_(inside, within)
        places.append(moved)
    wide_y, wide_x = (_splat(builder, builder.trunc(s, _WORD), _INTS) for s in (size_y, size_x))
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
        _store(builder, place, _load(builder, at, _FLOATS))
        return [builder.add(at, channel), builder.add(place, pitch)]

    _loop(builder, channels, [first, to], copy)
    builder.branch(done)

    builder.position_at_end(borders)
    zeros = ir.Constant(_FLOATS, None)

    def copy_some(at: Any, place: Any) -> list[Any]:
        _store(builder, place, _masked_load(builder, at, _FLOATS, inside))
        return [builder.add(at, channel), builder.add(place, pitch)]

    _loop(builder, channels, [first, to], copy_some)
    builder.branch(done)

    builder.position_at_end(scattered)
    # What is outside reads the first element, which is there, and becomes 0 afterwards.
    safe = builder.select(inside, index, ir.Constant(_INTS, [0] * WIDE))
    offsets = [builder.shl(builder.sext(builder.extract_element(safe, _WORD(i)), _LONG), _LONG(2)) for i in range(WIDE)]

    def collect(at: Any, place: Any) -> list[Any]:
        found = ir.Constant(_FLOATS, ir.Undefined)
        for i, offset in enumerate(offsets):
            one = builder.load(pointer(builder, builder.add(at, offset), _FLOAT))
            found = builder.insert_element(found, one, _WORD(i))
        _store(builder, place, builder.select(inside, found, zeros))
        return [builder.add(at, channel), builder.add(place, pitch)]

    _loop(builder, channels, [source, to], collect)
    builder.branch(done)
    builder.position_at_end(done)


def _multiplier(rows: int, width: int) -> Any:
    """A function for so many rows and positions: out = slab [count, ROWS] transposed times tile [count, WIDE], or more of it."""

    vector = ir.VectorType(_FLOAT, width)

    @define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS, types.intp, types.boolean)
    def multiply(builder: Any, slab: Any, tile: Any, count: Any, out: Any, out_row: Any, more: Any) -> None:
        def step(at: Any, place: Any, *sums: Any) -> list[Any]:
            values = _load(builder, place, vector)
            found = []
            for r, total in enumerate(sums):
                weight = builder.load(pointer(builder, builder.add(at, _LONG(4 * r)), _FLOAT))
                product = builder.fmul(values, _splat(builder, weight, vector), flags=FUSED)
                found.append(builder.fadd(total, product, flags=FUSED))
            return [builder.add(at, _LONG(SIZES.slab_bytes)), builder.add(place, _LONG(SIZES.tile_bytes)), *found]

        zeros = [ir.Constant(vector, None)] * rows
        _, _, *sums = _loop(builder, count, [slab, tile, *zeros], step)
        add, put, end = (builder.append_basic_block(name) for name in ("add", "put", "end"))
        places = [builder.add(out, builder.mul(out_row, _LONG(r))) for r in range(rows)]
        builder.cbranch(more, add, put)
        builder.position_at_end(add)
        for place, total in zip(places, sums, strict=True):
            _store(builder, place, builder.fadd(_load(builder, place, vector), total))
        builder.branch(end)
        builder.position_at_end(put)
        for place, total in zip(places, sums, strict=True):
            _store(builder, place, total)
        builder.branch(end)
        builder.position_at_end(end)

    return multiply


# Rows of a slab that is not full, in the kernels for them, and half tiles.
FEWER, FEWEST = (8, 4) if ROWS > 8 else (4, 2)
HALF = WIDE // 2
multiply_all, multiply_fewer, multiply_fewest = (_multiplier(rows, WIDE) for rows in (ROWS, FEWER, FEWEST))
half_all, half_fewer, half_fewest = (_multiplier(rows, HALF) for rows in (ROWS, FEWER, FEWEST))


def _finished(builder: Any, value: Any, scale: Any, shift: Any, other: Any, low: Any, high: Any) -> Any:
    """Times a number, plus another, plus what stands beside it, between two limits."""
    vector = value.type
    wide = [_splat(builder, s, vector) for s in (scale, shift, low, high)]
    value = builder.fadd(builder.fmul(value, wide[0], flags=FUSED), wide[1], flags=FUSED)
    value = value if other is None else builder.fadd(value, other)
    # Comparisons that are false for NaN, so that it stays.
    value = builder.select(builder.fcmp_ordered("<", value, wide[2]), wide[2], value)
    return builder.select(builder.fcmp_ordered(">", value, wide[3]), wide[3], value)


@define(types.void, ADDRESS, ADDRESS, types.intp, types.float32, types.float32, ADDRESS, types.float32, types.float32)
def finish_row(builder: Any, source: Any, to: Any, count: Any, scale: Any, shift: Any, other: Any, low: Any, high: Any) -> None:
    """`count` results times a number, plus another, plus what is at `other` unless that is 0, between two limits, to a place."""
    has_other = builder.icmp_signed("!=", other, _LONG(0))
    readable = builder.select(has_other, other, source)

    def step(lanes: int) -> Callable[..., list[Any]]:
        vector = ir.VectorType(_FLOAT, lanes)
        mask = _splat(builder, has_other, ir.VectorType(ir.IntType(1), lanes))

        def store(at: Any) -> list[Any]:
            beside = builder.select(mask, _load(builder, builder.add(readable, at), vector), ir.Constant(vector, None))
            value = _load(builder, builder.add(source, at), vector)
            _store(builder, builder.add(to, at), _finished(builder, value, scale, shift, beside, low, high))
            return [builder.add(at, _LONG(4 * lanes))]

        return store

    # What does not fill a vector is stored one by one: stores with a mask take some processors longer than eight of these.
    (at,) = _loop(builder, builder.sdiv(count, _LONG(HALF)), [_LONG(0)], step(HALF))
    _loop(builder, builder.srem(count, _LONG(HALF)), [at], step(1))


def _first(builder: Any, count: Any, lanes: int) -> Any:
    """A mask for the first `count` lanes."""
    wide = ir.VectorType(_LONG, lanes)
    return builder.icmp_signed("<", ir.Constant(wide, list(range(lanes))), _splat(builder, count, wide))


@define(types.void, ADDRESS, ADDRESS, types.intp)
def copy_row(builder: Any, to: Any, source: Any, count: Any) -> None:
    """`count` floats to a place, and zeros behind them up to a whole half tile."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any, left: Any) -> list[Any]:
        found = _masked_load(builder, builder.add(source, at), vector, _first(builder, left, HALF))
        _store(builder, builder.add(to, at), found)
        return [builder.add(at, _LONG(4 * HALF)), builder.sub(left, _LONG(HALF))]

    _loop(builder, builder.sdiv(builder.add(count, _LONG(HALF - 1)), _LONG(HALF)), [_LONG(0), count], step)


@define(types.void, ADDRESS, ADDRESS, ADDRESS, types.intp)
def split_row(builder: Any, evens: Any, odds: Any, source: Any, count: Any) -> None:
    """Every other of `count` floats to one place, those between them to another, and zeros behind them as above."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any, to: Any, left: Any) -> list[Any]:
        pair = []
        for half in range(2):
            mask = _first(builder, builder.sub(left, _LONG(half * HALF)), HALF)
            pair.append(_masked_load(builder, builder.add(source, builder.add(at, _LONG(4 * half * HALF))), vector, mask))
        for first, place in enumerate((evens, odds)):
            order = ir.Constant(ir.VectorType(_WORD, HALF), list(range(first, 2 * HALF, 2)))
            _store(builder, builder.add(place, to), builder.shuffle_vector(*pair, order))
        moved = builder.add(at, _LONG(8 * HALF)), builder.add(to, _LONG(4 * HALF))
        return [*moved, builder.sub(left, _LONG(2 * HALF))]

    _loop(builder, builder.sdiv(builder.add(count, _LONG(2 * HALF - 1)), _LONG(2 * HALF)), [_LONG(0), _LONG(0), count], step)


@define(types.void, ADDRESS, ADDRESS, types.intp)
def put_row(builder: Any, to: Any, source: Any, count: Any) -> None:
    """`count` floats to a place, and what comes after them up to a whole half tile."""
    vector = ir.VectorType(_FLOAT, HALF)

    def step(at: Any) -> list[Any]:
        _store(builder, builder.add(to, at), _load(builder, builder.add(source, at), vector))
        return [builder.add(at, _LONG(4 * HALF))]

    _loop(builder, builder.sdiv(builder.add(count, _LONG(HALF - 1)), _LONG(HALF)), [_LONG(0)], step)


@define(FLOATS, FLOATS, types.float32, types.float32, types.float32, types.float32)
def finished(builder: Any, value: Any, scale: Any, shift: Any, low: Any, high: Any) -> Any:
    """As `finish_row`, with nothing beside."""
    return _finished(builder, value, scale, shift, None, low, high)
