"""Shared by all readers of quantised blocks: bytes and words of a weight, and the interface that kernels use."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from pumice.kernels.builder import KernelBuilder, Operand

# How the four bytes of a word, or their halves, become a vec4<u32>; signed bytes a vec4<i32>.
BYTES = "((vec4<u32>({}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u))"
LOW = "((vec4<u32>({}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u))"
HIGH = "((vec4<u32>({}) >> vec4<u32>(4u, 12u, 20u, 28u)) & vec4<u32>(15u))"
SIGNED = "(bitcast<vec4<i32>>(vec4<u32>({}) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u))"
# The lower and the upper halves of the bytes of a word, as bytes.
LOW_BYTES, HIGH_BYTES = "({} & 0x0f0f0f0fu)", "(({} >> 4u) & 0x0f0f0f0fu)"


def byte(operand: Operand, at: str) -> str:
    """WGSL for the byte at byte offset `at`."""
    return f"((({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 3u) * 8u)) & 255u)"


def half(operand: Operand, at: str) -> str:
    """WGSL for the f16 at the even byte offset `at`, as f32."""
    return f"unpack2x16float(({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 2u) * 8u)).x"


def signed_byte(operand: Operand, at: str) -> str:
    return f"(bitcast<i32>({byte(operand, at)} << 24u) >> 24u)"


def two_bytes(operand: Operand, at: str) -> str:
    return f"(({operand.word(f'({at}) >> 2u')} >> ((({at}) & 2u) * 8u)) & 0xffffu)"


def any_word(operand: Operand) -> str:
    """Declares and names a function of a byte offset: the u32 that starts there, aligned or not."""
    fn = f"word_at_{operand.names[0]}"
    # In two shifts, as one by 32 would be none at all.
    upper = f"({operand.word('i + 1u')} << 1u) << (31u - s)"
    operand.kb.function(
        f"fn {fn}(at: u32) -> u32 {{ let i = at >> 2u; let s = (at & 3u) * 8u; return ({operand.word('i')} >> s) | ({upper}); }}"
    )
    return fn


def read_words(kb: KernelBuilder, operand: Operand, at: str, count: int, *, aligned: bool = False) -> list[str]:
    """Names of the u32s that start at an even byte offset."""
    start = kb.let(f"({at}) >> 2u", "at")
    raw = [kb.let(operand.word(f"{start} + {i}u" if i else start), "w") for i in range(count if aligned else count + 1)]
    if aligned:
        return raw
    # Where a block is an odd number of 16-bit words, every other block starts two bytes off: a branch would run both ways.
    odd = kb.let(f"(({at}) & 2u) != 0u", "odd")
    return [kb.let(f"select({a}, ({a} >> 16u) | ({b} << 16u), {odd})", "q") for a, b in pairwise(raw)]


def read_quad(kb: KernelBuilder, operand: Operand, at: str) -> str:
    """Name of the vec4<u32> at a byte offset that is a multiple of sixteen."""
    if operand.wide:
        return kb.let(operand.four(f"({at}) >> 4u"), "w")
    start = kb.let(f"({at}) >> 2u", "at")
    return kb.let(f"vec4<u32>({', '.join(operand.word(f'{start} + {i}u') for i in range(4))})", "w")


@dataclass(frozen=True, slots=True)
class Weights:
    """Codes that share a scale and, in formats that have one, a minimum (names).

    The weight is scale * (code - zero) + minimum. Codes are vec4<f32> expressions, or, where `most` is given, u32s of four
    bytes each: integers of at most `most`, `signed` or not.
    """

    codes: tuple[str, ...]
    scale: str
    minimum: str = ""
    most: int = 0
    signed: bool = False

    @property
    def numbers(self) -> tuple[str, ...]:
        """The codes as vec4s."""
        if not self.most:
            return self.codes
        return tuple((SIGNED if self.signed else BYTES).format(code) for code in self.codes)


class WgslReader(Protocol):
    """How kernels read one format.

    In a matvec a thread takes a `unit` of weights at a time, as vec4s. In a tile, 32 weights along K are read in `pieces`;
    a piece is a word of code bytes, which `tile_value` turns into numbers.
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
    def whole(self) -> bool:
        """Whether `weights` gives integers, four to a word."""
        ...

    def element(self, operand: Operand) -> str:
        """Body of `fn(base: u32, j: u32) -> f32`: the element j of the block that starts at byte `base`."""
        ...

    @property
    def groups(self) -> tuple[int, ...]:
        """How many vec4s there are in each group of a unit: what shares a scale, or less; equally many in all."""
        ...

    def places(self, u: str, g: str) -> list[str]:
        """The position of the vec4s of group g of the u-th unit in a row, in fours of elements."""
        ...

    def weights(self, kb: KernelBuilder, operand: Operand, at: str, u: str) -> list[Weights]:
        """Unit `u` of the block at byte `at`: one entry for each of `groups`."""
        ...

    def piece(self, kb: KernelBuilder, operand: Operand, at: str, part: str, piece: str) -> tuple[str, str, str]:
        """Code bytes, scale and minimum of a piece of the `part`-th 32 weights of the block at byte `at`."""
        ...

    def positions(self, piece: str) -> list[str]:
        """Where along the 32 weights the code bytes of a piece belong."""
        ...

    def tile_value(self, kb: KernelBuilder, code: str) -> str:
        """The numbers (vec4<f32>) of code bytes (vec4<u32>), before scale and minimum."""
        ...


def whole_value(code: str, zero: int) -> str:
    """The `tile_value` of integer codes with the zero point `zero`."""
    return f"(vec4<f32>({code}) - {zero}.0)" if zero else f"vec4<f32>({code})"
