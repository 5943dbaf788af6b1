"""One record for each GGUF block format: where the bits of its codes and scales are stored, their meaning, and its names.

All format-specific code is generated or chosen from its record: the codec (block_codec.py, block_encode.py), the
search for better codes (formats/encode), the kernels of both backends, the numbers in GGUF files, and the text of the docs.

A block holds `elements` numbers in `nbytes` bytes. The number of element k is `scale * sub-scale * code - least * sub-least`:
codes are whole numbers less `zero`, entries of a table, or rows of a grid; scale and least are floats of the block; sub-scales
belong to parts of the block. Code that reads blocks is generated from these records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from pumice.core import dtypes, grids
from pumice.core.dtypes import DType
from pumice.core.grids import Grid
from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Bits:
    """A field of up to eight bits inside a byte of the block."""

    byte: int
    shift: int
    width: int


@dataclass(frozen=True, slots=True)
class Plane:
    """`width` bits of every code, from byte `start` on: each run of `run` bytes has `run * 8 / width` elements.

    A byte holds elements that are `run` apart, the first one lowest.

    >>> [Plane(4, 16, 32).of(k) for k in (0, 31, 32, 64)]
    [Bits(byte=16, shift=0, width=4), Bits(byte=47, shift=0, width=4), Bits(byte=16, shift=4, width=4), Bits(byte=48, shift=0, width=4)]
    """  # noqa: E501

    width: int
    start: int
    run: int

    def of(self, k: int) -> Bits:
        """Where the bits of element k are."""
        group, inside = divmod(k, self.run * 8 // self.width)
        return Bits(self.start + group * self.run + inside % self.run, inside // self.run * self.width, self.width)


@dataclass(frozen=True, slots=True)
class Trits:
    """Digits to the base 3, `digits` of them in each byte of a run from byte `start` on.

    A byte holds elements that are `run` apart, as a fraction of 256 rounded up: times 3, what goes beyond a byte is the first.
    """

    start: int
    run: int
    digits: int

    @property
    def elements(self) -> int:
        """How many elements a run has."""
        return self.run * self.digits


@dataclass(frozen=True, slots=True)
class BitField:
    """`width` bits for each of many numbers: `count` of them, `step` bits apart from bit `first` of byte `start` on.

    The next `count` begin `stride` bytes further.

    >>> [BitField(7, 66, stride=4, count=4, step=7).of(i) for i in (0, 1, 4)]
    [(Bits(byte=66, shift=0, width=7),), (Bits(byte=66, shift=7, width=1), Bits(byte=67, shift=0, width=6)), (Bits(byte=70, shift=0, width=7),)]
    """  # noqa: E501

    width: int
    start: int
    stride: int
    count: int
    step: int
    first: int = 0

    def of(self, i: int) -> tuple[Bits, ...]:
        """Where the bits of number i are, lowest first."""
        group, inside = divmod(i, self.count)
        at, left, found = (self.start + group * self.stride) * 8 + self.first + inside * self.step, self.width, []
        while left:
            found.append(Bits(at // 8, at % 8, min(left, 8 - at % 8)))
            at, left = at + found[-1].width, left - found[-1].width
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GridCodes:
    """Codes that are the numbers of rows of a grid: the fields of a row's `index` come lowest first.

    `signs` have a bit for each of eight elements, set where the number is negated; of seven bits, the eighth makes the number
    of set ones even. `offsets` have one bit for all eight: 1 is added to the numbers, or subtracted where it is set.
    """

    grid: Grid
    index: tuple[BitField, ...]
    signs: BitField | None = None
    offsets: BitField | None = None

    @property
    def most(self) -> int:
        """The largest size of a number."""
        return max(self.grid.levels) + (self.offsets is not None)


@dataclass(frozen=True, slots=True)
class SubScales:
    """A small number for each part of a block: its bits, lowest field first.

    They are whole numbers less `zero`; with `is_signed`, bytes in two's complement; with `is_float`, halves of UE4M3 floats;
    with `odd`, odd multiples of it: that of s is (2 s + 1) odd. `field` is the rule that their places follow, if there is one.
    """

    parts: tuple[tuple[Bits, ...], ...]
    zero: int = 0
    is_signed: bool = False
    is_float: bool = False
    odd: float = 0.0
    field: BitField | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` elements from each of one or two starts, whose codes share bytes."""

    starts: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a format stores a block: its `scale`, at that byte, is a float or e8m0 (half a power of two).

    A scale of nibbles is an f16 too: its four, lowest first, are the upper halves of every other byte from there on.
    `least` is a float, or a whole zero point that is subtracted from codes. Codes are whole numbers, or eight-bit floats, in
    `planes`, or else `trits` or rows of a `grid`.
    """

    elements: int
    nbytes: int
    planes: tuple[Plane, ...]
    scale: int | None
    scale_kind: Literal["f16", "bf16", "f32", "e8m0", "nibbles"] = "f16"
    zero: int = 0
    is_signed: bool = False
    code_kind: Literal["whole", "e4m3", "e5m2"] = "whole"
    table: tuple[int, ...] = ()
    part: int = 0
    scales: SubScales | None = None
    least: int | None = None
    least_kind: Literal["f16", "bf16", "f32", "zero"] = "f16"
    # What `least` is multiplied by before it is added.
    least_sign: int = 1
    leasts: SubScales | None = None
    trits: tuple[Trits, ...] = ()
    grid: GridCodes | None = None

    @property
    def unpacked(self) -> BlockLayout:
        """The layout of a block whose codes are unpacked to whole bytes somewhere else; this one if they are in planes."""
        return self if self.planes else replace(self, planes=(Plane(8, 0, self.elements),), trits=(), grid=None)

    @property
    def bits(self) -> int:
        """Bits of a code; of a row of a grid those that its numbers need."""
        if self.grid is not None:
            return self.grid.most.bit_length() + 1
        return 2 if self.trits else sum(plane.width for plane in self.planes)

    @property
    def part_size(self) -> int:
        """Elements that share a sub-scale: 16 or 32."""
        return self.part or self.elements

    def code(self, k: int) -> tuple[Bits, ...]:
        """The bits of element k's code, lowest field first."""
        return tuple(plane.of(k) for plane in self.planes)

    def stretches(self) -> Iterator[Stretch]:
        """All elements, in an order that reads bytes only once if two elements of a part, or of two parts, share them.

        >>> [next(LAYOUTS[d].stretches()) for d in (dtypes.q4_0, dtypes.q6_k)]
        [Stretch(starts=(0, 16), count=16), Stretch(starts=(0, 64), count=16)]
        """
        size, first = self.part_size, self.unpacked.planes[0]
        count = min(size, first.run)
        by_byte: dict[int, list[int]] = {}
        for start in range(0, self.elements, count):
            by_byte.setdefault(first.of(start).byte, []).append(start)
        for starts in by_byte.values():
            for i in range(0, len(starts), 2):
                yield Stretch(tuple(starts[i : i + 2]), count)


def _bytes_of_parts(count: int, start: int, shift: int, width: int) -> tuple[tuple[Bits, ...], ...]:
    return tuple((Bits(start + i, shift, width),) for i in range(count))


def _six_bits(start: int) -> tuple[tuple[Bits, ...], ...]:
    """q4_k and q5_k: six bits of four parts in the first bytes, whose top bits belong to the other four parts."""
    low = 4 if start == 8 else 0
    return (*_bytes_of_parts(4, start, 0, 6), *((Bits(12 + i, low, 4), Bits(start + i, 6, 2)) for i in range(4)))


_K_SCALES, _K_LEASTS = SubScales(_six_bits(4)), SubScales(_six_bits(8))
_IQ4_SCALES = tuple((Bits(4 + p // 2, p % 2 * 4, 4), Bits(2 + p // 4, p % 4 * 2, 2)) for p in range(8))
_Q3_SCALES = tuple((Bits(96 + p % 8, p // 8 * 4, 4), Bits(104 + p % 4, p // 4 * 2, 2)) for p in range(16))
# The levels of iq4_nl and iq4_xs: closer together around 0, where most weights are.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# The four-bit floats (sign, two bits of exponent, one of mantissa) times two, so that all are whole.
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _odd(field: BitField, count: int, odd: float) -> SubScales:
    return SubScales(tuple(field.of(p) for p in range(count)), odd=odd, field=field)


# Why no files are written in the formats with a grid.
_UNWEIGHED = "so few bits need weights that say how much each number matters, and such weights are not read yet"


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """All that Pumice knows of a format. `value` says in the docs what a stored number means.

    `gguf_type` is the number of the format in the table of tensors of a GGUF file, `file_type` that of a file in which most
    tensors have it; for the K formats that of the mix without larger layers. `fallback` takes its place where rows are no whole
    number of blocks: blocks of 32 with at least as many bits. `not_written` is the reason why no weights are stored in it, and
    `instead` the format to take then.
    """

    layout: BlockLayout
    gguf_type: int
    value: str
    file_type: int | None = None
    fallback: DType | None = None
    not_written: str = ""
    instead: DType | None = None


FORMATS: dict[DType, BlockFormat] = {
    dtypes.q4_0: BlockFormat(
        BlockLayout(32, 18, (Plane(4, 2, 16),), scale=0, zero=8),
        gguf_type=2, file_type=2, value="d*(q-8) with q in 0…15",
    ),
    dtypes.q4_1: BlockFormat(
        BlockLayout(32, 20, (Plane(4, 4, 16),), scale=0, least=2),
        gguf_type=3, file_type=3, value="d*q+m with q in 0…15",
    ),
    dtypes.q5_0: BlockFormat(
        BlockLayout(32, 22, (Plane(4, 6, 16), Plane(1, 2, 1)), scale=0, zero=16),
        gguf_type=6, file_type=8, value="d*(q-16) with q in 0…31",
    ),
    dtypes.q5_1: BlockFormat(
        BlockLayout(32, 24, (Plane(4, 8, 16), Plane(1, 4, 1)), scale=0, least=2),
        gguf_type=7, file_type=9, value="d*q+m with q in 0…31",
    ),
    dtypes.q8_0: BlockFormat(
        BlockLayout(32, 34, (Plane(8, 2, 32),), scale=0, is_signed=True),
        gguf_type=8, file_type=7, value="d*q with q in -128…127",
    ),
    dtypes.q2_k: BlockFormat(
        BlockLayout(
            256, 84, (Plane(2, 16, 32),), scale=80, part=16, scales=SubScales(_bytes_of_parts(16, 0, 0, 4)),
            least=82, least_sign=-1, leasts=SubScales(_bytes_of_parts(16, 0, 4, 4)),
        ),
        gguf_type=10, file_type=10, fallback=dtypes.iq4_nl,
        value="(d*s)*q-(m*t) with q in 0…3 and whole s and t in 0…15 for every 16 elements",
    ),
    dtypes.q3_k: BlockFormat(
        BlockLayout(
            256, 110, (Plane(2, 32, 32), Plane(1, 0, 32)), scale=108, zero=4, part=16, scales=SubScales(_Q3_SCALES, zero=32)
        ),
        gguf_type=11, file_type=11, fallback=dtypes.iq4_nl, value="(d*s)*q with q in -4…3 and s in -32…31 for every 16",
    ),
    dtypes.q4_k: BlockFormat(
        BlockLayout(256, 144, (Plane(4, 16, 32),), scale=0, part=32, scales=_K_SCALES, least=2, least_sign=-1, leasts=_K_LEASTS),
        gguf_type=12, file_type=14, fallback=dtypes.q5_0,
        value="(d*s)*q-(m*t) with q in 0…15 and whole s and t in 0…63 for every 32",
    ),
    dtypes.q5_k: BlockFormat(
        BlockLayout(
            256, 176, (Plane(4, 48, 32), Plane(1, 16, 32)), scale=0, part=32, scales=_K_SCALES,
            least=2, least_sign=-1, leasts=_K_LEASTS,
        ),
        gguf_type=13, file_type=16, fallback=dtypes.q5_1,
        value="(d*s)*q-(m*t) with q in 0…31 and whole s and t in 0…63 for every 32",
    ),
    dtypes.q6_k: BlockFormat(
        BlockLayout(
            256, 210, (Plane(4, 0, 64), Plane(2, 128, 32)), scale=208, zero=32, part=16,
            scales=SubScales(_bytes_of_parts(16, 192, 0, 8), is_signed=True),
        ),
        gguf_type=14, file_type=18, fallback=dtypes.q8_0,
        value="(d*s)*(q-32) with q in 0…63 and s in -128…127 for every 16",
    ),
    dtypes.q8_k: BlockFormat(
        BlockLayout(256, 292, (Plane(8, 4, 256),), scale=0, scale_kind="f32", is_signed=True, part=32),
        gguf_type=15, value="d*q with d in f32", not_written="it is the format of activations during a matmul",
    ),
    dtypes.iq4_nl: BlockFormat(
        BlockLayout(32, 18, (Plane(4, 2, 16),), scale=0, table=NONLINEAR),
        gguf_type=20, file_type=25, value="d times a number of a table",
    ),
    dtypes.iq4_xs: BlockFormat(
        BlockLayout(256, 136, (Plane(4, 8, 16),), scale=0, table=NONLINEAR, part=32, scales=SubScales(_IQ4_SCALES, zero=32)),
        gguf_type=23, file_type=30, fallback=dtypes.iq4_nl, value="(d*s) times such a number with s in -32…31 for every 32",
    ),
    dtypes.iq3_s: BlockFormat(
        BlockLayout(
            256, 110, (), scale=0, is_signed=True, part=32, scales=_odd(BitField(4, 106, 1, 2, 4), 8, 1.0),
            grid=GridCodes(grids.IQ3_S, (BitField(8, 2, 8, 8, 8), BitField(1, 66, 1, 8, 1)), signs=BitField(8, 74, 4, 4, 8)),
        ),
        gguf_type=21, file_type=26, not_written=_UNWEIGHED, instead=dtypes.q3_k,
        value="(d*(2*s+1)) times numbers of a grid of 512 rows of four with signs, s in 0…15 for every 32",
    ),
    dtypes.iq3_xxs: BlockFormat(
        BlockLayout(
            256, 98, (), scale=0, is_signed=True, part=32, scales=_odd(BitField(4, 66, 4, 1, 0, first=28), 8, 1 / 4),
            grid=GridCodes(grids.IQ3_XXS, (BitField(8, 2, 8, 8, 8),), signs=BitField(7, 66, 4, 4, 7)),
        ),
        gguf_type=18, file_type=23, not_written=_UNWEIGHED, instead=dtypes.q3_k,
        value="(d*(2*s+1)/4) times numbers of a grid of 256 rows of four with signs, s in 0…15 for every 32",
    ),
    dtypes.iq2_s: BlockFormat(
        BlockLayout(
            256, 82, (), scale=0, is_signed=True, part=16, scales=_odd(BitField(4, 74, 1, 2, 4), 16, 1 / 8),
            grid=GridCodes(grids.IQ2_S, (BitField(8, 2, 4, 4, 8), BitField(2, 66, 1, 4, 2)), signs=BitField(8, 34, 4, 4, 8)),
        ),
        gguf_type=22, file_type=28, not_written=_UNWEIGHED, instead=dtypes.q2_k,
        value="(d*(2*s+1)/8) times numbers of a grid of 1024 rows of eight with signs, s in 0…15 for every 16",
    ),
    dtypes.iq2_xs: BlockFormat(
        BlockLayout(
            256, 74, (), scale=0, is_signed=True, part=16, scales=_odd(BitField(4, 66, 1, 2, 4), 16, 1 / 8),
            grid=GridCodes(grids.IQ2_XS, (BitField(9, 2, 2, 1, 0),), signs=BitField(7, 2, 2, 1, 0, first=9)),
        ),
        gguf_type=17, file_type=20, not_written=_UNWEIGHED, instead=dtypes.q2_k,
        value="the same with a grid of 512",
    ),
    dtypes.iq2_xxs: BlockFormat(
        BlockLayout(
            256, 66, (), scale=0, is_signed=True, part=32, scales=_odd(BitField(4, 6, 8, 1, 0, first=28), 8, 1 / 8),
            grid=GridCodes(grids.IQ2_XXS, (BitField(8, 2, 8, 4, 8),), signs=BitField(7, 6, 8, 4, 7)),
        ),
        gguf_type=16, file_type=19, not_written=_UNWEIGHED, instead=dtypes.q2_k,
        value="the same with a grid of 256 and s for every 32",
    ),
    dtypes.iq1_m: BlockFormat(
        BlockLayout(
            256, 56, (), scale=49, scale_kind="nibbles", is_signed=True, part=16,
            scales=_odd(BitField(3, 48, 2, 4, 3), 16, 1 / 8),
            grid=GridCodes(
                grids.IQ1, (BitField(8, 0, 4, 4, 8), BitField(3, 32, 1, 2, 4)), offsets=BitField(1, 32, 1, 2, 4, first=3)
            ),
        ),
        gguf_type=29, file_type=31, not_written=_UNWEIGHED, instead=dtypes.q2_k,
        value="(d*(2*s+1)/8) times numbers of a grid of 2048 rows of -8, 0 and 8, ±1 for every 8, s in 0…7 for every 16",
    ),
    dtypes.iq1_s: BlockFormat(
        BlockLayout(
            256, 50, (), scale=0, is_signed=True, part=32, scales=_odd(BitField(3, 34, 2, 1, 0, first=12), 8, 1 / 8),
            grid=GridCodes(
                grids.IQ1, (BitField(8, 2, 4, 4, 8), BitField(3, 34, 2, 4, 3)), offsets=BitField(1, 34, 2, 4, 0, first=15)
            ),
        ),
        gguf_type=19, file_type=24, not_written=_UNWEIGHED, instead=dtypes.q2_k,
        value="the same with the sign of 1 and s for every 32",
    ),
    dtypes.tq2_0: BlockFormat(
        BlockLayout(256, 66, (Plane(2, 0, 32),), scale=64, zero=1, part=32),
        gguf_type=35, file_type=37, fallback=dtypes.q4_0, value="d*(q-1) with q in 0…3",
    ),
    dtypes.tq1_0: BlockFormat(
        BlockLayout(256, 54, (), scale=52, zero=1, part=32, trits=(Trits(0, 32, 5), Trits(32, 16, 5), Trits(48, 4, 4))),
        gguf_type=34, file_type=36, fallback=dtypes.q4_0, value="d*(q-1) with q in 0…2, five to a byte",
    ),
    dtypes.mxfp4: BlockFormat(
        BlockLayout(32, 17, (Plane(4, 1, 16),), scale=0, scale_kind="e8m0", table=DOUBLED_E2M1),
        gguf_type=39, file_type=38, value="a power of two times a four-bit float",
    ),
    dtypes.nvfp4: BlockFormat(
        BlockLayout(
            64, 36, (Plane(4, 4, 8),), scale=None, table=DOUBLED_E2M1, part=16,
            scales=SubScales(_bytes_of_parts(4, 0, 0, 8), is_float=True),
        ),
        gguf_type=40, value="an e4m3 number for every 16 times a four-bit float", not_written="no encoder",
    ),
}  # fmt: skip
LAYOUTS = {dtype: format.layout for dtype, format in FORMATS.items()}
