"""Codecs of the quantised block formats: raw GGUF block bytes to float32 rows and back, one table entry per format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, FormatError, InputError, ShapeError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Rows are encoded in slices of this many blocks, so that temporaries stay small whatever the tensor.
_SLICE = 1 << 15


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """How one format stores a block.

    `decode(blocks, out)` fills out [n, block] from blocks [n, block_bytes]; `encode(x, blocks)` the other way round,
    rounding every step in float32 as ggml's reference quantisers do. Both write into what they are given.
    """

    decode: Callable[[Bytes, Floats], None]
    encode: Callable[[Floats, Bytes], None]


def dequantize_rows(dtype: DType, data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """The values of packed rows: bytes [..., row bytes] to float32 [..., k].

    >>> from pumice.core.dtypes import q8_0
    >>> row = np.zeros(34, np.uint8)
    >>> row[:4] = 0x00, 0x38, 3, 0xFE  # d = 0.5, then the int8 values 3 and -2
    >>> dequantize_rows(q8_0, row, 32)[:3]
    array([ 1.5, -1. ,  0. ], dtype=float32)
    """
    codec = _codec(dtype)
    row_bytes = _row_bytes(dtype, k)
    if data.dtype != np.uint8:
        raise DTypeError(f"packed {dtype} rows are uint8, not {data.dtype}", dtype=dtype.name, got=str(data.dtype))
    if data.ndim == 0 or data.shape[-1] != row_bytes:
        raise FormatError(
            f"{k} elements of {dtype} take {row_bytes} bytes a row, the data has shape {data.shape}",
            hint=f"{dtype} stores {dtype.block} elements in {dtype.block_bytes} bytes; the last axis holds whole rows",
            dtype=dtype.name,
            k=k,
            row_bytes=row_bytes,
            got=data.shape,
        )
    out = np.empty((*data.shape[:-1], k), np.float32)
    # Scales are whatever the file says: infinity times 0 is NaN, as on the device, and no reason for a warning.
    with np.errstate(invalid="ignore"):
        codec.decode(data.reshape(-1, dtype.block_bytes), out.reshape(-1, dtype.block))
    return out


def quantize_rows(dtype: DType, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Floats [..., k] as packed rows [..., row bytes]; k must be a multiple of the block.

    >>> from pumice.core.dtypes import q4_0
    >>> packed = quantize_rows(q4_0, np.linspace(-8, 7.5, 32))
    >>> packed.shape, dequantize_rows(q4_0, packed, 32)[[0, 2, 31]].tolist()
    ((18,), [-8.0, -7.0, 7.0])
    """
    codec = _codec(dtype)
    if x.ndim == 0:
        raise ShapeError(f"a scalar has no row of {dtype} blocks", hint=f"the last axis is a multiple of {dtype.block}")
    row_bytes = _row_bytes(dtype, x.shape[-1])
    out = np.empty((*x.shape[:-1], row_bytes), np.uint8)
    source, target = x.reshape(-1, dtype.block), out.reshape(-1, dtype.block_bytes)
    for start in range(0, len(source), _SLICE):
        part = slice(start, start + _SLICE)
        codec.encode(source[part].astype(np.float32), target[part])
    return out


def _codec(dtype: DType) -> BlockCodec:
    codec = CODECS.get(dtype)
    if codec is None:
        raise DTypeError(f"{dtype} is not stored in blocks", hint="one of " + " ".join(d.name for d in CODECS), dtype=dtype.name)
    return codec


def _row_bytes(dtype: DType, k: int) -> int:
    if k % dtype.block:
        raise ShapeError(
            f"a row of {k} elements is no whole number of {dtype} blocks",
            hint=f"the last axis must be a multiple of {dtype.block}",
            dtype=dtype.name,
            k=k,
        )
    return dtype.nbytes(k)


def _get_f16(blocks: Bytes, at: int) -> Floats:
    """The little-endian f16 at byte `at` of every block, as a column."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _put_f16(blocks: Bytes, at: int, values: Floats) -> None:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    # NaN and infinity anywhere in a block end up in its scale, so this one check keeps them out of the integers too.
    if not np.isfinite(halves).all():
        raise InputError(
            "a block's scale does not fit in f16: its values are NaN, infinite or too large",
            hint="check the tensor for NaN and infinity, or store it as f32",
        )
    blocks[:, at : at + 2] = halves.view(np.uint8)


def _get_nibbles(packed: Bytes, out: Floats) -> None:
    """Byte j holds element j in its low half and element j + 16 in its high half."""
    half = packed.shape[1]
    np.bitwise_and(packed, 15, out=out[:, :half], dtype=np.uint8, casting="unsafe")
    np.right_shift(packed, 4, out=out[:, half:], dtype=np.uint8, casting="unsafe")


def _put_nibbles(packed: Bytes, levels: Floats) -> None:
    """`levels` are not negative; the fraction is cut off, and 16, which the far end of a range can reach, becomes 15."""
    whole = np.minimum(levels.astype(np.uint8), 15)
    half = packed.shape[1]
    packed[...] = whole[:, :half] | whole[:, half:] << 4


def _inverse(d: Floats) -> Floats:
    """1/d, and 0 where d is 0 or so small that its inverse overflows: such a block decodes to its offset anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    inverse[np.isinf(inverse)] = 0
    return inverse


def _decode_q4_0(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _get_f16(blocks, 0)


def _encode_q4_0(x: Floats, blocks: Bytes) -> None:
    # The element that is largest in magnitude maps to level 0 with its sign, so the range -8…7 is used in full.
    d = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1) / np.float32(-8)
    _put_f16(blocks, 0, d)
    x *= _inverse(d)
    x += 8.5
    _put_nibbles(blocks[:, 2:], x)


def _decode_q4_1(blocks: Bytes, out: Floats) -> None:
    _get_nibbles(blocks[:, 4:], out)
    out *= _get_f16(blocks, 0)
    out += _get_f16(blocks, 2)


def _encode_q4_1(x: Floats, blocks: Bytes) -> None:
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(15)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, low)
    x -= low
    x *= _inverse(d)
    x += 0.5
    _put_nibbles(blocks[:, 4:], x)


def _decode_q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _get_f16(blocks, 0), out=out)


def _encode_q8_0(x: Floats, blocks: Bytes) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    _put_f16(blocks, 0, d)
    x *= _inverse(d)
    # Halves round away from zero; adding 0.5 first would also lift the largest float below one half.
    whole = np.trunc(x)
    x -= whole
    x *= 2
    whole += np.trunc(x)
    blocks[:, 2:] = whole.astype(np.int8).view(np.uint8)


CODECS: dict[DType, BlockCodec] = {
    dtypes.q4_0: BlockCodec(_decode_q4_0, _encode_q4_0),
    dtypes.q4_1: BlockCodec(_decode_q4_1, _encode_q4_1),
    dtypes.q8_0: BlockCodec(_decode_q8_0, _encode_q8_0),
}
