"""Large elementwise kernels as hardware GPUs get them: several elements a thread."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.kernels import map as map_kernels
from pumice.plan.build import build_plan

from harness import device, run_as

RNG = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch):
    monkeypatch.setattr(map_kernels, "_MANY", 1)


def check(fn, arrays, *, by=4, **types):
    plan = run_as(device("webgpu").caps.with_(software=False), fn, arrays, types=types)
    assert [s.variant.endswith(f"by {by}") for s in plan.steps] == [by > 1]


@pytest.mark.parametrize("count", [1, 255, 256, 1024, 1025, 5000])
def test_sizes_around_a_workgroup(count):
    x, y = (RNG.standard_normal(count).astype(np.float32) for _ in range(2))
    check(lambda x, y: x * 2.0 + y, {"x": x, "y": y})


def test_broadcasts_views_and_symbolic_sizes():
    x, b = RNG.standard_normal((33, 70)).astype(np.float32), RNG.standard_normal(33).astype(np.float32)
    check(lambda x, b: pm.tanh(x.T + b)[::-1], {"x": x, "b": b}, x=pm.spec("M", 70, max=50), b=pm.spec("M"))


def test_integers():
    check(lambda x: x * 3 - 1, {"x": RNG.integers(-9, 9, 700).astype(np.int32)})


def test_what_packs_several_elements_a_word_is_as_before():
    check(lambda x: x * 2.0, {"x": RNG.standard_normal(700).astype(np.float16)}, by=1)


def test_a_state_that_is_updated_in_place():
    caps = device("webgpu").caps.with_(software=False)

    def fn(x):
        s = pm.state("s", (1500,), init=np.arange(1500, dtype=np.float32))
        pm.set_state(s, s * 0.5 + x)
        return x.sum()

    graph = pm.trace(fn, x=pm.spec(1500))
    session = device("webgpu").open(build_plan(graph, caps))
    try:
        state = graph.sources("state")[0].id
        x = RNG.standard_normal(1500).astype(np.float32)
        session.run({}, {"x": x}, [graph.outputs[0][1]])
        np.testing.assert_allclose(session.read(state), np.arange(1500) * 0.5 + x, rtol=1e-6)
    finally:
        session.close()
