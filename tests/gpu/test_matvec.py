"""Products with few vectors as hardware GPUs get them: loads of sixteen bytes, written-out steps, vectors in workgroup memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.plan.build import build_plan

from harness import HARDWARE, Case, device, run_plan

RNG = np.random.default_rng(8)
# Vectors, rows, K: less than a load a thread, steps with and without a rest, a loop, K in whole words, and K that is odd.
SIZES = ((1, 41, 40), (1, 33, 64), (4, 70, 584), (3, 40, 2048), (1, 34, 6144), (2, 40, 70), (1, 40, 75))


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def product_of(fn, target, w, **arrays):
    """What the function gives on the target for a weight and inputs, and the variant of its last step."""
    caps = device("webgpu").caps.with_(**HARDWARE[target])
    specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}
    c = Case(pm.trace(fn, params={"w": pm.spec(*w.shape, dtype=w.dtype)}, **specs), arrays, {"w": w})
    plan = build_plan(c.graph, caps)
    ((found,), _) = run_plan(device("webgpu"), plan, c)
    return found, plan.steps[-1].variant


@pytest.mark.parametrize("target", HARDWARE)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_stored_vectors(size, dtype, target):
    m, n, k = size
    x, w = draw(m, k), draw(n, k, dtype=dtype)
    found, variant = product_of(lambda params, x: pm.matmul(x, params["w"].T), target, w, x=x)
    assert variant.startswith("matvec") and "staged" not in variant
    np.testing.assert_allclose(found, x.astype(np.float64) @ w.astype(np.float64).T, rtol=1e-5, atol=1e-5 * np.sqrt(k))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [(8, 70, 584), (5, 41, 2048), (7, 34, 2560), (6, 38, 515)])
def test_five_to_eight_stored_vectors(size, dtype):
    m, n, k = size
    x, w = draw(m, k), draw(n, k, dtype=dtype)
    found, variant = product_of(lambda params, x: pm.matmul(x, params["w"].T) + 1.0, "subgroups", w, x=x)
    assert variant == f"matvec lanes 8x4 rows {8 if k >= 2048 else 2} slices"
    np.testing.assert_allclose(found, 1 + x.astype(np.float64) @ w.astype(np.float64).T, rtol=1e-5, atol=1e-5 * np.sqrt(k))


@pytest.mark.parametrize("target", HARDWARE)
@pytest.mark.parametrize("size", SIZES)
def test_computed_vectors(size, target):
    m, n, k = size
    x, w, g = draw(m, k), draw(n, k, dtype=np.float16), draw(k)
    found, variant = product_of(lambda params, x, g: pm.matmul(pm.rms_norm(x, g, eps=1e-5), params["w"].T), target, w, x=x, g=g)
    assert variant.startswith("matvec") and ("staged" in variant) == (target == "subgroups")
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(found, normed @ w.astype(np.float64).T, rtol=1e-5, atol=1e-5 * np.sqrt(k))


WHOLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k")
NUMBERS = ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "e4m3_g128_f32", "u4z_g128_f16", "u8b_g32_f16")


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, "subgroups") for name in WHOLE + NUMBERS), *((name, "plain") for name in ("q4_0", "q8_0", "q4_k"))],
)
def test_quantised_weights(name, target):
    """Enough rows for the variant of a large GPU, and so little memory that the last chunk of K is a short one."""
    dtype = dtypes.dtype(name)
    n, k = 1026, 1024 + max(dtype.block, 256)
    w = np.tile(quantize_rows(dtype, draw(54, k)), (19, 1))
    x = draw(1, k) * np.exp(draw(1, k))
    caps = device("webgpu").caps.with_(**HARDWARE[target], workgroup_memory=8 << 10)
    g = pm.trace(lambda params, x: pm.qmatmul(x, params["w"]), params={"w": pm.spec(n, k, dtype=name)}, x=pm.spec(1, k))
    plan = build_plan(g, caps)
    assert ("by digits" in plan.steps[-1].variant) == (name not in NUMBERS[:5])
    ((found,), _) = run_plan(device("webgpu"), plan, Case(g, {"x": x}, {"w": w}))
    values = dequantize_rows(dtype, w, k).astype(np.float64)
    expected, size = x.astype(np.float64) @ values.T, np.abs(x).astype(np.float64) @ np.abs(values).T
    assert (np.abs(found - expected) / size).max() < 4e-7


def test_vectors_that_are_not_finite_reach_every_result():
    n, k = 1024, 512
    w = quantize_rows(dtypes.q8_0, draw(n, k))
    caps = device("webgpu").caps.with_(software=False)
    g = pm.trace(lambda params, x: pm.qmatmul(x, params["w"]), params={"w": pm.spec(n, k, dtype="q8_0")}, x=pm.spec(2, k))
    x = draw(2, k)
    x[0, 77], x[1, 300] = np.inf, np.nan
    ((found,), _) = run_plan(device("webgpu"), build_plan(g, caps), Case(g, {"x": x}, {"w": w}))
    assert not np.isfinite(found[0]).any() and np.isnan(found[1]).all()
