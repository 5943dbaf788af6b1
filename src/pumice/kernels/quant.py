"""Reading quantised blocks inside kernels, straight from GGUF bytes: one element, a few weights, or a piece of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from pumice.core.dtypes import DType
from pumice.errors import PlanError
from pumice.kernels.builder import KernelBuilder, Operand

if TYPE_CHECKING:
    from pumice.kernels.pull import Puller

# How the four bytes of a word, or their halves, become a vec4<u32>.
_BYTES = "((vec4<u32>({}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u))"
_LOW = "((vec4<u32>({}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u))"
_HIGH = "((vec4<u32>({}) >> vec4<u32>(4u, 12u, 20u, 28u)) & vec4<u32>(15u))"


def byte(operand: Operand, at: str) -> str:
    """WGSL for the byte at byte offset `at`."""
    return f"((({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 3u) * 8u)) & 255u)"


def half(operand: Operand, at: str) -> str:
    """WGSL for the f16 at the even byte offset `at`, as f32."""
    return f"unpack2x16float(({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 2u) * 8u)).x"


def _signed_byte(operand: Operand, at: str) -> str:
    return f"(bitcast<i32>({byte(operand, at)} << 24u) >> 24u)"


def _two_bytes(operand: Operand, at: str) -> str:
    return f"(({operand.word(f'({at}) >> 2u')} >> ((({at}) & 2u) * 8u)) & 0xffffu)"


def _words(kb: KernelBuilder, operand: Operand, at: str, count: int, *, aligned: bool = False) -> list[str]:
    """Names of the u32s that start at an even byte offset."""
    start = kb.let(f"({at}) >> 2u", "at")
    raw = [kb.let(operand.word(f"{start} + {i}u" if i else start), "w") for i in range(count if aligned else count + 1)]
    if aligned:
        return raw
    # Half of the threads of a block format of odd halves are off by two bytes: a branch would run both ways anyhow.
    odd = kb.let(f"(({at}) & 2u) != 0u", "odd")
    return [kb.let(f"select({a}, ({a} >> 16u) | ({b} << 16u), {odd})", "q") for a, b in pairwise(raw)]


@dataclass(frozen=True, slots=True)
class Weights:
    """Codes (vec4<u32> or vec4<i32> expressions) that share a scale and, in formats that have one, a minimum (names).

    The weight is scale * (code - zero) + minimum.
    """

    codes: tuple[str, ...]
    scale: str
    minimum: str = ""


class BlockFormat(Protocol):
    """How kernels read one format.

    In a matvec a thread takes a `unit` of weights at a time, as vec4s. In a tile, 32 weights along K are read in `pieces`;
    a piece is a word of code bytes, from each of which `tile_zero` is subtracted.
    """

    @property
    def unit(self) -> int: ...
    @property
    def zero(self) -> int: ...
    @property
    def minimum(self) -> bool: ...
    @property
    def pieces(self) -> int: ...
    @property
    def tile_zero(self) -> int: ...

    def element(self, operand: Operand) -> str:
        """Body of `fn(base: u32, j: u32) -> f32`: the element j of the block that starts at byte `base`."""
        ...

    def place(self, e: str) -> tuple[str, str]:
        """The unit that the e-th four elements of a row belong to, and which of its vec4s they are."""
        ...

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        """Unit `u` of the block at byte `at`, its vec4s in the order that `place` counts them."""
        ...

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        """Code bytes, scale and minimum of a piece of the `part`-th 32 weights of the block at byte `at`."""
        ...

    def positions(self, piece: str) -> list[str]:
        """Where along the 32 weights the code bytes of a piece belong."""
        ...


@dataclass(frozen=True, slots=True)
class SmallBlocks:
    """Blocks of 32: d, a minimum in some formats, a word of fifth bits in some, then codes of `bits` each from byte `codes`.

    Four-bit codes j and j + 16 share a byte.
    """

    codes: int
    bits: int
    zero: int
    minimum: bool
    fifth: int | None = None

    @property
    def unit(self) -> int:
        return 8

    @property
    def pieces(self) -> int:
        return 8 if self.bits == 4 else 16

    @property
    def tile_zero(self) -> int:
        return self.zero if self.bits == 4 else 128

    def element(self, operand: Operand) -> str:
        if self.bits == 8:
            code = f"let q = {_signed_byte(operand, f'base + {self.codes}u + j')};"
        else:
            code = f"let b = {byte(operand, f'base + {self.codes}u + (j & 15u)')}; let low = select(b & 15u, b >> 4u, j >= 16u);"
            fifth = "0u"
            if self.fifth is not None:
                fifth = f"(({byte(operand, f'base + {self.fifth}u + (j >> 3u)')} >> (j & 7u)) & 1u) << 4u"
            code += f" let q = i32(low | ({fifth})) - {self.zero}i;"
        rest = f" + {half(operand, 'base + 2u')}" if self.minimum else ""
        return f"{code} return {half(operand, 'base')} * f32(q){rest};"

    def place(self, e: str) -> tuple[str, str]:
        if self.bits == 8:
            return f"({e} / 2u)", f"({e} % 2u)"
        return f"(({e} / 8u) * 4u + {e} % 4u)", f"(({e} / 4u) % 2u)"

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        count = self.bits // 4
        start = kb.let(f"{at} + {self.codes}u + {u} * {4 * count}u", "at")
        words = _words(kb, operand, start, count, aligned=self._aligned(operand, self.codes))
        if self.bits == 8:
            spread = "(bitcast<vec4<i32>>(vec4<u32>({}) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u))"
            codes = tuple(spread.format(w) for w in words)
        else:
            codes = (_LOW.format(words[0]), _HIGH.format(words[0]))
        if self.fifth is not None:
            (every,) = _words(kb, operand, f"{at} + {self.fifth}u", 1, aligned=self._aligned(operand, self.fifth))
            mine = kb.let(f"{every} >> ({u} * 4u)", "h")
            low = f"((vec4<u32>({mine}) << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(16u))"
            high = f"((vec4<u32>({mine}) >> vec4<u32>(12u, 13u, 14u, 15u)) & vec4<u32>(16u))"
            codes = (f"({codes[0]} | {low})", f"({codes[1]} | {high})")
        minimum = kb.let(half(operand, f"{at} + 2u"), "d") if self.minimum else ""
        return [Weights(codes, kb.let(half(operand, at), "d"), minimum)]

    def _aligned(self, operand: Operand, offset: int) -> bool:
        return operand.dtype.block_bytes % 4 == 0 and offset % 4 == 0

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        codes = _two_bytes(operand, kb.let(f"{at} + {self.codes}u + {piece} * 2u", "at"))
        if self.bits == 8:
            codes = f"{codes} ^ 0x8080u"
        else:
            both = kb.let(codes, "q")
            codes = f"({both} & 0x0f0fu) | (({both} & 0xf0f0u) << 12u)"
        if self.fifth is not None:
            (every,) = _words(kb, operand, f"{at} + {self.fifth}u", 1, aligned=self._aligned(operand, self.fifth))
            mine = kb.let(f"{every} >> ({piece} * 2u)", "h")
            codes = f"{codes} | (({mine} & 0x10001u) << 4u) | (({mine} & 0x20002u) << 11u)"
        return codes, half(operand, at), half(operand, f"{at} + 2u") if self.minimum else ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 2u + {i}u)" for i in ((0, 1, 16, 17) if self.bits == 4 else (0, 1))]


@dataclass(frozen=True, slots=True)
class PartBlocks:
    """q4_k and q5_k: blocks of 256 as eight parts with scales and minima of six bits; two parts share each run of 32 bytes.

    Everything in such a block lies at a multiple of four bytes.
    """

    fifth: bool
    unit: int = 16
    zero: int = 0
    minimum: bool = True
    pieces: int = 8
    tile_zero: int = 0

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

    def place(self, e: str) -> tuple[str, str]:
        return f"(({e} / 16u) * 4u + ({e} % 8u) / 2u)", f"((({e} / 8u) % 2u) * 2u + {e} % 2u)"

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        words = _words(kb, operand, f"{at} + {4 * self._codes}u + {u} * 8u", 2, aligned=True)
        if self.fifth:
            bits = _words(kb, operand, f"{at} + 16u + ({u} % 4u) * 8u", 2, aligned=True)
            mine = [kb.let(f"{w} >> (({u} / 4u) * 2u)", "h") for w in bits]
            lows = [f"({w} & 0x0f0f0f0fu) | (({h} & 0x01010101u) << 4u)" for w, h in zip(words, mine, strict=True)]
            highs = [f"(({w} >> 4u) & 0x0f0f0f0fu) | (({h} & 0x02020202u) << 3u)" for w, h in zip(words, mine, strict=True)]
            low, high = (tuple(_BYTES.format(w) for w in half_words) for half_words in (lows, highs))
        else:
            low, high = (tuple(spread.format(w) for w in words) for spread in (_LOW, _HIGH))
        s = kb.let(f"{self._scales(operand)}({at}, {u} / 4u)", "s")
        return [Weights(low, f"{s}.x", f"(-{s}.z)"), Weights(high, f"{s}.y", f"(-{s}.w)")]

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


@dataclass(frozen=True, slots=True)
class SixBitBlocks:
    """q6_k: blocks of 256 as two halves of four parts of 32; the parts t and t + 2 of a half share bytes of four-bit codes.

    Codes are 128 bytes, then their upper two bits 64 bytes, a signed scale for every 16 elements, and d.
    """

    unit: int = 16
    zero: int = 32
    minimum: bool = False
    pieces: int = 8
    tile_zero: int = 32

    def element(self, operand: Operand) -> str:
        low = byte(operand, "base + (j / 128u) * 64u + (part & 1u) * 32u + i")
        upper = byte(operand, "base + 128u + (j / 128u) * 32u + i")
        return (
            f"let part = (j / 32u) % 4u; let i = j % 32u; let low = ({low} >> ((part / 2u) * 4u)) & 15u; "
            f"let upper = ({upper} >> (part * 2u)) & 3u; let scale = f32({_signed_byte(operand, 'base + 192u + j / 16u')}); "
            f"return {half(operand, 'base + 208u')} * scale * f32(i32(low | (upper << 4u)) - 32i);"
        )

    def place(self, e: str) -> tuple[str, str]:
        return f"(({e} / 32u) * 8u + ({e} % 16u) / 2u)", f"((({e} / 16u) % 2u) * 2u + {e} % 2u)"

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        words = _words(kb, operand, f"{at} + {u} * 8u", 2)
        upper = _words(kb, operand, f"{at} + 128u + ({u} / 8u) * 32u + ({u} % 4u) * 8u", 2)
        mine = [kb.let(f"{w} >> ((({u} / 4u) % 2u) * 2u)", "h") for w in upper]
        pairs = list(zip(words, mine, strict=True))
        low = tuple(_BYTES.format(f"({w} & 0x0f0f0f0fu) | (({h} & 0x03030303u) << 4u)") for w, h in pairs)
        high = tuple(_BYTES.format(f"(({w} >> 4u) & 0x0f0f0f0fu) | ({h} & 0x30303030u)") for w, h in pairs)
        d = kb.let(half(operand, f"{at} + 208u"), "d")
        scales = kb.let(f"{at} + 192u + ({u} / 4u) * 2u + ({u} / 8u) * 4u + ({u} % 4u) / 2u", "at")
        first, second = (kb.let(f"{d} * f32({_signed_byte(operand, a)})", "d") for a in (scales, f"{scales} + 4u"))
        return [Weights(low, first), Weights(high, second)]

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        (word,) = _words(kb, operand, f"{at} + ({part} / 4u) * 64u + ({part} & 1u) * 32u + {piece} * 4u", 1)
        (upper,) = _words(kb, operand, f"{at} + 128u + ({part} / 4u) * 32u + {piece} * 4u", 1)
        codes = f"(({word} >> ((({part} / 2u) & 1u) * 4u)) & 0x0f0f0f0fu)"
        codes += f" | ((({upper} >> (({part} % 4u) * 2u)) & 0x03030303u) << 4u)"
        scale = _signed_byte(operand, kb.let(f"{at} + 192u + {part} * 2u + {piece} / 4u", "at"))
        return codes, f"{half(operand, f'{at} + 208u')} * f32({scale})", ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 4u + {i}u)" for i in range(4)]


FORMATS: dict[str, BlockFormat] = {
    "q4_0": SmallBlocks(2, 4, 8, False),
    "q4_1": SmallBlocks(4, 4, 0, True),
    "q5_0": SmallBlocks(6, 4, 16, False, fifth=2),
    "q5_1": SmallBlocks(8, 4, 0, True, fifth=4),
    "q8_0": SmallBlocks(2, 8, 0, False),
    "q4_k": PartBlocks(fifth=False),
    "q5_k": PartBlocks(fifth=True),
    "q6_k": SixBitBlocks(),
}


def format_of(dtype: DType) -> BlockFormat:
    """How kernels read a format.

    >>> from pumice.core import dtypes
    >>> format_of(dtypes.q8_0).unit
    8
    """
    if dtype.name not in FORMATS:
        raise PlanError(f"no kernel reads {dtype}", hint="convert the weight to one of " + " ".join(FORMATS), dtype=dtype.name)
    return FORMATS[dtype.name]


def element_function(operand: Operand) -> str:
    """Declares the element reader of a quantised operand in its kernel; returns the function's name."""
    fn = f"dequant_{operand.names[0]}"
    body = format_of(operand.dtype).element(operand)
    operand.kb.function(f"fn {fn}(base: u32, j: u32) -> f32 {{ {body} }}")
    return fn


def dequantized_element(p: Puller, node: int, row: str, k: str) -> str:
    """WGSL for element k of row `row` of a stored quantised tensor."""
    t = p.ctx.type(node)
    columns = t.shape[-1]
    assert isinstance(columns, int)
    row_bytes = t.dtype.nbytes(columns)
    fn = element_function(p.operand(node))
    base = f"{row} * {row_bytes}u + ({k} / {t.dtype.block}u) * {t.dtype.block_bytes}u"
    return f"{fn}({base}, {k} % {t.dtype.block}u)"
