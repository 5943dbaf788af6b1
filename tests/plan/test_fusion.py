"""What fuses and what does not: the steps of small graphs, and that they compute the right thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.plan.build import build_plan

from harness import Case, check

H200 = Caps.preset("h200")


def labels(fn: Callable[..., Any], **specs: Any) -> list[str]:
    return [s.label for s in build_plan(pm.trace(fn, **specs), H200).steps]


def test_elementwise_chains_are_one_kernel() -> None:
    assert labels(lambda x, y: pm.tanh(x * 2.0 + y) - x, x=pm.spec(8, 8), y=pm.spec(8)) == ["mul+add+tanh+sub"]


def test_bias_activation_and_residual_ride_on_the_matmul() -> None:
    steps = labels(
        lambda x, w, b, r: pm.gelu(x @ w + b) + r, x=pm.spec(64, 64), w=pm.spec(64, 64), b=pm.spec(64), r=pm.spec(64, 64)
    )
    assert steps == ["matmul+add+gelu"]


def test_a_norm_takes_its_residual_in() -> None:
    assert labels(lambda x, r, w: pm.rms_norm(x + r, w), x=pm.spec(8, 64), r=pm.spec(8, 64), w=pm.spec(64)) == ["add+rms_norm"]


def test_windows_that_overlap_read_what_is_stored() -> None:
    def f(x: Any, w: Any, b: Any, stride: int) -> Any:
        return pm.max_pool2d(pm.relu(pm.conv2d(x, w) + b), 3, stride=stride)

    specs = {"x": pm.spec(1, 3, 20, 20), "w": pm.spec(8, 3, 3, 3), "b": pm.spec(8, 1, 1)}
    assert labels(lambda x, w, b: f(x, w, b, 2), **specs) == ["conv+add+relu", "max_pool"]
    assert labels(lambda x, w, b: f(x, w, b, 3), **specs) == ["conv", "add+relu+max_pool"]
    assert labels(lambda x: pm.max_pool2d(pm.relu(x), 3, stride=2), x=pm.spec(1, 3, 20, 20)) == ["relu+max_pool"]


def test_views_cost_no_step() -> None:
    def f(x: Any, w: Any) -> Any:
        return (x.reshape(4, 2, 16).transpose(1, 0, 2)[:, ::2] * 2.0) @ w.T

    assert labels(f, x=pm.spec(8, 16), w=pm.spec(5, 16)) == ["reshape+transpose+slice+mul", "transpose+matmul"]


def test_a_value_with_two_readers_is_computed_once() -> None:
    steps = labels(lambda x, w: (pm.exp(x) @ w) + (pm.exp(x) @ (w * 2.0)), x=pm.spec(16, 16), w=pm.spec(16, 16))
    assert sum("exp" in s for s in steps) == 1


def test_what_would_be_recomputed_for_every_reader_is_stored() -> None:
    assert labels(lambda x, y: pm.exp(x) * y, x=pm.spec(16), y=pm.spec(64, 16)) == ["exp", "mul"]


def test_the_fewest_bindings_are_respected() -> None:
    def many(**inputs: Any) -> Any:
        total = inputs["x0"]
        for k in range(1, 20):
            total = pm.maximum(total, pm.sin(inputs[f"x{k}"]))
        return total

    graph = pm.trace(many, **{f"x{k}": pm.spec(33) for k in range(20)})
    plan = build_plan(graph, Caps.preset("browser-baseline"))
    assert len(plan.steps) > 1 and max(len(s.bindings) for s in plan.steps) <= 8


def test_wide_concats_are_split() -> None:
    def joined(**inputs: Any) -> Any:
        return pm.concatenate(list(inputs.values()), axis=0)

    graph = pm.trace(joined, **{f"x{k}": pm.spec(3) for k in range(30)})
    assert max(len(s.bindings) for s in build_plan(graph, Caps.preset("browser-baseline")).steps) <= 8


CONSTANT_OPERANDS: dict[str, Callable[..., Any]] = {
    "scatter onto zeros": lambda x, at: pm.scatter_add(pm.zeros((5, 3)), at, x),
    "set onto a full": lambda x, at: pm.scatter_set(pm.full((5, 3), 7.0), at, x),
    "matmul with ones": lambda x, at: x @ pm.ones((3, 4)) + at.sum().astype("f32"),
    "sorted ones": lambda x, at: pm.argsort(pm.ones((2, 3)), axis=1) + at.sum(),
}


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["host", "webgpu", "webgpu-baseline"])
@pytest.mark.parametrize("name", CONSTANT_OPERANDS)
def test_routines_read_spread_constants(name: str, target: str) -> None:
    graph = pm.trace(CONSTANT_OPERANDS[name], x=pm.spec(2, 3), at=pm.spec(2, dtype="i32"))
    case = Case(graph, {"x": np.arange(6, dtype="f4").reshape(2, 3), "at": np.int32([4, 1])}, {})
    assert check(case, target) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("binding", [1 << 12, 1 << 14])
def test_params_larger_than_a_binding_are_split_by_rows(binding: int) -> None:
    """A table and a weight of several parts each, read by a gather, a matmul and an elementwise kernel."""
    from pumice.backends.webgpu.device import WebGpuDevice

    from harness import device

    caps = device("webgpu").caps.with_(max_binding_bytes=binding, max_storage_buffers=16)
    dev = WebGpuDevice(caps=caps)
    rng = np.random.default_rng(0)
    params = {"t": rng.normal(size=(100, 64)).astype("f4"), "w": rng.normal(size=(96, 64)).astype("f4")}

    def f(params: Any, ids: Any) -> Any:
        rows = pm.embedding(params["t"], ids)
        return rows @ params["w"].T, (params["w"] * 2.0).sum(axis=1)

    with pm.compile(f, params=params, ids=pm.spec(7, dtype="i32"), device=dev) as exe:
        parts = [len(v.parts) for v in exe.plan.values.values()]
        assert max(parts) >= (2 if binding > 1 << 13 else 6)
        ids = np.int32([0, 99, 50, 15, 16, 17, 63])
        a, b = exe.run(ids=ids)
        np.testing.assert_allclose(a, params["t"][ids] @ params["w"].T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(b, params["w"].sum(axis=1) * 2, rtol=1e-4, atol=1e-4)
