"""Block codecs: the byte layout, ggml's rounding, and refusal of lengths and values that do not fit."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumice.core import blocks, dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.core.blocks import CODECS, dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, FormatError, InputError, ShapeError

ALL = pytest.mark.parametrize("dtype", dtypes.QUANT, ids=str)
# The formats in which each element has a level of its own; in the others several share a row of a grid.
BY_ELEMENT = pytest.mark.parametrize("dtype", [d for d in dtypes.QUANT if LAYOUTS[d].grid is None], ids=str)
GRIDS = pytest.mark.parametrize("dtype", [d for d in dtypes.QUANT if LAYOUTS[d].grid is not None], ids=str)

# What the PyPI package gguf 0.19.0 makes of _ramp(); it has no quantisers for the others.
GGUF_BYTES = {
    "q4_0": "00b4cf379d047be248bf269df36ad148ae15",
    "q4_1": "3334c0bf40d962fb952eb751da730c953ec851ea",
    "q5_0": "00b0d54aa5568f5d3b08e6b3916e4c19f7c4a27f5d2a",
    "q5_1": "1130c0bf2ab55aa980a2d5f72a4c7f91c4e6193b6e80b3d5",
    "q8_0": "08248518ad40d467fc9124b94be073089d30c457ec7f14a93cd063f88d20b547dc6f",
}


# The first digits of the sha256 of what the same package reads from _bytes().
GGUF_VALUES = {
    "q4_0": "c3351f8cd1768b4c",
    "q4_1": "76cc1a8a2b7d5b7f",
    "q5_0": "e55335a75ce4219a",
    "q5_1": "b4e981ad1efd3565",
    "q8_0": "ccd5ad75b2a127c2",
    "q4_k": "4e853d6a163facc1",
    "q5_k": "47137d4d9a11eeba",
    "q6_k": "1b0b6f0de9c3fe10",
    "q2_k": "33a7c704cb2dcd4b",
    "q3_k": "6379844092835640",
    "iq4_nl": "bd74b34b76ab677c",
    "iq4_xs": "80abd13227bd0e83",
    "mxfp4": "c32155470b3eef4a",
    "nvfp4": "4394bd86dd08da8d",
}
# Where a block keeps its f16 numbers, if not only at its start.
HALVES: dict[str, tuple[int, ...]] = {
    "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q2_k": (80, 82), "q3_k": (108,),
    "q8_k": (2,), "mxfp4": (), "nvfp4": (), "iq1_m": (54,), "tq2_0": (64,), "tq1_0": (52,),
}  # fmt: skip


def _ramp(size: int = 32) -> np.ndarray[Any, Any]:
    return ((np.arange(size) * 37 % 64 - 31) / 16).astype(np.float32)


def _bytes(dtype: DType) -> np.ndarray[Any, Any]:
    """Two rows of two blocks of every kind of byte, with finite scales: the exponent's top bit is cleared in every f16."""
    raw = (np.arange(4 * dtype.block_bytes) * 2654435761 % 2**32 >> 24).astype(np.uint8)
    for at in HALVES.get(dtype.name, (0,)):
        raw.reshape(4, -1)[:, at + 1] &= 0x3F
    return raw.reshape(2, -1)


def _half(block: bytes, at: int) -> np.float32:
    return np.float32(struct.unpack_from("<e", block, at)[0])


def _slow_decode(dtype: DType, block: bytes) -> list[np.float32]:
    """One block, one element at a time, straight from the format's description."""
    return [_SLOW[dtype.name](block, j) for j in range(dtype.block)]


def _slow_nibble(block: bytes, start: int, j: int) -> int:
    return block[start + j] & 15 if j < 16 else block[start + j - 16] >> 4


def _slow_five(block: bytes, bits: int, start: int, j: int) -> int:
    return _slow_nibble(block, start, j) | (block[bits + j // 8] >> j % 8 & 1) << 4


def _slow_k(block: bytes, j: int, codes: int, fifth: bool) -> np.float32:
    part, i, s = j // 32, j % 32, block[4:16]
    if part < 4:
        scale, least = s[part] & 63, s[part + 4] & 63
    else:
        scale, least = s[part + 4] & 15 | s[part - 4] >> 6 << 4, s[part + 4] >> 4 | s[part] >> 6 << 4
    q = block[codes + part // 2 * 32 + i] >> part % 2 * 4 & 15
    q |= (block[16 + i] >> part & 1) << 4 if fifth else 0
    return _half(block, 0) * np.float32(scale) * np.float32(q) - _half(block, 2) * np.float32(least)


def _slow_q6_k(block: bytes, j: int) -> np.float32:
    side, part, i = j // 128, j // 32 % 4, j % 32
    low = block[side * 64 + part % 2 * 32 + i] >> part // 2 * 4 & 15
    upper = block[128 + side * 32 + i] >> part * 2 & 3
    (scale,) = struct.unpack_from("<b", block, 192 + j // 16)
    return _half(block, 208) * np.float32(scale) * np.float32((low | upper << 4) - 32)


def _slow_q2_k(block: bytes, j: int) -> np.float32:
    code = block[16 + j // 128 * 32 + j % 32] >> j // 32 % 4 * 2 & 3
    both = block[j // 16]
    return _half(block, 80) * np.float32(both & 15) * np.float32(code) - _half(block, 82) * np.float32(both >> 4)


def _slow_q3_k(block: bytes, j: int) -> np.float32:
    code = block[32 + j // 128 * 32 + j % 32] >> j // 32 % 4 * 2 & 3
    code -= 0 if block[j % 32] >> j // 32 & 1 else 4
    g = j // 16
    scale = (block[96 + g % 8] >> g // 8 * 4 & 15 | (block[104 + g % 4] >> g // 4 * 2 & 3) << 4) - 32
    return _half(block, 108) * np.float32(scale) * np.float32(code)


def _slow_q8_k(block: bytes, j: int) -> np.float32:
    d, q = struct.unpack_from("<f", block)[0], struct.unpack_from("<b", block, 4 + j)[0]
    return np.float32(d) * np.float32(q)


def _slow_e2m1(code: int) -> np.float32:
    power, fraction = code >> 1 & 3, code & 1
    value = (1 + fraction / 2) * 2.0 ** (power - 1) if power else fraction / 2
    return np.float32(-value if code & 8 else value)


_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _slow_iq4_nl(block: bytes, j: int) -> np.float32:
    return _half(block, 0) * np.float32(_NONLINEAR[_slow_nibble(block, 2, j)])


def _slow_iq4_xs(block: bytes, j: int) -> np.float32:
    (high,), part = struct.unpack_from("<H", block, 2), j // 32
    scale = (block[4 + part // 2] >> part % 2 * 4 & 15 | (high >> 2 * part & 3) << 4) - 32
    return _half(block, 0) * np.float32(scale) * np.float32(_NONLINEAR[_slow_nibble(block, 8 + 16 * part, j % 32)])


def _slow_nvfp4(block: bytes, j: int) -> np.float32:
    scale, byte = block[j // 16], block[4 + j // 16 * 8 + j % 8]
    power, fraction = scale >> 3 & 15, scale & 7
    d = (8 + fraction) * 2.0 ** (power - 10) if power else fraction * 2.0**-9
    return np.float32(0 if scale == 127 else d) * _slow_e2m1(byte & 15 if j % 16 < 8 else byte >> 4)


def _slow_tq1_0(block: bytes, j: int) -> np.float32:
    byte, n = (j % 32, j // 32) if j < 160 else (32 + j % 16, (j - 160) // 16) if j < 240 else (48 + j % 4, (j - 240) // 4)
    return _half(block, 52) * np.float32((block[byte] * 3**n % 256 * 3 >> 8) - 1)


_SLOW: dict[str, Callable[[bytes, int], np.float32]] = {
    "q4_0": lambda b, j: _half(b, 0) * np.float32(_slow_nibble(b, 2, j) - 8),
    "q4_1": lambda b, j: _half(b, 0) * np.float32(_slow_nibble(b, 4, j)) + _half(b, 2),
    "q5_0": lambda b, j: _half(b, 0) * np.float32(_slow_five(b, 2, 6, j) - 16),
    "q5_1": lambda b, j: _half(b, 0) * np.float32(_slow_five(b, 4, 8, j)) + _half(b, 2),
    "q8_0": lambda b, j: _half(b, 0) * np.float32(struct.unpack_from("<b", b, 2 + j)[0]),
    "q4_k": lambda b, j: _slow_k(b, j, 16, fifth=False),
    "q5_k": lambda b, j: _slow_k(b, j, 48, fifth=True),
    "q6_k": _slow_q6_k,
    "q2_k": _slow_q2_k,
    "q3_k": _slow_q3_k,
    "q8_k": _slow_q8_k,
    "iq4_nl": _slow_iq4_nl,
    "iq4_xs": _slow_iq4_xs,
    "tq2_0": lambda b, j: _half(b, 64) * np.float32((b[j // 128 * 32 + j % 32] >> j // 32 % 4 * 2 & 3) - 1),
    "tq1_0": _slow_tq1_0,
    "mxfp4": lambda b, j: np.float32(2.0 ** (b[0] - 127)) * _slow_e2m1(_slow_nibble(b, 1, j)),
    "nvfp4": _slow_nvfp4,
}


def test_every_quantised_dtype_has_a_codec() -> None:
    assert set(CODECS) == set(dtypes.QUANT)


@pytest.mark.parametrize("name", GGUF_BYTES)
def test_bytes_equal_gguf(name: str) -> None:
    assert quantize_rows(dtypes.dtype(name), _ramp()).tobytes().hex() == GGUF_BYTES[name]


@pytest.mark.parametrize("name", GGUF_VALUES)
def test_values_equal_gguf(name: str) -> None:
    dtype = dtypes.dtype(name)
    values = dequantize_rows(dtype, _bytes(dtype), 2 * dtype.block)
    assert hashlib.sha256(values.tobytes()).hexdigest().startswith(GGUF_VALUES[name])


@BY_ELEMENT
def test_decoding_follows_the_layout(dtype: DType) -> None:
    raw = _bytes(dtype)
    expected = np.array([_slow_decode(dtype, b.tobytes()) for b in raw.reshape(4, -1)], np.float32).reshape(2, -1)
    got = dequantize_rows(dtype, raw, 2 * dtype.block)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


# The step between levels for values in -1…1, and how many steps an element may be off. q4_0 and q5_0 have no level for the
# far end of the range, hence a whole step; the others add the rounding of a part's scale and minimum to six or eight bits.
STEPS = {
    "q4_0": (1 / 8, 1.0),
    "q4_1": (1 / 7.5, 0.5),
    "q5_0": (1 / 16, 1.0),
    "q5_1": (1 / 15.5, 0.5),
    "q8_0": (1 / 127, 0.5),
    "q4_k": (1 / 7.5, 1.0),
    "q5_k": (1 / 15.5, 1.5),
    "q6_k": (1 / 32, 1.0),
    "q2_k": (1 / 1.5, 1.0),
    "q3_k": (1 / 4, 1.1),
    "q8_k": (1 / 127, 0.5),
    "iq4_nl": (1 / 5, 1.0),
    "iq4_xs": (1 / 5, 1.0),
    "mxfp4": (1 / 3, 1.0),
    "nvfp4": (1 / 3, 1.0),
    "tq2_0": (1.0, 0.5),
    "tq1_0": (1.0, 0.5),
}


@BY_ELEMENT
@settings(max_examples=60, deadline=None)
@given(scale=st.floats(0.1, 1e3), seed=st.integers(0, 2**32 - 1))
def test_round_trip_error_is_bounded_by_the_step(dtype: DType, scale: float, seed: int) -> None:
    k = 2 * dtype.block
    x = np.random.default_rng(seed).uniform(-scale, scale, (2, k)).astype(np.float32)
    packed = quantize_rows(dtype, x)
    assert packed.shape == (2, dtype.nbytes(k)) and packed.dtype == np.uint8
    step, steps = STEPS[dtype.name]
    assert np.abs(dequantize_rows(dtype, packed, k) - x).max() <= (steps * step + 2e-3) * scale  # f16 scales round too


# Relative errors of ggml's own quantisers on the same data.
@pytest.mark.parametrize(("dtype", "error"), [(dtypes.q4_k, 0.0715), (dtypes.q5_k, 0.0363), (dtypes.q6_k, 0.0178)], ids=str)
def test_searched_scales_are_as_good_as_those_of_ggml(dtype: DType, error: float) -> None:
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    off = dequantize_rows(dtype, quantize_rows(dtype, x), 1024) - x
    assert np.sqrt(np.mean(off**2) / np.mean(x**2)) < 1.02 * error


@pytest.mark.parametrize("dtype", [dtypes.q4_k, dtypes.q5_k, dtypes.q6_k], ids=str)
@pytest.mark.parametrize("where", ["all negative", "all positive", "one large", "mostly zero"])
def test_lopsided_parts(dtype: DType, where: str) -> None:
    x = np.random.default_rng(1).uniform(0.5, 1, 256).astype(np.float32)
    x = {"all negative": -x, "all positive": x, "one large": np.where(np.arange(256) == 77, 50 * x, x)}.get(where, x)
    if where == "mostly zero":
        x[:250] = 0
    got = dequantize_rows(dtype, quantize_rows(dtype, x), 256)
    assert np.sqrt(np.mean((got - x) ** 2) / np.mean(x**2)) < (0.1 if where == "one large" else 0.05)


def test_q8_0_rounds_halves_away_from_zero() -> None:
    x = np.zeros(32, np.float32)
    x[:6] = 127, 0.5, -0.5, 2.5, -1.5, np.nextafter(np.float32(0.5), np.float32(0))
    assert quantize_rows(dtypes.q8_0, x)[2:8].view(np.int8).tolist() == [127, 1, -1, 3, -2, 0]


# The error of normal numbers relative to their size, without any search for better scales.
GRID_ERRORS = {
    "iq3_s": 0.14, "iq3_xxs": 0.19, "iq2_s": 0.27, "iq2_xs": 0.32, "iq2_xxs": 0.37, "iq1_m": 0.56, "iq1_s": 0.66,
}  # fmt: skip


@GRIDS
def test_rows_of_a_grid_are_the_nearest(dtype: DType) -> None:
    x = np.random.default_rng(0).standard_normal((8, 1024)).astype(np.float32)
    off = dequantize_rows(dtype, quantize_rows(dtype, x), 1024) - x
    assert np.sqrt(np.mean(off**2)) < GRID_ERRORS[dtype.name]
    assert not dequantize_rows(dtype, quantize_rows(dtype, np.zeros(256)), 256).any()


@GRIDS
def test_what_is_a_row_of_the_grid_is_kept(dtype: DType) -> None:
    """A part of which the largest number is in use gets the same scale again, and then the same rows; most parts are such."""
    rng = np.random.default_rng(3)
    packed = quantize_rows(dtype, rng.standard_normal((4, 512)).astype(np.float32))
    values = dequantize_rows(dtype, packed, 512)
    again = dequantize_rows(dtype, quantize_rows(dtype, values), 512)
    assert np.mean(again == values) > 0.7


@BY_ELEMENT
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-44, 5e-39], ids=str)
def test_constant_blocks(dtype: DType, value: float) -> None:
    off = 0.05 if dtype == dtypes.nvfp4 else 1e-3  # its scales have three bits
    for x in (np.full((1, dtype.block), value, np.float32), np.full((1, dtype.block), -value, np.float32)):
        np.testing.assert_allclose(dequantize_rows(dtype, quantize_rows(dtype, x), dtype.block), x, atol=off)


@ALL
def test_other_float_dtypes_ranks_and_strides(dtype: DType) -> None:
    k = 2 * dtype.block
    x = np.random.default_rng(0).standard_normal((2, 3, k)).astype(np.float16)
    packed = quantize_rows(dtype, x)
    np.testing.assert_array_equal(packed, quantize_rows(dtype, x.astype(np.float64)))
    np.testing.assert_array_equal(packed[:, ::-1], quantize_rows(dtype, x[:, ::-1]))
    values = dequantize_rows(dtype, packed, k)
    np.testing.assert_array_equal(values[1, 2], dequantize_rows(dtype, packed[1, 2], k))
    np.testing.assert_array_equal(values[:, ::2], dequantize_rows(dtype, packed[:, ::2], k))


@ALL
def test_inputs_are_left_alone(dtype: DType) -> None:
    x = _ramp(dtype.block)
    quantize_rows(dtype, x)
    np.testing.assert_array_equal(x, _ramp(dtype.block))


@ALL
def test_slices_join_without_a_seam(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3 * dtype.block))
    whole = quantize_rows(dtype, x)
    monkeypatch.setattr(blocks, "_SLICE", 4 * dtype.block)
    np.testing.assert_array_equal(quantize_rows(dtype, x), whole)


@ALL
@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (0,)], ids=str)
def test_empty(dtype: DType, shape: tuple[int, ...]) -> None:
    packed = quantize_rows(dtype, np.zeros(shape))
    assert packed.shape == (*shape[:-1], dtype.nbytes(shape[-1]))
    assert dequantize_rows(dtype, packed, shape[-1]).shape == shape


@ALL
def test_broken_scales_decode_without_a_warning(dtype: DType) -> None:
    raw = np.zeros(dtype.block_bytes, np.uint8)
    for at in HALVES.get(dtype.name, (0,)):
        raw[at : at + 2] = (0x80, 0x7F) if dtype == dtypes.q8_k else (0x00, 0x7C)  # d = infinity
    dequantize_rows(dtype, raw, dtype.block)


@ALL
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38], ids=str)
def test_values_without_a_scale_are_refused(dtype: DType, bad: float) -> None:
    if bad == 3e38 and dtype in (dtypes.q8_k, dtypes.mxfp4):
        pytest.skip("its scale has the range of f32")
    x = _ramp(dtype.block)
    x[5] = bad
    with pytest.raises(InputError, match="scale"):
        quantize_rows(dtype, x)


@ALL
def test_refusals(dtype: DType) -> None:
    block = dtype.block
    with pytest.raises(ShapeError, match=f"{block + 1} elements"):
        quantize_rows(dtype, np.zeros((2, block + 1)))
    with pytest.raises(ShapeError):
        quantize_rows(dtype, np.zeros(()))
    with pytest.raises(ShapeError, match=f"{block + 8} elements"):
        dequantize_rows(dtype, np.zeros((2, 40), np.uint8), block + 8)
    with pytest.raises(FormatError, match=str(dtype.nbytes(2 * block))) as e:
        dequantize_rows(dtype, np.zeros((2, dtype.nbytes(block)), np.uint8), 2 * block)
    assert e.value.fields["row_bytes"] == dtype.nbytes(2 * block)
    with pytest.raises(DTypeError, match="uint8"):
        dequantize_rows(dtype, np.zeros(dtype.block_bytes, np.float32), block)


def test_plain_dtypes_have_no_blocks() -> None:
    with pytest.raises(DTypeError, match="f32"):
        dequantize_rows(dtypes.f32, np.zeros(4, np.uint8), 1)
