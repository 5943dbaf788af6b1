"""Codecs of the GGUF formats with blocks of 32 or 64 elements."""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.core.block_codec import (
    E4M3,
    BlockCodec,
    Bytes,
    Floats,
    extreme,
    get_f16,
    get_nibbles,
    inverse,
    put_f16,
    put_nibbles,
    require_finite,
)
from pumice.core.block_layouts import DOUBLED_E2M1, NONLINEAR
from pumice.core.dtypes import DType

# --- blocks of 32: d, for some formats a minimum m, for some the fifth bits of all levels in order, then the levels ---


def _levels(x: Floats, top: int) -> Bytes:
    """Whole levels of numbers that are not negative: the fraction is cut off, and top + 1, which rounding can reach, is top."""
    return np.minimum(x.astype(np.uint8), np.uint8(top))


def _add_fifth_bits(packed: Bytes, out: Floats) -> None:
    out += np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)


def _encode_symmetric(x: Floats, blocks: Bytes, half: int) -> Bytes:
    """Stores the scale and gives the levels 0…2·half-1, which stand for -half…half-1."""
    # The element that is largest in magnitude maps to level 0 with its sign, so the range is used in full.
    d = extreme(x) / np.float32(-half)
    put_f16(blocks, 0, d)
    x *= inverse(d)
    x += half + 0.5
    return _levels(x, 2 * half - 1)


def _encode_between(x: Floats, blocks: Bytes, top: int) -> Bytes:
    """Stores scale and minimum and gives the levels 0…top."""
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
    put_f16(blocks, 0, d)
    put_f16(blocks, 2, low)
    x -= low
    x *= inverse(d)
    x += 0.5
    return _levels(x, top)


def _decode_q4_0(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 2:], out)
    out -= 8
    out *= get_f16(blocks, 0)


def _encode_q4_0(x: Floats, blocks: Bytes) -> None:
    put_nibbles(blocks[:, 2:], _encode_symmetric(x, blocks, 8))


def _decode_q4_1(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 4:], out)
    out *= get_f16(blocks, 0)
    out += get_f16(blocks, 2)


def _encode_q4_1(x: Floats, blocks: Bytes) -> None:
    put_nibbles(blocks[:, 4:], _encode_between(x, blocks, 15))


def _decode_q5_0(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 6:], out)
    _add_fifth_bits(blocks[:, 2:6], out)
    out -= 16
    out *= get_f16(blocks, 0)


def _encode_q5_0(x: Floats, blocks: Bytes) -> None:
    levels = _encode_symmetric(x, blocks, 16)
    put_nibbles(blocks[:, 6:], levels)
    blocks[:, 2:6] = np.packbits(levels >> 4, axis=1, bitorder="little")


def _decode_q5_1(blocks: Bytes, out: Floats) -> None:
    get_nibbles(blocks[:, 8:], out)
    _add_fifth_bits(blocks[:, 4:8], out)
    out *= get_f16(blocks, 0)
    out += get_f16(blocks, 2)


def _encode_q5_1(x: Floats, blocks: Bytes) -> None:
    levels = _encode_between(x, blocks, 31)
    put_nibbles(blocks[:, 8:], levels)
    blocks[:, 4:8] = np.packbits(levels >> 4, axis=1, bitorder="little")


def _decode_q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), get_f16(blocks, 0), out=out)


def _encode_q8_0(x: Floats, blocks: Bytes) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    put_f16(blocks, 0, d)
    x *= inverse(d)
    # Halves round away from zero; adding 0.5 first would also lift the largest float below one half.
    whole = np.trunc(x)
    x -= whole
    x *= 2
    whole += np.trunc(x)
    blocks[:, 2:] = whole.astype(np.int8).view(np.uint8)


# --- codes that are numbers of a table ---

IQ4_NL, E2M1 = (np.array(table, np.float32) for table in (NONLINEAR, DOUBLED_E2M1))
_IQ4_NL_MIDDLES = (IQ4_NL[1:] + IQ4_NL[:-1]) / 2


def look_up(table: Floats, packed: Bytes, out: Floats) -> None:
    """The numbers of nibbles laid out as `get_nibbles` reads them."""
    half = packed.shape[-1]
    np.take(table, packed & 15, out=out[..., :half])
    np.take(table, packed >> 4, out=out[..., half:])


def nearest_e2m1(x: Floats) -> Bytes:
    """The codes of doubled four-bit floats nearest to x; halfway the smaller magnitude."""
    codes = np.searchsorted((E2M1[1:8] + E2M1[:7]) / 2, np.abs(x)).astype(np.uint8)
    return codes | np.where((x < 0) & (codes > 0), np.uint8(8), np.uint8(0))


def _decode_iq4_nl(blocks: Bytes, out: Floats) -> None:
    look_up(IQ4_NL, blocks[:, 2:], out)
    out *= get_f16(blocks, 0)


def nearest_iq4_nl(x: Floats, scale: Floats) -> Bytes:
    """The codes whose levels times `scale` are nearest to x."""
    return np.searchsorted(_IQ4_NL_MIDDLES, x * inverse(scale)).astype(np.uint8)


def fit_iq4_nl(x: Floats) -> Floats:
    """A scale of the nonlinear levels for each row along the last axis, which is kept."""
    d = extreme(x) / IQ4_NL[0]
    with np.errstate(all="ignore"):  # broken values are refused when their scale is stored
        # With the levels chosen, the scale of the least squares; large elements weigh more.
        levels = IQ4_NL[nearest_iq4_nl(x, d)]
        weighted = np.square(x) * levels
        best = (weighted * x).sum(axis=-1, keepdims=True) / (weighted * levels).sum(axis=-1, keepdims=True)
    found: Floats = np.where(np.isfinite(best) & np.isfinite(d), best, d)
    return found


def _encode_iq4_nl(x: Floats, blocks: Bytes) -> None:
    put_f16(blocks, 0, fit_iq4_nl(x))
    put_nibbles(blocks[:, 2:], nearest_iq4_nl(x, get_f16(blocks, 0)))


def _powers(exponents: Bytes) -> Floats:
    """Half of the power of two that a biased exponent stands for; the smallest two are subnormal."""
    wide = exponents.astype(np.uint32)
    return np.where(wide < 2, np.uint32(1 << 21) << wide, (wide - 1) << np.uint32(23)).astype(np.uint32).view(np.float32)


def _decode_mxfp4(blocks: Bytes, out: Floats) -> None:
    look_up(E2M1, blocks[:, 1:], out)
    out *= _powers(blocks[:, :1])


def _encode_mxfp4(x: Floats, blocks: Bytes) -> None:
    top = np.abs(x).max(axis=1, keepdims=True)
    require_finite(top, "an exponent")
    # The largest element comes to 4…8 of what the codes reach, 6: frexp gives one more than the logarithm's whole part.
    blocks[:, :1] = np.where(top > 0, np.clip(np.frexp(top)[1] - 1 - 2 + 127, 0, 254), 0)
    put_nibbles(blocks[:, 1:], nearest_e2m1(x / _powers(blocks[:, :1])))


# An unsigned scale: the sign bit means nothing, and the largest code, NaN elsewhere, is 0. Halved, as codes are doubled.
UE4M3 = np.abs(np.concatenate([E4M3[:128], E4M3[:128]])) / 2
UE4M3[[127, 255]] = 0, 240


def _decode_nvfp4(blocks: Bytes, out: Floats) -> None:
    parts = out.reshape(-1, 4, 16)
    look_up(E2M1, blocks[:, 4:].reshape(-1, 4, 8), parts)
    parts *= UE4M3[blocks[:, :4]][:, :, None]


def _encode_nvfp4(x: Floats, blocks: Bytes) -> None:
    parts = x.reshape(-1, 4, 16)
    wanted = np.abs(parts).max(axis=2) / np.float32(12)
    require_finite(np.where(wanted <= UE4M3[126], wanted, np.inf), "e4m3")
    blocks[:, :4] = np.searchsorted((UE4M3[1:127] + UE4M3[:126]) / 2, wanted)
    scales = UE4M3[blocks[:, :4]][:, :, None]
    put_nibbles(blocks[:, 4:].reshape(-1, 4, 8), nearest_e2m1(parts * inverse(scales)))


SMALL_CODECS: dict[DType, BlockCodec] = {
    dtypes.q4_0: BlockCodec(_decode_q4_0, _encode_q4_0),
    dtypes.q4_1: BlockCodec(_decode_q4_1, _encode_q4_1),
    dtypes.q5_0: BlockCodec(_decode_q5_0, _encode_q5_0),
    dtypes.q5_1: BlockCodec(_decode_q5_1, _encode_q5_1),
    dtypes.q8_0: BlockCodec(_decode_q8_0, _encode_q8_0),
    dtypes.iq4_nl: BlockCodec(_decode_iq4_nl, _encode_iq4_nl),
    dtypes.mxfp4: BlockCodec(_decode_mxfp4, _encode_mxfp4),
    dtypes.nvfp4: BlockCodec(_decode_nvfp4, _encode_nvfp4),
}
