"""Codecs of the grouped formats, and the packing of codes and scales that a checkpoint holds apart."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core import dtypes
from pumice.core.block_codec import (
    E4M3,
    E5M2,
    BlockCodec,
    Bytes,
    Floats,
    get_f16,
    get_nibbles,
    inverse,
    put_nibbles,
    require_finite,
)
from pumice.core.block_encode import E2M1, nearest_e2m1
from pumice.core.dtypes import NVFP4_BYTES, DType, GroupLayout
from pumice.errors import DTypeError, ShapeError

_FLOATS = {"e4m3": E4M3, "e5m2": E5M2}
# GGUF's table has no negative zero, the float has one.
_E2M1 = np.where(np.arange(16) == 8, np.float32(-0.0), E2M1)


def pack_groups(
    dtype: DType,
    codes: NDArray[Any],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None = None,
    inner: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Packed rows [N, row bytes] of a grouped dtype, bit-exact.

    `codes` [N, K]: u4z, u4b, u8z and u8b from 0 up, i4 and i8 signed, the floats as their bytes. `scales` and `offsets`
    [N, K/group]: scales and biases in the scale's dtype, zero points whole. `inner` [N, K/16]: the scales in e4m3 of nvfp4.

    >>> from pumice.core.dtypes import grouped
    >>> row = pack_groups(grouped("u4z", 32, "f16"), np.full((1, 32), 9), np.float16([[0.5]]), np.int64([[8]]))
    >>> row[0, :5].tolist(), row.shape
    ([0, 56, 8, 0, 153], (1, 20))
    """
    layout = dtypes.group_layout(dtype)
    if layout is None:
        raise DTypeError(f"{dtype} has no groups of codes and scales", dtype=dtype.name)
    rows, k = codes.shape
    if k % layout.size or scales.shape != (rows, k // layout.size) or (offsets is None) != (not layout.offset):
        raise ShapeError(
            f"codes {codes.shape} and scales {scales.shape} are no rows of {dtype}",
            hint=f"there is one scale{f' and {layout.offset}' if layout.offset else ''} for each {layout.size} elements",
            dtype=dtype.name,
        )
    out = np.empty((rows, k // layout.size, dtype.block_bytes), np.uint8)
    blocks = out.reshape(-1, dtype.block_bytes)
    blocks[:, : layout.scale_bytes] = _bits(scales.reshape(-1, 1), layout.scale)
    if offsets is not None:
        stored = offsets.reshape(-1, 1)
        if layout.offset == "zero":
            stored = stored.astype(np.int32) - (128 if layout.bits == 8 else 0)
            blocks[:, layout.scale_bytes : layout.header] = stored.astype(_zero_type(layout)).view(np.uint8)
        else:
            blocks[:, layout.scale_bytes : layout.header] = _bits(stored, layout.scale)
    _put_codes(layout, codes.reshape(-1, layout.size), blocks, None if inner is None else inner.reshape(len(blocks), -1))
    return out.reshape(rows, -1)


def _put_codes(layout: GroupLayout, codes: NDArray[Any], blocks: Bytes, inner: Bytes | None) -> None:
    body = blocks[:, layout.header :]
    if layout.codes == "nvfp4":
        assert inner is not None
        parts = body.reshape(len(blocks), -1, NVFP4_BYTES)
        parts[:, :, :4] = inner.reshape(*parts.shape[:2], 4)
        put_nibbles(_nvfp4_codes(parts), codes.astype(np.uint8).reshape(*parts.shape[:2], 4, 16))
    elif layout.bits == 4:
        shifted = codes.astype(np.int16) + 8 if layout.codes == "i4" else codes
        put_nibbles(body.reshape(len(blocks), -1, 16), shifted.astype(np.uint8).reshape(len(blocks), -1, 32))
    elif layout.codes in ("u8z", "u8b"):
        body[:] = codes.astype(np.uint8) ^ 0x80
    else:
        body[:] = codes.astype(np.int8).view(np.uint8) if layout.codes == "i8" else codes


def _nvfp4_codes(parts: Bytes) -> Bytes:
    """The codes [n, parts, 4, 8] of parts [n, parts, 36], as a view."""
    n, count, _ = parts.shape
    a, b, c = parts.strides
    return np.lib.stride_tricks.as_strided(parts[:, :, 4:], (n, count, 4, 8), (a, b, 8 * c, c))


def _zero_type(layout: GroupLayout) -> str:
    return "<i4" if layout.scale_bytes == 4 else "<i2"


def _bits(values: NDArray[Any], kind: str) -> Bytes:
    """The bytes of a column of floats in a dtype; numbers that are not in it yet are rounded."""
    if kind != "bf16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, "<f2" if kind == "f16" else "<f4").view(np.uint8)
    import ml_dtypes  # costs start-up time, and only bf16 needs it

    return np.ascontiguousarray(values, ml_dtypes.bfloat16).view(np.uint8)


def _get_float(blocks: Bytes, at: int, kind: str) -> Floats:
    if kind == "f16":
        return get_f16(blocks, at)
    if kind == "f32":
        return blocks[:, at : at + 4].view("<f4").astype(np.float32)
    return (blocks[:, at : at + 2].view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _look_up(table: Floats, packed: Bytes, out: Floats) -> None:
    """The numbers of nibbles laid out as `get_nibbles` reads them."""
    half = packed.shape[-1]
    np.take(table, packed & 15, out=out[..., :half])
    np.take(table, packed >> 4, out=out[..., half:])


@functools.cache
def group_codec(layout: GroupLayout) -> BlockCodec:
    """The codec of a layout, the same one each time."""
    return BlockCodec(lambda blocks, out: _decode(layout, blocks, out), lambda x, blocks: _encode(layout, x, blocks))


def _decode(layout: GroupLayout, blocks: Bytes, out: Floats) -> None:
    scale, body = _get_float(blocks, 0, layout.scale), blocks[:, layout.header :]
    if layout.codes == "nvfp4":
        parts = body.reshape(len(blocks), -1, NVFP4_BYTES)
        values = out.reshape(*parts.shape[:2], 4, 16)
        _look_up(_E2M1, _nvfp4_codes(parts), values)
        values *= (E4M3[parts[:, :, :4]] / 2)[..., None]
    elif layout.bits == 4:
        get_nibbles(body.reshape(len(blocks), -1, 16), out.reshape(len(blocks), -1, 32))
        if layout.codes == "i4":
            out -= 8
    elif layout.codes in _FLOATS:
        np.take(_FLOATS[layout.codes], body, out=out)
    else:
        np.copyto(out, body.view(np.int8))
        if layout.codes == "u8b":
            out += 128
    if layout.offset == "zero":
        out -= blocks[:, layout.scale_bytes : layout.header].view(_zero_type(layout)).astype(np.float32)
    out *= scale
    if layout.offset == "bias":
        out += _get_float(blocks, layout.scale_bytes, layout.scale)


def _encode(layout: GroupLayout, x: Floats, blocks: Bytes) -> None:
    """Plain rounding to the nearest code; the scale takes the largest element to the largest code."""
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    top = np.maximum(np.abs(low), np.abs(high))
    span = {"i4": 7, "i8": 127, "e4m3": 448, "e5m2": 57344, "nvfp4": 6 * 448}.get(layout.codes)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = top / np.float32(span) if span else (high - low) / np.float32((1 << layout.bits) - 1)
        if layout.offset == "zero":  # zero itself must be one of the codes
            scale = (np.maximum(high, 0) - np.minimum(low, 0)) / np.float32((1 << layout.bits) - 1)
        blocks[:, : layout.scale_bytes] = _bits(scale, layout.scale)
    step = _get_float(blocks, 0, layout.scale)
    require_finite(step, layout.scale)
    offsets, inner, levels = None, None, x * inverse(step)
    if layout.codes in _FLOATS:
        codes: NDArray[Any] = _nearest_float(_FLOATS[layout.codes], levels)
    elif layout.codes == "nvfp4":
        parts = levels.reshape(len(x), -1, 16)
        inner = _nearest_float(E4M3, np.abs(parts).max(axis=2) / np.float32(6))
        codes = nearest_e2m1(parts * 2 * inverse(E4M3[inner])[:, :, None]).reshape(x.shape)
    elif layout.offset == "bias":
        offsets = low
        codes = np.clip(np.rint((x - low) * inverse(step)), 0, (1 << layout.bits) - 1)
    elif layout.offset == "zero":
        offsets = np.clip(np.rint(-np.minimum(low, 0) * inverse(step)), 0, (1 << layout.bits) - 1)
        codes = np.clip(np.rint(levels) + offsets, 0, (1 << layout.bits) - 1)
    else:
        codes = np.clip(np.rint(levels), -(1 << layout.bits - 1), (1 << layout.bits - 1) - 1)
    whole = codes if inner is not None or layout.codes in _FLOATS else codes.astype(np.int16)
    made = pack_groups(dtypes.grouped(layout.codes, layout.size, layout.scale), whole, step, offsets, inner)
    blocks[:] = made.reshape(blocks.shape)


def _nearest_float(table: Floats, x: Floats) -> Bytes:
    """The codes of the eight-bit floats nearest to x, which are within their range."""
    finite = table[:128][np.isfinite(table[:128])]
    codes = np.searchsorted((finite[1:] + finite[:-1]) / 2, np.abs(x)).astype(np.uint8)
    return codes | np.where(x < 0, np.uint8(128), np.uint8(0))
