"""What routines compute as they read it: norms and activations in front of products, rotations before scatters and attention."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.plan.build import build_plan

from harness import Case, check, device, run_plan

RNG = np.random.default_rng(5)
TARGETS = ("webgpu", "webgpu-baseline")


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def case(fn, **arrays):
    """The function traced with the arrays as inputs, rows symbolic where an array's name ends in _s."""
    specs = {}
    for name, a in arrays.items():
        dims = ("M", *a.shape[1:]) if name.endswith("_s") else a.shape
        specs[name] = pm.spec(*dims, dtype=a.dtype, max={"M": 4} if "M" in dims else None)
    return Case(pm.trace(fn, **specs), arrays, {})


def quantised(fn, n, k, dtype="q4_1", **arrays):
    """A case with a quantised weight `w` of n rows."""
    specs = {name: pm.spec(*a.shape) for name, a in arrays.items()}
    data = quantize_rows(dtypes.dtype(dtype), draw(n, k))
    graph = pm.trace(lambda params, **rest: fn(w=params["w"], **rest), params={"w": pm.spec(n, k, dtype=dtype)}, **specs)
    return Case(graph, arrays, {"w": data})


def labels(c, target):
    return [s.label for s in build_plan(c.graph, device(target).caps).steps]


CASES = {
    "rms norm, one vector": lambda: case(lambda x, g, w: pm.rms_norm(x, g) @ w.T, x=draw(1, 1, 96), g=draw(96), w=draw(70, 96)),
    "rms norm, four vectors, two products": lambda: case(
        lambda x, g, w, v: (pm.rms_norm(x, g) @ w.T, pm.rms_norm(x, g) @ v.T),
        x=draw(4, 96),
        g=draw(96),
        w=draw(70, 96),
        v=draw(40, 96),
    ),
    "layer norm with bias, half weights": lambda: case(
        lambda x, g, b, w: pm.layer_norm(x, g, b) @ w.T.astype("f32"),
        x=draw(3, 128),
        g=draw(128),
        b=draw(128),
        w=draw(64, 128),
    ),
    "norm, weights along N": lambda: case(lambda x, g, w: pm.rms_norm(x, g) @ w, x=draw(2, 64), g=draw(64), w=draw(64, 90)),
    "norm, half weights in pairs": lambda: case(
        lambda x, g, w: pm.matmul(pm.rms_norm(x, g), w.T), x=draw(2, 64), g=draw(64), w=draw(90, 64, dtype=np.float16)
    ),
    "symbolic number of vectors": lambda: case(
        lambda x_s, g, w: pm.rms_norm(x_s, g) @ w.T, x_s=draw(3, 96), g=draw(96), w=draw(70, 96)
    ),
    "rms norm, quantised": lambda: quantised(
        lambda x, g, w: pm.qmatmul(pm.rms_norm(x, g), w), 70, 512, x=draw(2, 512), g=draw(512)
    ),
    "gated, quantised": lambda: quantised(
        lambda x, w: pm.qmatmul(pm.silu(x[..., :256]) * x[..., 256:], w), 40, 256, "q8_0", x=draw(1, 1, 512)
    ),
    "gated": lambda: case(lambda x, w: (pm.silu(x[..., :64]) * x[..., 64:]) @ w.T, x=draw(1, 1, 128), w=draw(96, 64)),
    "gated, with the sum it is added to": lambda: case(
        lambda x, w, r: r + (pm.silu(x[..., :64]) * x[..., 64:]) @ w.T, x=draw(1, 1, 128), w=draw(96, 64), r=draw(1, 1, 96)
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_products_compute_their_few_vectors(name, target):
    c = CASES[name]()
    found = labels(c, target)
    assert all("matmul" in label for label in found), f"nothing is stored before the product: {found}"
    assert check(c, target) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_many_vectors_are_stored_first(target):
    c = case(lambda x, g, w: pm.rms_norm(x, g) @ w.T, x=draw(40, 96), g=draw(96), w=draw(70, 96))
    assert labels(c, target) == ["rms_norm", "transpose+matmul"]
    assert check(c, target) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_attention_rotates_its_queries_and_scatter_its_updates(target):
    def attend(q, k, positions, rows):
        cache = pm.state("cache", (80, 2 * 16))
        turned = pm.rope(k, positions)
        updated = pm.scatter_set(cache, rows, turned.reshape(1, 32))
        pm.set_state(cache, updated)
        keys = updated.reshape(1, 80, 2, 16)
        return pm.attention(pm.rope(q, positions), keys, keys, layout="bshd", causal=True)

    c = case(
        attend, q=draw(1, 1, 4, 16), k=draw(1, 1, 2, 16), positions=np.array([[[3]]], np.int32), rows=np.array([7], np.int32)
    )
    found = labels(c, target)
    assert not any(label in ("rope", "reshape+rope") for label in found), found
    assert check(c, target) == ""


@pytest.mark.parametrize("half", [False, True])
def test_tiles_of_a_large_gpu(half):
    """What a hardware GPU of these limits would get: written-out tiles, loads of sixteen bytes, stores without a loop."""
    big = WebGpuDevice(caps=device("webgpu").caps.with_(software=False))
    dtype = np.float16 if half else np.float32
    a, b = draw(136, 56, dtype=dtype), draw(56, 264, dtype=dtype)
    c = case(lambda a, b: pm.relu(pm.matmul(a, b).astype("f32") - 0.5), a=a, b=b)
    plan = build_plan(c.graph, big.caps)
    (step,) = [s for s in plan.steps if "matmul" in s.label]
    kernel = plan.kernels[step.kernel]
    assert "array<vec4<" in kernel.wgsl and "for (var kk" not in kernel.wgsl and "var results" not in kernel.wgsl
    (got,), _ = run_plan(big, plan, c)
    np.testing.assert_allclose(got, np.maximum(a.astype(np.float64) @ b - 0.5, 0), rtol=2e-3, atol=2e-2 if half else 1e-4)
