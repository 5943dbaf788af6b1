"""Small models with their data, kept as golden plan files: what they were given and what the oracle made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.ir.graph import Graph
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan
from pumice.reference.interpreter import evaluate_graph

Array = np.ndarray[Any, Any]
GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class PlanCase:
    """A graph, the caps it is planned for, its params, and the inputs of some runs in a row."""

    graph: Graph
    params: Mapping[str, Array]
    runs: Sequence[Mapping[str, Array]]
    preset: str = "browser-baseline"
    max: Mapping[str, int] = field(default_factory=dict)

    def plan(self, preset: str = "") -> Plan:
        return build_plan(self.graph, Caps.preset(preset or self.preset), max=self.max)

    def expected(self) -> list[dict[str, Array]]:
        """What each run gives by the oracle, by `outputs NAME` and `captures NAME`, in the declared dtypes."""
        state: Mapping[str, Array] = {}
        found = []
        for inputs in self.runs:
            result = evaluate_graph(self.graph, inputs, self.params, state)
            state = result.state
            rows = {f"outputs {name}": (i, a) for (name, i), a in zip(self.graph.outputs, result.outputs, strict=True)}
            rows |= {f"captures {name}": (i, result.captures[name]) for name, i in self.graph.captures}
            found.append({name: a.astype(self.graph.nodes[i].type.dtype.np) for name, (i, a) in rows.items()})
        return found

    def arrays(self) -> dict[str, Array]:
        """Params and inputs under the names that `plan_reader.py` takes."""
        named = {f"param {name}": a for name, a in self.params.items()}
        return named | {f"{k} {name}": a for k, inputs in enumerate(self.runs) for name, a in inputs.items()}


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mlp() -> PlanCase:
    """Params and a symbolic batch, which the runs change."""

    def f(params: Any, x: Any) -> Any:
        hidden = pm.gelu(x @ params["up"]["w"] + params["up"]["b"])
        return pm.softmax(hidden @ params["down"]["w"])

    shapes = {"up": {"w": pm.spec(12, 20), "b": pm.spec(20)}, "down": {"w": pm.spec(20, 5)}}
    params = {"up.w": numbers(1, 12, 20), "up.b": numbers(2, 20), "down.w": numbers(3, 20, 5)}
    runs = [{"x": numbers(4 + n, n, 12)} for n in (3, 7, 1)]
    return PlanCase(pm.trace(f, params=shapes, x=pm.spec("B", 12)), params, runs, max={"B": 16})


def decoder_step() -> PlanCase:
    """Attention over a cache that lives in states; the second run sees what the first one left."""
    heads, dim, room = 2, 8, 12

    def f(params: Any, x: Any, at: Any) -> Any:
        q, k, v = pm.split(x @ params["qkv"], 3, axis=-1)
        rows = at + pm.arange(x.shape[0])
        cache = []
        for name, new in (("keys", k), ("values", v)):
            old = pm.state(name, (room, heads * dim))
            cache.append(pm.scatter_set(old, rows, new))
            pm.set_state(name, cache[-1])
        q, k, v = (t.reshape(1, t.shape[0], heads, dim) for t in (q, *cache))
        out = pm.attention(q, k, v, causal=True, offset=at, kv_len=at + x.shape[0], layout="bshd")
        return out.reshape(x.shape[0], heads * dim) @ params["out"]

    wide = heads * dim
    params = {"qkv": numbers(1, wide, 3 * wide) / 4, "out": numbers(2, wide, wide) / 4}
    specs = {name: pm.spec(*a.shape) for name, a in params.items()}
    runs = [
        {"x": numbers(3, 4, wide), "at": np.int32([0])},
        {"x": numbers(4, 1, wide), "at": np.int32([4])},
    ]
    graph = pm.trace(f, params=specs, x=pm.spec("T", wide), at=pm.spec(1, dtype="i32"))
    return PlanCase(graph, params, runs, max={"T": 8})


def several_results() -> PlanCase:
    """Captures, nested outputs of several dtypes, constants, a state with a first value, and an element that must exist."""
    table = numbers(9, 6, 4)

    def f(x: Any, ids: Any) -> Any:
        seen = pm.state("seen", (4,), init=np.float32([1, 2, 3, 4]))
        picked = pm.capture("picked", pm.embedding(table, ids))
        total = x[2] * picked.sum(axis=0)
        pm.set_state("seen", seen + total)
        return {"half": pm.tanh(x).astype("f16"), "rest": [pm.argmax(x, axis=-1), x[::-1] > 0.0], "seen": seen}

    runs = [{"x": numbers(n, n, 4), "ids": np.int32(range(n - 1))} for n in (3, 5)]
    graph = pm.trace(f, x=pm.spec("T+1", 4), ids=pm.spec("T", dtype="i32"))
    return PlanCase(graph, {}, runs, max={"T": 8})


def quantised() -> PlanCase:
    """Quantised params, and kernels that use subgroups."""

    def f(params: Any, x: Any) -> Any:
        hidden = pm.silu(pm.qmatmul(pm.rms_norm(x)[:, :64], params["a"]))
        return pm.qmatmul(hidden, params["b"])

    params = {
        "a": quantize_rows(dtypes.q8_0, numbers(1, 32, 64)),
        "b": quantize_rows(dtypes.q4_0, numbers(2, 6, 32)),
    }
    specs = {"a": pm.spec(32, 64, dtype="q8_0"), "b": pm.spec(6, 32, dtype="q4_0")}
    runs = [{"x": numbers(3, 1, 256)}]
    return PlanCase(pm.trace(f, params=specs, x=pm.spec(1, 256)), params, runs, "lavapipe")


def experts() -> PlanCase:
    """Grids from the device: matmuls over groups of rows, of which the runs have none, some and more than there are."""

    def f(params: Any, x: Any, sizes: Any) -> Any:
        return pm.grouped_matmul(pm.silu(pm.grouped_matmul(x, params["up"], sizes)), params["down"], sizes)

    params = {"up": numbers(1, 3, 8, 20) / 4, "down": numbers(2, 3, 20, 8) / 4}
    specs = {name: pm.spec(*a.shape) for name, a in params.items()}
    runs = [
        {"x": numbers(n, n, 8), "sizes": np.int32(sizes)} for n, sizes in ((7, (2, 0, 4)), (30, (0, 0, 0)), (25, (20, -1, 9)))
    ]
    graph = pm.trace(f, params=specs, x=pm.spec("T", 8), sizes=pm.spec(3, dtype="i32"))
    return PlanCase(graph, params, runs, max={"T": 40})


CASES: dict[str, Callable[[], PlanCase]] = {
    f.__name__: cache(f)  # type: ignore[dict-item]
    for f in (mlp, decoder_step, several_results, quantised, experts)
}
