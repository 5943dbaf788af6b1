"""One record for each GGUF block format: where the bits of its codes and scales are stored, and what they stand for.

A block holds `elements` numbers in `nbytes` bytes. The number of element k is `scale * sub-scale * code - least * sub-least`:
codes are whole numbers less `zero`, or entries of a table; scale and least are floats of the block; sub-scales belong to parts
of the block. Code that reads blocks is generated from these records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pumice.core import dtypes
from pumice.core.dtypes import DType


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
class SubScales:
    """A small number for each part of a block: its bits, lowest field first.

    They are whole numbers less `zero`; with `is_signed`, bytes in two's complement; with `is_float`, halves of UE4M3 floats.
    """

    parts: tuple[tuple[Bits, ...], ...]
    zero: int = 0
    is_signed: bool = False
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` elements from each of one or two starts, whose codes share bytes."""

    starts: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a format stores a block: its `scale`, at that byte, is f16, f32 or e8m0 (half a power of two); `least` is f16."""

    elements: int
    nbytes: int
    planes: tuple[Plane, ...]
    scale: int | None
    scale_kind: str = "f16"
    zero: int = 0
    is_signed: bool = False
    table: tuple[int, ...] = ()
    part: int = 0
    scales: SubScales | None = None
    least: int | None = None
    # What `least` is multiplied by before it is added.
    least_sign: int = 1
    leasts: SubScales | None = None

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
        size, run = self.part_size, self.planes[0].run
        count = min(size, run)
        by_byte: dict[int, list[int]] = {}
        for start in range(0, self.elements, count):
            by_byte.setdefault(self.planes[0].of(start).byte, []).append(start)
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

LAYOUTS: dict[DType, BlockLayout] = {
    dtypes.q4_0: BlockLayout(32, 18, (Plane(4, 2, 16),), scale=0, zero=8),
    dtypes.q4_1: BlockLayout(32, 20, (Plane(4, 4, 16),), scale=0, least=2),
    dtypes.q5_0: BlockLayout(32, 22, (Plane(4, 6, 16), Plane(1, 2, 1)), scale=0, zero=16),
    dtypes.q5_1: BlockLayout(32, 24, (Plane(4, 8, 16), Plane(1, 4, 1)), scale=0, least=2),
    dtypes.q8_0: BlockLayout(32, 34, (Plane(8, 2, 32),), scale=0, is_signed=True),
    dtypes.q2_k: BlockLayout(
        256, 84, (Plane(2, 16, 32),), scale=80, part=16, scales=SubScales(_bytes_of_parts(16, 0, 0, 4)),
        least=82, least_sign=-1, leasts=SubScales(_bytes_of_parts(16, 0, 4, 4)),
    ),
    dtypes.q3_k: BlockLayout(
        256, 110, (Plane(2, 32, 32), Plane(1, 0, 32)), scale=108, zero=4, part=16, scales=SubScales(_Q3_SCALES, zero=32)
    ),
    dtypes.q4_k: BlockLayout(
        256, 144, (Plane(4, 16, 32),), scale=0, part=32, scales=_K_SCALES, least=2, least_sign=-1, leasts=_K_LEASTS
    ),
    dtypes.q5_k: BlockLayout(
        256, 176, (Plane(4, 48, 32), Plane(1, 16, 32)), scale=0, part=32, scales=_K_SCALES,
        least=2, least_sign=-1, leasts=_K_LEASTS,
    ),
    dtypes.q6_k: BlockLayout(
        256, 210, (Plane(4, 0, 64), Plane(2, 128, 32)), scale=208, zero=32, part=16,
        scales=SubScales(_bytes_of_parts(16, 192, 0, 8), is_signed=True),
    ),
    dtypes.q8_k: BlockLayout(256, 292, (Plane(8, 4, 256),), scale=0, scale_kind="f32", is_signed=True, part=32),
    dtypes.iq4_nl: BlockLayout(32, 18, (Plane(4, 2, 16),), scale=0, table=NONLINEAR),
    dtypes.iq4_xs: BlockLayout(
        256, 136, (Plane(4, 8, 16),), scale=0, table=NONLINEAR, part=32, scales=SubScales(_IQ4_SCALES, zero=32)
    ),
    dtypes.mxfp4: BlockLayout(32, 17, (Plane(4, 1, 16),), scale=0, scale_kind="e8m0", table=DOUBLED_E2M1),
    dtypes.nvfp4: BlockLayout(
        64, 36, (Plane(4, 4, 8),), scale=None, table=DOUBLED_E2M1, part=16,
        scales=SubScales(_bytes_of_parts(4, 0, 0, 8), is_float=True),
    ),
}  # fmt: skip
