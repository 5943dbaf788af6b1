"""How tiles of packed weights order the bytes of a block: what kernels load at once is side by side for all rows.

Bytes stay together by four, so that a lane of 32 bits has four codes, or those of two to sixteen elements, of its row; floats of
16 bits stay whole. Formats whose codes are in no planes keep single bytes. Formats with one bit of each of 32 neighbours in
four bytes get them in another order, in which shifts alone put the bits of four neighbours into four bytes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS, BlockLayout, Plane
from pumice.core.dtypes import DType, GroupLayout
from pumice.core.records import dataclass
from pumice.ir.registry import Array

_WORD = 4
_WIDTHS = {"f16": 2, "bf16": 2, "f32": 4, "e8m0": 1, "nibbles": 1}
# Bytes of single bits that are put in another order together: those of 32 elements.
BIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes `start` to `stop` of a block or a part, of which `unit` at a time stay together."""

    start: int
    stop: int
    unit: int


@dataclass(frozen=True, slots=True)
class TileFormat:
    """How kernels read a format: parts of a group that each have `layout`, with `header` bytes of the group before all parts.

    A block of a GGUF format is a group of one part without a header. Bytes of `layout` from `header` on are the part's own;
    `bit_planes` start where single bits are in another order than in files.
    """

    layout: BlockLayout
    header: int
    parts: int
    sections: tuple[Section, ...]
    bit_planes: tuple[int, ...] = ()

    @property
    def part_bytes(self) -> int:
        """Bytes of a part alone."""
        return self.layout.nbytes - self.header

    @property
    def nbytes(self) -> int:
        """Bytes of a group."""
        return self.header + self.parts * self.part_bytes

    @property
    def elements(self) -> int:
        """Elements of a group."""
        return self.parts * self.layout.elements

    def group_sections(self) -> Iterator[Section]:
        """The sections of the whole group.

        >>> list(tile_format(dtypes.q4_0).group_sections())
        [Section(start=0, stop=2, unit=2), Section(start=2, stop=18, unit=4)]
        >>> list(tile_format(dtypes.grouped("u4z", 64, "f16")).group_sections())
        [Section(start=0, stop=2, unit=2), Section(start=2, stop=4, unit=2), Section(start=4, stop=36, unit=4)]
        """
        own = [s for s in self.sections if s.start >= self.header]
        yield from (s for s in self.sections if s.start < self.header)
        if len(own) == 1:  # parts follow each other without a seam
            yield Section(self.header, self.nbytes, own[0].unit)
            return
        for part in range(self.parts):
            at = part * self.part_bytes
            yield from (Section(s.start + at, s.stop + at, s.unit) for s in own)


@functools.cache
def tile_format(dtype: DType) -> TileFormat:
    """How tiles of a quantised dtype are read.

    >>> tile_format(dtypes.q5_0).layout.planes[1], tile_format(dtypes.grouped("i8", 128, "f32")).parts
    (Plane(width=1, start=2, run=4), 4)
    """
    groups = dtypes.group_layout(dtype)
    if groups is None:
        layout = LAYOUTS[dtype]
        if not layout.planes:  # codes are unpacked from single bytes
            return TileFormat(layout, 0, 1, _sections(layout, unit=1))
        singles = tuple(p.start for p in layout.planes if p.run == 1)
        planes = tuple(replace(p, run=BIT_BYTES) if p.run == 1 else p for p in layout.planes)
        layout = replace(layout, planes=planes)
        return TileFormat(layout, 0, 1, _sections(layout), singles)
    layout = _part_layout(groups)
    return TileFormat(layout, groups.header, groups.size // layout.elements, _sections(layout, groups.header))


def _part_layout(groups: GroupLayout) -> BlockLayout:
    """A part of a group with the group's header before it."""
    start, width = groups.header, groups.scale_bytes
    if groups.codes == "nvfp4":
        inner = LAYOUTS[dtypes.nvfp4]
        assert inner.scales is not None
        parts = tuple((replace(bits, byte=bits.byte + start),) for (bits,) in inner.scales.parts)
        planes = tuple(Plane(p.width, p.start + start, p.run) for p in inner.planes)
        scales = replace(inner.scales, parts=parts, is_signed=True)
        return replace(inner, nbytes=inner.nbytes + start, planes=planes, scale=0, scale_kind="f32", scales=scales)
    codes = groups.codes
    plane = Plane(4, start, 16) if groups.bits == 4 else Plane(8, start, 32)
    return BlockLayout(
        32, start + 4 * groups.bits, (plane,), scale=0, scale_kind=groups.scale,
        zero=8 if codes == "i4" else -128 if codes == "u8b" else 0,
        is_signed=codes in ("i8", "u8z", "u8b"),
        code_kind="e4m3" if codes == "e4m3" else "e5m2" if codes == "e5m2" else "whole",
        least=width if groups.offset else None, least_kind="zero" if groups.offset == "zero" else groups.scale,
    )  # fmt: skip


def _sections(layout: BlockLayout, header: int = 0, unit: int = _WORD) -> tuple[Section, ...]:
    """Floats by themselves; all else in units, as far as they go, from where codes or sub-scales begin."""
    floats = {layout.scale: _WIDTHS[layout.scale_kind], layout.least: _WIDTHS.get(layout.least_kind, 2)}
    if layout.least_kind == "zero":
        floats[layout.least] = _WIDTHS[layout.scale_kind]
    scales = (bits.byte for s in (layout.scales, layout.leasts) if s is not None for part in s.parts for bits in part)
    seams = {p.start for p in layout.planes} | {header, layout.nbytes, min(scales, default=0)}
    seams |= {at for at in floats if at is not None}
    seams |= {at + width for at, width in floats.items() if at is not None}
    return tuple(_cut(seams, floats, unit))


def _cut(seams: Iterable[int], floats: dict[int | None, int], most: int) -> Iterator[Section]:
    for start, stop in itertools.pairwise(sorted(seams)):
        if start in floats:
            yield Section(start, stop, floats[start])
            continue
        at = start
        for unit in (u for u in (_WORD, 2, 1) if u <= most):
            count = (stop - at) // unit * unit
            if count:
                yield Section(at, at + count, unit)
            at += count


def deal_bits(words: Array) -> Array:
    """Single bits of 32 elements, [..., BIT_BYTES], in the order of tiles: bit 4 j + i becomes bit j of byte i.

    >>> deal_bits(np.array([0x11, 0x11, 0x11, 0x11], np.uint8)).tolist()
    [255, 0, 0, 0]
    """
    return _reordered(words, (8, 4))


def gather_bits(words: Array) -> Array:
    """The same backwards.

    >>> gather_bits(np.array([255, 0, 0, 0], np.uint8)).tolist()
    [17, 17, 17, 17]
    """
    return _reordered(words, (4, 8))


def _reordered(words: Array, shape: tuple[int, int]) -> Array:
    bits = np.unpackbits(words, axis=-1, bitorder="little").reshape(*words.shape[:-1], *shape)
    found: Array = np.packbits(bits.swapaxes(-1, -2).reshape(*words.shape[:-1], 32), axis=-1, bitorder="little")
    return found
