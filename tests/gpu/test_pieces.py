"""Steps in pieces compute, bit for bit, what the whole steps do: the same workgroups in several dispatches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import config, nn, optim, train
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from regime_cases import CASES, draw, sizes_to_try
from tiny_models import checkpoint

from harness import GUARD, HARDWARE, Case, device, run_plan, wrong_outputs

Array = np.ndarray[Any, Any]


def require_few_cores() -> None:
    """A piece keeps the device busy: on a GPU it has at least 128 workgroups, which small models do not."""
    if device("webgpu").caps.is_gpu:
        pytest.skip("the shapes are too small for pieces on this GPU; a software device has them")


def plans(graph: Any, maxima: dict[str, int] | None = None) -> tuple[Plan, Plan]:
    """The graph planned whole, and in the smallest pieces, for a device of few cores: those that fill a GPU are larger."""
    caps = device("webgpu").caps.with_(software=True)
    whole, split = (build_plan(graph, caps, PlanOptions(arena=False, guard=GUARD, largest_step=n), max=maxima) for n in (None, 1))
    return whole, split


def same_bits(whole: Plan, split: Plan, case: Case) -> None:
    states: tuple[dict[str, Array], dict[str, Array]] = {}, {}
    gpu = device("webgpu")
    want, _ = run_plan(gpu, whole, case, states=states[0])
    found, broken = run_plan(gpu, split, case, guarded=True, states=states[1])
    assert broken == [] and [a.tobytes() for a in found] == [a.tobytes() for a in want]
    assert {n: a.tobytes() for n, a in states[1].items()} == {n: a.tobytes() for n, a in states[0].items()}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_every_size_gives_the_bits_of_the_whole_steps(name: str) -> None:
    case = CASES[name]()
    whole, split = plans(case.graph)
    assert any(s.piece for s in split.steps)
    for env in list(sizes_to_try(whole))[:4]:  # one of everything, the maxima, both sides of a border
        same_bits(whole, split, case.at(env))
    assert wrong_outputs(case.at(whole.maxima), run_plan(device("webgpu"), split, case.at(whole.maxima))[0]) == ""


OPS: dict[str, tuple[Callable[..., Any], dict[str, Array]]] = {
    "batched matmul, narrow epilogue": (
        lambda a, b: (a @ b * 2.0).astype("f16"),
        {"a": draw(1, 3, 70, 40), "b": draw(2, 3, 40, 33)},
    ),
    "conv": (
        lambda x, w: pm.relu(pm.conv2d(x, w, padding=1)),
        {"x": draw(3, 2, 5, 17, 16), "w": draw(4, 8, 5, 3, 3)},
    ),
    "grouped": (
        lambda x, w, sizes: pm.grouped_matmul(x, w, sizes),
        {"x": draw(5, 300, 32), "w": draw(6, 4, 32, 24), "sizes": np.array([100, 0, 130, 40], np.int32)},
    ),
    "sum over all": (lambda x: (x * 0.5).sum(), {"x": draw(7, 257, 300)}),
    "sort": (lambda x: pm.sort(x), {"x": draw(8, 40, 700)}),
    "scatter": (
        lambda x, i: pm.scatter_add(pm.zeros((50, 24)), i, x),
        {"x": draw(9, 400, 24), "i": np.arange(400, dtype=np.int32) * 7 % 50},
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_every_kind_of_kernel_runs_in_pieces(name: str) -> None:
    fn, arrays = OPS[name]
    case = Case(pm.trace(fn, **{k: pm.spec(*a.shape, dtype=a.dtype) for k, a in arrays.items()}), arrays, {})
    whole, split = plans(case.graph)
    assert any(s.piece for s in split.steps)
    same_bits(whole, split, case)
    assert wrong_outputs(case, run_plan(device("webgpu"), split, case)[0]) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("changes", HARDWARE.values(), ids=HARDWARE)
def test_plans_for_hardware_run_in_pieces(changes: dict[str, Any]) -> None:
    graph = pm.trace(lambda x, w: pm.gelu(x @ w), x=pm.spec("B", 64), w=pm.spec(64, 1500))
    case = Case(graph, {"x": draw(1, 300, 64), "w": draw(2, 64, 1500)}, {})
    caps = device("webgpu").caps.with_(**changes)
    whole, split = (build_plan(graph, caps, PlanOptions(largest_step=n, arena=False, guard=GUARD)) for n in (None, 10**6))
    same_bits(whole, split, case)


@pytest.mark.gpu
def test_training_in_pieces_updates_params_and_moments_to_the_same_bits() -> None:
    require_few_cores()
    x, y = draw(1, 64, 32), draw(2, 64, 16)

    def loss(model: Any, x: Any, y: Any) -> Any:
        return ((model(x) - y) ** 2).mean()

    found = []
    for largest in (None, 1):
        with pm.Store(device("webgpu"), largest_step=largest) as store:
            model = nn.Sequential(nn.Linear(32, 200), pm.gelu, nn.Linear(200, 16))
            specs = {"x": pm.spec("B", 32), "y": pm.spec("B", 16)}
            with train.compile_step(model, loss, optim.AdamW(0.01), specs, max=64, seed=3, store=store) as step:
                assert any(s.piece for s in step.executable.plan.steps) == (largest is not None)
                losses = [float(step(x=x[:n], y=y[:n])) for n in (64, 5, 64)]
                found.append((losses, {n: a.tobytes() for n, a in step.params().items()}))
    assert found[0] == found[1]


@pytest.mark.gpu
def test_a_model_in_pieces_gives_the_same_tokens_from_plans_of_its_own(tmp_path: Path) -> None:
    require_few_cores()
    model = checkpoint("llama", tmp_path)
    found = []
    with config.override(home=tmp_path / "home"):
        for largest in (None, 1, 1):  # the third reads the plans that the second has kept
            with pm.load(model, device=device("webgpu"), context=32, largest_step=largest) as loaded:
                found.append(loaded.generate("w4 w5 w6", max_tokens=5, temperature=0, raw=True).tokens)
                steps = [s for plan in loaded.engine.plans for s in plan.steps]
                assert any(s.piece for s in steps) == (largest is not None)
    assert found[0] == found[1] == found[2]


@pytest.mark.gpu
def test_a_profile_has_a_time_and_a_share_of_the_arithmetic_for_every_piece() -> None:
    require_few_cores()
    args = {"x": pm.spec(256, 64), "w": pm.spec(64, 256)}
    with pm.compile(lambda x, w: x @ w, **args, device=device("webgpu"), largest_step=1) as exe:
        found = exe.profile(x=draw(1, 256, 64), w=draw(2, 64, 256), repeats=1)
        steps = [s for s in found.steps if s.step >= 0]
        assert len(steps) == len(exe.plan.steps) > 1
        assert sum(s.flops or 0 for s in steps) == 2 * 256 * 64 * 256
        assert "in pieces" in str(exe.report())
