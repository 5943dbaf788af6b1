"""Tiles and blocks that only large GPUs choose, forced one by one on this machine's adapter under such a GPU's limits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.caps import Caps
from pumice.kernels.routines import attention, matmul
from pumice.kernels.routines.attention_blocks import AttentionBlocks
from pumice.kernels.routines.tile import Tile
from pumice.plan.build import build_plan

import harness

Array = np.ndarray[Any, Any]


@cache
def large(long_shaders: bool) -> WebGpuDevice:
    """Loops are written out where workgroups may be largest, which takes long to compile here: the smaller kernels are enough."""
    return WebGpuDevice(caps=Caps.preset("h200").with_(max_invocations=1024 if long_shaders else 512))


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def checked(monkeypatch: pytest.MonkeyPatch, fn: Any, arrays: dict[str, Array], *, long_shaders: bool) -> list[str]:
    """The variants of a function's steps on the large device, once its results are right."""
    device = large(long_shaders)
    monkeypatch.setattr(harness, "device", lambda target: device)
    graph = pm.trace(fn, **{name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()})
    assert harness.check(harness.Case(graph, arrays, {}), "webgpu") == ""
    return [s.variant for s in build_plan(graph, device.caps).steps]


@pytest.mark.parametrize("tile", matmul.MEASURED_TILES, ids=lambda t: t.key)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "ragged"])
def test_every_measured_tile(monkeypatch: pytest.MonkeyPatch, tile: Tile, whole: bool) -> None:
    """Sizes that tiles divide, and sizes with rests everywhere; an epilogue with a row and a matrix."""
    monkeypatch.setattr(matmul, "measured_tile", lambda *size, **_: tile)
    m, n, k = (tile.bm, tile.bn, tile.bk) if whole else (tile.bm + 3, tile.bn + 1, tile.bk + 2)
    arrays = {"x": normal(m, k), "w": normal(n, k, seed=1), "b": normal(n, seed=2), "r": normal(m, n, seed=3)}
    long_shaders = tile.tm * tile.tn <= 16
    assert checked(monkeypatch, lambda x, w, b, r: pm.relu(x @ w.T + b) + r, arrays, long_shaders=long_shaders) == [tile.name]


@pytest.mark.parametrize(
    "choice",
    [AttentionBlocks(128, 64, 32, "v"), AttentionBlocks(128, 32, 32, "qv"), AttentionBlocks(128, 32, 16)],
    ids=lambda b: b.name,
)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_blocks_of_attention(monkeypatch: pytest.MonkeyPatch, choice: AttentionBlocks, layout: Any) -> None:
    """Heads that share keys, chunks with rests, and a mask of the keys or the order of the tokens."""
    monkeypatch.setattr(attention, "decide", lambda *size, **options: choice)
    shapes = [(2, 4, 37, 32), (2, 2, 70, 32), (2, 2, 70, 64)]
    q, k, v = (normal(*((s[0], s[2], s[1], s[3]) if layout == "bshd" else s), seed=i) for i, s in enumerate(shapes))
    mask = np.random.default_rng(5).random((2, 1, 1, 70)) < 0.8
    mask[1] = False  # no key at all: zeros

    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return pm.attention(q, k, v, mask=mask, layout=layout), pm.attention(q, k, v, causal=True, window=40, layout=layout)

    assert checked(monkeypatch, fn, {"q": q, "k": k, "v": v, "mask": mask}, long_shaders=choice.keys == 16) == [choice.name] * 2
