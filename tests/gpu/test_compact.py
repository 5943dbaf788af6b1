"""compact: results that are wanted alone or together, symbolic lengths, and chains whose grids follow the count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import DeviceCount

import harness

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
on_every_target = pytest.mark.parametrize("target", harness.TARGETS)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(fn: Any, target: str, **arrays: Array) -> None:
    specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}
    assert harness.check(harness.Case(pm.trace(fn, **specs), arrays, {}), target) == ""


KEPT = {
    "none": np.zeros(70, bool),
    "one": np.arange(70) == 41,
    "all": np.ones(70, bool),
    "some": np.random.default_rng(3).random(70) < 0.4,
}


@on_every_target
@pytest.mark.parametrize("kept", KEPT)
def test_a_grouped_matmul_over_the_rows_that_are_kept(target: str, kept: str) -> None:
    """The count is the sizes of the next op: what follows runs over so many rows, which only the device knows."""

    def fn(x: Any, w: Any, v: Any, keep: Any) -> Any:
        rows, count = pm.compact(x, keep)
        return pm.grouped_matmul(pm.silu(pm.grouped_matmul(rows, w, count)), v, count), count

    check(fn, target, x=normal(70, 24), w=normal(1, 24, 40, seed=1), v=normal(1, 40, 9, seed=2), keep=KEPT[kept])


@on_every_target
def test_gradients_flow_back_to_the_rows_that_were_kept(target: str) -> None:
    def fn(x: Any, w: Any, keep: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            rows, count = pm.compact(pm.tanh(x), keep)
            return pm.square(pm.grouped_matmul(rows, w, count)).sum()

        return pm.grad(loss, argnums=(0, 1))(x, w)

    check(fn, target, x=normal(70, 12), w=normal(1, 12, 8, seed=1) / 4, keep=KEPT["some"])


@on_every_target
def test_each_result_alone(target: str) -> None:
    x, keep = normal(70, 6), KEPT["some"]
    check(lambda x, keep: pm.compact(x, keep)[0], target, x=x, keep=keep)
    check(lambda x, keep: pm.compact(x, keep)[1], target, x=x, keep=keep)
    # With what follows elementwise in the same kernel.
    check(lambda x, keep: pm.compact(x, keep)[0] * 2.0 + 1.0, target, x=x, keep=keep)
    check(lambda x, keep: pm.compact(x, keep)[1] + 3, target, x=x, keep=keep)


@on_every_target
@pytest.mark.parametrize("rows", [0, 1, 33, 5000])
def test_symbolic_lengths(target: str, rows: int) -> None:
    keep = np.arange(rows) % 3 != 1
    specs = {"x": pm.spec("T", 2), "keep": pm.spec("T", dtype="bool")}
    case = harness.Case(pm.trace(pm.compact, **specs), {"x": normal(rows, 2), "keep": keep}, {})
    assert harness.check(case, target, max={"T": 6000}) == ""


def test_the_chain_has_grids_from_the_device() -> None:
    def fn(x: Any, w: Any, keep: Any) -> Any:
        rows, count = pm.compact(x, keep)
        return pm.grouped_matmul(rows, w, count)

    graph = pm.trace(fn, x=pm.spec(70, 24), w=pm.spec(1, 24, 40), keep=pm.spec(70, dtype="bool"))
    plan = build_plan(graph, Caps.preset("browser-baseline"))
    assert [isinstance(s.groups, DeviceCount) for s in plan.steps] == [False, False, False, True]
    assert [s.label for s in plan.steps] == ["compact rows", "compact", "grouped_matmul tiles", "grouped_matmul"]
