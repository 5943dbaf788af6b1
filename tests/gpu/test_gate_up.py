"""Gated layers for few vectors: the kernel of the gate/up matmul stores the gated activation."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.kernels.routines.matvec import decide_matvec
from pumice.plan import fusion

from harness import HARDWARE, device, run_as

RNG = np.random.default_rng(3)
ALL_TARGETS = {**HARDWARE, "software": {}}


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch):
    monkeypatch.setattr(fusion, "WIDE_GATED", 1)


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def gated(y):
    half = y.shape[-1] // 2
    return pm.silu(y[..., :half]) * y[..., half:]


def check(fn, params, arrays, target, types=None):
    """Runs fn and compares it with the reference; gives the labels of the plan's steps."""
    caps = device("webgpu").caps.with_(**ALL_TARGETS[target])
    return [s.label for s in run_as(caps, fn, arrays, params, types=types).steps]


@pytest.mark.parametrize("target", ALL_TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 70, 40), (4, 66, 584), (2, 96, 2048), (1, 64, 6144), (3, 34, 75)])
def test_a_gate_between_two_matmuls(m, n, k, dtype, target):
    """The first matmul stores the gated activation; the second reads it."""
    params = {"a": draw(2 * n, k, dtype=dtype) / 8, "b": draw(40, n, dtype=dtype) / 8}
    labels = check(lambda params, x: gated(x @ params["a"].T) @ params["b"].T, params, {"x": draw(m, k)}, target)
    assert len(labels) == 2 and labels[0].endswith("mul") and "silu" not in labels[1]


@pytest.mark.parametrize("target", HARDWARE)
def test_a_norm_before_and_more_behind(target):
    params = {"a": draw(128, 64), "b": draw(64, 64), "g": draw(64)}

    def layer(params, x):
        y = pm.rms_norm(x, params["g"]) @ params["a"].T
        return (pm.gelu(y[:, :64]) * y[:, 64:] + 1.0) @ params["b"].T + x

    labels = check(layer, params, {"x": draw(2, 64)}, target)
    assert len(labels) == 2 and "gelu" in labels[0]


def test_sums_stay_within_workgroup_memory():
    """Sums of four rows of gate and up for four normed vectors would take 18 KiB, of 16."""
    baseline = Caps.preset("browser-baseline")
    assert [decide_matvec(baseline, m, 1024, 512, 1, along=True, slices=2).rows for m in (3, 4)] == [4, 2]
    # So few results have two rows anyway.
    params = {"a": draw(256, 512) / 8, "b": draw(32, 128) / 8, "g": draw(512)}

    def layer(params, x):
        return gated(pm.rms_norm(x, params["g"]) @ params["a"].T) @ params["b"].T

    assert run_as(baseline, layer, {"x": draw(4, 512)}, params).steps[0].variant == "matvec along 128x2"


@pytest.mark.parametrize("target", ALL_TARGETS)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "mxfp4"])
@pytest.mark.parametrize(("m", "n"), [(1, 24), (1, 700), (3, 40)])
def test_quantised_weights(m, n, name, target):
    k = 512
    params = {"a": quantize_rows(dtypes.dtype(name), draw(2 * n, k) / 8), "b": draw(20, n)}
    types = {"a": pm.spec(2 * n, k, dtype=name)}
    labels = check(lambda params, x: gated(pm.qmatmul(x, params["a"])) @ params["b"].T, params, {"x": draw(m, k)}, target, types)
    assert len(labels) == 2 and labels[0].startswith("qmatmul+slice")


def test_what_is_read_otherwise_too_is_stored_whole():
    params = {"a": draw(128, 64), "b": draw(64, 64)}

    def twice(params, x):
        y = x @ params["a"].T
        return gated(y) @ params["b"].T, y

    def thirds(params, x):
        y = x @ params["a"].T
        return (y[:, :64] * y[:, 64:] + y[:, 32:96]) @ params["b"].T

    def unequal(params, x):
        y = x @ params["a"].T
        return (y[:, 1:64] * y[:, 65:]) @ params["b"][:, 1:].T

    for fn in (twice, thirds, unequal):
        assert check(fn, params, {"x": draw(1, 64)}, "subgroups")[0] == "transpose+matmul"


def test_narrow_ones_are_recomputed_by_the_matmul_that_reads_them(monkeypatch):
    monkeypatch.undo()
    params = {"a": draw(128, 64), "b": draw(64, 64)}
    labels = check(lambda params, x: gated(x @ params["a"].T) @ params["b"].T, params, {"x": draw(1, 64)}, "subgroups")
    assert labels[0] == "transpose+matmul" and "silu" in labels[1]


def test_many_rows_are_tiles_as_before():
    params = {"a": draw(128, 64), "b": draw(64, 64)}
    labels = check(lambda params, x: gated(x @ params["a"].T) @ params["b"].T, params, {"x": draw(40, 64)}, "subgroups")
    assert labels[0] == "transpose+matmul" and len(labels) == 3


def test_slices_that_are_not_gated_are_read_in_place():
    params = {"a": draw(128, 64)}

    def apart(params, x):
        y = x @ params["a"].T
        return pm.silu(y[:, :64]), pm.tanh(y[:, 64:])

    assert check(apart, params, {"x": draw(1, 64)}, "subgroups")[0] == "transpose+matmul"
