"""Grouped matmuls: work that follows the rows, every kind of operand, tiles of large GPUs, and counts that are nonsense."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.caps import Caps
from pumice.kernels.routines import grouped
from pumice.kernels.routines.tile import Tile
from pumice.plan.build import build_plan
from pumice.plan.plan import DeviceCount, PlanOptions

import harness

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
GUARD = 64


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(fn: Any, target: str = "webgpu", **arrays: Array) -> None:
    graph = pm.trace(fn, **{name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()})
    assert harness.check(harness.Case(graph, arrays, {}), target) == ""


@cache
def large() -> WebGpuDevice:
    """A large GPU's limits, whose kernels store four elements at a time."""
    return WebGpuDevice(caps=Caps.preset("h200"))


@pytest.mark.parametrize("n", [64, 70])
@pytest.mark.parametrize("tile", [Tile(32, 64, 16, 4, 4), Tile(32, 64, 32, 4, 4, slices=2)], ids=lambda t: t.name)
def test_tiles_of_large_devices(monkeypatch: pytest.MonkeyPatch, tile: Tile, n: int) -> None:
    monkeypatch.setattr(harness, "device", lambda target: large())
    for name in ("decide", "decide_weight"):
        monkeypatch.setattr(grouped, name, lambda *size: tile)
    sizes = np.int32([40, 0, 7, 33])
    x, w, dy, b = normal(100, 40), normal(4, 40, n, seed=1), normal(100, n, seed=2), normal(n, seed=3)

    def fn(x: Any, w: Any, dy: Any, b: Any, sizes: Any) -> Any:
        _, gradient = pm.value_and_grad(lambda w: (pm.grouped_matmul(x, w, sizes) * dy).sum())(w)
        return pm.relu(pm.grouped_matmul(x, w, sizes) + b), gradient

    check(fn, x=x, w=w, dy=dy, b=b, sizes=sizes)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("target", ["host", "webgpu", "webgpu-baseline"])
def test_operands_may_be_views(target: str, dtype: Any) -> None:
    """Rows that are columns in memory begin at odd elements of a group; weights are transposed, as linear layers store them."""
    x, w, sizes = normal(24, 46, dtype=dtype), normal(6, 18, 24, seed=1, dtype=dtype), np.int32([9, 5, 9, 3, 1, 9])

    def fn(x: Any, w: Any, sizes: Any) -> Any:
        return pm.grouped_matmul(x.T, w[::2].transpose(0, 2, 1), sizes[:3]) * 2.0

    check(fn, target, x=x, w=w, sizes=sizes)


def test_the_grid_follows_the_rows() -> None:
    """What the table's first word says is what the tiles need, and the bound is what they could need at most."""
    graph = pm.trace(pm.grouped_matmul, x=pm.spec(200, 16), w=pm.spec(5, 16, 100), sizes=pm.spec(5, dtype="i32"))
    plan = build_plan(graph, Caps.preset("browser-baseline"))
    table, matmul = plan.steps
    count = matmul.groups
    assert isinstance(count, DeviceCount) and count.word == 0
    assert any(b.value == count.value and b.access == "write" for b in table.bindings)
    tile = grouped.decide(plan.caps, 200, 5, 100)
    across = -(-100 // tile.bn)
    device = WebGpuDevice(caps=Caps.preset("browser-baseline"))
    session = device.open(plan)
    for sizes in ((200, 0, 0, 0, 0), (1, 1, 1, 1, 196), (1, 2, 4, 0, 0), (0, 0, 0, 0, 0)):
        session.run({}, {"x": normal(200, 16), "w": normal(5, 16, 100), "sizes": np.int32(sizes)}, [])
        part = plan.values[count.value].parts[0]
        words = session.dump_buffer(part.buffer)[part.offset : part.offset + part.nbytes].view(np.uint32)
        tiles = sum(-(-s // tile.bm) for s in (*sizes, 200 - sum(sizes)))
        assert words[0] == tiles * across <= count.most
    session.close()


@pytest.mark.parametrize("target", harness.TARGETS)
@pytest.mark.parametrize("word", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x00010000])
def test_sizes_that_are_nonsense_are_clamped(word: int, target: str) -> None:
    sizes = np.full(7, word, np.uint32).view(np.int32)

    def fn(x: Any, w: Any, sizes: Any) -> Any:
        return pm.grouped_matmul(pm.grouped_matmul(x, w, sizes), w, sizes)

    check(fn, target, x=normal(50, 24), w=normal(7, 24, 24, seed=1), sizes=sizes)


@pytest.mark.parametrize("word", [0xFFFFFFFF, 0x80000001, 49, 0])
def test_a_corrupted_table_writes_nothing_outside(word: int) -> None:
    """The step that makes the table is left out: the count, groups and rows in it are all this word."""
    graph = pm.trace(pm.grouped_matmul, x=pm.spec(50, 24), w=pm.spec(7, 24, 24), sizes=pm.spec(7, dtype="i32"))
    device = WebGpuDevice(caps=Caps.preset("browser-baseline"))
    whole = build_plan(graph, device.caps, PlanOptions(guard=GUARD, arena=False))
    (regime,) = whole.regimes
    plan = replace(whole, regimes=(replace(regime, steps=regime.steps[1:]),))
    session = device.open(plan)
    for k, buffer in enumerate(plan.buffers):
        if buffer.kind == "arena":
            session.fill_buffer(k, word)
    session.run({}, {"x": normal(50, 24), "w": normal(7, 24, 24), "sizes": np.zeros(7, np.int32)}, [])
    part = plan.values[graph.outputs[0][1]].parts[0]
    written = session.dump_buffer(part.buffer)[part.offset : part.offset + part.nbytes].view(np.uint32)
    assert written.size == 50 * 24 + GUARD // 4
    assert (written[50 * 24 :] == word).all()
    session.close()


def test_equal_layers_share_kernels_and_have_tables_of_their_own() -> None:
    def fn(x: Any, w: Any, sizes: Any) -> Any:
        for k in range(3):
            x = pm.grouped_matmul(x, w[k], sizes)
        return x

    arrays = {"x": normal(40, 24), "w": normal(3, 4, 24, 24, seed=1) / 4, "sizes": np.int32([9, 0, 20, 3])}
    graph = pm.trace(fn, **{name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()})
    plan = build_plan(graph, Caps.preset("browser-baseline"))
    counts = [s.groups for s in plan.steps if isinstance(s.groups, DeviceCount)]
    assert len({c.value for c in counts}) == 3
    for step in plan.steps:
        assert not isinstance(step.groups, DeviceCount) or step.bindings[0].value == step.groups.value
    check(fn, **arrays)
