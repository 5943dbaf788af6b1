"""Kernels that training alone needs: the gradients of attention and norms, products cut along K, gathered updates."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import nn, optim
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.kernels.lower import has_kernel
from pumice.kernels.routines import attention_gradient_tiles
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from pumice.train.graphs import TrainStepGraphs

import harness

BASELINE, H200 = Caps.preset("browser-baseline"), Caps.preset("h200")
on_targets = pytest.mark.parametrize("target", ["webgpu", "webgpu-baseline"])


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- attention ---


def attention_gradients(q: Any, k: Any, v: Any, dy: Any) -> Any:
    return pm.grad(lambda q, k, v: (pm.attention(q, k, v, layout="bshd", causal=True) * dy).sum(), argnums=(0, 1, 2))(q, k, v)


@pytest.mark.parametrize("depth", [1, 40, 64, 128, 256])
@pytest.mark.parametrize("caps", [BASELINE, H200, Caps.preset("lavapipe")], ids=lambda c: c.name)
def test_blocks_keep_to_the_limits(caps: Caps, depth: int) -> None:
    blocks = attention_gradient_tiles.decide(caps, depth, depth)
    assert blocks is not None
    assert blocks.shared_bytes(depth, depth) <= caps.workgroup_memory and blocks.threads <= caps.max_invocations
    assert blocks.held % blocks.tile == 0 and blocks.busy <= blocks.threads and blocks.passing % 4 == 0


@pytest.mark.parametrize("caps", [BASELINE, H200], ids=lambda c: c.name)
def test_workgroup_memory_is_what_the_blocks_say(caps: Caps) -> None:
    specs = {name: pm.spec(1, 100, 2, 64) for name in ("q", "k", "v", "dy")}
    blocks = attention_gradient_tiles.decide(caps, 64, 64)
    assert blocks is not None
    for kernel in build_plan(pm.trace(attention_gradients, **specs), caps).kernels:
        if "attention_gradient" in kernel.name:
            arrays = re.findall(r"var<workgroup> \w+: array<(\S+), (\d+)>", kernel.wgsl)
            used = sum((16 if element == "vec4<f32>" else 4) * int(count) for element, count in arrays)
            assert arrays and used <= blocks.shared_bytes(64, 64) <= caps.workgroup_memory


def test_scores_are_never_stored() -> None:
    length = 1024
    specs = {name: pm.spec(1, length, 2, 64) for name in ("q", "k", "v", "dy")}
    plan = build_plan(pm.trace(attention_gradients, **specs), BASELINE)
    assert max(value.type.max_nbytes({}) for value in plan.values.values()) < length * length * 4
    assert sum("attention_gradient" in s.label for s in plan.steps) == 2


def test_heads_too_deep_for_the_kernels_are_composed_of_other_ops() -> None:
    specs = {name: pm.spec(1, 8, 1, 600) for name in ("q", "k", "v", "dy")}
    graph = pm.trace(attention_gradients, **specs)
    (node,) = (n for n in graph if n.op == "attention_gradient")
    assert not has_kernel(BASELINE, graph, node) and has_kernel(Caps.preset("host"), graph, node)
    labels = [s.label for s in build_plan(graph, BASELINE).steps]
    assert any("softmax" in label for label in labels) and not any("concat" in label for label in labels)


@pytest.mark.gpu
@on_targets
def test_sizes_known_late_and_equal_bits_in_every_run(target: str) -> None:
    shapes = {"q": (4, 24), "k": (2, 24), "v": (2, 24), "dy": (4, 24)}
    graph = pm.trace(attention_gradients, **{n: pm.spec("B", "S", *shape) for n, shape in shapes.items()})
    inputs = {n: normal(2, 45, *shape, seed=len(n)) for n, shape in shapes.items()}
    inputs["v"] = normal(2, 45, 2, 24, seed=9)
    case = harness.Case(graph, inputs, {})
    assert harness.check(case, target, max={"B": 3, "S": 64}) == ""
    dev = harness.device(target)
    plan = build_plan(graph, dev.caps, max={"B": 3, "S": 64})
    first, again = (harness.run_plan(dev, plan, case)[0] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@on_targets
def test_what_lies_behind_hidden_keys_does_not_matter(target: str) -> None:
    b = GraphBuilder()
    q, k, v, dy = (b.source("input", n, TensorType(dtypes.f32, (1, 2, 20, 16))) for n in ("q", "k", "v", "dy"))
    length = b.source("input", "n", TensorType(dtypes.i32, ()))
    outs = b.add_all("attention_gradient", [q, k, v, dy, None, None, None, length])
    inputs = {n: normal(1, 2, 20, 16, seed=i) for i, n in enumerate(("q", "k", "v", "dy"))} | {"n": np.array(13, np.int32)}
    dirty = {n: a.copy() for n, a in inputs.items()}
    dirty["k"][:, :, 13:] = dirty["v"][:, :, 13:] = np.nan
    dev = harness.device(target)
    graph = b.build([(str(i), out) for i, out in enumerate(outs)])
    plan = build_plan(graph, dev.caps)
    clean, spoilt = (harness.run_plan(dev, plan, harness.Case(graph, x, {}))[0] for x in (inputs, dirty))
    for want, got in zip(clean, spoilt, strict=True):
        np.testing.assert_array_equal(got, want)


# --- norms ---


def test_a_norm_goes_back_in_three_kernels() -> None:
    def f(x: Any, w: Any, b: Any, dy: Any) -> Any:
        return pm.grad(lambda x, w, b: (pm.layer_norm(x, w, b) * dy).sum(), argnums=(0, 1, 2))(x, w, b)

    graph = pm.trace(f, x=pm.spec("T", 256), w=pm.spec(256), b=pm.spec(256), dy=pm.spec("T", 256))
    plan = build_plan(graph, H200, max={"T": 4096})
    assert sum("norm" in s.label for s in plan.steps) == 3
    rows = 4096 * 256 * 4
    assert sum(b.nbytes for b in plan.buffers if b.kind == "arena") < 3 * rows  # dy spread out, dx, and sums of some rows


# --- products cut along K ---


@pytest.mark.gpu
def test_gradients_of_weights_are_cut_along_the_rows() -> None:
    graph = pm.trace(lambda a, b: a.T @ b * 2.0 + 1.0, a=pm.spec(1024, 33), b=pm.spec(1024, 20))
    assert [s.variant for s in build_plan(graph, BASELINE).steps] == ["tiled 32x32x16 4x4 in 4 parts", "combine 4"]
    case = harness.Case(graph, {"a": normal(1024, 33), "b": normal(1024, 20, seed=1)}, {})
    assert harness.check(case, "webgpu-baseline") == ""


def test_products_that_fill_the_device_or_cannot_be_cut_stay_whole() -> None:
    large = pm.trace(lambda a, b: a.T @ b, a=pm.spec(1024, 2048), b=pm.spec(1024, 2048))
    odd = pm.trace(lambda a, b: a.T @ b, a=pm.spec(1023, 32), b=pm.spec(1023, 32))
    few = pm.trace(lambda a, b: a @ b, a=pm.spec(4, 4096), b=pm.spec(4096, 64))
    for graph in (large, odd, few):
        assert len(build_plan(graph, H200).steps) == 1


# --- updates ---


def training_plan(optimizer: optim.Optimizer, caps: Caps, **options: Any) -> Plan:
    model = nn.MLP(6, 24, 3)
    specs = {"x": pm.spec(5, 6), "y": pm.spec(5, dtype="i32")}
    trained = tuple(model.named_parameters())

    def loss(model: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x), y)

    return build_plan(
        TrainStepGraphs(model, loss, optimizer, specs, "f32", 1, False, trained).main(), caps, PlanOptions(**options)
    )


@pytest.mark.parametrize(
    "optimizer",
    [optim.AdamW(0.01), optim.Lion(0.01), optim.SGD(0.1, momentum=0.9), optim.Adam(0.01, ema=0.9)],
    ids=lambda o: o.kind,
)
def test_updates_share_kernels(optimizer: optim.Optimizer) -> None:
    apart = training_plan(optimizer, H200, fuse=False)
    for caps in (H200, BASELINE):
        plan = training_plan(optimizer, caps)
        updates = [s for s in plan.steps if s.label.startswith("update ")]
        # Some are the epilogue of the product that gives the gradient.
        touched = [b.value for s in plan.steps for b in s.bindings if b.access == "update" and (s in updates or s.anchor)]
        assert sorted(touched) == sorted(s for s, _ in plan.graph.updates)
        assert 1 <= len(updates) <= 6 and not plan.copies
        assert len(plan.steps) < len(apart.steps)
        assert all(len(s.bindings) <= caps.max_storage_buffers for s in updates)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "optimizer", [optim.AdamW(0.01, clip_norm=0.5), optim.Lion(0.01), optim.Adam(0.01, ema=0.9)], ids=lambda o: o.kind
)
def test_gathered_updates_train_like_the_host(optimizer: optim.Optimizer) -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x), y)

    x, y = normal(5, 6), np.array([0, 1, 2, 1, 0], np.int32)
    found = []
    for device in ("host", "webgpu"):
        specs = {"x": pm.spec(5, 6), "y": pm.spec(5, dtype="i32")}
        with pm.train.compile_step(nn.MLP(6, 24, 3), loss, optimizer, specs, device=device) as step:
            losses = [step(x=x, y=y) for _ in range(8)]
            found.append((losses, step.params(), step.state_dict()["optim"]))
    (host_losses, host_params, host_states), (losses, params, states) = found
    np.testing.assert_allclose(losses, host_losses, rtol=1e-4)
    for mine, other in ((params, host_params), (states, host_states)):
        assert mine.keys() == other.keys()
        for name, a in mine.items():
            np.testing.assert_allclose(a, other[name], rtol=2e-3, atol=2e-5, err_msg=name)
