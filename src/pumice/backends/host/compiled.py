"""Numba kernels for quantised weights. Importing this module compiles them, or loads them from the cache; see jit.py."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_F32, _I32, _U32 = np.float32, np.int32, np.uint32
# Sums may be reordered so that they vectorise; NaN and infinity keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
# Operands may be read-only arrays of the caller.
_READ_F32 = numba.types.Array(numba.float32, 2, "C", readonly=True)
_READ_U8 = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_WRITE_F32 = numba.types.Array(numba.float32, 2, "C")
_INT = numba.int64


@numba.njit(inline="always")
def _half(row: Any, at: int) -> Any:
    """The f16 at byte `at` as f32: shifting exponent and mantissa into place leaves a factor of 2^112."""
    bits = _U32(row[at]) | (_U32(row[at + 1]) << _U32(8))
    magnitude = (bits & _U32(0x7FFF)) << _U32(13)
    if magnitude >= _U32(0x0F800000):  # infinity and NaN have the greatest exponent in both formats
        magnitude |= _U32(0x7F800000)
        return _U32(magnitude | ((bits & _U32(0x8000)) << _U32(16))).view(_F32)
    return _U32(magnitude | ((bits & _U32(0x8000)) << _U32(16))).view(_F32) * _F32(2.0**112)


@numba.njit(inline="always")
def _unpack_row(kind: int, row: Any, out: Any) -> None:
    """One packed row as float32. `kind`: 0 q4_0, 1 q4_1, 2 q8_0."""
    blocks = out.shape[0] // 32
    if kind == 2:
        for b in range(blocks):
            at, to = b * 34, b * 32
            scale = _half(row, at)
            for j in range(32):
                out[to + j] = _F32(np.int8(row[at + 2 + j])) * scale
    elif kind == 1:
        for b in range(blocks):
            at, to = b * 20, b * 32
            scale, low = _half(row, at), _half(row, at + 2)
            for j in range(16):
                out[to + j] = _F32(_I32(row[at + 4 + j] & 15)) * scale + low
            for j in range(16):
                out[to + 16 + j] = _F32(_I32(row[at + 4 + j] >> 4)) * scale + low
    else:
        for b in range(blocks):
            at, to = b * 18, b * 32
            scale = _half(row, at)
            for j in range(16):
                out[to + j] = _F32(_I32(row[at + 2 + j] & 15) - _I32(8)) * scale
            for j in range(16):
                out[to + 16 + j] = _F32(_I32(row[at + 2 + j] >> 4) - _I32(8)) * scale


@numba.njit((_INT, _READ_F32, _READ_U8, _WRITE_F32, _INT, _INT), cache=True, nogil=True, fastmath=_SUMS)
def qmatvec(kind: int, x: Any, w: Any, out: Any, first: int, last: int) -> None:
    """out[:, first:last] = x times the transpose of w[first:last]; each row of w is unpacked once, into cache."""
    k = x.shape[1]
    values = np.empty(k, _F32)
    for r in range(first, last):
        _unpack_row(kind, w[r], values)
        for m in range(x.shape[0]):
            total = _F32(0)
            for i in range(k):
                total += x[m, i] * values[i]
            out[m, r] = total


@numba.njit((_INT, _READ_U8, _WRITE_F32, _INT, _INT), cache=True, nogil=True)
def unpack_rows(kind: int, w: Any, out: Any, first: int, last: int) -> None:
    """out[first:last] = the values of w[first:last]."""
    for r in range(first, last):
        _unpack_row(kind, w[r], out[r])
