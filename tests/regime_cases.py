"""Graphs whose plans have regimes, with data at any size, for the tests on both sides of every border."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import pumice as pm
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype
from pumice.ir.graph import Graph
from pumice.plan.plan import Plan
from pumice.plan.regimes import border_sizes

from harness import Case

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class RegimeCase:
    """A graph over symbols, its params, and its inputs at given sizes."""

    graph: Graph
    params: Mapping[str, Array]
    inputs: Callable[[Sizes], Mapping[str, Array]]

    def at(self, env: Sizes) -> Case:
        """The case at one size of its symbols."""
        return Case(self.graph, self.inputs(env), self.params)


def sizes_to_try(plan: Plan) -> Iterator[dict[str, int]]:
    """Both sides of every border, one of everything, and the maxima; each once."""
    seen: set[tuple[int, ...]] = set()
    found = [dict.fromkeys(plan.maxima, 1), dict(plan.maxima)]
    for regime in plan.regimes[:-1]:
        for d, most in regime.bounds:
            at = border_sizes(plan.maxima, (d, most))
            found += [at, {s: min(n + 1, plan.maxima[s]) for s, n in at.items()}]
            found += [{**dict.fromkeys(plan.maxima, 1), s: n} for s, n in border_sizes(plan.maxima, (d, most)).items()]
    for env in found:
        if tuple(env.values()) not in seen:
            seen.add(tuple(env.values()))
            yield env


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def dense() -> RegimeCase:
    """A gated layer: norm, gate and up in one matmul, down, and the residual."""

    def layer(params: Any, x: Any) -> Any:
        y = pm.rms_norm(x, params["norm"]) @ params["up"].T
        return x + (pm.silu(y[:, :72]) * y[:, 72:]) @ params["down"].T

    params = {"norm": draw(1, 48), "up": draw(2, 144, 48), "down": draw(3, 48, 72)}
    specs = {name: pm.spec(*a.shape) for name, a in params.items()}
    graph = pm.trace(layer, params=specs, x=pm.spec("B", 48, max=150))
    return RegimeCase(graph, params, lambda env: {"x": draw(4, env["B"], 48)})


def quantised() -> RegimeCase:
    """The same with a quantised weight, over a flattened batch: its rows are B*T."""

    def layer(params: Any, x: Any) -> Any:
        return pm.qmatmul(pm.rms_norm(x, params["norm"]), params["w"]) + x

    kind = dtype("q4_0")
    stored = quantize_rows(kind, draw(5, 64, 64))
    params = {"norm": draw(1, 64), "w": stored}
    specs = {"norm": pm.spec(64), "w": pm.spec(64, 64, dtype="q4_0")}
    graph = pm.trace(layer, params=specs, x=pm.spec("B", "T", 64, max={"B": 6, "T": 24}))
    return RegimeCase(graph, params, lambda env: {"x": draw(4, env["B"], env["T"], 64)})


def attention() -> RegimeCase:
    """Attention over two symbols of its own."""
    graph = pm.trace(
        lambda q, k, v: pm.attention(q, k, v, causal=False),
        q=pm.spec("B", 4, "T", 16, max={"B": 3, "T": 40}),
        k=pm.spec("B", 2, 96, 16, max=3),
        v=pm.spec("B", 2, 96, 16, max=3),
    )

    def inputs(env: Sizes) -> dict[str, Array]:
        b, t = env["B"], env["T"]
        return {"q": draw(1, b, 4, t, 16), "k": draw(2, b, 2, 96, 16), "v": draw(3, b, 2, 96, 16)}

    return RegimeCase(graph, {}, inputs)


def norms() -> RegimeCase:
    """Rows of every kind: norms, softmax along a symbol, sums down the rows."""

    def rows(params: Any, x: Any) -> Any:
        y = pm.layer_norm(x, params["weight"], params["bias"])
        return pm.softmax(y, axis=0), y.sum(axis=0), pm.cumsum(x, axis=0), pm.argmax(x, axis=1)

    params = {"weight": draw(1, 40), "bias": draw(2, 40)}
    specs = {name: pm.spec(*a.shape) for name, a in params.items()}
    graph = pm.trace(rows, params=specs, x=pm.spec("N", 40, max=3000))
    return RegimeCase(graph, params, lambda env: {"x": draw(4, env["N"], 40)})


def counter() -> RegimeCase:
    """A state that takes what every run adds, whatever regime it runs in."""

    def step(params: Any, x: Any) -> Any:
        total = pm.state("total", (48,))
        y = x @ params["w"]
        pm.set_state("total", total + y.sum(axis=0))
        return y + total

    params = {"w": draw(2, 48, 48)}
    graph = pm.trace(step, params={"w": pm.spec(48, 48)}, x=pm.spec("B", 48, max=150))
    return RegimeCase(graph, params, lambda env: {"x": draw(env["B"], env["B"], 48)})


CASES: dict[str, Callable[[], RegimeCase]] = {
    "dense": dense,
    "quantised": quantised,
    "attention": attention,
    "norms": norms,
}
