"""The WGSL of a few plans, kept as files: a change of the emitter shows as a diff, a refactoring shows none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.ir.graph import Graph
from pumice.plan.build import build_plan

HERE = Path(__file__).parent


def fused_elementwise() -> Graph:
    return pm.trace(lambda x, y: pm.gelu(x * 2.0 + y).astype("f16"), x=pm.spec("B", 8), y=pm.spec(8))


def movement() -> Graph:
    def f(x: Any) -> Any:
        return pm.concatenate([x[:, ::-1].T, pm.pad(x, ((1, 0), (0, 0)))[1:].T], axis=0)

    return pm.trace(f, x=pm.spec(4, 6))


def norm_with_residual() -> Graph:
    def f(params: Any, x: Any, r: Any) -> Any:
        return pm.rms_norm(x + r, params["w"]) * 0.5

    return pm.trace(f, params={"w": pm.spec(256)}, x=pm.spec("T", 256), r=pm.spec("T", 256))


def linear_layer() -> Graph:
    def f(params: Any, x: Any) -> Any:
        return pm.silu(x @ params["w"].T + params["b"])

    return pm.trace(f, params={"w": pm.spec(96, 64), "b": pm.spec(96)}, x=pm.spec("T", 64))


def causal_attention() -> Graph:
    def f(q: Any, k: Any, v: Any) -> Any:
        return pm.attention(q, k, v, causal=True)

    return pm.trace(f, q=pm.spec(1, 4, "T", 64), k=pm.spec(1, 2, "T", 64), v=pm.spec(1, 2, "T", 64))


def one_token() -> Graph:
    """A query against a cache, and a gated layer behind it."""

    def f(params: Any, q: Any, k: Any, v: Any, length: Any) -> Any:
        h = pm.attention(q, k, v, kv_len=length).reshape(1, 256)
        y = pm.rms_norm(h, params["g"]) @ params["up"].T
        return (pm.silu(y[:, :4096]) * y[:, 4096:]) @ params["down"].T

    params = {"g": pm.spec(256), "up": pm.spec(8192, 256, dtype="f16"), "down": pm.spec(256, 4096, dtype="f16")}
    cache = pm.spec(1, 2, 512, 64, dtype="f16")
    return pm.trace(f, params=params, q=pm.spec(1, 4, 1, 64), k=cache, v=cache, length=pm.spec(1, dtype="i32"))


def cache_update() -> Graph:
    def f(x: Any, at: Any) -> Any:
        kv = pm.state("kv", (16, 8), init=np.zeros((16, 8), "f4"))
        new = pm.scatter_set(kv, at, x)
        pm.set_state("kv", new)
        return new.sum()

    return pm.trace(f, x=pm.spec("T", 8), at=pm.spec("T", dtype="i32"))


def attention_gradients() -> Graph:
    def f(q: Any, k: Any, v: Any) -> Any:
        return pm.grad(lambda q, k, v: pm.attention(q, k, v, causal=True).sum(), argnums=(0, 1, 2))(q, k, v)

    return pm.trace(f, q=pm.spec(1, 4, "T", 64), k=pm.spec(1, 2, "T", 64), v=pm.spec(1, 2, "T", 64))


def norm_gradients() -> Graph:
    def f(x: Any, w: Any, b: Any) -> Any:
        return pm.grad(lambda x, w, b: (pm.layer_norm(x, w, b) ** 2).sum(), argnums=(0, 1, 2))(x, w, b)

    return pm.trace(f, x=pm.spec("T", 96), w=pm.spec(96), b=pm.spec(96))


def two_moments() -> Graph:
    """An optimizer's updates of two vectors, which share a kernel."""

    def f(params: Any, g: Any) -> None:
        for name, rate in (("a", 0.5), ("b", 0.25)):
            m = pm.state(f"m.{name}", (48,))
            new = m * 0.9 + g * rate
            pm.set_state(m, new)
            pm.set_param(params[name], params[name] - new)

    return pm.trace(f, params={"a": pm.spec(48), "b": pm.spec(48)}, g=pm.spec(48))


def experts() -> Graph:
    """Matmuls over groups of rows, whose grids come from the device."""

    def f(params: Any, x: Any, sizes: Any) -> Any:
        return pm.silu(pm.grouped_matmul(x, params["up"], sizes))

    return pm.trace(f, params={"up": pm.spec(4, 32, 64)}, x=pm.spec("T", 32), sizes=pm.spec(4, dtype="i32"))


CASES: tuple[Callable[[], Graph], ...] = (
    fused_elementwise,
    movement,
    norm_with_residual,
    linear_layer,
    causal_attention,
    one_token,
    cache_update,
    attention_gradients,
    norm_gradients,
    two_moments,
    experts,
)


@pytest.mark.parametrize("preset", ["browser-baseline", "h200"])
@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_emitted_kernels_are_the_accepted_ones(make: Callable[[], Graph], preset: str, request: pytest.FixtureRequest) -> None:
    plan = build_plan(make(), Caps.preset(preset))
    parts = []
    for s in plan.steps:
        where = ", ".join(f"{b.access} %{b.value}" for b in s.bindings)
        head = f"// {s.label} [{s.variant}]: groups {s.groups}; {where}; sizes {', '.join(map(str, s.uniforms)) or 'static'}"
        parts.append(f"{head}\n{plan.kernels[s.kernel].wgsl}")
    text = "\n".join(parts)
    path = HERE / f"{make.__name__}.{preset}.wgsl"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.exists(), "no golden file: run `make golden` and look at what it writes"
    assert text == path.read_text(), f"{path.name} differs: if that is meant, run `make golden` and review the diff"
