"""Readers of formats with one scale for a run of codes: integers, table entries, or small floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pumice.core.block_formats import DOUBLED_E2M1, NONLINEAR
from pumice.core.dtypes import NVFP4_BYTES, GroupLayout
from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.quant.read import (
    BYTES,
    HIGH,
    HIGH_BYTES,
    LOW,
    LOW_BYTES,
    Weights,
    any_word,
    byte,
    half,
    read_words,
    signed_byte,
    two_bytes,
    whole_value,
)

# The 16 numbers of a four-bit code plus 128, as bytes of four words from the low end up.
TABLES = {"iq4_nl": NONLINEAR, "e2m1": DOUBLED_E2M1}
# Bits of mantissa, the bias of the exponent, and the meaning of the codes at the end of the range.
_FLOATS = {
    "e4m3": (3, 7, "select(v, vec4<f32>(pm_nan()), (b & vec4<u32>(127u)) == vec4<u32>(127u))"),
    "e5m2": (2, 15, "select(v, select(vec4<f32>(pm_nan()), vec4<f32>(pm_inf()), m == vec4<u32>(0u)), e == vec4<u32>(31u))"),
    # Scales: the sign means nothing, and the largest code is 0.
    "ue4m3": (3, 7, "select(v, vec4<f32>(0.0), b == vec4<u32>(127u))"),
}
ScaleKind = Literal["f16", "bf16", "f32", "e8m0"]


def table_function(kb: KernelBuilder, name: str) -> str:
    """Declares and names a function from four codes to their numbers."""
    numbers = [n + 128 for n in TABLES[name]]
    w = [f"vec4<u32>({sum(n << 8 * i for i, n in enumerate(numbers[at : at + 4])):#010x}u)" for at in range(0, 16, 4)]
    four, eight = (f"(n & vec4<u32>({bit}u)) != vec4<u32>(0u)" for bit in (4, 8))
    kb.function(
        f"fn table_{name}(n: vec4<u32>) -> vec4<f32> {{ "
        f"let row = select(select({w[0]}, {w[1]}, {four}), select({w[2]}, {w[3]}, {four}), {eight}); "
        "return vec4<f32>((row >> ((n & vec4<u32>(3u)) * vec4<u32>(8u))) & vec4<u32>(255u)) - 128.0; }"
    )
    return f"table_{name}"


def float_function(kb: KernelBuilder, name: str) -> str:
    """Declares and names a function from four bytes to the eight-bit floats they are."""
    mantissa, bias, end = _FLOATS[name]
    top = (1 << mantissa) - 1
    sign = "v" if name == "ue4m3" else "select(v, -v, (b & vec4<u32>(128u)) != vec4<u32>(0u))"
    # Built from integers and powers of two: devices may flush subnormal f16 and f32 to 0.
    kb.function(
        f"fn float_{name}(b: vec4<u32>) -> vec4<f32> {{ "
        f"let e = (b >> vec4<u32>({mantissa}u)) & vec4<u32>({(1 << 7 - mantissa) - 1}u); let m = b & vec4<u32>({top}u); "
        f"let whole = vec4<f32>(select(m | vec4<u32>({top + 1}u), m, e == vec4<u32>(0u))); "
        f"let power = bitcast<vec4<f32>>((max(e, vec4<u32>(1u)) + vec4<u32>({127 - bias - mantissa}u)) << vec4<u32>(23u)); "
        f"var v = whole * power; v = {end}; return {sign}; }}"
    )
    return f"float_{name}"


def scalar(operand: Operand, at: str, kind: ScaleKind) -> str:
    """WGSL for a number of a block as f32; only e8m0 may be at an odd byte."""
    if kind == "f16":
        return half(operand, at)
    if kind == "bf16":
        return f"bitcast<f32>({two_bytes(operand, at)} << 16u)"
    if kind == "f32":
        # Every format that holds an f32 is a multiple of four bytes, and the f32 is at one.
        return f"bitcast<f32>({operand.word(f'({at}) >> 2u')})"
    fn = f"power_{operand.names[0]}"
    # Half of the power, since the codes are doubled; the smallest two exponents are below the normal range.
    operand.kb.function(
        f"fn {fn}(at: u32) -> f32 {{ let e = {byte(operand, 'at')}; "
        "return bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x200000u << e, e < 2u)); }"
    )
    return f"{fn}({at})"


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """A scale, perhaps an offset, then codes of `bits`; four-bit codes j and j + 16 of each 32 share a byte.

    `codes` say what a code is: "whole" for integers (signed if of eight bits, minus `zero` if of four), or the name of a table
    or of a float. `raised`: eight-bit codes were stored minus 128, which a bias does not know.
    """

    bits: int
    scale: ScaleKind
    codes: str = "whole"
    zero: int = 0
    offset: Literal["", "zero", "bias"] = ""
    raised: bool = False
    unit: int = 8
    pieces: int = 8

    @classmethod
    def of(cls, layout: GroupLayout) -> GroupBlocks:
        """The reader of a grouped dtype."""
        if layout.codes in _FLOATS:
            return cls(8, layout.scale, layout.codes)
        zero = 8 if layout.codes == "i4" else 0
        return cls(layout.bits, layout.scale, "whole", zero, layout.offset, raised=layout.codes == "u8b")

    @property
    def minimum(self) -> bool:
        return self.offset != ""

    @property
    def _scale_bytes(self) -> int:
        return {"f16": 2, "bf16": 2, "f32": 4, "e8m0": 1}[self.scale]

    @property
    def _header(self) -> int:
        return self._scale_bytes * (2 if self.offset else 1)

    def _zero(self, operand: Operand, at: str) -> str:
        """The zero point of a block, an i32."""
        place = f"{at} + {self._scale_bytes}u"
        if self._scale_bytes == 4:
            return f"bitcast<i32>({operand.word(f'({place}) >> 2u')})"
        return f"(bitcast<i32>({two_bytes(operand, place)} << 16u) >> 16u)"

    def _scale_and_minimum(self, kb: KernelBuilder, operand: Operand, at: str) -> tuple[str, str]:
        scale = kb.let(scalar(operand, at, self.scale), "d")
        if self.offset == "zero":
            return scale, kb.let(f"-{scale} * f32({self._zero(operand, at)})", "d")
        if self.offset == "bias":
            bias = scalar(operand, f"{at} + {self._scale_bytes}u", self.scale)
            return scale, kb.let(f"{bias} + 128.0 * {scale}" if self.raised else bias, "d")
        return scale, ""

    def _number(self, kb: KernelBuilder, code: str) -> str:
        """Codes as numbers, unless they are whole."""
        if self.codes == "whole":
            return code
        function = table_function if self.codes in TABLES else float_function
        return f"{function(kb, self.codes)}({code})"

    def _word(self, kb: KernelBuilder, operand: Operand, at: str) -> str:
        """The u32 of codes at byte `at`."""
        size = operand.dtype.block_bytes
        if size % 2 or self._header % 2:
            return kb.let(f"{any_word(operand)}({at})", "w")
        return read_words(kb, operand, at, 1, aligned=size % 4 == 0 and self._header % 4 == 0)[0]

    def element(self, operand: Operand) -> str:
        if self.bits == 4:
            place = byte(operand, f"base + {self._header}u + (j / 32u) * 16u + (j & 15u)")
            code = f"(({place} >> (((j >> 4u) & 1u) * 4u)) & 15u)"
        else:
            code = byte(operand, f"base + {self._header}u + j")
        scale = scalar(operand, "base", self.scale)
        if self.codes != "whole":
            return f"return {scale} * {self._number(operand.kb, f'vec4<u32>({code})')}.x;"
        q = f"i32({code})" if self.bits == 4 else signed_byte(operand, f"base + {self._header}u + j")
        if self.offset == "zero":
            return f"return {scale} * f32({q} - {self._zero(operand, 'base')});"
        if self.offset == "bias":
            bias = scalar(operand, f"base + {self._scale_bytes}u", self.scale)
            return f"return {scale} * f32({q} + {128 if self.raised else 0}i) + {bias};"
        return f"return {scale} * f32({q} - {self.zero}i);"

    @property
    def whole(self) -> bool:
        return self.codes == "whole"

    @property
    def groups(self) -> tuple[int, ...]:
        return (2,)

    def places(self, u: str, g: str) -> list[str]:
        if self.bits == 8:
            return [f"({u} * 2u)", f"({u} * 2u + 1u)"]
        return [f"(({u} / 4u) * 8u + {u} % 4u + {j}u)" for j in (0, 4)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        start = kb.let(f"{at} + {self._header}u + {u} * {self.bits}u", "at")
        scale, minimum = self._scale_and_minimum(kb, operand, at)
        if self.bits == 4:
            word = self._word(kb, operand, start)
            spread = (LOW_BYTES, HIGH_BYTES) if self.whole else (LOW, HIGH)
            codes = tuple(each.format(word) for each in spread)
        else:
            codes = tuple(self._word(kb, operand, f"{start} + {4 * i}u" if i else start) for i in range(2))
            codes = codes if self.whole else tuple(BYTES.format(word) for word in codes)
        if self.whole:
            return [Weights(codes, scale, minimum, 15 if self.bits == 4 else 128, signed=self.bits == 8)]
        return [Weights(tuple(self._number(kb, c) for c in codes), scale, minimum)]

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        if self.bits == 4:
            start = kb.let(f"{at} + {self._header}u + {part} * 16u + {piece} * 2u", "at")
            odd = operand.dtype.block_bytes % 2
            both = kb.let(f"{any_word(operand)}({start})" if odd else two_bytes(operand, start), "q")
            codes = f"({both} & 0x0f0fu) | (({both} & 0xf0f0u) << 12u)"
        else:
            codes = self._word(kb, operand, kb.let(f"{at} + {self._header}u + {part} * 32u + {piece} * 4u", "at"))
            codes = f"{codes} ^ 0x80808080u" if self.codes == "whole" else codes
        return codes, *self._scale_and_minimum(kb, operand, at)

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 2u + {i}u)" if self.bits == 4 else f"({piece} * 4u + {j}u)" for j, i in enumerate((0, 1, 16, 17))]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        if self.codes == "whole":
            return whole_value(code, self.zero if self.bits == 4 else 128)
        return self._number(kb, code)


@dataclass(frozen=True, slots=True)
class NvBlocks:
    """Four-bit floats with a scale in e4m3 for every 16: parts of four scales and 64 codes; j and j + 8 share a byte.

    The grouped dtype has an f32 before the parts, by which all are multiplied; GGUF's has not.
    """

    whole_scale: bool
    whole: ClassVar[bool] = False
    unit: int = 16
    zero: int = 0
    minimum: bool = False
    pieces: int = 8

    def _part(self, part: str) -> str:
        return f"{4 if self.whole_scale else 0}u + ({part}) * {NVFP4_BYTES}u"

    def _scale(self, operand: Operand, at: str, sixteen: str) -> str:
        """The scale of the sixteen-th 16 elements of the block at byte `at`; codes are doubled, so half of it."""
        place = f"{at} + {self._part(f'{sixteen} / 4u')} + {sixteen} % 4u"
        fn = float_function(operand.kb, "e4m3" if self.whole_scale else "ue4m3")
        return f"(0.5 * {fn}(vec4<u32>({byte(operand, place)})).x)"

    def _all(self, operand: Operand, at: str) -> str:
        return f"{scalar(operand, at, 'f32')} * " if self.whole_scale else ""

    def element(self, operand: Operand) -> str:
        code = byte(operand, f"base + {self._part('j / 64u')} + 4u + ((j / 16u) % 4u) * 8u + (j & 7u)")
        number = f"{table_function(operand.kb, 'e2m1')}(vec4<u32>(({code} >> (((j >> 3u) & 1u) * 4u)) & 15u)).x"
        return f"let t = j / 16u; return {self._all(operand, 'base')}({self._scale(operand, 'base', 't')} * {number});"

    @property
    def groups(self) -> tuple[int, ...]:
        return (4,)

    def places(self, u: str, g: str) -> list[str]:
        return [f"({u} * 4u + {j}u)" for j in range(4)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        pair = read_words(kb, operand, f"{at} + {self._part(f'{u} / 4u')} + 4u + ({u} % 4u) * 8u", 2, aligned=True)
        fn = table_function(kb, "e2m1")
        codes = tuple(f"{fn}({spread.format(w)})" for spread in (LOW, HIGH) for w in pair)
        return [Weights(codes, kb.let(f"{self._all(operand, at)}{self._scale(operand, at, u)}", "d"))]

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        sixteen = kb.let(f"{part} * 2u + {piece} / 4u", "t")
        place = f"{at} + {self._part(f'{sixteen} / 4u')} + 4u + ({sixteen} % 4u) * 8u + ({piece} % 4u) * 2u"
        both = kb.let(two_bytes(operand, kb.let(place, "at")), "q")
        codes = f"({both} & 0x0f0fu) | (({both} & 0xf0f0u) << 12u)"
        return codes, f"{self._all(operand, at)}{self._scale(operand, at, sixteen)}", ""

    def positions(self, piece: str) -> list[str]:
        return [f"(({piece} / 4u) * 16u + ({piece} % 4u) * 2u + {i}u)" for i in (0, 1, 8, 9)]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return f"{table_function(kb, 'e2m1')}({code})"
