"""Two train steps with optimizers of their own take turns on the parameters of one store, which never leave the device."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors, nn, optim

from harness import device

ROOT = Path(__file__).parents[2]
on_both = pytest.mark.parametrize("target", [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)])


class Pair(nn.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)


def loss(model: Any, x: Any) -> Any:
    return nn.mse(model.b(model.a(x)), x)


def only(part: str, **options: Any) -> Any:
    return optim.AdamW(0.01, groups=[optim.ParamGroup("b.*" if part == "a" else "a.*", frozen=True)], **options)


ROUNDS = 700
X = np.random.default_rng(0).standard_normal((4, 3)).astype("f4")
INPUTS = {"x": pm.spec(4, 3)}


def alternating(store: pm.Store | None, dev: Any, steps: int, **options: Any) -> dict[str, Any]:
    """Parameters after some steps that take turns: on one store, or with the parameters carried between two of them."""
    pair = [pm.train.compile_step(Pair(), loss, only(part), INPUTS, device=dev, store=store, **options) for part in "ab"]
    for k in range(steps):
        step = pair[k % 2]
        if store is None and k:
            step.set_params(pair[1 - k % 2].params())
        step(x=X)
    result = pair[(steps - 1) % 2].params()
    for step in pair:
        step.close()
    return result


@on_both
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_on_one_store_do_what_steps_with_copies_do(target: str, accumulate: int) -> None:
    dev = device(target)
    with pm.Store(dev) as store:
        shared = alternating(store, dev, 8, accumulate=accumulate)
    copied = alternating(None, dev, 8, accumulate=accumulate)
    for name, value in copied.items():
        np.testing.assert_array_equal(shared[name], value)


@on_both
def test_optimizers_of_one_store_keep_their_states_apart(target: str) -> None:
    with pm.Store(device(target)) as store:
        first = pm.train.compile_step(Pair(), loss, only("a", ema=0.9), INPUTS, store=store)
        first(x=X)
        before = first.params()
        # Parameters that are set stay; those that are given are set.
        given = {"b.bias": np.float32([1, 2, 3])}
        second = pm.train.compile_step(Pair(), loss, only("b", ema=0.9), INPUTS, store=store, params=given, seed=5)
        for name, value in {**before, **given}.items():
            np.testing.assert_array_equal(first.params()[name], value)
        states = {n: e.read() for n, e in first.executable.state.items()}
        second(x=X)
        for name, value in states.items():
            np.testing.assert_array_equal(first.executable.state[name].read(), value)
        assert {n for n in store} == set(before), "states belong to the steps"
        used = store.memory()["state"]
        second.close()
        assert 0 < store.memory()["state"] < used
        first(x=X)
        first.close()
        assert store.memory() == {"param": store.memory()["param"], "state": 0}
        with pytest.raises(errors.ClosedError):
            first(x=X)


@on_both
def test_parameters_stay_on_the_device_while_steps_and_forward_passes_take_turns(target: str) -> None:
    with pm.Store(device(target)) as store:
        steps = [pm.train.compile_step(Pair(), loss, only(part), INPUTS, store=store) for part in "ab"]
        passes = [steps[0].forward(lambda model, x: model.a(x), INPUTS), steps[1].forward(lambda model, x: model.b(x), INPUTS)]
        moved = store.counters()
        before = [e.counters()["readback_bytes"] for e in (*(s.executable for s in steps), *passes)]
        for k in range(6):
            steps[k % 2](x=X)
            passes[k % 2].run(x=X)
        after = [e.counters()["readback_bytes"] for e in (*(s.executable for s in steps), *passes)]
        assert store.counters() == moved
        assert [b - a for a, b in zip(before, after, strict=True)] == [3 * 4, 3 * 4, 3 * 48, 3 * 48]  # losses and results


def test_the_example_covers_the_ring() -> None:
    gan = runpy.run_path(str(ROOT / "examples" / "gan.py"))
    points, moved = gan["train"]("host", rounds=ROUNDS)
    clusters, near = gan["quality"](points)
    assert moved == 0 and clusters >= 6 and near > 0.6
    assert gan["picture"](points).count("o") > 50
    spread, _ = gan["quality"](np.random.default_rng(0).uniform(-1.5, 1.5, (1024, 2)))
    assert spread == 0, "points anywhere cover nothing"


def test_the_page_about_weights_runs() -> None:
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "weights.md").read_text(), re.S):
        exec(compile(code, "weights.md", "exec"), names)
    names["store"].close()
