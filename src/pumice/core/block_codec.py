"""What the codecs of all block formats share: their interface, numbers of two bytes, nibbles and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.errors import InputError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """How one format stores a block.

    `decode(blocks, out)` fills out [n, block] from blocks [n, block_bytes]; `encode(x, blocks)` the other way round,
    rounding every step in float32 as ggml's reference quantisers do. Both write into what they are given, and `encode` may
    use x as scratch.
    """

    decode: Callable[[Bytes, Floats], None]
    encode: Callable[[Floats, Bytes], None]


def get_f16(blocks: Bytes, at: int) -> Floats:
    """The little-endian f16 at byte `at` of every block, as a column."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def put_f16(blocks: Bytes, at: int, values: Floats) -> None:
    """The other way round; refuses numbers that f16 does not have."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    require_finite(halves, "f16")
    blocks[:, at : at + 2] = halves.view(np.uint8)


def require_finite(scales: NDArray[Any], kind: str) -> None:
    """NaN and infinity anywhere in a block end up in its scale, so this one check keeps them out of the integers too."""
    if not np.isfinite(scales).all():
        raise InputError(
            f"a block's scale does not fit in {kind}: its values are NaN, infinite or too large",
            hint="check the tensor for NaN and infinity, or store it as f32",
        )


def get_nibbles(packed: Bytes, out: Floats) -> None:
    """Byte j holds element j in its low half and element j + n in its high half, where n is the number of bytes."""
    half = packed.shape[-1]
    np.bitwise_and(packed, 15, out=out[..., :half], dtype=np.uint8, casting="unsafe")
    np.right_shift(packed, 4, out=out[..., half:], dtype=np.uint8, casting="unsafe")


def put_nibbles(packed: Bytes, levels: Bytes) -> None:
    """The low four bits of every level, laid out as `get_nibbles` reads them."""
    half = packed.shape[-1]
    packed[...] = levels[..., :half] & 15 | levels[..., half:] << 4


def inverse(d: Floats) -> Floats:
    """1/d, and 0 where d is 0 or so small that its inverse overflows: such a block decodes to its offset anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        found = np.float32(1) / d
    found[np.isinf(found)] = 0
    return found


def extreme(x: Floats) -> Floats:
    """The element of largest magnitude along the last axis, with its sign."""
    found: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    return found


def nearest(x: Floats, step: Floats, low: int, high: int) -> Floats:
    """Which whole multiple of `step`, within bounds, is nearest to x; 0 where the step is 0."""
    found: Floats = np.clip(np.rint(x * inverse(step)), low, high)
    return found


def small_floats(exponent: int, mantissa: int, *, has_infinity: bool) -> Floats:
    """The 256 values of a signed eight-bit float; without infinities, only the largest code is NaN.

    >>> small_floats(4, 3, has_infinity=False)[[0x38, 0x7E, 0xB8]].tolist()
    [1.0, 448.0, -1.0]
    """
    code = np.arange(128)
    power, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    whole = np.where(power > 0, fraction + (1 << mantissa), fraction).astype(np.float32)
    values = np.ldexp(whole, np.maximum(power, 1) - ((1 << exponent - 1) - 1) - mantissa)
    if has_infinity:
        values[power == (1 << exponent) - 1] = np.nan
        values[((1 << exponent) - 1) << mantissa] = np.inf
    else:
        values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


E4M3, E5M2 = small_floats(4, 3, has_infinity=False), small_floats(5, 2, has_infinity=True)
