"""Blocks of every GGUF format decode to the very bits that the PyPI package `gguf` makes of them, broken scales included."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes, grids
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.core.grids import Grid, grid_rows

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")

Array = np.ndarray[Any, Any]
# Where each format keeps the f16 numbers that scale a block.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,), "iq4_xs": (0,),
    "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq3_s": (0,), "iq3_xxs": (0,),
    "iq2_s": (0,), "iq2_xs": (0,), "iq2_xxs": (0,), "iq1_s": (0,), "tq2_0": (64,), "tq1_0": (52,),
}  # fmt: skip
# Zero and negative zero, one, the smallest subnormal, the largest, infinities, and NaN: quiet, signalling, negative.
ADVERSE = (0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE35)
by_format = pytest.mark.parametrize("dtype", [d for d in dtypes.QUANT if d != dtypes.q8_k], ids=str)


def theirs(dtype: DType, data: Array) -> Array:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = quants.dequantize(data, gguf.GGMLQuantizationType[dtype.name.upper()])
    assert found.dtype == np.float32
    return np.asarray(found)


def agree(dtype: DType, data: Array) -> None:
    ours, want = dequantize_rows(dtype, data, data.shape[-1] // dtype.block_bytes * dtype.block), theirs(dtype, data)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(want))
    np.testing.assert_array_equal(ours.view(np.uint32), want.view(np.uint32))


def adverse_blocks(dtype: DType) -> Array:
    """Every pair of adverse scales over codes that are all zeros, all ones, and random."""
    rng = np.random.default_rng(7)
    fills = [np.zeros(dtype.block_bytes, np.uint8), np.full(dtype.block_bytes, 255, np.uint8)]
    fills += list(rng.integers(0, 256, (3, dtype.block_bytes), np.uint8))
    made = []
    places = HALVES.get(dtype.name, ())
    for fill in fills:
        if dtype == dtypes.iq1_m:  # nibbles of the f16 are the upper halves of four bytes
            block = np.repeat(fill[None], len(ADVERSE), axis=0)
            block[:, 49:56:2] = block[:, 49:56:2] & 15 | (np.array(ADVERSE)[:, None] >> [0, 4, 8, 12] & 15) << 4
            made.append(block)
            continue
        if not places:  # one byte is a scale: all 256 of them
            block = np.repeat(fill[None], 256, axis=0)
            block[:, : 4 if dtype == dtypes.nvfp4 else 1] = np.arange(256, dtype=np.uint8)[:, None]
            made.append(block)
            continue
        for first in ADVERSE:
            for second in ADVERSE if len(places) > 1 else ADVERSE[:1]:
                block = fill.copy()
                for at, bits in zip(places, (first, second)):
                    block[at : at + 2] = np.frombuffer(struct.pack("<H", bits), np.uint8)
                made.append(block[None])
    return np.concatenate(made)


def test_every_format_that_gguf_can_read_and_we_have_is_compared() -> None:
    known = {t.name.lower() for t in quants._type_traits}
    assert {d.name for d in dtypes.QUANT} - known == {"q8_k"}, "q8_k has no reader there and a test of its own below"


@pytest.mark.parametrize("dtype", dtypes.QUANT, ids=str)
def test_block_sizes(dtype: DType) -> None:
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.name.upper()]] == (dtype.block, dtype.block_bytes)


@by_format
def test_random_blocks(dtype: DType) -> None:
    agree(dtype, np.random.default_rng(1).integers(0, 256, (40, 5 * dtype.block_bytes), np.uint8))


@by_format
def test_adverse_blocks(dtype: DType) -> None:
    data = adverse_blocks(dtype)
    agree(dtype, data)
    assert dtype in (dtypes.mxfp4, dtypes.nvfp4) or np.isnan(dequantize_rows(dtype, data, dtype.block)).any()


@by_format
def test_what_we_write_they_read_as_we_do(dtype: DType) -> None:
    x = np.random.default_rng(2).standard_normal((6, 2 * dtype.block)).astype(np.float32)
    agree(dtype, quantize_rows(dtype, x))


@pytest.mark.parametrize("dtype", [dtypes.mxfp4, dtypes.tq2_0, dtypes.tq1_0], ids=str)
def test_some_formats_are_written_as_gguf_writes_them(dtype: DType) -> None:
    x = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32) * np.float32(0.03)
    want = quants.quantize(x, gguf.GGMLQuantizationType[dtype.name.upper()])
    np.testing.assert_array_equal(quantize_rows(dtype, x), want)


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        (grids.IQ3_S, "IQ3_S"), (grids.IQ3_XXS, "IQ3_XXS"), (grids.IQ2_S, "IQ2_S"), (grids.IQ2_XS, "IQ2_XS"),
        (grids.IQ2_XXS, "IQ2_XXS"), (grids.IQ1, "IQ1_S"), (grids.IQ1, "IQ1_M"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_grids_have_the_rows_of_gguf(grid: Grid, name: str) -> None:
    theirs = getattr(quants, name)
    theirs.init_grid()
    want = theirs.grid.reshape(theirs.grid_shape) * (8 if name.startswith("IQ1") else 1)
    np.testing.assert_array_equal(grid_rows(grid), want)


@pytest.mark.parametrize("d", [0.0, -0.0, 0.37, -2.5, 1e-42, 3e38, np.inf, -np.inf, np.nan])
def test_q8_k_is_a_float_times_signed_bytes(d: float) -> None:
    codes = np.arange(256, dtype=np.uint8)
    block = np.concatenate([np.frombuffer(struct.pack("<f", d), np.uint8), codes, np.full(32, 255, np.uint8)])
    with np.errstate(all="ignore"):
        want = np.float32(d) * codes.view(np.int8).astype(np.float32)
    got = dequantize_rows(dtypes.q8_k, block, 256)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
