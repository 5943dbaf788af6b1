"""The reader of formats that keep no whole bytes of codes: rows of a grid with signs, digits to the base 3, pairs of bits.

A function generated from the format's record gives four neighbouring elements as bytes; all else follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pumice.core.block_formats import BitField, BlockLayout, GridCodes, Plane, Trits
from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.quant.read import Weights, any_word, byte, half, two_bytes, whole_value

_EVERY, _TOPS = "0x01010101u", "0x80808080u"


@dataclass(frozen=True, slots=True)
class FourBlocks:
    """Blocks of 256 with one scale, and in most formats a small one for each part of 16 or 32 elements."""

    layout: BlockLayout
    whole: ClassVar[bool] = True
    groups: ClassVar[tuple[int, ...]] = (4,)
    unit: int = 16
    minimum: bool = False
    pieces: int = 8

    @property
    def zero(self) -> int:
        return self.layout.zero

    # --- four elements ---

    def _four(self, operand: Operand) -> str:
        """Declares and names a function (base, q): the codes of elements 4·q…4·q + 3 as bytes, signed if those of a grid."""
        fn, layout = f"four_{operand.names[0]}", self.layout
        if layout.grid is not None:
            body = _grid_four(operand, layout.grid)
        else:
            body = _trits_four(operand, layout.trits) if layout.trits else _plane_four(operand, layout.planes[0])
        operand.kb.function(f"fn {fn}(base: u32, q: u32) -> u32 {{ {body} }}")
        return fn

    def _scale(self, operand: Operand) -> str:
        """Declares and names a function (base, q): the scale of those elements."""
        fn, layout = f"scale_{operand.names[0]}", self.layout
        assert layout.scale is not None
        if layout.scale_kind == "nibbles":
            words = [f"{any_word(operand)}(base + {layout.scale - 1 + 4 * i}u)" for i in range(2)]
            nibbles = [f"((({w} >> {12 + 16 * n}u) & 15u) << {8 * i + 4 * n}u)" for i, w in enumerate(words) for n in range(2)]
            scale = f"unpack2x16float({' | '.join(nibbles)}).x"
        else:
            scale = half(operand, f"base + {layout.scale}u")
        if layout.scales is not None:
            assert layout.scales.field is not None
            small = _field(operand, layout.scales.field, f"q / {layout.part_size // 4}u")
            odd = layout.scales.odd
            scale = f"{scale} * ({2 * odd!r} * f32({small}) + {odd!r})"
        operand.kb.function(f"fn {fn}(base: u32, q: u32) -> f32 {{ return {scale}; }}")
        return fn

    # --- what kernels ask for ---

    def element(self, operand: Operand) -> str:
        four = f"{self._four(operand)}(base, j / 4u)"
        if self.layout.is_signed:
            code = f"bitcast<i32>({four} << ((3u - (j & 3u)) * 8u)) >> 24u"
        else:
            code = f"i32(({four} >> ((j & 3u) * 8u)) & 255u) - {self.zero}i"
        return f"return {self._scale(operand)}(base, j / 4u) * f32({code});"

    def places(self, u: str, g: str) -> list[str]:
        return [f"({u} * 4u + {j}u)" for j in range(4)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        fn, q = self._four(operand), kb.let(f"{u} * 4u", "q")
        codes = tuple(kb.let(f"{fn}({at}, {q} + {j}u)" if j else f"{fn}({at}, {q})", "w") for j in range(4))
        scale = kb.let(f"{self._scale(operand)}({at}, {q})", "s")
        return [Weights(codes, scale, most=self._most, signed=self.layout.is_signed)]

    @property
    def _most(self) -> int:
        grid = self.layout.grid
        return 3 if grid is None else grid.most

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        q = kb.let(f"{part} * 8u + {piece}", "q")
        codes = f"{self._four(operand)}({at}, {q})"
        return f"{codes} ^ {_TOPS}" if self.layout.is_signed else codes, f"{self._scale(operand)}({at}, {q})", ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 4u + {i}u)" for i in range(4)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return whole_value(code, 128 if self.layout.is_signed else self.zero)


def _field(operand: Operand, field: BitField, i: str) -> str:
    """WGSL for number i of a field of the block at byte `base`: blocks are a whole number of 16-bit words."""
    mask = (1 << field.width) - 1
    group, inside = (f"({i})", "0u") if field.count == 1 else (f"(({i}) / {field.count}u)", f"(({i}) % {field.count}u)")
    at = f"base + {field.start}u + {group} * {field.stride}u"
    if field.step % 8 == 0 and field.first % 8 + field.width <= 8:
        found = byte(operand, f"{at} + {inside} * {field.step // 8}u + {field.first // 8}u")
        return f"(({found} >> {field.first % 8}u) & {mask}u)" if field.width < 8 else found
    last = (field.count - 1) * field.step + field.first + field.width
    if last <= 8:
        found = byte(operand, at)
    elif last <= 16 and field.start % 2 == 0 and field.stride % 2 == 0:
        found = two_bytes(operand, at)
    else:
        found = f"{any_word(operand)}({at})"
    return f"(({found} >> ({inside} * {field.step}u + {field.first}u)) & {mask}u)"


def _plane_four(operand: Operand, plane: Plane) -> str:
    """Neighbours are in neighbouring bytes, at the same bits."""
    each, every = plane.run * 8 // plane.width, ((1 << plane.width) - 1) * 0x01010101
    at = f"base + {plane.start}u + (q / {each // 4}u) * {plane.run}u + (q % {plane.run // 4}u) * 4u"
    return f"return ({any_word(operand)}({at}) >> (((q % {each // 4}u) / {plane.run // 4}u) * {plane.width}u)) & {every:#010x}u;"


def _trits_four(operand: Operand, runs: tuple[Trits, ...]) -> str:
    """Each of four bytes times a power of three, of which the second byte of three times as much is the digit."""
    text, start = "var at = 0u; var n = 0u; ", 0
    for i, run in enumerate(runs):
        fours, width = run.elements // 4, run.run // 4
        after = f"q - {start}u" if start else "q"
        place = f"at = {run.start}u + (({after}) % {width}u) * 4u; n = ({after}) / {width}u;"
        text += f"if (q < {start + fours}u) {{ {place} }} else " if i < len(runs) - 1 else f"{{ {place} }} "
        start += fours
    return (
        f"{text}let power = select(select(select(1u, 3u, n == 1u), select(9u, 27u, n == 3u), n >= 2u), 81u, n == 4u); "
        f"let word = {any_word(operand)}(base + at); "
        "let bytes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u); "
        "let digit = (((bytes * vec4<u32>(power)) & vec4<u32>(255u)) * vec4<u32>(3u)) >> vec4<u32>(8u); "
        "return digit.x | (digit.y << 8u) | (digit.z << 16u) | (digit.w << 24u);"
    )


def _grid_four(operand: Operand, codes: GridCodes) -> str:
    """The table has the numbers of rows as bytes: one word for four of them."""
    grid, table = codes.grid, operand.kb.table(operand.dtype)
    row = "q / 2u" if grid.width == 8 else "q"
    index, at = [], 0
    for field in codes.index:
        index.append(f"({_field(operand, field, row)} << {at}u)" if at else _field(operand, field, row))
        at += field.width
    word = f"({' | '.join(index)}) * 2u + (q & 1u)" if grid.width == 8 else " | ".join(index)
    text = f"let row = {table.load(word)}; "
    if codes.offsets is not None:
        # Plus 128, so that no byte is negative and nothing is carried on to the next.
        text += f"let offset = (1u - {_field(operand, codes.offsets, 'q / 2u')}) * 0x02020202u; "
        return f"{text}return ((row ^ {_TOPS}) - {_EVERY} + offset) ^ {_TOPS};"
    assert codes.signs is not None
    text += f"let bits = {_field(operand, codes.signs, 'q / 2u')}; "
    signs = "(bits | ((countOneBits(bits) & 1u) << 7u))" if codes.signs.width == 7 else "bits"
    # The multiplication moves bit j to bit 7·j + j: each to its own byte. No number is 0, so nothing is carried on.
    text += f"let less = ((({signs} >> ((q & 1u) * 4u)) & 15u) * 0x00204081u) & {_EVERY}; "
    return f"{text}return (row ^ (less * 255u)) + less;"
