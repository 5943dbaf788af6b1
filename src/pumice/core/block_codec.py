"""Blocks as bytes: codes and scales at the places of a format's record, and code that all codecs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_formats import BitField, Bits, BlockLayout, GridCodes, SubScales, Trits
from pumice.core.grids import grid_rows
from pumice.core.records import dataclass
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
    """The codes [n, elements] of blocks [n, nbytes], as they are stored; of a grid, its numbers in two's complement."""
    if layout.grid is not None:
        return _get_grid_numbers(layout.grid, layout.elements, blocks)
    if layout.trits:
        return np.concatenate([_get_trits(trits, blocks) for trits in layout.trits], axis=1)
    found, at = None, 0
    for plane in layout.planes:
        packed = blocks[:, plane.start : plane.start + layout.elements * plane.width // 8].reshape(len(blocks), -1, 1, plane.run)
        part = packed if plane.width == 8 else (packed >> _shifts(plane.width)) & np.uint8((1 << plane.width) - 1)
        part = part.reshape(len(blocks), layout.elements)
        found, at = part if found is None else found | part << np.uint8(at), at + plane.width
    assert found is not None
    return found


def put_codes(layout: BlockLayout, blocks: Bytes, codes: NDArray[np.uint8]) -> None:
    """The other way round, for codes in planes or trits."""
    for trits, part in zip(layout.trits, np.split(codes, np.cumsum([t.elements for t in layout.trits])[:-1], axis=1)):
        _put_trits(trits, blocks, part)
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


def _get_trits(trits: Trits, blocks: Bytes) -> Bytes:
    stored = blocks[:, None, trits.start : trits.start + trits.run]
    # Digits before the one in question go beyond the byte, and are lost.
    fractions = stored * np.array([3**n for n in range(trits.digits)], np.uint8)[:, None]
    return (fractions.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8).reshape(len(blocks), -1)


def _put_trits(trits: Trits, blocks: Bytes, codes: Bytes) -> None:
    digits = codes.reshape(len(blocks), trits.digits, trits.run).astype(np.uint16)
    whole = np.sum(digits * np.array([3 ** (4 - n) for n in range(trits.digits)], np.uint16)[:, None], axis=1, dtype=np.uint16)
    blocks[:, trits.start : trits.start + trits.run] = (whole * np.uint16(256) + np.uint16(242)) // np.uint16(243)


def even_signs(signs: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Seven bits with an eighth that makes the number of set ones even.

    >>> even_signs(np.array([0, 1, 3, 127], np.uint16)).tolist()
    [0, 129, 3, 255]
    """
    fours = signs ^ signs >> np.uint16(4)
    pairs = fours ^ fours >> np.uint16(2)
    found: NDArray[np.uint16] = signs | (pairs ^ pairs >> np.uint16(1)) << np.uint16(7) & np.uint16(128)
    return found


def _get_grid_numbers(codes: GridCodes, elements: int, blocks: Bytes) -> Bytes:
    rows, bits = grid_rows(codes.grid), np.arange(8, dtype=np.uint16)
    index, at = np.zeros(1, np.uint16), 0
    for field in codes.index:
        index = index | get_fields(field_bits(field, elements // codes.grid.width), blocks) << np.uint16(at)
        at += field.width
    eights: NDArray[np.int8] = rows[index].reshape(len(blocks), -1, 8)
    if codes.signs is not None:
        signs = get_fields(field_bits(codes.signs, elements // 8), blocks)
        signs = even_signs(signs) if codes.signs.width == 7 else signs
        eights = np.where(signs[:, :, None] >> bits & np.uint16(1), -eights, eights)
    if codes.offsets is not None:
        is_less = get_fields(field_bits(codes.offsets, elements // 8), blocks)
        eights = eights + np.where(is_less, np.int8(-1), np.int8(1))[:, :, None]
    return eights.reshape(len(blocks), elements).view(np.uint8)


@functools.cache
def field_bits(field: BitField, count: int) -> tuple[tuple[Bits, ...], ...]:
    """Where the bits of the first `count` numbers of a field are."""
    return tuple(field.of(i) for i in range(count))


@functools.cache
def _columns(numbers: tuple[tuple[Bits, ...], ...]) -> list[tuple[NDArray[np.intp], Bytes, Bytes, NDArray[np.uint16]]]:
    """Bytes, shifts and masks of each run of bits of all numbers, lowest first, and the bit of the number at which it starts."""
    found = []
    for run in range(max(len(number) for number in numbers)):
        # A number with fewer runs has no bits in the others.
        bits = [number[run] if run < len(number) else None for number in numbers]
        columns = np.array([b.byte if b else 0 for b in bits])
        shifts, widths = (np.array([getattr(b, name) if b else 0 for b in bits], np.uint8) for name in ("shift", "width"))
        at = np.array([sum(b.width for b in number[:run]) for number in numbers], np.uint16)
        found.append((columns, shifts, ((1 << widths.astype(np.uint16)) - 1).astype(np.uint8), at))
    return found


def get_fields(numbers: tuple[tuple[Bits, ...], ...], blocks: Bytes) -> NDArray[np.uint16]:
    """Numbers [n, count] whose bits are at these places."""
    stored = np.zeros((len(blocks), len(numbers)), np.uint16)
    for columns, shifts, masks, at in _columns(numbers):
        stored |= (blocks[:, columns] >> shifts & masks).astype(np.uint16) << at
    return stored


def put_fields(numbers: tuple[tuple[Bits, ...], ...], blocks: Bytes, values: NDArray[Any]) -> None:
    """The other way round, for blocks whose bits there are 0."""
    for column, number in zip(values.astype(np.uint16).T, numbers, strict=True):
        at = 0
        for bits in number:
            part = column >> np.uint16(at) & np.uint16((1 << bits.width) - 1)
            blocks[:, bits.byte] |= (part << np.uint16(bits.shift)).astype(np.uint8)
            at += bits.width


def get_sub_scales(scales: SubScales, blocks: Bytes) -> Floats:
    """The numbers [n, parts] that multiply the parts of a block."""
    stored = get_fields(scales.parts, blocks).astype(np.uint8)
    if scales.is_float:
        halved: Floats = UE4M3.take(stored)
        return halved
    found: Floats = (stored.view(np.int8) if scales.is_signed else stored).astype(np.float32)
    if scales.odd:
        return found * np.float32(2 * scales.odd) + np.float32(scales.odd)
    return found - np.float32(scales.zero) if scales.zero else found


def put_sub_scales(scales: SubScales, blocks: Bytes, values: NDArray[Any]) -> None:
    """Adds whole numbers [n, parts] to blocks whose bits for them are 0."""
    put_fields(scales.parts, blocks, (values + scales.zero).astype(np.int16).astype(np.uint8))


def get_scale(layout: BlockLayout, blocks: Bytes) -> Floats | None:
    """The scale [n, 1] of blocks; None where only parts have one."""
    if layout.scale is None:
        return None
    if layout.scale_kind == "e8m0":
        return half_powers(blocks[:, layout.scale : layout.scale + 1])
    if layout.scale_kind == "f32":
        return blocks[:, layout.scale : layout.scale + 4].view("<f4").astype(np.float32)
    if layout.scale_kind == "nibbles":
        return get_fields((nibbles_at(layout.scale),), blocks).view(np.float16).astype(np.float32)
    return get_f16(blocks, layout.scale)


def nibbles_at(byte: int) -> tuple[Bits, ...]:
    """Where the bits of an f16 in nibbles are."""
    return tuple(Bits(byte + 2 * i, 4, 4) for i in range(4))


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
