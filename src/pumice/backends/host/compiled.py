"""Numba kernels for packed weights. Importing this module compiles them, or loads them from the cache; see jit.py."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_F32, _I32, _U32 = np.float32, np.int32, np.uint32
# The formats that the kernels know, by the number they know them by.
KINDS = {name: i for i, name in enumerate(("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"))}
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


@numba.njit
def _unpack_halves(row: Any, out: Any, brain: bool) -> None:
    for i in range(out.shape[0]):
        if brain:  # the upper half of an f32
            out[i] = _U32(_U32(row[2 * i]) << _U32(16) | _U32(row[2 * i + 1]) << _U32(24)).view(_F32)
        else:
            out[i] = _half(row, 2 * i)


@numba.njit
def _unpack_q4(row: Any, out: Any, size: int, zero: Any) -> None:
    """q4_0 (18 bytes a block, zero 8) and q4_1 (20 bytes, zero 0 and a minimum)."""
    for b in range(out.shape[0] // 32):
        at, to = b * size, b * 32
        codes, scale = at + size - 16, _half(row, at)
        low = _half(row, at + 2) if size == 20 else _F32(0)
        for j in range(16):
            out[to + j] = _F32((_I32(row[codes + j]) & _I32(15)) - zero) * scale + low
        for j in range(16):
            out[to + 16 + j] = _F32((_I32(row[codes + j]) >> _I32(4)) - zero) * scale + low


@numba.njit
def _unpack_q5(row: Any, out: Any, size: int, zero: Any) -> None:
    """q5_0 (22 bytes a block, zero 16) and q5_1 (24 bytes, zero 0 and a minimum)."""
    for b in range(out.shape[0] // 32):
        at, to = b * size, b * 32
        codes, scale = at + size - 16, _half(row, at)
        low = _half(row, at + 2) if size == 24 else _F32(0)
        fifth = _U32(0)
        for j in range(4):
            fifth |= _U32(row[codes - 4 + j]) << _U32(8 * j)
        for j in range(16):
            code = (_I32(row[codes + j]) & _I32(15)) | _I32(fifth >> _U32(j) & _U32(1)) << _I32(4)
            out[to + j] = _F32(code - zero) * scale + low
        for j in range(16):
            code = (_I32(row[codes + j]) >> _I32(4)) | _I32(fifth >> _U32(j + 16) & _U32(1)) << _I32(4)
            out[to + 16 + j] = _F32(code - zero) * scale + low


@numba.njit
def _unpack_q8(row: Any, out: Any) -> None:
    for b in range(out.shape[0] // 32):
        at, to = b * 34, b * 32
        scale = _half(row, at)
        for j in range(32):
            out[to + j] = _F32(np.int8(row[at + 2 + j])) * scale


@numba.njit(inline="always")
def _six_bits(row: Any, at: int, part: int, shift: int) -> Any:
    """The scale of a part in the twelve bytes at `at`; its minimum from four bytes on, with a shift of 4 for the last four."""
    if part < 4:
        return _I32(row[at + part] & 63)
    return _I32(row[at + part + 4 - shift] >> shift & 15) | _I32(row[at + part - 4] >> 6) << _I32(4)


@numba.njit
def _unpack_parts(row: Any, out: Any, size: int) -> None:
    """q4_k (144 bytes a block) and q5_k (176 bytes, with fifth bits)."""
    for b in range(out.shape[0] // 256):
        at = b * size
        scale, least = _half(row, at), _half(row, at + 2)
        for pair in range(4):
            codes, to, part = at + size - 128 + pair * 32, b * 256 + pair * 64, 2 * pair
            step, low = scale * _F32(_six_bits(row, at + 4, part, 0)), least * _F32(_six_bits(row, at + 8, part, 4))
            part += 1
            step2, low2 = scale * _F32(_six_bits(row, at + 4, part, 0)), least * _F32(_six_bits(row, at + 8, part, 4))
            if size == 144:
                for j in range(32):
                    out[to + j] = _F32(_I32(row[codes + j]) & _I32(15)) * step - low
                for j in range(32):
                    out[to + 32 + j] = _F32(_I32(row[codes + j]) >> _I32(4)) * step2 - low2
            else:
                bit, bit2 = _I32(2 * pair), _I32(2 * pair + 1)
                for j in range(32):
                    code = (_I32(row[codes + j]) & _I32(15)) | (_I32(row[at + 16 + j]) >> bit & _I32(1)) << _I32(4)
                    out[to + j] = _F32(code) * step - low
                for j in range(32):
                    code = (_I32(row[codes + j]) >> _I32(4)) | (_I32(row[at + 16 + j]) >> bit2 & _I32(1)) << _I32(4)
                    out[to + 32 + j] = _F32(code) * step2 - low2


@numba.njit
def _unpack_q6_k(row: Any, out: Any) -> None:
    for b in range(out.shape[0] // 256):
        at = b * 210
        scale = _half(row, at + 208)
        for run in range(4):  # 16 elements of each of the four parts of a half
            half, odd = run // 2, run % 2
            low, high = at + half * 64 + odd * 16, at + 128 + half * 32 + odd * 16
            to = b * 256 + half * 128 + odd * 16
            for quarter in range(4):
                step = scale * _F32(np.int8(row[at + 192 + half * 8 + quarter * 2 + odd]))
                from_low, shift, pair = low + quarter % 2 * 32, _I32(quarter // 2 * 4), _I32(quarter * 2)
                for j in range(16):
                    upper = (_I32(row[high + j]) >> pair & _I32(3)) << _I32(4)
                    code = _I32(row[from_low + j]) >> shift & _I32(15) | upper
                    out[to + quarter * 32 + j] = _F32(code - _I32(32)) * step


@numba.njit
def _unpack_row(kind: int, row: Any, out: Any) -> None:
    """One packed row as float32; `kind` is a number out of KINDS."""
    if kind < 2:
        _unpack_halves(row, out, kind == 1)
    elif kind == 2:
        _unpack_q4(row, out, 18, _I32(8))
    elif kind == 3:
        _unpack_q4(row, out, 20, _I32(0))
    elif kind == 4:
        _unpack_q5(row, out, 22, _I32(16))
    elif kind == 5:
        _unpack_q5(row, out, 24, _I32(0))
    elif kind == 6:
        _unpack_q8(row, out)
    elif kind == 7:
        _unpack_parts(row, out, 144)
    elif kind == 8:
        _unpack_parts(row, out, 176)
    else:
        _unpack_q6_k(row, out)


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
