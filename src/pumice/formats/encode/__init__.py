"""Floats to the block formats of GGUF files, by search: slower than the plain rounding of `core.blocks`, with less error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core import dtypes
from pumice.core.block_codec import Bytes, Floats
from pumice.core.block_formats import FORMATS, BlockLayout
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.formats.encode import parts, simple

__all__ = ["ENCODERS", "encode_rows"]

Encoder = Callable[[BlockLayout, Floats, Bytes], None]

# Elements that are encoded at a time: the searches go over them many times, so they should stay in the processor's cache.
_SLICE = 1 << 16


def _encoder(layout: BlockLayout) -> Encoder:
    """The way of the kind of format that a record describes."""
    in_parts = layout.scales is not None
    if layout.zero == 1:
        return simple.encode_ternary
    if layout.table:
        plain = simple.encode_exponent if layout.scale_kind == "e8m0" else simple.encode_table
        return parts.encode_table_parts if in_parts else plain
    if layout.least is not None:
        return parts.encode_between_parts if in_parts else simple.encode_between
    plain = simple.encode_signed if layout.is_signed else simple.encode_symmetric
    return parts.encode_symmetric_parts if in_parts else plain


# Each fills blocks [n, block_bytes] from finite x [n, block], which it leaves alone.
ENCODERS: Mapping[DType, Callable[[Floats, Bytes], None]] = {
    dtype: partial(_encoder(format.layout), format.layout) for dtype, format in FORMATS.items() if not format.not_written
}
_FLOATS = (dtypes.f32, dtypes.f16, dtypes.bf16)


def encode_rows(dtype: DType, x: NDArray[Any]) -> NDArray[Any]:
    """Floats [..., k] in a format of GGUF files: packed rows uint8 [..., row bytes], or the array cast to a float dtype.

    >>> import pumice.core.blocks as blocks
    >>> x = np.linspace(-8, 7.5, 64, dtype=np.float32)
    >>> packed = encode_rows(dtypes.q8_0, x)
    >>> packed.shape, bool(np.abs(blocks.dequantize_rows(dtypes.q8_0, packed, 64) - x).max() < 0.04)
    ((68,), True)
    """
    if dtype not in ENCODERS and dtype not in _FLOATS:
        why = FORMATS[dtype].not_written if dtype in FORMATS else "no encoder"
        instead = FORMATS[dtype].instead if dtype in FORMATS else None
        hint = "one of " + " ".join(d.name for d in (*ENCODERS, *_FLOATS)) if instead is None else f"take {instead}"
        raise DTypeError(f"weights cannot be written as {dtype}: {why}", hint=hint, dtype=dtype.name)
    if not np.isfinite(x).all():
        raise InputError("there are NaN or infinite values", hint="the checkpoint is broken: download or train it again")
    if dtype in _FLOATS:
        return _cast(dtype, x)
    if x.ndim == 0 or x.shape[-1] % dtype.block:
        raise ShapeError(
            f"rows of {x.shape[-1] if x.ndim else 1} elements are no whole number of {dtype} blocks",
            hint=f"the last axis must be a multiple of {dtype.block}",
            dtype=dtype.name,
            shape=x.shape,
        )
    out = np.empty((*x.shape[:-1], dtype.nbytes(x.shape[-1])), np.uint8)
    source, target = x.reshape(-1, dtype.block), out.reshape(-1, dtype.block_bytes)
    step = _SLICE // dtype.block
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        # Numbers whose squares overflow or vanish only spoil the search; the scale that is then taken is checked on storing.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            ENCODERS[dtype](source[part].astype(np.float32, copy=False), target[part])
    return out


def _cast(dtype: DType, x: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        found = x.astype(dtype.np, copy=False)
    if not np.isfinite(found).all():
        raise InputError(
            f"there are values that {dtype} cannot hold: the largest is {float(np.abs(x).max()):.4g}",
            hint="write this model as bf16 or f32",
            dtype=dtype.name,
        )
    return found
