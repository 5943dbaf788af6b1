"""Random chains of blocks over symbolic sizes, whose plans split into regimes: right on both sides of every border.

`pytest tests/fuzz -m slow` runs 200; a few dozen run always.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from regime_cases import RegimeCase, draw, sizes_to_try

from harness import GUARD, HARDWARE, device, run_plan, wrong_outputs

CHUNKS = 4
Block = Callable[[Any, Any, str, int], Any]


def random_chain(seed: int) -> RegimeCase:
    """A few layers over [B, C] or [B, T, C], each a block that has choices to make at some size or other."""
    rng = random.Random(seed)
    width = rng.choice([32, 64, 96])
    axes = rng.choice([("B",), ("B", "T")])
    most = {"B": rng.choice([6, 12, 40])} if len(axes) == 1 else {"B": rng.choice([2, 3]), "T": rng.choice([5, 13])}
    params: dict[str, np.ndarray[Any, Any]] = {}
    specs: dict[str, Any] = {}
    layers = [rng.choice(sorted(_BLOCKS)) for _ in range(rng.randint(1, 2))]
    inner = [rng.choice([32, 40, 64, 128]) for _ in layers]

    def param(name: str, *shape: int) -> None:
        params[name], specs[name] = draw(seed + len(params), *shape) / np.float32(np.sqrt(shape[-1])), pm.spec(*shape)

    for k, (kind, size) in enumerate(zip(layers, inner, strict=True)):
        if kind == "gated":
            param(f"up{k}", 2 * size, width)
            param(f"down{k}", width, size)
        elif kind == "quantised":
            specs[f"q{k}"] = pm.spec(width, width, dtype="q8_0")
            params[f"q{k}"] = quantize_rows(dtype("q8_0"), draw(seed + k, width, width) / np.float32(8))
        elif kind == "matmul":
            param(f"w{k}", width, width)
        elif kind == "norm":
            param(f"n{k}", width)

    def chain(params: Any, x: Any) -> Any:
        for k, (kind, size) in enumerate(zip(layers, inner, strict=True)):
            x = _BLOCKS[kind](params, x, str(k), size)
        return x

    graph = pm.trace(chain, params=specs, x=pm.spec(*axes, width, max=most))
    return RegimeCase(graph, params, lambda env: {"x": draw(seed, *(env[a] for a in axes), width)})


def _gated(params: Any, x: Any, k: str, size: int) -> Any:
    y = pm.rms_norm(x) @ params["up" + k].T
    return x + (pm.silu(y[..., :size]) * y[..., size:]) @ params["down" + k].T


def _quantised(params: Any, x: Any, k: str, size: int) -> Any:
    return x + pm.qmatmul(pm.tanh(x), params["q" + k])


def _matmul(params: Any, x: Any, k: str, size: int) -> Any:
    return pm.gelu(x @ params["w" + k])


def _norm(params: Any, x: Any, k: str, size: int) -> Any:
    return pm.layer_norm(x, params["n" + k]) + pm.softmax(x)


def _attend(params: Any, x: Any, k: str, size: int) -> Any:
    y = x if len(x.shape) == 3 else pm.expand_dims(x, 0)
    heads = y.reshape(y.shape[0], y.shape[1], 2, y.shape[2] // 2)
    return x + pm.attention(heads, heads, heads, layout="bshd", causal=True).reshape(*x.shape)


def _sums(params: Any, x: Any, k: str, size: int) -> Any:
    return x + pm.cumsum(x, axis=0) * 0.1 + x.sum(axis=-1, keepdims=True) * 0.05


_BLOCKS: dict[str, Block] = {
    "gated": _gated,
    "quantised": _quantised,
    "matmul": _matmul,
    "norm": _norm,
    "attend": _attend,
    "sums": _sums,
}


def plan_of(case: RegimeCase, seed: int) -> Plan:
    """For this device as it is, or as it would be planned for hardware, in arenas or with guards."""
    caps = device("webgpu").caps
    if seed % 2:
        caps = caps.with_(**HARDWARE[sorted(HARDWARE)[seed // 2 % len(HARDWARE)]])
    return build_plan(case.graph, caps, PlanOptions(arena=False, guard=GUARD) if seed % 3 == 0 else PlanOptions())


def check_chain(seed: int) -> int:
    """Runs a chain at every border of its plan, and on the host; the number of regimes that were run."""
    case = random_chain(seed)
    plan, host = plan_of(case, seed), build_plan(case.graph, device("host").caps)
    taken = set()
    for env in sizes_to_try(plan):
        one = case.at(env)
        found, broken = run_plan(device("webgpu"), plan, one, guarded=plan.options.guard > 0)
        assert broken == [], (seed, env)
        assert wrong_outputs(one, found) == "", (seed, env)
        if plan.pick(env) not in taken:
            assert wrong_outputs(one, run_plan(device("host"), host, one)[0]) == "", (seed, env)
        taken.add(plan.pick(env))
    assert taken == set(range(len(plan.regimes))), seed
    return len(taken)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_chains_are_right_on_both_sides_of_every_border(chunk: int) -> None:
    found = [check_chain(seed) for seed in range(chunk, 24, CHUNKS)]
    assert sum(found) > 2 * len(found)


def check_pieces(seed: int) -> int:
    """Compares a chain whose large steps run in pieces with the same one whole, bit by bit; the number of pieces."""
    case, caps = random_chain(seed), device("webgpu").caps
    whole, split = (build_plan(case.graph, caps, PlanOptions(arena=False, guard=GUARD, largest_step=n)) for n in (None, 1))
    for env in (whole.maxima, {s: max(1, n // 3) for s, n in whole.maxima.items()}):
        one = case.at(env)
        want, (found, broken) = run_plan(device("webgpu"), whole, one)[0], run_plan(device("webgpu"), split, one, guarded=True)
        assert broken == [], (seed, env)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in want], (seed, env)
    return sum(s.piece is not None for s in split.steps)


@pytest.mark.gpu
def test_random_chains_in_pieces_give_the_bits_of_whole_steps() -> None:
    assert sum(check_pieces(seed) for seed in range(6)) > 20


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8))
def test_many_random_chains_in_pieces(chunk: int) -> None:
    assert sum(check_pieces(seed) for seed in range(2000 + chunk, 2120, 8)) > 30


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8))
def test_many_random_chains(chunk: int) -> None:
    found = [check_chain(seed) for seed in range(1000 + chunk, 1200, 8)]
    assert sum(found) > 2 * len(found)
