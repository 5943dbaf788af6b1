"""Broken scales: NaN and infinity of one row reach that row's results and no other's, on every target, in every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan

import harness

Array = np.ndarray[Any, Any]
# Where a block's scale lies and the bytes of NaN and infinity in it.
F16, BF16, F32 = (b"\x00\x7e", b"\x00\x7c"), (b"\xc0\x7f", b"\x80\x7f"), (b"\0\0\xc0\x7f", b"\0\0\x80\x7f")
SCALES: dict[str, tuple[int, tuple[bytes, bytes]]] = {
    "q4_0": (0, F16), "q8_0": (0, F16), "q4_k": (0, F16), "q2_k": (80, F16), "q3_k": (108, F16), "q8_k": (0, F32),
    "iq4_nl": (0, F16), "iq4_xs": (0, F16), "i4_g64_f16": (0, F16), "i8_g32_f32": (0, F32), "u4z_g128_f16": (0, F16),
    "u8z_g64_bf16": (0, BF16), "u4b_g64_bf16": (2, BF16), "u8b_g32_f16": (2, F16), "e4m3_g128_f32": (0, F32),
    "nvfp4_g64_f32": (0, F32), "iq2_s": (0, F16), "tq1_0": (52, F16),
    # A code rather than a scale: the floats have NaN, and e5m2 infinity, of their own.
    "e5m2_g32_f16": (2, (b"\x7e", b"\x7c")), "e4m3_g32_f16": (2, (b"\x7f", b"\xff")),
}  # fmt: skip


# One of each reader; their kernels take long to compile in software.
ON_GPU = ("q8_0", "q2_k", "q3_k", "iq4_nl", "iq4_xs", "iq2_s", "u8z_g64_bf16", "u4b_g64_bf16", "e5m2_g32_f16", "nvfp4_g64_f32")


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, "host") for name in SCALES), *(pytest.param(name, "webgpu", marks=pytest.mark.gpu) for name in ON_GPU)],
)
def test_broken_scales_stay_in_their_rows(name: str, target: str) -> None:
    dtype = dtypes.dtype(name)
    n, k = 35, 2 * dtype.block
    data = quantize_rows(dtype, np.random.default_rng(0).standard_normal((n, k)))
    at, (nan, infinity) = SCALES[name]
    for row, raw in ((3, nan), (34, infinity)):
        start = dtype.block_bytes + at  # in the second block of the row
        data[row, start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    values = dequantize_rows(dtype, data, k)
    assert np.isnan(values[3]).any() and not np.isfinite(values[34]).all()
    for m in (1, 40):
        got = _product(dtype, data, np.random.default_rng(1).standard_normal((m, k)).astype(np.float32), target)
        assert np.isnan(got[:, 3]).all()
        assert not np.isfinite(got[:, 34]).any()
        assert np.isfinite(np.delete(got, [3, 34], axis=1)).all()


def _product(dtype: DType, data: Array, x: Array, target: str) -> Array:
    b = GraphBuilder()
    left = b.source("input", "x", TensorType(dtypes.f32, x.shape))
    right = b.source("param", "w", TensorType(dtype, (len(data), x.shape[1])))
    case = harness.Case(b.build([("y", b.add("qmatmul", [left, right]))]), {"x": x}, {"w": data})
    device = harness.device(target)
    ((found,), _) = harness.run_plan(device, build_plan(case.graph, device.caps), case)
    return np.asarray(found)
