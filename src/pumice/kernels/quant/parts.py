"""Readers of the GGUF formats with blocks of 256 in parts that have scales of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.quant.groups import table_function
from pumice.kernels.quant.read import (
    HIGH,
    HIGH_BYTES,
    LOW,
    LOW_BYTES,
    Weights,
    any_word,
    byte,
    half,
    read_quad,
    read_words,
    signed_byte,
    two_bytes,
    whole_value,
)


@dataclass(frozen=True, slots=True)
class PartBlocks:
    """q4_k and q5_k: blocks of 256 as eight parts with scales and minima of six bits; two parts share each run of 32 bytes.

    Blocks are whole sixteens of bytes, and so is each of the pieces in them.
    """

    fifth: bool
    whole: ClassVar[bool] = True
    groups: ClassVar[tuple[int, ...]] = (4, 4, 4, 4)
    unit: int = 64
    zero: int = 0
    minimum: bool = True
    pieces: int = 8

    @property
    def _codes(self) -> int:
        """The word at which the codes start, after d, the least, twelve bytes of scales and the fifth bits if there are any."""
        return 12 if self.fifth else 4

    def _scales(self, operand: Operand) -> str:
        """Declares and names a function (base, pair): scales of the parts 2·pair and 2·pair + 1, then what to subtract."""
        fn = f"scales_{operand.names[0]}"
        a, b, c = (f"vec2<u32>({operand.word(f'at + {i}u')} >> shift) >> vec2<u32>(0u, 8u)" for i in (1, 2, 3))
        # The first four parts have bytes of their own; the last four four bits, and two of the top bits of the former.
        operand.kb.function(
            f"fn {fn}(base: u32, pair: u32) -> vec4<f32> {{\n"
            f"  let at = base >> 2u;\n  let d = unpack2x16float({operand.word('at')});\n"
            f"  let shift = (pair & 1u) * 16u;\n  let a = {a};\n  let b = {b};\n  let c = {c};\n"
            "  let high = vec2<u32>(48u);\n  let low = vec2<u32>(15u);\n  let six = vec2<u32>(63u);\n"
            "  let scale = select((c & low) | ((a >> vec2<u32>(2u)) & high), a & six, pair < 2u);\n"
            "  let least = select(((c >> vec2<u32>(4u)) & low) | ((b >> vec2<u32>(2u)) & high), b & six, pair < 2u);\n"
            "  return vec4<f32>(d.x * vec2<f32>(scale), d.y * vec2<f32>(least));\n}"
        )
        return fn

    def element(self, operand: Operand) -> str:
        nibble = f"({byte(operand, f'base + {4 * self._codes}u + (j / 64u) * 32u + i')} >> ((part & 1u) * 4u)) & 15u"
        fifth = f"(({byte(operand, 'base + 16u + i')} >> part) & 1u) << 4u" if self.fifth else "0u"
        return (
            f"let part = j / 32u; let i = j % 32u; let odd = (part & 1u) == 1u; "
            f"let s = {self._scales(operand)}(base, part / 2u); let q = f32(({nibble}) | ({fifth})); "
            f"return select(s.x, s.y, odd) * q - select(s.z, s.w, odd);"
        )

    def places(self, u: str, g: str) -> list[str]:
        return [f"({u} * 16u + {g} * 4u + {j}u)" for j in range(4)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        head = read_quad(kb, operand, at)
        words = [read_quad(kb, operand, f"{at} + {4 * self._codes + 16 * i}u + {u} * 32u") for i in range(2)]
        bits = [read_quad(kb, operand, f"{at} + {16 + 16 * i}u") for i in range(2)] if self.fifth else []
        mine = [kb.let(f"{b} >> vec4<u32>({u} * 2u)", "h") for b in bits]
        codes = []
        for spread, bit, to in ((LOW_BYTES, "0x01010101u", 4), (HIGH_BYTES, "0x02020202u", 3)):
            for i, four in enumerate(words):
                found = [spread.format(f"{four}.{c}") for c in "xyzw"]
                if self.fifth:
                    found = [f"({q} | (({mine[i]}.{c} & {bit}) << {to}u))" for q, c in zip(found, "xyzw", strict=True)]
                codes.append(tuple(found))
        # Two six-bit numbers side by side: what the masks leave of bytes of their own, or of four bits and two of the former.
        early = kb.let(f"{u} < 2u", "early")
        shift = kb.let(f"({u} & 1u) * 16u", "shift")
        lead = kb.let(f"select({shift} + 2u, {shift}, {early})", "shift")
        top, rest = (kb.let(f"select({a}, {b}, {early})", "mask") for a, b in (("0x3030u", "0x3f3fu"), ("0x0f0fu", "0u")))
        scale = kb.let(f"(({head}.y >> {lead}) & {top}) | (({head}.w >> {shift}) & {rest})", "s")
        least = kb.let(f"(({head}.z >> {lead}) & {top}) | (({head}.w >> ({shift} + 4u)) & {rest})", "s")
        d = kb.let(f"unpack2x16float({head}.x)", "d")
        weights = []
        for part, byte_of in enumerate(("({} & 255u)", "({} >> 8u)")):
            factor = kb.let(f"{d}.x * f32({byte_of.format(scale)})", "s")
            minimum = kb.let(f"-{d}.y * f32({byte_of.format(least)})", "s")
            weights += [Weights(q, factor, minimum, 31 if self.fifth else 15) for q in codes[2 * part : 2 * part + 2]]
        return weights

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        word = operand.word(f"({at} >> 2u) + {self._codes}u + ({part} / 2u) * 8u + {piece}")
        codes = f"(({word} >> (({part} & 1u) * 4u)) & 0x0f0f0f0fu)"
        if self.fifth:
            codes += f" | ((({operand.word(f'({at} >> 2u) + 4u + {piece}')} >> {part}) & 0x01010101u) << 4u)"
        s = kb.let(f"{self._scales(operand)}({at}, {part} / 2u)", "s")
        odd = f"({part} & 1u) == 1u"
        return codes, f"select({s}.x, {s}.y, {odd})", f"-select({s}.z, {s}.w, {odd})"

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 4u + {i}u)" for i in range(4)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return whole_value(code, self.zero)


@dataclass(frozen=True, slots=True)
class SixBitBlocks:
    """q6_k: blocks of 256 as two halves of four parts of 32; the parts t and t + 2 of a half share bytes of four-bit codes.

    Codes are 128 bytes, then their upper two bits 64 bytes, a signed scale for every 16 elements, and d.
    """

    whole: ClassVar[bool] = True
    groups: ClassVar[tuple[int, ...]] = (2, 2)
    unit: int = 16
    zero: int = 32
    minimum: bool = False
    pieces: int = 8

    def element(self, operand: Operand) -> str:
        low = byte(operand, "base + (j / 128u) * 64u + (part & 1u) * 32u + i")
        upper = byte(operand, "base + 128u + (j / 128u) * 32u + i")
        return (
            f"let part = (j / 32u) % 4u; let i = j % 32u; let low = ({low} >> ((part / 2u) * 4u)) & 15u; "
            f"let upper = ({upper} >> (part * 2u)) & 3u; let scale = f32({signed_byte(operand, 'base + 192u + j / 16u')}); "
            f"return {half(operand, 'base + 208u')} * scale * f32(i32(low | (upper << 4u)) - 32i);"
        )

    def places(self, u: str, g: str) -> list[str]:
        return [f"(({u} / 8u) * 32u + ({u} % 8u) * 2u + {g} * 16u + {j}u)" for j in range(2)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        words = read_words(kb, operand, f"{at} + {u} * 8u", 2)
        upper = read_words(kb, operand, f"{at} + 128u + ({u} / 8u) * 32u + ({u} % 4u) * 8u", 2)
        mine = [kb.let(f"{w} >> ((({u} / 4u) % 2u) * 2u)", "h") for w in upper]
        pairs = list(zip(words, mine, strict=True))
        low = tuple(f"({LOW_BYTES.format(w)} | (({h} & 0x03030303u) << 4u))" for w, h in pairs)
        high = tuple(f"({HIGH_BYTES.format(w)} | ({h} & 0x30303030u))" for w, h in pairs)
        d = kb.let(half(operand, f"{at} + 208u"), "d")
        scales = kb.let(f"{at} + 192u + ({u} / 4u) * 2u + ({u} / 8u) * 4u + ({u} % 4u) / 2u", "at")
        first, second = (kb.let(f"{d} * f32({signed_byte(operand, a)})", "d") for a in (scales, f"{scales} + 4u"))
        return [Weights(low, first, most=63), Weights(high, second, most=63)]

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        (word,) = read_words(kb, operand, f"{at} + ({part} / 4u) * 64u + ({part} & 1u) * 32u + {piece} * 4u", 1)
        (upper,) = read_words(kb, operand, f"{at} + 128u + ({part} / 4u) * 32u + {piece} * 4u", 1)
        codes = f"(({word} >> ((({part} / 2u) & 1u) * 4u)) & 0x0f0f0f0fu)"
        codes += f" | ((({upper} >> (({part} % 4u) * 2u)) & 0x03030303u) << 4u)"
        scale = signed_byte(operand, kb.let(f"{at} + 192u + {part} * 2u + {piece} / 4u", "at"))
        return codes, f"{half(operand, f'{at} + 208u')} * f32({scale})", ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 4u + {i}u)" for i in range(4)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return whole_value(code, self.zero)


@dataclass(frozen=True, slots=True)
class PairBlocks:
    """q2_k and q3_k: two halves of 128 in four parts of 32; a byte holds two bits of one element of each part of a half.

    Every 16 elements have a scale. q2_k has minima, q3_k a third bit for every code.
    """

    third: bool
    whole: ClassVar[bool] = True
    groups: ClassVar[tuple[int, ...]] = (1, 1, 1, 1)
    unit: int = 16
    pieces: int = 8

    @property
    def zero(self) -> int:
        return 4 if self.third else 0

    @property
    def minimum(self) -> bool:
        return not self.third

    @property
    def _codes(self) -> int:
        return 32 if self.third else 16

    def _scales(self, operand: Operand) -> str:
        """Declares and names a function (base, half, odd): the scale of the first or second 16 of each part of a half.

        In q2_k the minima follow, as the second column.
        """
        fn, read = f"scales_{operand.names[0]}", any_word(operand)
        # Bytes 2·part + odd out of the eight from `at` on.
        eight = f"vec4<u32>({read}(at), {read}(at) >> 16u, {read}(at + 4u), {read}(at + 4u) >> 16u) >> vec4<u32>(odd * 8u)"
        if self.third:
            shifts = "vec4<u32>(0u, 16u, 2u, 18u) + vec4<u32>(odd * 8u + half * 4u)"
            body = (
                f"let at = base + 96u; let low = (({eight}) >> vec4<u32>(half * 4u)) & vec4<u32>(15u); "
                f"let high = (vec4<u32>({read}(base + 104u)) >> ({shifts})) & vec4<u32>(3u); "
                f"return {half(operand, 'base + 108u')} * (vec4<f32>(low | (high << vec4<u32>(4u))) - 32.0);"
            )
        else:
            body = (
                f"let at = base + half * 8u; let both = {eight}; let d = unpack2x16float({operand.word('(base >> 2u) + 20u')}); "
                "return mat2x4<f32>(d.x * vec4<f32>(both & vec4<u32>(15u)), "
                "d.y * vec4<f32>((both >> vec4<u32>(4u)) & vec4<u32>(15u)));"
            )
        result = "vec4<f32>" if self.third else "mat2x4<f32>"
        operand.kb.function(f"fn {fn}(base: u32, half: u32, odd: u32) -> {result} {{ {body} }}")
        return fn

    def element(self, operand: Operand) -> str:
        pair = f"({byte(operand, f'base + {self._codes}u + (j / 128u) * 32u + i')} >> (part * 2u)) & 3u"
        scale = f"{self._scales(operand)}(base, j / 128u, (j / 16u) % 2u)"
        head = f"let part = (j / 32u) % 4u; let i = j % 32u; let s = {scale}; let low = {pair}; "
        if not self.third:
            return head + "return s[0][part] * f32(low) - s[1][part];"
        third = f"((({byte(operand, 'base + i')} >> (j / 32u)) & 1u) << 2u)"
        return head + f"return s[part] * f32(i32(low | {third}) - 4i);"

    def places(self, u: str, g: str) -> list[str]:
        return [f"(({u} / 8u) * 32u + {u} % 8u + {g} * 8u)"]

    def _words(self, kb: KernelBuilder, operand: Operand, at: str, which: str, bits: str) -> tuple[str, str]:
        """The codes of 16 elements, and their third bits."""
        (word,) = read_words(kb, operand, f"{at} + {self._codes}u + {which} * 4u", 1, aligned=not self.third)
        return word, read_words(kb, operand, f"{at} + {bits} * 4u", 1)[0] if self.third else ""

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        word, bits = self._words(kb, operand, at, u, f"({u} % 8u)")
        mine = kb.let(f"{bits} >> (({u} / 8u) * 4u)", "h") if self.third else ""
        s = kb.let(f"{self._scales(operand)}({at}, {u} / 8u, ({u} / 4u) % 2u)", "s")
        found = []
        for part, axis in enumerate("xyzw"):
            codes = f"(({word} >> {2 * part}u) & 0x03030303u)"
            if self.third:
                codes = f"({codes} | ((({mine} >> {part}u) & 0x01010101u) << 2u))"
            scale, least = (f"{s}.{axis}", "") if self.third else (f"{s}[0].{axis}", f"(-{s}[1].{axis})")
            found.append(Weights((codes,), scale, least, 7 if self.third else 3))
        return found

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        word, bits = self._words(kb, operand, at, f"(({part} / 4u) * 8u + {piece})", piece)
        codes = f"(({word} >> (({part} % 4u) * 2u)) & 0x03030303u)"
        if self.third:
            codes += f" | ((({bits} >> {part}) & 0x01010101u) << 2u)"
        s = kb.let(f"{self._scales(operand)}({at}, {part} / 4u, {piece} / 4u)", "s")
        index = f"[{part} % 4u]"
        return (codes, f"{s}{index}", "") if self.third else (codes, f"{s}[0]{index}", f"-{s}[1]{index}")

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 4u + {i}u)" for i in range(4)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return whole_value(code, self.zero)


@dataclass(frozen=True, slots=True)
class TablePartBlocks:
    """iq4_xs: blocks of 256 as eight parts with scales of six bits, less 32; codes are those of iq4_nl.

    d and the upper two bits of all scales are one word, the lower four bits the next; codes j and j + 16 of a part share a byte.
    """

    whole: ClassVar[bool] = False
    groups: ClassVar[tuple[int, ...]] = (4,)
    unit: int = 16
    zero: int = 0
    minimum: bool = False
    pieces: int = 8

    def _scale(self, operand: Operand) -> str:
        """Declares and names a function (base, part): the scale of a part."""
        fn = f"scale_{operand.names[0]}"
        operand.kb.function(
            f"fn {fn}(base: u32, part: u32) -> f32 {{ let head = {operand.word('base >> 2u')}; "
            f"let low = ({operand.word('(base >> 2u) + 1u')} >> (part * 4u)) & 15u; "
            "let high = ((head >> (part * 2u + 16u)) & 3u) << 4u; "
            "return unpack2x16float(head).x * (f32(low | high) - 32.0); }"
        )
        return fn

    def element(self, operand: Operand) -> str:
        code = f"({byte(operand, 'base + 8u + (j / 32u) * 16u + (j & 15u)')} >> (((j >> 4u) & 1u) * 4u)) & 15u"
        return f"return {self._scale(operand)}(base, j / 32u) * {self.tile_value(operand.kb, f'vec4<u32>({code})')}.x;"

    def places(self, u: str, g: str) -> list[str]:
        return [f"(({u} / 2u) * 8u + ({u} % 2u) * 2u + {j}u)" for j in (0, 1, 4, 5)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        pair = read_words(kb, operand, f"{at} + 8u + {u} * 8u", 2, aligned=True)
        codes = tuple(self.tile_value(kb, spread.format(word)) for spread in (LOW, HIGH) for word in pair)
        return [Weights(codes, kb.let(f"{self._scale(operand)}({at}, {u} / 2u)", "s"))]

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        both = kb.let(two_bytes(operand, kb.let(f"{at} + 8u + {part} * 16u + {piece} * 2u", "at")), "q")
        return f"({both} & 0x0f0fu) | (({both} & 0xf0f0u) << 12u)", f"{self._scale(operand)}({at}, {part})", ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 2u + {i}u)" for i in (0, 1, 16, 17)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return f"{table_function(kb, 'iq4_nl')}({code})"
