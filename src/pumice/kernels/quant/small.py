"""Readers of the GGUF formats with blocks of 32 whole codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.quant.read import (
    HIGH_BYTES,
    LOW_BYTES,
    Weights,
    byte,
    half,
    read_words,
    signed_byte,
    two_bytes,
    whole_value,
)


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

    whole: ClassVar[bool] = True

    @property
    def unit(self) -> int:
        return 16 if self.bits == 8 else 8

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.unit // 4,)

    @property
    def pieces(self) -> int:
        return 8 if self.bits == 4 else 16

    def element(self, operand: Operand) -> str:
        if self.bits == 8:
            code = f"let q = {signed_byte(operand, f'base + {self.codes}u + j')};"
        else:
            code = f"let b = {byte(operand, f'base + {self.codes}u + (j & 15u)')}; let low = select(b & 15u, b >> 4u, j >= 16u);"
            fifth = "0u"
            if self.fifth is not None:
                fifth = f"(({byte(operand, f'base + {self.fifth}u + (j >> 3u)')} >> (j & 7u)) & 1u) << 4u"
            code += f" let q = i32(low | ({fifth})) - {self.zero}i;"
        rest = f" + {half(operand, 'base + 2u')}" if self.minimum else ""
        return f"{code} return {half(operand, 'base')} * f32(q){rest};"

    def places(self, u: str, g: str) -> list[str]:
        if self.bits == 8:
            return [f"({u} * 4u + {j}u)" for j in range(4)]
        return [f"(({u} / 4u) * 8u + {u} % 4u + {j}u)" for j in (0, 4)]

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        count = self.unit * self.bits // 32
        start = kb.let(f"{at} + {self.codes}u + {u} * {4 * count}u", "at")
        words = read_words(kb, operand, start, count, aligned=self._aligned(operand, self.codes))
        codes = tuple(words) if self.bits == 8 else (LOW_BYTES.format(words[0]), HIGH_BYTES.format(words[0]))
        if self.fifth is not None:
            (every,) = read_words(kb, operand, f"{at} + {self.fifth}u", 1, aligned=self._aligned(operand, self.fifth))
            mine = kb.let(f"{every} >> ({u} * 4u)", "h")
            # The multiplication moves bit j to bit 7·j + j: each to its own byte.
            tops = [f"((((({mine} >> {bit}u) & 15u) * 0x00204081u) & 0x01010101u) << 4u)" for bit in (0, 16)]
            codes = tuple(f"({code} | {top})" for code, top in zip(codes, tops, strict=True))
        minimum = kb.let(half(operand, f"{at} + 2u"), "d") if self.minimum else ""
        most = 128 if self.bits == 8 else 15 if self.fifth is None else 31
        return [Weights(codes, kb.let(half(operand, at), "d"), minimum, most, signed=self.bits == 8)]

    def _aligned(self, operand: Operand, offset: int) -> bool:
        return operand.dtype.block_bytes % 4 == 0 and offset % 4 == 0

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        codes = two_bytes(operand, kb.let(f"{at} + {self.codes}u + {piece} * 2u", "at"))
        if self.bits == 8:
            codes = f"{codes} ^ 0x8080u"
        else:
            both = kb.let(codes, "q")
            codes = f"({both} & 0x0f0fu) | (({both} & 0xf0f0u) << 12u)"
        if self.fifth is not None:
            (every,) = read_words(kb, operand, f"{at} + {self.fifth}u", 1, aligned=self._aligned(operand, self.fifth))
            mine = kb.let(f"{every} >> ({piece} * 2u)", "h")
            codes = f"{codes} | (({mine} & 0x10001u) << 4u) | (({mine} & 0x20002u) << 11u)"
        return codes, half(operand, at), half(operand, f"{at} + 2u") if self.minimum else ""

    def positions(self, piece: str) -> list[str]:
        return [f"({piece} * 2u + {i}u)" for i in ((0, 1, 16, 17) if self.bits == 4 else (0, 1))]

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        return whole_value(code, self.zero if self.bits == 4 else 128)
