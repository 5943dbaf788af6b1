"""LLVM code of matmuls with x rounded to 8 bits: codes of weights become bytes once, then dot products of bytes pass over them.

A block of 32 rows of packed weights is written as a panel: for each 32 elements signed bytes, four neighbours to a lane, and
behind them, for each lane, what its sums of whole numbers are multiplied by. x has bytes too, with a factor for each 32 elements.
Where the processor multiplies unsigned bytes with signed ones, those of x are raised by 128, and the panel has what
takes that back. Sums are exact until they become floats: 16 bits wide as long as they fit where that saves instructions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from pumice.backends.host.memory.tile_layout import TileFormat
from pumice.backends.host.native.codegen.block_code import STEP, BlockReader, each_step, further, raised_by, times
from pumice.backends.host.native.codegen.lanes import FLOATS, INTS, call_named, joined, pointer
from pumice.backends.host.native.codegen.vector_math import FUSED, fused
from pumice.backends.host.native.levels import Level
from pumice.backends.host.native.sizes import (
    CHUNK,
    CHUNK_FACTOR,
    CHUNK_PITCH,
    CHUNK_SUM,
    CHUNK_SUMS_16,
    LANES,
    ROW_PITCH,
    VECTOR_BYTES,
)
from pumice.core.block_formats import BlockLayout

_BYTE, _SHORT, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
# Elements whose bytes a lane of 32 bits has.
_FOUR = 4
# The largest sizes of a byte of x, raised and not, and of a sum in 16 bits.
_RAISED_X, _LARGEST_SHORT = 255, 32767
# Codes of up to this size may be multiplied by unsigned bytes and added in pairs within 16 bits; larger ones become two digits.
_LARGEST_CODE, _DIGIT, _LARGEST_DIGIT = 64, 16, 8


@dataclass(frozen=True, slots=True)
class CodeRun:
    """Elements first…first+count-1 of a chunk whose dot products become floats together, and where a panel has what they need.

    `digit` is what its bytes are multiplied by; `groups` have sums of their own in 16 bits, with a sub-scale each if `pairs`.
    """

    first: int
    count: int
    digit: int
    codes: int
    raised: int
    scale: int
    leasts: tuple[int, ...]
    pairs: tuple[int, ...]


@dataclass(frozen=True)
class Panel:
    """What a panel has for each 32 elements of a format at a level."""

    layout: BlockLayout
    level: Level

    @property
    def has_least(self) -> bool:
        """Whether something is added to products of codes and scales."""
        return self.layout.least is not None

    @property
    def raises_x(self) -> bool:
        """Whether the bytes of x are unsigned: 128 more than what they stand for."""
        return raises_x(self.level)

    @property
    def is_short(self) -> bool:
        """Whether sums start in 16 bits."""
        return self.level.byte_dots == "maddubs"

    @property
    def centre(self) -> int:
        """What is taken from unsigned codes; where a format has an offset it takes care of the difference."""
        layout = self.layout
        return 1 << (layout.bits - 1) if self.has_least else raised_by(layout)

    @property
    def bound(self) -> int:
        """The largest size of a code."""
        layout = self.layout
        if layout.grid is not None:
            return layout.grid.most
        return max(abs(n) for n in layout.table) if layout.table else max(self.centre, (1 << layout.bits) - 1 - self.centre)

    @property
    def digits(self) -> tuple[int, ...]:
        return (1, _DIGIT) if self.is_short and self.bound > _LARGEST_CODE else (1,)

    @property
    def group(self) -> int:
        """Steps of four elements whose sums fit in 16 bits, all with one sub-scale; only where sums start in 16 bits."""
        bound = _LARGEST_DIGIT if len(self.digits) > 1 else self.bound
        fit = _LARGEST_SHORT // (2 * _RAISED_X * bound)
        return min(1 << (fit.bit_length() - 1), self.layout.part_size // _FOUR, CHUNK // _FOUR)

    @property
    def has_whole_scales(self) -> bool:
        """Whether sums are multiplied by sub-scales as whole numbers, which the last step of 16-bit sums does in passing."""
        scales = self.layout.scales
        return self.is_short and self.layout.part_size < CHUNK and scales is not None and not (scales.is_float or scales.odd)

    @functools.cached_property
    def runs(self) -> tuple[CodeRun, ...]:
        made, at = [], 0
        part = min(self.layout.part_size, CHUNK)
        count = CHUNK if self.has_whole_scales else part
        for first, digit in itertools.product(range(0, CHUNK, count), self.digits):
            leasts = count // part if self.has_least and digit == 1 else 0
            pairs = count // part if self.has_whole_scales else 0
            fields = [at + count // _FOUR * VECTOR_BYTES + i * VECTOR_BYTES for i in range(2 + leasts + pairs)]
            raised, scale, *rest = fields
            made.append(CodeRun(first, count, digit, at, raised, scale, tuple(rest[:leasts]), tuple(rest[leasts:])))
            at = fields[-1] + VECTOR_BYTES
        return tuple(made)

    @property
    def nbytes(self) -> int:
        """Bytes for each chunk."""
        last = self.runs[-1]
        return max(last.raised, last.scale, *last.leasts, *last.pairs) + VECTOR_BYTES

    @property
    def lanes(self) -> int:
        """Lanes whose sums are in registers at a time."""
        return LANES if self.level.register_bits == 512 else LANES // 2

    @property
    def keeps_totals(self) -> bool:
        """Whether sums in float32 stay in registers too, beside those of whole numbers, or are in the first cache."""
        return self.level.registers >= 32

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of x whose sums are in registers at a time, most first: as many as leave room for operands, and about half."""
        vectors = 32 * self.lanes // self.level.register_bits
        several = self.is_short and self.group < self.runs[0].count // _FOUR
        operands = self.group + 3 if several else vectors + 2
        room = self.level.registers - operands
        most = (room - 2) // (2 * vectors) if self.keeps_totals else room // vectors
        return (most, (most + 1) // 2) if most > 2 else (most,)


def raises_x(level: Level) -> bool:
    """Whether the level's dot products of bytes take one operand as unsigned."""
    return level.byte_dots in ("vpdpbusd", "maddubs")


# --- vectors as wide as a register ---


class _Vectors:
    """Emits instructions on vectors of a register's width, in which sums of bytes are lanes of 32 bits."""

    def __init__(self, builder: Any, level: Level) -> None:
        self._builder, self.level = builder, level
        self.count = level.register_bits // 32
        self.ints, self.floats = ir.VectorType(_WORD, self.count), ir.VectorType(_FLOAT, self.count)
        self._bytes, self._shorts = ir.VectorType(_BYTE, 4 * self.count), ir.VectorType(_SHORT, 2 * self.count)

    def load(self, at: Any, offset: int, kind: Any) -> Any:
        found = self._builder.load(pointer(self._builder, self._builder.add(at, _LONG(offset)), kind))
        found.align = 4
        return found

    def store(self, value: Any, at: Any, offset: int) -> None:
        self._builder.store(value, pointer(self._builder, self._builder.add(at, _LONG(offset)), value.type)).align = 4

    def everywhere(self, at: Any, offset: int, kind: Any) -> Any:
        """One number from memory in all lanes."""
        scalar = self._builder.load(pointer(self._builder, self._builder.add(at, _LONG(offset)), kind.element))
        first = self._builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _WORD(0))
        lanes = ir.Constant(ir.VectorType(_WORD, kind.count), [0] * kind.count)
        return self._builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def constant(self, value: int) -> Any:
        return ir.Constant(self.ints, [value] * self.count)

    def dot(self, total: Any, x: Any, w: Any) -> Any:
        """total plus the products of a lane's four bytes; those of x are unsigned where the level raises x."""
        builder, level = self._builder, self.level
        if level.byte_dots == "vpdpbusd":
            return call_named(builder, f"llvm.x86.avx512.vpdpbusd.{level.register_bits}", self.ints, [total, x, w])
        if level.byte_dots == "maddubs":
            return builder.add(total, self.widened(self.short_dot(x, w), None))
        if level.byte_dots == "sdot":
            operands = [total, *(builder.bitcast(v, self._bytes) for v in (x, w))]
            return call_named(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", self.ints, operands)
        for i in range(4):
            left, right = (builder.ashr(builder.shl(v, self.constant(24 - 8 * i)), self.constant(24)) for v in (x, w))
            total = builder.add(total, builder.mul(left, right))
        return total

    def short_dot(self, x: Any, w: Any) -> Any:
        """Two sums of 16 bits for each lane: of its first two and its last two products."""
        name = "llvm.x86.avx512.pmaddubs.w.512" if self.level.register_bits == 512 else "llvm.x86.avx2.pmadd.ub.sw"
        return call_named(self._builder, name, self._shorts, [self._builder.bitcast(v, self._bytes) for v in (x, w)])

    def widened(self, shorts: Any, pairs: Any) -> Any:
        """The sums of both halves of a lane, each times its half of `pairs`, or 1."""
        name = "llvm.x86.avx512.pmaddw.d.512" if self.level.register_bits == 512 else "llvm.x86.avx2.pmadd.wd"
        by = ir.Constant(self._shorts, [1] * 2 * self.count) if pairs is None else self._builder.bitcast(pairs, self._shorts)
        return call_named(self._builder, name, self.ints, [shorts, by])

    def parts_of(self, value: Any) -> list[Any]:
        """A vector of LANES ints as those of a register's width."""
        builder, count = self._builder, self.count
        orders = (ir.Constant(ir.VectorType(_WORD, count), list(range(i, i + count))) for i in range(0, LANES, count))
        return [builder.shuffle_vector(value, value, order) for order in orders]


# --- panels ---


def _each_byte(value: int) -> Any:
    return ir.Constant(INTS.vector, [(value & 255) * 0x01010101] * LANES)


class PanelWriter:
    """Emits the code that writes a block of packed weights to the panel at `to`."""

    def __init__(self, builder: Any, panel: Panel, to: Any) -> None:
        self._builder, self._panel, self._to = builder, panel, to
        self._vectors = _Vectors(builder, panel.level)
        # Sums of the bytes of each run, by its chunk and its place in that.
        self._sums: dict[tuple[int, int], Any] = {}

    def _put(self, value: Any, chunk: int, offset: int, beyond: Any = None) -> None:
        at = self._builder.add(self._to, _LONG(chunk * self._panel.nbytes + offset))
        at = at if beyond is None else self._builder.add(at, beyond)
        self._builder.store(value, pointer(self._builder, at, value.type)).align = 4

    def _bytes(self, name: str, a: Any, b: Any) -> Any:
        builder, wide = self._builder, ir.VectorType(_BYTE, 4 * LANES)
        return builder.bitcast(getattr(builder, name)(*(builder.bitcast(v, wide) for v in (a, b))), INTS.vector)

    def _digits(self, codes: Any) -> list[Any]:
        """Unsigned codes as signed bytes: themselves, or digits from -8 to 8."""
        builder, panel = self._builder, self._panel
        if len(panel.digits) == 1:
            return [self._bytes("sub", codes, _each_byte(panel.centre)) if panel.centre else codes]
        if panel.centre != 128:
            codes = self._bytes("add", codes, _each_byte(128 - panel.centre))
        low = builder.and_(codes, _each_byte(15))
        eight = builder.and_(codes, _each_byte(8))
        shift = (ir.Constant(INTS.vector, [bits] * LANES) for bits in (4, 3, 1))
        high, carried = (builder.lshr(v, next(shift)) for v in (builder.and_(codes, _each_byte(240)), eight))
        high = self._bytes("sub", builder.add(high, carried), _each_byte(8))
        return [self._bytes("sub", low, builder.shl(eight, next(shift))), high]

    def _sum(self, total: Any, codes: Any) -> Any:
        """total plus the sum of a lane's four bytes."""
        builder, vectors = self._builder, self._vectors
        ones = vectors.constant(0x01010101)
        pairs = zip(vectors.parts_of(total), vectors.parts_of(codes))
        return joined(builder, [vectors.dot(t, ones, c) for t, c in pairs])

    def codes(self, reader: BlockReader) -> None:
        """All bytes, and the sums of them."""
        builder, panel, layout, done = self._builder, self._panel, self._panel.layout, 0
        for stretch in layout.stretches():
            done += stretch.count * len(stretch.starts)
            reader.fetch(done / layout.elements)
            runs = [(start, i) for start in stretch.starts for i, run in enumerate(panel.runs) if self._is_in(run, start)]

            def write(n: Any, sums: list[Any], starts: tuple[int, ...] = stretch.starts, runs: Any = runs) -> list[Any]:
                reader.move_to(n)
                made = list(sums)
                for i, start in itertools.product(range(0, STEP, _FOUR), starts):
                    digits = self._digits(reader.raised_codes(start + i))
                    places = [place for place, (s, _) in enumerate(runs) if s == start]
                    for place, bytes_ in zip(places, digits, strict=True):
                        run = panel.runs[runs[place][1]]
                        offset = run.codes + ((start + i) % CHUNK - run.first) // _FOUR * VECTOR_BYTES
                        self._put(bytes_, start // CHUNK, offset, further(builder, _LONG(0), n, VECTOR_BYTES // _FOUR))
                        if panel.raises_x:
                            made[place] = self._sum(made[place], bytes_)
                return made

            none = [ir.Constant(INTS.vector, None)] * len(runs)
            for (start, i), total in zip(runs, each_step(builder, layout, stretch.count, none, write), strict=True):
                self._add_sum(start, i, total, reader)

    @staticmethod
    def _is_in(run: CodeRun, start: int) -> bool:
        return run.first <= start % CHUNK < run.first + run.count

    def _add_sum(self, start: int, i: int, total: Any, reader: BlockReader) -> None:
        """A sum of bytes, with its sub-scale if that multiplies whole numbers."""
        builder, panel, key = self._builder, self._panel, (start // CHUNK, i)
        if panel.has_whole_scales:
            total = builder.mul(total, self._whole_scale(reader, start // panel.layout.part_size))
        self._sums[key] = builder.add(self._sums[key], total) if key in self._sums else total

    def _whole_scale(self, reader: BlockReader, part: int) -> Any:
        return self._builder.fptosi(reader.sub_scale(self._panel.layout.scales, part), INTS.vector)

    def scales(self, reader: BlockReader, scale_of: Callable[[int], Any], least_of: Callable[[int], Any]) -> None:
        """What sums are multiplied by and what is added to them, by parts."""
        builder, panel, layout = self._builder, self._panel, self._panel.layout
        size = layout.part_size
        for chunk, (i, run) in itertools.product(range(layout.elements // CHUNK), enumerate(panel.runs)):
            first = chunk * CHUNK + run.first
            if panel.raises_x:
                by = ir.Constant(INTS.vector, [-128] * LANES)
                self._put(builder.mul(self._sums[chunk, i], by), chunk, run.raised)
            scale = reader.scale() if panel.has_whole_scales else scale_of(first // size)
            digit = ir.Constant(FLOATS.vector, [float(run.digit)] * LANES)
            self._put(scale if run.digit == 1 else builder.fmul(scale, digit), chunk, run.scale)
            for p, at in enumerate(run.leasts):
                part = first // size + p
                moved = panel.centre - raised_by(layout)
                by = ir.Constant(FLOATS.vector, [float(moved)] * LANES)
                self._put(fused(builder, scale_of(part), by, least_of(part)) if moved else least_of(part), chunk, at)
            for p, at in enumerate(run.pairs):
                whole = self._whole_scale(reader, first // size + p)
                low = builder.and_(whole, ir.Constant(INTS.vector, [0xFFFF] * LANES))
                pair = builder.or_(low, builder.shl(whole, ir.Constant(INTS.vector, [16] * LANES)))
                self._put(pair, chunk, at)


def emit_panel(builder: Any, panel: Panel, form: TileFormat, group: Any, part: Any, to: Any) -> None:
    """Writes a part of a group of a format."""
    layout, reader, writer = panel.layout, BlockReader(builder, form, group, part), PanelWriter(builder, panel, to)
    scale, least = reader.scale(), reader.least()
    writer.codes(reader)
    writer.scales(
        reader,
        lambda part: times(builder, scale, reader.sub_scale(layout.scales, part)),
        lambda part: times(builder, least, reader.sub_scale(layout.leasts, part)),
    )


# --- dot products ---


class _Rows:
    """Emits the sums of some rows of x with some lanes of one chunk of a panel."""

    def __init__(self, builder: Any, panel: Panel, rows: int, x: Any, weights: Any, totals: Any) -> None:
        self._builder, self._panel, self._rows = builder, panel, rows
        self._x, self._weights, self._totals = x, weights, totals
        self._v = _Vectors(builder, panel.level)
        self._width = panel.level.register_bits // 8
        self._across = 4 * panel.lanes // self._width
        self.totals: dict[tuple[int, int], Any] = {}

    def move_to(self, x: Any, weights: Any) -> None:
        """The chunk from now on."""
        self._x, self._weights = x, weights

    def _weight(self, offset: int, j: int, kind: Any = None) -> Any:
        return self._v.load(self._weights, offset + j * self._width, kind or self._v.ints)

    def _four(self, row: int, run: CodeRun, step: int) -> Any:
        return self._v.everywhere(self._x, row * ROW_PITCH + run.first + step * _FOUR, self._v.ints)

    def _settle(self, totals: dict[tuple[int, int], Any]) -> None:
        """Has sums computed before anything that follows: LLVM would begin with later ones and run out of registers."""
        level = self._panel.level
        register = "w" if level.machine == "aarch64" else "v" if level.register_bits == 512 else "x"
        for place, total in totals.items():
            kind = ir.FunctionType(total.type, [total.type])
            totals[place] = self._builder.asm(kind, "", f"={register},0,~{{memory}}", [total], side_effect=True)

    def _load(self, r: int, j: int) -> Any:
        return self._v.load(self._totals, r * VECTOR_BYTES + j * self._width, self._v.floats)

    def _store(self, r: int, j: int, value: Any) -> None:
        self._v.store(value, self._totals, r * VECTOR_BYTES + j * self._width)

    def load_totals(self) -> list[Any]:
        """What is in memory, in the order of places."""
        return [self._load(r, j) for r, j in self._places()] if self._panel.keeps_totals else []

    def keep_totals(self, values: list[Any]) -> None:
        """The same values, in the same order, in registers from now on."""
        self.totals = dict(zip(self._places(), values))

    def store_totals(self) -> None:
        for (r, j), value in self.totals.items():
            self._store(r, j, value)

    def _places(self) -> list[tuple[int, int]]:
        return list(itertools.product(range(self._rows), range(self._across)))

    def _whole(self, run: CodeRun) -> dict[tuple[int, int], Any]:
        """Sums in 32 bits from the first product on."""
        raised = [self._weight(run.raised, j) if self._panel.raises_x else self._v.constant(0) for j in range(self._across)]
        totals = {(r, j): raised[j] for r, j in self._places()}
        for step in range(run.count // _FOUR):
            weights = [self._weight(run.codes + step * VECTOR_BYTES, j) for j in range(self._across)]
            for r in range(self._rows):
                x = self._four(r, run, step)
                for j in range(self._across):
                    totals[r, j] = self._v.dot(totals[r, j], x, weights[j])
            self._settle(totals)
        return totals

    def _short(self, run: CodeRun) -> dict[tuple[int, int], Any]:
        """All of a run fits in 16 bits."""
        builder = self._builder
        totals: dict[tuple[int, int], Any] = {}
        for step in range(run.count // _FOUR):
            weights = [self._weight(run.codes + step * VECTOR_BYTES, j) for j in range(self._across)]
            for r in range(self._rows):
                x = self._four(r, run, step)
                for j in range(self._across):
                    found = self._v.short_dot(x, weights[j])
                    totals[r, j] = builder.add(totals[r, j], found) if step else found
            self._settle(totals)
        return totals

    def _grouped(self, run: CodeRun) -> dict[tuple[int, int], Any]:
        """Groups of a run fit in 16 bits; their sums in 32 bits."""
        builder, group = self._builder, self._panel.group
        totals: dict[tuple[int, int], Any] = {}
        for first, j in itertools.product(range(0, run.count // _FOUR, group), range(self._across)):
            weights = [self._weight(run.codes + (first + i) * VECTOR_BYTES, j) for i in range(group)]
            pairs = self._weight(run.pairs[first * _FOUR * len(run.pairs) // run.count], j) if run.pairs else None
            for r in range(self._rows):
                total = None
                for i in range(group):
                    found = self._v.short_dot(self._four(r, run, first + i), weights[i])
                    total = found if total is None else builder.add(total, found)
                whole = self._v.widened(total, pairs)
                totals[r, j] = builder.add(totals[r, j], whole) if first else whole
            self._settle(totals)
        return totals

    def emit(self, run: CodeRun) -> None:
        """Adds what a run gives."""
        builder, v, panel = self._builder, self._v, self._panel
        is_whole = panel.is_short and panel.group == run.count // _FOUR
        sums = (self._short if is_whole else self._grouped)(run) if panel.is_short else self._whole(run)
        for j in range(self._across):
            raised = self._weight(run.raised, j) if panel.is_short else None
            scale = self._weight(run.scale, j, v.floats)
            leasts = [self._weight(at, j, v.floats) for at in run.leasts]
            for r in range(self._rows):
                total = v.widened(sums[r, j], None) if is_whole else sums[r, j]
                total = total if raised is None else builder.add(total, raised)
                value = builder.fmul(builder.sitofp(total, v.floats), scale, flags=FUSED)
                for p, least in enumerate(leasts):
                    is_whole_chunk = len(leasts) == 1 and run.count == CHUNK
                    at = CHUNK_SUM if is_whole_chunk else CHUNK_SUMS_16 + (run.first // 16 + p) * 4
                    value = fused(builder, least, v.everywhere(self._x, r * ROW_PITCH + at, v.floats), value)
                factor = v.everywhere(self._x, r * ROW_PITCH + CHUNK_FACTOR, v.floats)
                if panel.keeps_totals:
                    self.totals[r, j] = fused(builder, value, factor, self.totals[r, j])
                else:
                    self._store(r, j, fused(builder, value, factor, self._load(r, j)))


def emit_rows(builder: Any, panel: Panel, rows: int, x: Any, weights: Any, chunks: Any, totals: Any) -> None:
    """totals [rows, LANES] += x times as many chunks of a panel, for the first of the lanes that registers hold at a time."""
    sums = _Rows(builder, panel, rows, x, weights, totals)
    before, start_totals = builder.block, sums.load_totals()
    body, end = (builder.function.append_basic_block(name) for name in ("chunk", "after_chunks"))
    builder.branch(body)
    builder.position_at_end(body)
    values = [builder.phi(_LONG) for _ in range(3)]
    running = [builder.phi(value.type) for value in start_totals]
    for value, start, step in zip(values, (chunks, x, weights), (-1, CHUNK_PITCH, panel.nbytes), strict=True):
        value.add_incoming(start, before)
        value.add_incoming(builder.add(value, _LONG(step)), body)
    left, x_at, weights_at = values
    sums.move_to(x_at, weights_at)
    sums.keep_totals(running)
    for run in panel.runs:
        sums.emit(run)
    for value, first, last in zip(running, start_totals, sums.totals.values(), strict=True):
        value.add_incoming(first, before)
        value.add_incoming(last, body)
    builder.cbranch(builder.icmp_signed(">", left, _LONG(1)), body, end)
    builder.position_at_end(end)
    sums.store_totals()
