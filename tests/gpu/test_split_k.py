"""Products with few results and a long K, as measured adapters get them: parts of K in one kernel, their sums in another."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.kernels.routines import matmul
from pumice.kernels.routines.split_k import Split

from harness import device, run_as

RNG = np.random.default_rng(4)
H200 = Caps.preset("h200")


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def check(fn, w, arrays, *, tuning=H200.tuning, **types):
    """Runs fn as planned for an adapter with these measurements, on the device of the tests, and compares; gives the variants."""
    caps = device("webgpu").caps.with_(tuning=tuning, software=False)
    return [s.variant for s in run_as(caps, fn, arrays, {"w": w}, types=types).steps]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 1024), (64, 100, 2048), (20, 36, 1280)])
def test_parts_and_their_sum(m, n, k, dtype):
    """Results that end inside a tile, with and without whole vectors; an epilogue behind the sum."""
    w, x = draw(n, k, dtype=dtype) / 16, draw(m, k)
    variants = check(lambda params, x: pm.gelu(x @ params["w"].T + 1.0), w, {"x": x})
    assert len(variants) == 2 and variants[0].endswith("parts") and variants[1].startswith("combine")


def test_weights_the_other_way_round_and_a_bias():
    w = draw(1024, 60) / 16
    variants = check(lambda params, x, b, r: x @ params["w"] + b + r, w, {"x": draw(40, 1024), "b": draw(60), "r": draw(40, 60)})
    assert variants[0].endswith("parts")


def test_leading_axes_and_symbolic_rows():
    w, x = draw(64, 1024) / 16, draw(3, 11, 1024)
    variants = check(lambda params, x: x @ params["w"].T, w, {"x": x}, x=pm.spec("B", "T", 1024, max={"B": 4, "T": 16}))
    assert variants[0].endswith("parts")


def test_results_in_half_precision():
    w, x = draw(64, 1024, dtype=np.float16), draw(40, 1024, dtype=np.float16)
    variants = check(lambda params, x: x @ params["w"].T, w / np.float16(16), {"x": x})
    assert variants[0].endswith("parts")


def test_a_symbolic_k_that_can_be_cut():
    """The gradient of a weight: K is the number of rows, whatever that is."""
    w, arrays = draw(1, 1), {"x": draw(5, 128, 48), "y": draw(5, 128, 40)}
    specs = {"x": pm.spec("B", 128, 48, max=8), "y": pm.spec("B", 128, 40, max=8)}
    variants = check(lambda params, x, y: x.reshape(-1, 48).T @ y.reshape(-1, 40) + params["w"], w, arrays, **specs)
    assert variants[0].endswith("parts")


def test_adapters_without_measurements_go_by_a_rule():
    w, x = draw(80, 2048) / 16, draw(40, 2048)
    assert check(lambda params, x: x @ params["w"].T, w, {"x": x}, tuning=None)[0].endswith("in 8 parts")


def test_where_it_pays():
    def parts(m, n, k, caps=H200):
        found = matmul.decide(caps, m, n, k, 1, most=16)
        return found.parts if isinstance(found, Split) else 1

    assert parts(128, 384, 1536) > 1 and parts(16, 2048, 8192) > 1 and parts(256, 256, 2048) > 1
    assert parts(4096, 4096, 4096) == parts(4096, 1536, 384) == parts(128, 1152, 384) == parts(64, 64, 128) == 1
    assert not isinstance(matmul.decide(H200, 128, 384, 1536, 1), Split)
    baseline = Caps.preset("browser-baseline")
    assert parts(128, 384, 1536, baseline) > 1 and parts(4096, 384, 1536, baseline) == 1
    assert parts(128, 384, 1536, Caps.preset("lavapipe")) == 1
