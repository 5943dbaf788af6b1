"""LLVM code that turns the codes of a block of 32 rows into whole bytes, for formats of which a byte holds no code of its own.

Four neighbours are a word of each row, as dot products of bytes take them. Rows of a grid are looked up one after the other,
eight numbers at a time. Digits to the base 3 are taken off all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen.lanes import call_named, joined, pointer
from pumice.backends.host.native.sizes import LANES
from pumice.core.block_formats import BitField, Bits, BlockLayout, GridCodes, Trits
from pumice.core.grids import Grid, grid_rows

_BYTE, _SHORT, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _SHORTS = ir.VectorType(_BYTE, LANES), ir.VectorType(_SHORT, LANES)
# Elements for which the loop over a block has code of its own: every field begins a new byte there.
_PERIOD = 32
_FOUR, _EIGHT = 4, 8
_FOURS = ir.VectorType(_BYTE, _FOUR * LANES)


def unpacked_codes(builder: Any, layout: BlockLayout, w: Any) -> Any:
    """The address of a block's codes as bytes, [elements / 4, LANES, 4], in memory of the kernel's own."""
    codes = _memory(builder, layout.elements * LANES)
    if layout.grid is not None:
        _emit_grid(builder, layout.grid, layout.elements, w, codes)
    at = 0
    for trits in layout.trits:
        _emit_trits(builder, trits, w, builder.add(codes, _LONG(at * LANES)))
        at += trits.elements
    return codes


def _memory(builder: Any, size: int) -> Any:
    """The address of so many bytes on the stack, the same ones each time the code runs."""
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(_BYTE, size))
        memory.align = 64
    return builder.ptrtoint(memory, _LONG)


def _all(value: int, kind: Any = _BYTES) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _count_to(builder: Any, count: int, body: Callable[[Any], None]) -> None:
    """Runs `body(i)` for i from 0."""
    before = builder.block
    inside, end = (builder.function.append_basic_block(name) for name in ("codes", "after_codes"))
    builder.branch(inside)
    builder.position_at_end(inside)
    i = builder.phi(_LONG)
    i.add_incoming(_LONG(0), before)
    body(i)
    after = builder.add(i, _LONG(1))
    i.add_incoming(after, builder.block)
    builder.cbranch(builder.icmp_signed("<", after, _LONG(count)), inside, end)
    builder.position_at_end(end)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    found = builder.load(pointer(builder, address, kind))
    found.align = 1
    return found


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, pointer(builder, address, value.type)).align = 1


# --- digits to the base 3 ---


def _emit_trits(builder: Any, trits: Trits, w: Any, codes: Any) -> None:
    def put(i: Any) -> None:
        at = builder.mul(i, _LONG(_FOUR * LANES))
        start = builder.add(builder.add(w, _LONG(trits.start * LANES)), at)
        rests = [_load(builder, builder.add(start, _LONG(k * LANES)), _BYTES) for k in range(_FOUR)]
        for n in range(trits.digits):
            found = []
            for k, rest in enumerate(rests):
                # The second byte of three times as much: 1 from a third of 256 on, 2 from two thirds on.
                steps = [builder.zext(builder.icmp_unsigned(">=", rest, _all(least)), _BYTES) for least in (86, 171)]
                found.append(builder.add(*steps))
                rests[k] = builder.add(rest, builder.add(rest, rest))
            _store(builder, _side_by_side(builder, found), builder.add(builder.add(codes, _LONG(n * trits.run * LANES)), at))

    _count_to(builder, trits.run // _FOUR, put)


def _side_by_side(builder: Any, four: list[Any]) -> Any:
    """Four bytes of all rows as a word of each."""
    every = joined(builder, four)
    order = [k * LANES + row for row in range(LANES) for k in range(_FOUR)]
    return builder.shuffle_vector(every, every, ir.Constant(ir.VectorType(_WORD, len(order)), order))


# --- rows of a grid ---


def _emit_grid(builder: Any, codes: GridCodes, elements: int, w: Any, out: Any) -> None:
    index, signs = _memory(builder, _EIGHT // codes.grid.width * LANES * 2), _memory(builder, LANES)
    each, put_eight = codes.grid.width, _eight_function(builder, codes)

    def put(n: Any) -> None:
        def numbers(field: BitField, of: int, i: int) -> list[tuple[Any, Bits]]:
            """The bits of number i of this period, of fields with a number for each `of` elements."""
            stride = field.stride * (_PERIOD // of) // field.count
            base = builder.add(w, builder.mul(n, _LONG(stride * LANES)))
            return [(base, bits) for bits in field.of(i)]

        for eight in range(_PERIOD // _EIGHT):
            for part in range(_EIGHT // each):
                i = eight * _EIGHT // each + part
                places = [place for field in codes.index for place in numbers(field, each, i)]
                _store(builder, _together(builder, places, _SHORTS), builder.add(index, _LONG(part * LANES * 2)))
            of_eight = codes.signs or codes.offsets
            assert of_eight is not None
            _store(builder, _together(builder, numbers(of_eight, _EIGHT, eight), _BYTES), signs)
            at = builder.add(builder.mul(n, _LONG(_PERIOD * LANES)), _LONG(eight * _EIGHT * LANES))
            builder.call(put_eight, [index, signs, builder.add(out, at)])

    _count_to(builder, elements // _PERIOD, put)


def _eight_function(builder: Any, codes: GridCodes) -> Any:
    """A function (index, signs, out) that writes eight elements of all rows.

    Of its own, so that a kernel has its code once.
    """
    grid, module = codes.grid, builder.module
    name = f"put_eight_{len(grid_rows(grid))}x{grid.width}"
    known = module.globals.get(name)
    if known is not None:
        return known
    made = ir.Function(module, ir.FunctionType(ir.VoidType(), [_LONG] * 3), name)
    made.linkage = "internal"
    made.attributes.add("noinline")
    made.attributes.add("nounwind")
    inner = ir.IRBuilder(made.append_basic_block())
    index, signs, out = made.args
    words, bits = _looked_up(inner, grid, index), _load(inner, signs, _BYTES)
    if codes.signs is not None:
        found = _signed(inner, words, _even(inner, bits) if codes.signs.width == 7 else bits)
    else:
        offset = _in_every_byte(inner, inner.sub(_all(1), inner.add(bits, bits)))
        found = [inner.add(four, offset) for four in words]
    for i, four in enumerate(found):
        _store(inner, four, inner.add(out, _LONG(i * _FOUR * LANES)))
    inner.ret_void()
    return made


def _table(builder: Any, grid: Grid) -> Any:
    """The address of a grid's rows, a byte for each number."""
    rows = grid_rows(grid)
    name, data = f"grid{len(rows)}x{grid.width}", bytearray(rows.tobytes())
    known = builder.module.globals.get(name)
    if known is None:
        known = ir.GlobalVariable(builder.module, ir.ArrayType(_BYTE, len(data)), name)
        known.linkage, known.global_constant, known.align = "internal", True, 64
        known.initializer = ir.Constant(known.value_type, data)
    return builder.ptrtoint(known, _LONG)


def _together(builder: Any, places: Sequence[tuple[Any, Bits]], kind: Any) -> Any:
    """Fields at addresses, lowest first, of all rows."""
    found, at = None, 0
    for base, bits in places:
        part = _load(builder, builder.add(base, _LONG(bits.byte * LANES)), _BYTES)
        part = builder.lshr(part, _all(bits.shift)) if bits.shift else part
        part = builder.and_(part, _all((1 << bits.width) - 1)) if bits.width < 8 - bits.shift else part
        part = part if kind is _BYTES else builder.zext(part, kind)
        part = builder.shl(part, _all(at, kind)) if at else part
        found, at = part if found is None else builder.or_(found, part), at + bits.width
    return found


def _looked_up(builder: Any, grid: Grid, index: Any) -> list[Any]:
    """Eight numbers of each row of weights as two words, from the rows of the grid by the numbers at `index`."""
    table, kind = _table(builder, grid), ir.IntType(8 * grid.width)
    parts = []
    for first in range(0, _EIGHT // grid.width * LANES, LANES):
        found = ir.Constant(ir.VectorType(kind, LANES), ir.Undefined)
        for lane in range(LANES):
            # Four numbers are loaded at once: they have been written just before, and to read each would take longer.
            if lane % _FOUR == 0:
                four = _load(builder, builder.add(index, _LONG(2 * (first + lane))), _LONG)
            row = builder.and_(builder.lshr(four, _LONG(16 * (lane % _FOUR))), _LONG(0xFFFF))
            numbers = _load(builder, builder.add(table, builder.mul(row, _LONG(grid.width))), kind)
            found = builder.insert_element(found, numbers, _WORD(lane))
        parts.append(found)
    if grid.width == _EIGHT:
        both = builder.bitcast(parts[0], ir.VectorType(_WORD, 2 * LANES))
        orders = (ir.Constant(ir.VectorType(_WORD, LANES), list(range(half, 2 * LANES, 2))) for half in range(2))
        parts = [builder.shuffle_vector(both, both, order) for order in orders]
    return [builder.bitcast(part, _FOURS) for part in parts]


def _in_every_byte(builder: Any, values: Any) -> Any:
    """A byte of each row in all four of its word."""
    order = ir.Constant(ir.VectorType(_WORD, _FOUR * LANES), [row for row in range(LANES) for _ in range(_FOUR)])
    return builder.shuffle_vector(values, values, order)


def _even(builder: Any, signs: Any) -> Any:
    """Seven bits with an eighth that makes the number of set ones even."""
    odd = call_named(builder, f"llvm.ctpop.v{LANES}i8", _BYTES, [signs])
    return builder.or_(signs, builder.shl(odd, _all(7)))


def _signed(builder: Any, words: list[Any], signs: Any) -> list[Any]:
    """The numbers of which the bits of `signs` are set, negated."""
    every, found = _in_every_byte(builder, signs), []
    for i, four in enumerate(words):
        own = ir.Constant(_FOURS, [1 << (_FOUR * i + k) for k in range(_FOUR)] * LANES)
        is_set = builder.icmp_unsigned("!=", builder.and_(every, own), _all(0, _FOURS))
        found.append(builder.select(is_set, builder.sub(_all(0, _FOURS), four), four))
    return found
