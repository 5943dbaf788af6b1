"""Groups of like layers are lowered once: the plan must be the one that lowering each of them gives."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.kernels.builder import Lowered
from pumice.kernels.lower import lower_group
from pumice.kernels.repeats import Repeats
from pumice.passes.cse import cse
from pumice.plan.build import build_plan
from pumice.plan.plan import Binding, PlanOptions, Step


def model(params: Any, x: Any, ids: Any) -> Any:
    for layer in params["layers"]:
        h = pm.rms_norm(x, layer["norm"])
        q, k, v = (pm.reshape(h @ layer[n], (1, x.shape[0], 2, 16)) for n in ("q", "k", "v"))
        a = pm.attention(q, k, v, causal=True, layout="bshd").reshape(x.shape[0], 32)
        x = x + pm.silu(a @ layer["up"]) @ layer["down"]
        # Narrow results go through a temporary, of which each layer needs its own.
        x = x + pm.cumsum(x, axis=1).astype("f16").astype("f32") * pm.embedding(layer["table"], ids)
    return x


def layer(dtype: str) -> dict[str, pm.Spec]:
    shapes = {"norm": (32,), "q": (32, 32), "k": (32, 32), "v": (32, 32), "up": (32, 64), "down": (64, 32), "table": (50, 32)}
    return {n: pm.spec(*s, dtype=dtype if len(s) > 1 else "f32") for n, s in shapes.items()}


@pytest.mark.parametrize("preset", ["browser-baseline", "h200"])
def test_plans_are_the_same_with_and_without(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [layer(d) for d in ("f32", "f32", "f16", "f32")]
    graph = pm.trace(model, params={"layers": layers}, x=pm.spec("T", 32), ids=pm.spec("T", dtype="i32"))
    shared = build_plan(graph, Caps.preset(preset), PlanOptions(regimes=True), max={"T": 64})
    monkeypatch.setattr(Repeats, "lower", lambda self, ctx, group: lower_group(ctx, group))
    each = build_plan(graph, Caps.preset(preset), PlanOptions(regimes=True), max={"T": 64})
    assert shared.kernels == each.kernels and shared.buffers == each.buffers
    assert len(shared.regimes) > 1
    assert [(r.steps, r.values, r.bounds) for r in shared.regimes] == [(r.steps, r.values, r.bounds) for r in each.regimes]


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_attributes_that_only_compare_equal_stay_apart(device: str) -> None:
    def zeros(x: Any) -> Any:
        return pm.pad(x, [(1, 0)], 0.0), pm.pad(x, [(1, 0)], -0.0)

    graph = pm.trace(zeros, x=pm.spec(3))
    assert len(cse(graph)) == 3
    with pm.compile(graph, device=device) as exe:
        plus, minus = exe.run(x=np.ones(3, "f4"))
    assert not np.signbit(plus[0]) and np.signbit(minus[0])


def test_copies_for_other_values_keep_every_other_field() -> None:
    one, two = Binding(1, 0, "write"), Binding(2, 0, "write")
    lowered = Lowered("fn main() {}", (one,), (3,), 4, "exp", "map/1", 64, 16, ("f16",), "pack")
    step = Step("exp", (1,), 1, (one,), 2, (3,), 4, 1, "map/1")
    for full in (lowered, step):
        assert all(getattr(full, f.name) != f.default for f in fields(full)), "give every field a value of its own"
    assert lowered.bound_to((two,), 5) == replace(lowered, bindings=(two,), groups=5)
    assert step.with_kernel(7) == replace(step, kernel=7)
