"""Floats to the block formats of GGUF files by plain rounding, every step in float32 as ggml's reference quantisers do it.

Which way is taken follows from a format's record: `encode_blocks` has them all. formats/encode searches for better codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core.block_codec import (
    UE4M3,
    Bytes,
    Floats,
    extreme,
    get_f16,
    half_powers,
    inverse,
    nearest,
    put_codes,
    put_f16,
    put_sub_scales,
    require_finite,
)
from pumice.core.block_encode_grid import encode_grid
from pumice.core.block_formats import DOUBLED_E2M1, BlockLayout


def encode_blocks(layout: BlockLayout, x: Floats, blocks: Bytes) -> None:
    """Fills blocks [n, nbytes] from x [n, elements], which serves as scratch."""
    # Fields that share bytes are added one after the other.
    blocks[:] = 0
    if layout.grid is not None:
        encode_grid(layout, x, blocks)
        return
    if layout.table:
        encode = {"e8m0": _encode_exponent, "f16": _encode_table}[layout.scale_kind]
        codes = (_encode_float_scales if layout.scale is None else encode)(layout, x, blocks)
    elif layout.is_signed:
        codes = (_encode_signed if layout.scale_kind == "f16" else _encode_sums)(layout, x, blocks)
    elif layout.least is not None:
        codes = (_encode_between if layout.scales is None else _encode_between_parts)(layout, x, blocks)
    elif layout.zero == 1:
        codes = _encode_ternary(layout, x, blocks)
    else:
        codes = (_encode_symmetric if layout.scales is None else _encode_symmetric_parts)(layout, x, blocks)
    put_codes(layout, blocks, codes)


# --- one scale for a block ---


def _levels(x: Floats, top: int) -> Bytes:
    """Whole levels of numbers that are not negative: the fraction is cut off, and top + 1, which rounding can reach, is top."""
    return np.minimum(x.astype(np.uint8), np.uint8(top))


def _encode_symmetric(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    """Levels 0…2·zero-1, which stand for -zero…zero-1."""
    assert layout.scale is not None
    # The element that is largest in magnitude maps to level 0 with its sign, so the range is used in full.
    d = extreme(x) / np.float32(-layout.zero)
    put_f16(blocks, layout.scale, d)
    x *= inverse(d)
    x += layout.zero + 0.5
    return _levels(x, 2 * layout.zero - 1)


def _encode_between(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    """Levels from the least element up."""
    assert layout.scale is not None and layout.least is not None
    top = (1 << layout.bits) - 1
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
    put_f16(blocks, layout.scale, d)
    put_f16(blocks, layout.least, low)
    x -= low
    x *= inverse(d)
    x += 0.5
    return _levels(x, top)


def _encode_signed(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    assert layout.scale is not None
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    put_f16(blocks, layout.scale, d)
    x *= inverse(d)
    return _rounded(x).astype(np.int8).view(np.uint8)


def _rounded(x: Floats) -> Floats:
    """The nearest whole numbers; x serves as scratch."""
    # Halves round away from zero; adding 0.5 first would also lift the largest float below one half.
    whole = np.trunc(x)
    x -= whole
    x *= 2
    whole += np.trunc(x)
    return whole


def _encode_ternary(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    """Levels 0…2, which stand for -1, 0 and 1."""
    assert layout.scale is not None
    d = np.abs(x).max(axis=1, keepdims=True)
    put_f16(blocks, layout.scale, d)
    x *= inverse(d)
    return (_rounded(x) + 1).astype(np.uint8)


def _encode_sums(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    """q8_k: after the codes come their sums by sixteens, which no reader needs."""
    assert layout.scale is not None
    d = extreme(x) / np.float32(-127)
    require_finite(d, "f32")
    blocks[:, layout.scale : layout.scale + 4] = d.astype("<f4").view(np.uint8)
    levels = nearest(x, d, -127, 127).astype(np.int8)
    blocks[:, layout.planes[0].start + layout.elements :] = levels.reshape(-1, 16, 16).sum(axis=2, dtype="<i2").view(np.uint8)
    return levels.view(np.uint8)


# --- small whole scales for the parts of a block, which its d multiplies ---


def _fit_between(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum (not negative, to be subtracted) of parts along the last axis, for levels 0…top.

    Several steps a little off the plain one are tried. For the levels that each gives, the line through them with the least
    weighted squares is kept if its error is the least so far; large elements weigh more.
    """
    weight = np.abs(x) + np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True))
    low = np.minimum(x.min(axis=-1, keepdims=True), np.float32(0))
    plain = (x.max(axis=-1, keepdims=True) - low) / np.float32(top)

    def total(values: Floats) -> Floats:
        found: Floats = values.sum(axis=-1, keepdims=True)
        return found

    def error(levels: Floats, scale: Any, minimum: Any) -> Floats:
        return total(weight * np.square(scale * levels + minimum - x))

    scale, minimum = plain, low
    least = error(nearest(x - low, plain, 0, top), plain, low)
    all_weights, all_x = total(weight), total(weight * x)
    for tenths in range(-10, 11):
        levels = nearest(x - low, plain * np.float32(top / (top + tenths / 10)), 0, top)
        weighted = weight * levels
        first, second, product = total(weighted), total(weighted * levels), total(weighted * x)
        determinant = all_weights * second - first * first
        slope = (all_weights * product - all_x * first) / determinant
        start = (second * all_x - first * product) / determinant
        # A minimum above zero cannot be stored: then the best line through zero.
        np.copyto(slope, product / second, where=start > 0)
        np.minimum(start, 0, out=start)
        found = error(levels, slope, start)
        better = (determinant > 0) & (found < least)
        scale, minimum, least = (np.where(better, n, o) for n, o in ((slope, scale), (start, minimum), (found, least)))
    return scale[..., 0], -minimum[..., 0]


def _encode_between_parts(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    assert layout.scale is not None and layout.least is not None and layout.scales is not None and layout.leasts is not None
    parts, top = x.reshape(len(x), -1, layout.part_size), (1 << layout.bits) - 1
    most = np.float32((1 << sum(b.width for b in layout.scales.parts[-1])) - 1)
    with np.errstate(all="ignore"):  # broken values are refused when their scale is stored
        scale, minimum = _fit_between(parts, top)
    whole = []
    for at, sub_scales, values in ((layout.scale, layout.scales, scale), (layout.least, layout.leasts, minimum)):
        d = values.max(axis=1, keepdims=True) / most
        put_f16(blocks, at, d)
        whole.append(nearest(values, d, 0, int(most)))
        put_sub_scales(sub_scales, blocks, whole[-1])
    # The levels fit the scales as they will be read back.
    step, offset = ((get_f16(blocks, at) * v)[:, :, None] for at, v in zip((layout.scale, layout.least), whole, strict=True))
    return nearest(parts + offset, step, 0, top).astype(np.uint8)


def _fit_symmetric(x: Floats, half: int) -> Floats:
    """The scale of parts along the last axis for levels -half…half-1, searched as in `_fit_between`."""
    top = extreme(x)
    weight = np.square(x)
    scale, most = top / np.float32(-half), np.full_like(top, -1)
    for tenths in range(-9, 10):
        levels = nearest(x, top / np.float32(-half - tenths / 10), -half, half - 1)
        weighted = weight * levels
        product, square = ((weighted * v).sum(axis=-1, keepdims=True) for v in (x, levels))
        # The error is least where this quotient is greatest.
        gain = np.square(product) / square
        better = gain > most
        scale, most = np.where(better, product / square, scale), np.where(better, gain, most)
    found: Floats = scale[..., 0]
    return found


def _store_signed_scales(layout: BlockLayout, scale: Floats, blocks: Bytes) -> Floats:
    """Stores d and the whole scales of all parts; the steps that they give, [n, parts, 1]."""
    assert layout.scale is not None and layout.scales is not None
    most = layout.scales.zero or 128
    d = extreme(scale) / np.float32(-most)
    put_f16(blocks, layout.scale, d)
    whole = nearest(scale, d, -most, most - 1)
    put_sub_scales(layout.scales, blocks, whole)
    return (get_f16(blocks, layout.scale) * whole)[:, :, None]


def _encode_symmetric_parts(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    parts, half = x.reshape(len(x), -1, layout.part_size), layout.zero
    with np.errstate(all="ignore"):
        scale = _fit_symmetric(parts, half)
    step = _store_signed_scales(layout, scale, blocks)
    return (nearest(parts, step, -half, half - 1) + half).astype(np.uint8)


# --- codes that are numbers of a table ---

E2M1 = np.array(DOUBLED_E2M1, np.float32)


def nearest_e2m1(x: Floats) -> Bytes:
    """The codes of doubled four-bit floats nearest to x; halfway the smaller magnitude."""
    codes = np.searchsorted((E2M1[1:8] + E2M1[:7]) / 2, np.abs(x)).astype(np.uint8)
    return codes | np.where((x < 0) & (codes > 0), np.uint8(8), np.uint8(0))


def _nearest_of(table: Floats, x: Floats, scale: Floats) -> Bytes:
    """The codes whose numbers, in rising order, times `scale` are nearest to x."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, x * inverse(scale)).astype(np.uint8)


def _fit_table(table: Floats, x: Floats) -> Floats:
    """A scale of the table's numbers for each row along the last axis, which is kept."""
    d = extreme(x) / table[0]
    with np.errstate(all="ignore"):  # broken values are refused when their scale is stored
        # With the levels chosen, the scale of the least squares; large elements weigh more.
        levels = table[_nearest_of(table, x, d)]
        weighted = np.square(x) * levels
        best = (weighted * x).sum(axis=-1, keepdims=True) / (weighted * levels).sum(axis=-1, keepdims=True)
    found: Floats = np.where(np.isfinite(best) & np.isfinite(d), best, d)
    return found


def _encode_table(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    assert layout.scale is not None
    table, parts = np.array(layout.table, np.float32), x.reshape(len(x), -1, layout.part_size)
    scale = _fit_table(table, parts)[:, :, 0]
    if layout.scales is not None:
        return _nearest_of(table, parts, _store_signed_scales(layout, scale, blocks))
    put_f16(blocks, layout.scale, scale)
    return _nearest_of(table, x, get_f16(blocks, layout.scale))


def _encode_exponent(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    assert layout.scale is not None
    top, at = np.abs(x).max(axis=1, keepdims=True), slice(layout.scale, layout.scale + 1)
    require_finite(top, "an exponent")
    # The largest element comes to 4…8 of what the codes reach, 6: frexp gives one more than the logarithm's whole part.
    blocks[:, at] = np.where(top > 0, np.clip(np.frexp(top)[1] - 1 - 2 + 127, 0, 254), 0)
    return nearest_e2m1(x / half_powers(blocks[:, at]))


def _encode_float_scales(layout: BlockLayout, x: Floats, blocks: Bytes) -> Bytes:
    assert layout.scales is not None
    parts = x.reshape(len(x), -1, layout.part_size)
    wanted = np.abs(parts).max(axis=2) / np.float32(12)
    require_finite(np.where(wanted <= UE4M3[126], wanted, np.inf), "e4m3")
    stored = np.searchsorted((UE4M3[1:127] + UE4M3[:126]) / 2, wanted)
    put_sub_scales(layout.scales, blocks, stored)
    return nearest_e2m1(parts * inverse(UE4M3[stored])[:, :, None])
