"""Numba kernels for quantised weights. Importing this module compiles them, or loads them from the cache; see jit.py."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_ROWS = 32  # rows of w that one task takes
_F32, _I32, _U32 = np.float32, np.int32, np.uint32
# Sums may be reordered so that they vectorise; NaN and infinity keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
# Operands may be read-only arrays of the caller.
_READ_F32 = numba.types.Array(numba.float32, 2, "C", readonly=True)
_READ_U8 = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_WRITE_F32 = numba.types.Array(numba.float32, 2, "C")


def set_threads(count: int) -> None:
    """Limits the threads of the kernels below, for calls from this thread."""
    settings: Any = numba.config  # its fields are made at run time
    numba.set_num_threads(max(1, min(count, settings.NUMBA_NUM_THREADS)))


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


@numba.njit((numba.int64, _READ_F32, _READ_U8, _WRITE_F32), cache=True, parallel=True, nogil=True, fastmath=_SUMS)
def qmatvec(kind: int, x: Any, w: Any, out: Any) -> None:
    """out = x times the transpose of w; each row of w is unpacked once, in cache, and used for all rows of x."""
    n, k = w.shape[0], x.shape[1]
    for task in numba.prange((n + _ROWS - 1) // _ROWS):
        values = np.empty(k, _F32)
        for r in range(task * _ROWS, min(n, task * _ROWS + _ROWS)):
            _unpack_row(kind, w[r], values)
            for m in range(x.shape[0]):
                total = _F32(0)
                for i in range(k):
                    total += x[m, i] * values[i]
                out[m, r] = total


@numba.njit((numba.int64, _READ_U8, _WRITE_F32), cache=True, parallel=True, nogil=True)
def unpack_rows(kind: int, w: Any, out: Any) -> None:
    """Packed rows as float32 rows."""
    n = w.shape[0]
    for task in numba.prange((n + _ROWS - 1) // _ROWS):
        for r in range(task * _ROWS, min(n, task * _ROWS + _ROWS)):
            _unpack_row(kind, w[r], out[r])
