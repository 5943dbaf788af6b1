"""Runs in ranges: the same bits as whole runs on every device, in every mode, and reports that hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.gpu.parts import first_update
from pumice.backends.null import NullDevice
from pumice.core.caps import Caps
from pumice.plan.plan import DeviceCount
from pumice.routes.documents import plain
from pumice.routes.records import EXECUTION_REPORT
from pumice.routes.report_validation import validate_report

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
MODES: dict[str, Callable[[], pm.Cooperative]] = {
    "one step": lambda: pm.Cooperative(chunk=1),
    "three steps": lambda: pm.Cooperative(chunk=3, yield_ms=0.5),
    "prefix": lambda: pm.Cooperative(chunk=1, max_in_flight=3),
    "adaptive": lambda: pm.Cooperative(0.2, gain=1),
    "disabled": lambda: pm.Cooperative(mode="disabled"),
}
in_all_modes = pytest.mark.parametrize("mode", MODES)


@dataclass
class Case:
    function: Callable[..., Any]
    specs: dict[str, Any]
    params: dict[str, Array] = field(default_factory=dict)
    sizes: tuple[int, ...] = (5,)


def _weights(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype("f4")


def chain(x: Any) -> Any:
    for _ in range(5):
        x = pm.softmax(x) + pm.sin(x)
    return x


def counting(x: Any) -> Any:
    n, seen = pm.state("n", (8,)), pm.state("seen", (8,))
    total = pm.sum(pm.softmax(x), axis=0)
    pm.set_state(n, n * 2.0 + total)
    pm.set_state(seen, n)
    return pm.softmax(n), n + total


def held(x: Any) -> Any:
    last = pm.state("last", (5, 8))
    pm.set_state(last, x)
    return last


def in_place(x: Any) -> Any:
    y = pm.softmax(pm.exp(x))
    total = pm.state("total", (8,))
    pm.set_state(total, total * 2.0 + pm.sum(y, axis=0))
    for _ in range(3):
        y = pm.softmax(y)
    return y


def trained(params: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        return pm.mean((pm.tanh(x @ p["w"]) - 0.5) ** 2.0)

    value, grads = pm.value_and_grad(loss)(params)
    pm.set_param(params["w"], params["w"] - 0.1 * grads["w"])
    return value


def compacted(x: Any) -> Any:
    rows, count = pm.compact(x, x[:, 0] > 0.0)
    return pm.grouped_matmul(rows, pm.asarray(_weights(1, 8, 8)), count), count


def captured(x: Any) -> Any:
    y = pm.capture("inner", pm.softmax(x))
    return pm.capture("outer", pm.cumsum(y, axis=1) @ pm.swapaxes(y, 0, 1))


def two_layers(params: Any, x: Any) -> Any:
    return pm.relu(x @ params["a"]) @ params["b"]


X = {"x": pm.spec("N", 8, max=64)}
CASES: dict[str, Case] = {
    "chain": Case(chain, X, sizes=(5, 64, 1)),
    "one step": Case(lambda x: x * 2.0, X),
    "an input kept": Case(held, {"x": pm.spec(5, 8)}),
    "states by copy": Case(counting, X, sizes=(5, 5, 7)),
    "states in place": Case(in_place, X, sizes=(5, 6, 5)),
    "params in place": Case(trained, X, {"w": _weights(8, 8)}, sizes=(5, 5, 5)),
    "layers": Case(two_layers, X, {"a": _weights(8, 32), "b": _weights(32, 8)}, sizes=(1, 33, 64)),
    "grid from the device": Case(compacted, {"x": pm.spec(16, 8)}, sizes=(16,)),
    "captures": Case(captured, X),
    "sort": Case(lambda x: (pm.sort(x, axis=0), pm.argsort(x, axis=0)), X),
    "reductions": Case(lambda x: (pm.sum(x), pm.max(x, axis=1), pm.var(x, axis=0)), X, sizes=(64,)),
    "conv": Case(lambda x: pm.conv1d(x.T[None], pm.asarray(_weights(4, 8, 3))), X, sizes=(16,)),
    "matmul": Case(lambda x: (x @ x.T) @ x, X, sizes=(3, 64)),
    "large output": Case(lambda x: pm.broadcast_to(pm.softmax(x)[:, :, None], (*x.shape, 4096)) + 1.0, X, sizes=(64,)),
}


def outcomes(case: Case, target: str, cooperative: pm.Cooperative | None) -> list[Array]:
    """Everything that two rounds of runs give and leave behind."""
    rng, found = np.random.default_rng(7), []
    given = {"params": case.params} if case.params else {}
    with pm.compile(case.function, **given, **case.specs, device=device(target), cooperative=cooperative) as exe:
        for n in case.sizes * 2:
            results, captures = exe.run(x=rng.standard_normal((n, 8)).astype("f4"), captures=True)
            found += [*(results if isinstance(results, tuple) else (results,)), *captures.values()]
        found += [array for _, array in sorted(exe.save_state().items())]
    return found


@on_both
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_in_every_mode(name: str, target: str) -> None:
    case = CASES[name]
    whole = outcomes(case, target, None)
    for mode, make in MODES.items():
        c = make()
        for a, b in zip(outcomes(case, target, c), whole, strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), mode
        assert len(c.executions) == 2 * len(case.sizes)
        for report in c.executions:
            assert EXECUTION_REPORT.errors(plain(report)) == [] and validate_report(plain(report), mode=c.mode)["errors"] == []
            assert report["progress"]["percent"] == 100
            ranges = report["boundaries"][0]["ranges"]
            assert [r["itemStart"] for r in ranges] == [0, *(r["itemEnd"] for r in ranges[:-1])]
            assert report["maxObservedInFlightGpuDuties"] <= report["maxInFlightGpuDuties"]


def test_the_cases_have_all_that_ranges_could_tear_apart() -> None:
    plans = {}
    for name, case in CASES.items():
        given = {"params": case.params} if case.params else {}
        with pm.compile(case.function, **given, **case.specs, device=NullDevice(Caps.preset("h200"))) as exe:
            plans[name] = exe.plan
    regimes = [(plan, regime) for plan in plans.values() for regime in plan.regimes]
    assert any(len(plan.regimes) > 1 for plan in plans.values())
    assert any(regime.copies for _, regime in regimes)
    assert any(isinstance(step.groups, DeviceCount) for _, regime in regimes for step in regime.steps)
    assert any(first_update(plan, regime) < len(regime.steps) - 1 for plan, regime in regimes)
    assert any(plan.graph.captures for plan in plans.values())


@on_both
def test_a_run_without_steps(target: str) -> None:
    c = pm.Cooperative()
    w = np.arange(6, dtype="f4")
    with pm.compile(lambda params: params["w"], params={"w": w}, device=device(target), cooperative=c) as exe:
        assert exe.plan.steps == ()
        np.testing.assert_array_equal(exe.run(), w)
        assert c.report()["progress"]["completedItems"] == 1
