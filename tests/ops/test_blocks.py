"""Block codecs: the byte layout, ggml's rounding, and refusal of lengths and values that do not fit."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumice.core import blocks, dtypes
from pumice.core.blocks import CODECS, dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, FormatError, InputError, ShapeError

ALL = pytest.mark.parametrize("dtype", dtypes.QUANT, ids=str)

# What the PyPI package gguf 0.19.0 makes of _ramp().
GGUF_BYTES = {
    "q4_0": "00b4cf379d047be248bf269df36ad148ae15",
    "q4_1": "3334c0bf40d962fb952eb751da730c953ec851ea",
    "q8_0": "08248518ad40d467fc9124b94be073089d30c457ec7f14a93cd063f88d20b547dc6f",
}


def _ramp() -> np.ndarray[Any, Any]:
    return ((np.arange(32) * 37 % 64 - 31) / 16).astype(np.float32)


def _slow_decode(dtype: DType, block: bytes) -> list[np.float32]:
    """One block, one element at a time, straight from the format's description."""
    d = np.float32(struct.unpack_from("<e", block)[0])
    if dtype is dtypes.q8_0:
        return [d * np.float32(q) for q in struct.unpack_from("<32b", block, 2)]
    packed = block[2:] if dtype is dtypes.q4_0 else block[4:]
    levels = [packed[j] & 15 if j < 16 else packed[j - 16] >> 4 for j in range(32)]
    if dtype is dtypes.q4_0:
        return [d * np.float32(q - 8) for q in levels]
    m = np.float32(struct.unpack_from("<e", block, 2)[0])
    return [d * np.float32(q) + m for q in levels]


def test_every_quantised_dtype_has_a_codec() -> None:
    assert set(CODECS) == set(dtypes.QUANT)


@ALL
def test_bytes_equal_gguf(dtype: DType) -> None:
    assert quantize_rows(dtype, _ramp()).tobytes().hex() == GGUF_BYTES[dtype.name]


@ALL
def test_decoding_follows_the_layout(dtype: DType) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (3, 2 * dtype.block_bytes), np.uint8)
    # Finite scales: the exponent's top bit is cleared in every f16 of the header.
    by_block = raw.reshape(-1, dtype.block_bytes)
    by_block[:, 1] &= 0x3F
    by_block[:, 3] &= 0x3F if dtype is dtypes.q4_1 else 0xFF
    expected = np.array([_slow_decode(dtype, b.tobytes()) for b in by_block], np.float32).reshape(3, 64)
    got = dequantize_rows(dtype, raw, 64)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


@ALL
@settings(max_examples=60, deadline=None)
@given(scale=st.floats(0.1, 1e3), seed=st.integers(0, 2**32 - 1))
def test_round_trip_error_is_bounded_by_the_step(dtype: DType, scale: float, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-scale, scale, (2, 64)).astype(np.float32)
    packed = quantize_rows(dtype, x)
    assert packed.shape == (2, dtype.nbytes(64)) and packed.dtype == np.uint8
    step = scale / {"q4_0": 8, "q4_1": 7.5, "q8_0": 127}[dtype.name]
    # q4_0 has no level for the far end of the range, hence a whole step; f16 scales add their own rounding.
    worst = {"q4_0": 1.0, "q4_1": 0.5, "q8_0": 0.5}[dtype.name] * step + scale * 2e-3
    assert np.abs(dequantize_rows(dtype, packed, 64) - x).max() <= worst


def test_q8_0_rounds_halves_away_from_zero() -> None:
    x = np.zeros(32, np.float32)
    x[:6] = 127, 0.5, -0.5, 2.5, -1.5, np.nextafter(np.float32(0.5), np.float32(0))
    assert quantize_rows(dtypes.q8_0, x)[2:8].view(np.int8).tolist() == [127, 1, -1, 3, -2, 0]


@ALL
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-44, 5e-39], ids=str)
def test_constant_blocks(dtype: DType, value: float) -> None:
    x = np.full((1, 32), value, np.float32)
    np.testing.assert_allclose(dequantize_rows(dtype, quantize_rows(dtype, x), 32), x, atol=1e-3)


@ALL
def test_other_float_dtypes_ranks_and_strides(dtype: DType) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float16)
    packed = quantize_rows(dtype, x)
    np.testing.assert_array_equal(packed, quantize_rows(dtype, x.astype(np.float64)))
    np.testing.assert_array_equal(packed[:, ::-1], quantize_rows(dtype, x[:, ::-1]))
    values = dequantize_rows(dtype, packed, 64)
    np.testing.assert_array_equal(values[1, 2], dequantize_rows(dtype, packed[1, 2], 64))
    np.testing.assert_array_equal(values[:, ::2], dequantize_rows(dtype, packed[:, ::2], 64))


@ALL
def test_inputs_are_left_alone(dtype: DType) -> None:
    x = _ramp()
    quantize_rows(dtype, x)
    np.testing.assert_array_equal(x, _ramp())


@ALL
def test_slices_join_without_a_seam(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((5, 96))
    whole = quantize_rows(dtype, x)
    monkeypatch.setattr(blocks, "_SLICE", 4)
    np.testing.assert_array_equal(quantize_rows(dtype, x), whole)


@ALL
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0,)], ids=str)
def test_empty(dtype: DType, shape: tuple[int, ...]) -> None:
    packed = quantize_rows(dtype, np.zeros(shape))
    assert packed.shape == (*shape[:-1], dtype.nbytes(shape[-1]))
    assert dequantize_rows(dtype, packed, shape[-1]).shape == shape


@ALL
def test_broken_scales_decode_without_a_warning(dtype: DType) -> None:
    raw = np.zeros(dtype.block_bytes, np.uint8)
    raw[:2] = 0x00, 0x7C  # d = infinity
    dequantize_rows(dtype, raw, 32)


@ALL
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38], ids=str)
def test_values_without_a_scale_are_refused(dtype: DType, bad: float) -> None:
    x = _ramp()
    x[5] = bad
    with pytest.raises(InputError, match="scale"):
        quantize_rows(dtype, x)


@ALL
def test_refusals(dtype: DType) -> None:
    with pytest.raises(ShapeError, match="33 elements"):
        quantize_rows(dtype, np.zeros((2, 33)))
    with pytest.raises(ShapeError):
        quantize_rows(dtype, np.zeros(()))
    with pytest.raises(ShapeError, match="40 elements"):
        dequantize_rows(dtype, np.zeros((2, 40), np.uint8), 40)
    with pytest.raises(FormatError, match=str(dtype.nbytes(64))) as e:
        dequantize_rows(dtype, np.zeros((2, dtype.nbytes(32)), np.uint8), 64)
    assert e.value.fields["row_bytes"] == dtype.nbytes(64)
    with pytest.raises(DTypeError, match="uint8"):
        dequantize_rows(dtype, np.zeros(dtype.block_bytes, np.float32), 32)


def test_plain_dtypes_have_no_blocks() -> None:
    with pytest.raises(DTypeError, match="f32"):
        dequantize_rows(dtypes.f32, np.zeros(4, np.uint8), 1)
