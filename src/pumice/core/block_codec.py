"""Blocks as bytes: codes and scales at the places of a format's record, and code that all codecs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_formats import BlockLayout, SubScales
from pumice.errors import InputError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """How one format stores a block.

    `decode(blocks, out)` fills out [n, block] from blocks [n, block_bytes]; `encode(x, blocks)` the other way round,
    rounding every step in float32 as ggml's reference quantisers do. Both write into their argument, and `encode` may
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
        rounded = values.astype("<f2")
    require_finite(rounded, "f16")
    blocks[:, at : at + 2] = rounded.view(np.uint8)


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
# An unsigned scale: the sign bit means nothing, and the largest code, NaN elsewhere, is 0. Halved, as codes are doubled.
UE4M3 = np.abs(np.concatenate([E4M3[:128], E4M3[:128]])) / 2
UE4M3[[127, 255]] = 0, 240


# --- by the record of a format ---


def get_codes(layout: BlockLayout, blocks: Bytes) -> Bytes:
    """The codes [n, elements] of blocks [n, nbytes], as they are stored."""
    found, at = None, 0
    for plane in layout.planes:
        packed = blocks[:, plane.start : plane.start + layout.elements * plane.width // 8].reshape(len(blocks), -1, 1, plane.run)
        part = packed if plane.width == 8 else (packed >> _shifts(plane.width)) & np.uint8((1 << plane.width) - 1)
        part = part.reshape(len(blocks), layout.elements)
        found, at = part if found is None else found | part << np.uint8(at), at + plane.width
    assert found is not None
    return found


def put_codes(layout: BlockLayout, blocks: Bytes, codes: NDArray[np.uint8]) -> None:
    """The other way round."""
    at = 0
    for plane in layout.planes:
        part = codes.reshape(len(blocks), -1, 8 // plane.width, plane.run)
        if len(layout.planes) > 1:
            part = part >> np.uint8(at) & np.uint8((1 << plane.width) - 1)
        packed = np.bitwise_or.reduce(part << _shifts(plane.width), axis=2).reshape(len(blocks), -1)
        blocks[:, plane.start : plane.start + packed.shape[1]] = packed
        at += plane.width


def _shifts(width: int) -> Bytes:
    return np.arange(0, 8, width, dtype=np.uint8)[:, None]


@functools.cache
def _fields(scales: SubScales) -> list[tuple[NDArray[np.intp], Bytes, Bytes, int]]:
    """Bytes, shifts and masks of each field of all parts, lowest first, and the bit at which it starts in the number."""
    found = []
    for field in range(max(len(part) for part in scales.parts)):
        # A part with fewer fields has no bits in the others.
        bits = [part[field] if field < len(part) else None for part in scales.parts]
        columns = np.array([b.byte if b else 0 for b in bits])
        shifts, widths = (np.array([getattr(b, name) if b else 0 for b in bits], np.uint8) for name in ("shift", "width"))
        at = next(sum(b.width for b in part[:field]) for part in scales.parts if field < len(part))
        found.append((columns, shifts, ((1 << widths.astype(np.uint16)) - 1).astype(np.uint8), at))
    return found


def get_sub_scales(scales: SubScales, blocks: Bytes) -> Floats:
    """The numbers [n, parts] that multiply the parts of a block."""
    stored = np.zeros((len(blocks), len(scales.parts)), np.uint8)
    for columns, shifts, masks, at in _fields(scales):
        stored |= (blocks[:, columns] >> shifts & masks) << np.uint8(at)
    if scales.is_float:
        halved: Floats = UE4M3.take(stored)
        return halved
    found: Floats = (stored.view(np.int8) if scales.is_signed else stored).astype(np.float32)
    return found - np.float32(scales.zero) if scales.zero else found


def put_sub_scales(scales: SubScales, blocks: Bytes, values: NDArray[Any]) -> None:
    """Adds whole numbers [n, parts] to blocks whose bits for them are 0."""
    stored = (values + scales.zero).astype(np.int16).astype(np.uint8)
    for values_of_part, part in zip(stored.T, scales.parts, strict=True):
        at = 0
        for bits in part:
            blocks[:, bits.byte] |= (values_of_part >> np.uint8(at) & np.uint8((1 << bits.width) - 1)) << np.uint8(bits.shift)
            at += bits.width


def get_scale(layout: BlockLayout, blocks: Bytes) -> Floats | None:
    """The scale [n, 1] of blocks; None where only parts have one."""
    if layout.scale is None:
        return None
    if layout.scale_kind == "e8m0":
        return half_powers(blocks[:, layout.scale : layout.scale + 1])
    if layout.scale_kind == "f32":
        return blocks[:, layout.scale : layout.scale + 4].view("<f4").astype(np.float32)
    return get_f16(blocks, layout.scale)


def half_powers(exponents: Bytes) -> Floats:
    """Half of the power of two of a biased exponent; the smallest two are subnormal."""
    wide = exponents.astype(np.uint32)
    return np.where(wide < 2, np.uint32(1 << 21) << wide, (wide - 1) << np.uint32(23)).astype(np.uint32).view(np.float32)


def _steps(base: Floats | None, scales: SubScales | None, blocks: Bytes) -> Floats:
    """What multiplies each part, [n, parts, 1]."""
    small = None if scales is None else get_sub_scales(scales, blocks)
    found = small if base is None else base if small is None else base * small
    assert found is not None
    return found[:, :, None]


def decode_blocks(layout: BlockLayout, blocks: Bytes, out: Floats) -> None:
    """Fills out [n, elements] with the values of blocks [n, nbytes]."""
    codes = get_codes(layout, blocks)
    if layout.table:
        np.take(np.array(layout.table, np.float32), codes, out=out, mode="clip")
    else:
        np.copyto(out, codes.view(np.int8) if layout.is_signed else codes)
        if layout.zero:
            out -= np.float32(layout.zero)
    parts = out.reshape(len(blocks), -1, layout.elements if layout.scales is None else layout.part_size)
    parts *= _steps(get_scale(layout, blocks), layout.scales, blocks)
    if layout.least is not None:
        parts += np.float32(layout.least_sign) * _steps(get_f16(blocks, layout.least), layout.leasts, blocks)
