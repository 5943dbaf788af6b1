"""Quantised rows: packed bytes to float32 and back, by the codec that each format has in one table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.block_codec import BlockCodec, decode_blocks
from pumice.core.block_encode import encode_blocks
from pumice.core.block_formats import LAYOUTS
from pumice.core.blocks_group import group_codec
from pumice.core.dtypes import DType, group_layout
from pumice.errors import DTypeError, FormatError, ShapeError

# Rows are encoded and decoded in slices of about this many elements, so that temporaries stay small for any tensor.
_SLICE = 1 << 20

# The formats with fixed blocks; `codec_of` also knows the grouped ones.
CODECS = {d: BlockCodec(partial(decode_blocks, layout), partial(encode_blocks, layout)) for d, layout in LAYOUTS.items()}


def dequantize_rows(dtype: DType, data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """The values of packed rows: bytes [..., row bytes] to float32 [..., k].

    >>> from pumice.core.dtypes import q8_0
    >>> row = np.zeros(34, np.uint8)
    >>> row[:4] = 0x00, 0x38, 3, 0xFE  # d = 0.5, then the int8 values 3 and -2
    >>> dequantize_rows(q8_0, row, 32)[:3]
    array([ 1.5, -1. ,  0. ], dtype=float32)
    """
    codec = codec_of(dtype)
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
    source, target = data.reshape(-1, dtype.block_bytes), out.reshape(-1, dtype.block)
    # A file may hold any scale: infinity times 0 is NaN, as on the device, and not worth a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for part in _slices(len(source), dtype):
            codec.decode(source[part], target[part])
    return out


def quantize_rows(dtype: DType, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Floats [..., k] as packed rows [..., row bytes]; k must be a multiple of the block.

    >>> from pumice.core.dtypes import q4_0
    >>> packed = quantize_rows(q4_0, np.linspace(-8, 7.5, 32))
    >>> packed.shape, dequantize_rows(q4_0, packed, 32)[[0, 2, 31]].tolist()
    ((18,), [-8.0, -7.0, 7.0])
    """
    codec = codec_of(dtype)
    if x.ndim == 0:
        raise ShapeError(f"a scalar has no row of {dtype} blocks", hint=f"the last axis is a multiple of {dtype.block}")
    row_bytes = _row_bytes(dtype, x.shape[-1])
    out = np.empty((*x.shape[:-1], row_bytes), np.uint8)
    source, target = x.reshape(-1, dtype.block), out.reshape(-1, dtype.block_bytes)
    for part in _slices(len(source), dtype):
        codec.encode(source[part].astype(np.float32), target[part])
    return out


def _slices(blocks: int, dtype: DType) -> Iterator[slice]:
    step = max(1, _SLICE // dtype.block)
    return (slice(start, start + step) for start in range(0, blocks, step))


def codec_of(dtype: DType) -> BlockCodec:
    """How blocks of a quantised dtype are read and written.

    >>> from pumice.core.dtypes import grouped, q8_0
    >>> codec_of(q8_0) is CODECS[q8_0], codec_of(grouped("i4", 64, "f16")) is codec_of(grouped("i4", 64, "f16"))
    (True, True)
    """
    if (codec := CODECS.get(dtype)) is not None:
        return codec
    if (layout := group_layout(dtype)) is not None:
        return group_codec(layout)
    raise DTypeError(f"{dtype} is not stored in blocks", hint="one of " + " ".join(d.name for d in CODECS), dtype=dtype.name)


def _row_bytes(dtype: DType, k: int) -> int:
    if k % dtype.block:
        raise ShapeError(
            f"a row of {k} elements is no whole number of {dtype} blocks",
            hint=f"the last axis must be a multiple of {dtype.block}",
            dtype=dtype.name,
            k=k,
        )
    return dtype.nbytes(k)
