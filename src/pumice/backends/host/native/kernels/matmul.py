"""Numba kernels of dense float32 matmuls: the right operand is packed into tiles first, then slabs of rows pass over them.

With 32 registers of 512 bits, 14 rows of 32 results stay in registers while all of K passes by. What is read meanwhile is stored
side by side: a slab of 14 rows, turned so that the numbers for one k are neighbours, fits the first cache, and tiles come from
the second. Every sum runs over k in order, so a result depends neither on the number of threads nor on what else is computed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import (
    ADDRESS,
    FLOATS,
    bf16_at,
    copy_bytes,
    define,
    f16_at,
    fetch_for_reading,
    fetch_for_writing,
    fetch_range,
    float_at,
    load_bf16,
    load_f16,
    load_f32,
    long_at,
    pointer,
    set_float,
    spread,
    store_f32,
    zeros,
)
from pumice.backends.host.native.codegen.vector_math import FUSED
from pumice.backends.host.native.kernels.work import give_work, take_work
from pumice.backends.host.native.numba_text import inlined
from pumice.backends.host.native.sizes import (
    BLOCK_BYTES,
    DENSE_DEEP,
    LANES,
    PACKED_BYTES,
    SLAB,
    SLAB_BYTES,
    SLAB_PITCH,
    TILES_AT_ONCE,
    VECTOR_BYTES,
)

# The words of a task. Strides are bytes: of the left operand from row to row and from k to k, of the right one from k to k and
# from column to column, of the result from row to row, then of all three from one entry of a batch to the next. Then where the
# right operand stays packed from run to run, or 0, and the address of what was packed for this task.
(
    LEFT,
    LEFT_ROW,
    LEFT_STEP,
    RIGHT,
    RIGHT_STEP,
    RIGHT_COLUMN,
    OUT,
    OUT_ROW,
    ROWS,
    COLUMNS,
    DEPTH,
    LEFT_ENTRY,
    RIGHT_ENTRY,
    OUT_ENTRY,
    KEPT,
    PACKED,
) = (8 * i for i in range(16))

SQUARE = 16
# Bytes between the columns that are multiplied and those that are asked for: packed ones come from memory, and processors look no
# further ahead than a page.
_AHEAD = 4096
# Tiles that are in cache at a time: 576 KiB of a packed operand.
_TILES = 12

_LONG, _WORD, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()


def _multiplier(rows: int) -> Any:
    """A function for so many rows: out [rows, LANES] = slab [count, 16] transposed times tile [count, LANES], or more of it.

    Said as a loop over registers, since LLVM would not keep numba's variables in them. Two steps of k make one round.
    """

    @define(types.void, ADDRESS, ADDRESS, types.intp, ADDRESS, types.intp, types.boolean)
    def multiply(builder: Any, slab: Any, tile: Any, count: Any, out: Any, out_row: Any, more: Any) -> None:
        vector, entry = FLOATS.vector, builder.block
        loop, add, done = (builder.function.append_basic_block(name) for name in ("loop", "add", "done"))
        places = [builder.add(out, builder.mul(out_row, _LONG(r))) for r in range(rows)]
        for place in places:
            # What is there, or the place for what will be, is on its way while the loop runs.
            fetch_for_writing(builder, place)
            fetch_for_writing(builder, builder.add(place, _LONG(64)))
        builder.branch(loop)
        builder.position_at_end(loop)
        sums = [builder.phi(vector) for _ in range(rows)]
        left, at, to = (builder.phi(_LONG) for _ in range(3))
        for value, start in [(left, count), (at, slab), (to, tile), *((total, ir.Constant(vector, None)) for total in sums)]:
            value.add_incoming(start, entry)
        totals: list[Any] = list(sums)
        for step in range(2):
            weights = builder.load(pointer(builder, builder.add(to, _LONG(step * VECTOR_BYTES)), vector))
            weights.align = 64
            for line in range(0, VECTOR_BYTES, 64):
                fetch_for_reading(builder, builder.add(to, _LONG(step * VECTOR_BYTES + line + _AHEAD)))
            for r in range(rows):
                x = builder.load(pointer(builder, builder.add(at, _LONG(step * SLAB_PITCH + 4 * r)), _FLOAT))
                product = builder.fmul(weights, spread(builder, x, vector), flags=FUSED)
                totals[r] = builder.fadd(totals[r], product, flags=FUSED)
        rest = builder.sub(left, _LONG(2))
        left.add_incoming(rest, loop)
        at.add_incoming(builder.add(at, _LONG(2 * SLAB_PITCH)), loop)
        to.add_incoming(builder.add(to, _LONG(2 * VECTOR_BYTES)), loop)
        for value, total in zip(sums, totals, strict=True):
            value.add_incoming(total, loop)
        ended = builder.append_basic_block("ended")
        builder.cbranch(builder.icmp_signed(">", rest, _LONG(0)), loop, ended)
        builder.position_at_end(ended)
        builder.cbranch(more, add, done)
        builder.position_at_end(add)
        for r, place in enumerate(places):
            there = builder.load(pointer(builder, place, vector))
            there.align = 4
            builder.store(builder.fadd(there, totals[r]), pointer(builder, place, vector)).align = 4
        end = builder.append_basic_block("end")
        builder.branch(end)
        builder.position_at_end(done)
        for r, place in enumerate(places):
            builder.store(totals[r], pointer(builder, place, vector)).align = 4
        builder.branch(end)
        builder.position_at_end(end)

    return multiply


_multiply_4, _multiply_8, _multiply_all = (_multiplier(rows) for rows in (4, 8, SLAB))


@define(types.void, ADDRESS, types.intp, types.intp, ADDRESS, types.intp)
def turn_square(builder: Any, source: Any, row: Any, rows: Any, to: Any, pitch: Any) -> None:
    """16 rows of 16 numbers become 16 columns, `pitch` bytes apart; rows from number `rows` on are the last one again."""
    vector = ir.VectorType(_FLOAT, SQUARE)
    last, values = builder.sub(rows, _LONG(1)), []
    for r in range(SQUARE):
        inside = builder.icmp_signed("<", _LONG(r), last)
        at = builder.add(source, builder.mul(row, builder.select(inside, _LONG(r), last)))
        values.append(builder.load(pointer(builder, at, vector)))
        values[-1].align = 4

    def mix(a: Any, b: Any, lanes: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_WORD, SQUARE), lanes))

    def pairs(start: int, width: int) -> list[int]:
        """In each four lanes `width` of a and as many of b, from lane `start` of the four on, in turns."""
        order = [(start + i, start + i + SQUARE) for i in range(2 // width)]
        one = [x + i for pair in order for x in pair for i in range(width)]
        return [4 * four + x for four in range(4) for x in one]

    def fours(first: int, second: int) -> list[int]:
        """Two blocks of four lanes of a, and the same two of b."""
        return [4 * block + i + side for side in (0, SQUARE) for block in (first, second) for i in range(4)]

    ones = [mix(values[r], values[r + 1], pairs(s, 1)) for r in range(0, SQUARE, 2) for s in (0, 2)]
    twos = [mix(ones[r + s // 2], ones[r + 2 + s // 2], pairs(s % 2 * 2, 2)) for r in range(0, SQUARE, 4) for s in range(4)]
    turned: dict[int, Any] = {}
    for j in range(4):
        even = [mix(twos[r + j], twos[r + 4 + j], fours(0, 2)) for r in (0, 8)]
        odd = [mix(twos[r + j], twos[r + 4 + j], fours(1, 3)) for r in (0, 8)]
        columns = [mix(pair[0], pair[1], fours(first, first + 2)) for first in (0, 1) for pair in (even, odd)]
        turned |= {4 * block + j: column for block, column in enumerate(columns)}
    for i in range(SQUARE):  # in this order, as a column may reach into the place of the next
        at = builder.add(to, builder.mul(pitch, _LONG(i)))
        builder.store(turned[i], pointer(builder, at, vector)).align = 4


# --- packing ---


@inlined
def _even(count: int) -> int:
    return count + count % 2


@inlined
def _pack_one(source: int, step: int, column: int, count: int, width: int, to: int, one: Any) -> None:
    """A tile of any strides, or one that is not full."""
    for k in range(count):
        if width < LANES:
            store_f32(to + k * VECTOR_BYTES, zeros())
        for j in range(width):
            set_float(to + k * VECTOR_BYTES + 4 * j, one(source + k * step + j * column))


@inlined
def _widen(source: int, count: int, to: int, load: Any, one: Any, size: int) -> None:
    """So many numbers, at most DENSE_DEEP, as float32."""
    k = 0
    while k + LANES <= count:
        store_f32(to + 4 * k, load(source + k * size))
        k += LANES
    while k < count:
        set_float(to + 4 * k, one(source + k * size))
        k += 1


@inlined
def _pack_tiles(
    source: int, step: int, column: int, count: int, columns: int, to: int, load: Any, one: Any, size: int, room: int
) -> None:
    """Columns as tiles [count, LANES], one after the other; an odd count has a k of zeros behind it.

    `room` is memory for a tile of numbers that are not float32.
    """
    whole, tiles, pitch = columns // LANES, (columns + LANES - 1) // LANES, _even(count) * VECTOR_BYTES
    begin = 0
    if column == size:
        for k in range(count):
            for t in range(whole):
                store_f32(to + t * pitch + k * VECTOR_BYTES, load(source + k * step + t * LANES * size))
        begin = whole
    elif step == size:
        for t in range(whole):
            at, row, tile = source + t * LANES * column, column, to + t * pitch
            if size != 4:
                for c in range(LANES):
                    _widen(at + c * column, count, room + c * DENSE_DEEP * 4, load, one, size)
                at, row = room, DENSE_DEEP * 4
            k = 0
            while k + SQUARE <= count:
                turn_square(at + 4 * k, row, SQUARE, tile + k * VECTOR_BYTES, VECTOR_BYTES)
                turn_square(at + 4 * k + SQUARE * row, row, SQUARE, tile + k * VECTOR_BYTES + 4 * SQUARE, VECTOR_BYTES)
                k += SQUARE
            _pack_one(at + 4 * k, 4, row, count - k, LANES, tile + k * VECTOR_BYTES, float_at)
        begin = whole
    for t in range(begin, tiles):
        width = min(LANES, columns - t * LANES)
        _pack_one(source + t * LANES * column, step, column, count, width, to + t * pitch, one)
    if count % 2:
        for t in range(tiles):
            store_f32(to + t * pitch + count * VECTOR_BYTES, zeros())


@inlined
def pack_slab(source: int, row: int, step: int, rows: int, count: int, to: int) -> None:
    """Up to SLAB rows as [count, SQUARE], with a k of zeros behind an odd number of them."""
    k = 0
    if step == 4:
        for r in range(rows):
            fetch_range(source + r * row, 4 * count)
        while k + SQUARE <= count:
            turn_square(source + 4 * k, row, rows, to + k * SLAB_PITCH, SLAB_PITCH)
            k += SQUARE
    elif row == 4 and rows == SLAB:
        for k in range(count):
            copy_bytes(to + k * SLAB_PITCH, source + k * step, 4 * SLAB)
        k = count
    while k < count:
        for r in range(rows):
            set_float(to + k * SLAB_PITCH + 4 * r, float_at(source + r * row + k * step))
        k += 1
    if count % 2:
        for r in range(SLAB):
            set_float(to + count * SLAB_PITCH + 4 * r, 0.0)


# --- many rows: the right operand is packed as a whole, and each part packs slabs as it goes ---


@inlined
def _tiles(job: int) -> Any:
    return (long_at(job + COLUMNS) + LANES - 1) // LANES


@inlined
def _slabs(job: int) -> Any:
    return (long_at(job + ROWS) + SLAB - 1) // SLAB


@inlined
def _pack_right(job: int, first: int, last: int, load: Any, one: Any, size: int) -> None:
    """A part is one block of k of one entry."""
    columns, depth, step = long_at(job + COLUMNS), long_at(job + DEPTH), long_at(job + RIGHT_STEP)
    blocks, tiles = (depth + DENSE_DEEP - 1) // DENSE_DEEP, _tiles(job)
    room = 0 if size == 4 else take_work(job)
    for part in range(first, last):
        entry, start = part // blocks, part % blocks * DENSE_DEEP
        source = long_at(job + RIGHT) + entry * long_at(job + RIGHT_ENTRY) + start * step
        to = long_at(job + PACKED) + (entry * _even(depth) + start) * tiles * VECTOR_BYTES
        count = min(DENSE_DEEP, depth - start)
        _pack_tiles(source, step, long_at(job + RIGHT_COLUMN), count, columns, to, load, one, size, room)
    if size != 4:
        give_work(job, room)


def pack_f32(job: int, first: int, last: int) -> None:
    _pack_right(job, first, last, load_f32, float_at, 4)


def pack_f16(job: int, first: int, last: int) -> None:
    _pack_right(job, first, last, load_f16, f16_at, 2)


def pack_bf16(job: int, first: int, last: int) -> None:
    _pack_right(job, first, last, load_bf16, bf16_at, 2)


@inlined
def multiply_slab(
    slab: int, tile: int, count: int, out: int, out_row: int, more: bool, rows: int, width: int, block: int
) -> None:
    """out [rows, width] = slab times tile, or more of it; `block` is memory for results that do not fill the registers."""
    if rows == SLAB and width == LANES:
        _multiply_all(slab, tile, _even(count), out, out_row, more)
        return
    if more:
        for r in range(rows):
            copy_bytes(block + r * VECTOR_BYTES, out + r * out_row, 4 * width)
    if rows > 8:
        _multiply_all(slab, tile, _even(count), block, VECTOR_BYTES, more)
    elif rows > 4:
        _multiply_8(slab, tile, _even(count), block, VECTOR_BYTES, more)
    else:
        _multiply_4(slab, tile, _even(count), block, VECTOR_BYTES, more)
    for r in range(rows):
        copy_bytes(out + r * out_row, block + r * VECTOR_BYTES, 4 * width)


def matmul_f32(job: int, first: int, last: int) -> None:
    """A part is a slab of one entry."""
    rows, columns, depth = long_at(job + ROWS), long_at(job + COLUMNS), long_at(job + DEPTH)
    left_row, left_step, out_row = long_at(job + LEFT_ROW), long_at(job + LEFT_STEP), long_at(job + OUT_ROW)
    slabs, tiles = _slabs(job), _tiles(job)
    slab = take_work(job)
    while first < last:
        entry, begin = first // slabs, first % slabs
        end = min(slabs, begin + last - first)
        left, out = long_at(job + LEFT) + entry * long_at(job + LEFT_ENTRY), long_at(job + OUT) + entry * long_at(job + OUT_ENTRY)
        packed = long_at(job + PACKED)
        if long_at(job + RIGHT_ENTRY):
            packed += entry * _even(depth) * tiles * VECTOR_BYTES
        for start in range(0, depth, DENSE_DEEP):
            count = min(DENSE_DEEP, depth - start)
            for group in range(0, tiles, _TILES):
                for s in range(begin, end):
                    r = s * SLAB
                    high = min(SLAB, rows - r)
                    pack_slab(left + r * left_row + start * left_step, left_row, left_step, high, count, slab)
                    for t in range(group, min(tiles, group + _TILES)):
                        tile = packed + (start * tiles + t * _even(count)) * VECTOR_BYTES
                        to = out + r * out_row + t * VECTOR_BYTES
                        wide = min(LANES, columns - t * LANES)
                        multiply_slab(slab, tile, count, to, out_row, start > 0, high, wide, slab + SLAB_BYTES)
        first += end - begin
    give_work(job, slab)


# --- more columns than rows: the left operand is packed as a whole, and each part packs tiles as it goes ---


@inlined
def pack_slabs(source: int, row: int, step: int, rows: int, depth: int, deep: int, packed: int, first: int, last: int) -> None:
    """Slabs first…last-1 of a left operand; they are stored by blocks of `deep` k, then by rows."""
    slabs, start = (rows + SLAB - 1) // SLAB, 0
    while start < depth:  # no range, which would have to raise an error for a step of 0
        count = min(deep, depth - start)
        for s in range(first, last):
            to = packed + (start * slabs + s * _even(count)) * SLAB_PITCH
            pack_slab(source + s * SLAB * row + start * step, row, step, min(SLAB, rows - s * SLAB), count, to)
        start += deep


def pack_left_f32(job: int, first: int, last: int) -> None:
    """A part is a slab."""
    rows, depth, row, step = long_at(job + ROWS), long_at(job + DEPTH), long_at(job + LEFT_ROW), long_at(job + LEFT_STEP)
    pack_slabs(long_at(job + LEFT), row, step, rows, depth, DENSE_DEEP, long_at(job + PACKED), first, last)


@inlined
def _multiply_columns(job: int, first: int, last: int, load: Any, one: Any, size: int) -> None:
    """A part is a tile of columns; a few of them are packed together, if they are not already."""
    rows, columns, depth, slabs = long_at(job + ROWS), long_at(job + COLUMNS), long_at(job + DEPTH), _slabs(job)
    step, column, out_row = long_at(job + RIGHT_STEP), long_at(job + RIGHT_COLUMN), long_at(job + OUT_ROW)
    kept = long_at(job + KEPT)
    packed = take_work(job)
    block = packed + PACKED_BYTES
    while first < last:
        tiles, begin = min(TILES_AT_ONCE, last - first), first * LANES
        mine = min(tiles * LANES, columns - begin)
        for start in range(0, depth, DENSE_DEEP):
            count, at = min(DENSE_DEEP, depth - start), packed
            if kept:
                at = kept + (start * _tiles(job) + first * _even(count)) * VECTOR_BYTES
            else:
                source = long_at(job + RIGHT) + start * step + begin * column
                _pack_tiles(source, step, column, count, mine, packed, load, one, size, block + BLOCK_BYTES)
            for s in range(slabs):
                slab = long_at(job + PACKED) + (start * slabs + s * _even(count)) * SLAB_PITCH
                out, high = long_at(job + OUT) + s * SLAB * out_row + 4 * begin, min(SLAB, rows - s * SLAB)
                for t in range(tiles):
                    tile, wide = at + t * _even(count) * VECTOR_BYTES, min(LANES, mine - t * LANES)
                    multiply_slab(slab, tile, count, out + t * VECTOR_BYTES, out_row, start > 0, high, wide, block)
        first += tiles
    give_work(job, packed)


def columns_f32(job: int, first: int, last: int) -> None:
    _multiply_columns(job, first, last, load_f32, float_at, 4)


def columns_f16(job: int, first: int, last: int) -> None:
    _multiply_columns(job, first, last, load_f16, f16_at, 2)


def columns_bf16(job: int, first: int, last: int) -> None:
    _multiply_columns(job, first, last, load_bf16, bf16_at, 2)
