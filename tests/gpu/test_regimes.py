"""Results on both sides of every border are within the tolerance of their ops, and states pass from regime to regime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from regime_cases import CASES, RegimeCase, counter, sizes_to_try

from harness import GUARD, HARDWARE, device, run_plan, wrong_outputs

TARGETS = {"lavapipe": {}, **HARDWARE, "baseline": None}


def caps_of(target: str) -> Caps:
    changes = TARGETS[target]
    return Caps.preset("browser-baseline") if changes is None else device("webgpu").caps.with_(**changes)


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_both_sides_of_every_border_agree_with_the_oracle(name: str, target: str) -> None:
    case = CASES[name]()
    plan = build_plan(case.graph, caps_of(target), PlanOptions(arena=False, guard=GUARD))
    assert len(plan.regimes) > 1
    taken = set()
    for env in sizes_to_try(plan):
        one = case.at(env)
        results, broken = run_plan(device("webgpu"), plan, one, guarded=True)
        assert broken == [], env
        assert wrong_outputs(one, results) == "", env
        taken.add(plan.pick(env))
    assert taken == set(range(len(plan.regimes)))


@pytest.mark.parametrize("name", CASES)
def test_the_host_agrees_at_the_borders_of_a_gpu(name: str) -> None:
    case = CASES[name]()
    plan = build_plan(case.graph, device("host").caps)
    for env in sizes_to_try(build_plan(case.graph, Caps.preset("h200"))):
        one = case.at(env)
        results, _ = run_plan(device("host"), plan, one)
        assert wrong_outputs(one, results) == "", env


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["host", "webgpu"])
def test_states_pass_from_regime_to_regime(target: str) -> None:
    case = counter()
    dev = device(target)
    plan = build_plan(case.graph, dev.caps)
    assert target == "host" or len(plan.regimes) > 2
    runs = [120, 1, 3, 150, 1, *(env["B"] for env in sizes_to_try(plan)), 7]
    assert {plan.pick({"B": b}) for b in runs} == set(range(len(plan.regimes)))
    total = np.zeros(48)
    session = dev.open(plan)
    try:
        for n in plan.graph.sources("param"):
            session.write(n.id, case.params[n.name])
        for b in runs:
            inputs = case.inputs({"B": b})
            (found,) = session.run({"B": b}, inputs, [i for _, i in plan.graph.outputs])
            y = inputs["x"].astype(np.float64) @ case.params["w"].astype(np.float64)
            np.testing.assert_allclose(found, y + total, rtol=1e-5, atol=1e-4)
            total += y.sum(axis=0)
    finally:
        session.close()


@pytest.mark.gpu
def test_pipelines_of_a_regime_are_made_when_it_is_first_used() -> None:
    case = CASES["dense"]()
    plan = build_plan(case.graph, device("webgpu").caps)
    session = device("webgpu").open(plan)
    try:
        seen = [session.counters()["pipelines"]]
        assert seen[0] == len({s.kernel for s in plan.steps}) < len(plan.kernels)
        for n in plan.graph.sources("param"):
            session.write(n.id, case.params[n.name])
        for b in (150, 1, 1):
            session.run({"B": b}, case.inputs({"B": b}), [i for _, i in plan.graph.outputs])
            seen.append(session.counters()["pipelines"])
        session.prepare({"B": 4}, ())
        seen.append(session.counters()["pipelines"])
    finally:
        session.close()
    assert seen[0] == seen[1] < seen[2] == seen[3] < seen[4]


def regimes_off(case: RegimeCase, caps: Caps) -> Plan:
    return build_plan(case.graph, caps, PlanOptions(regimes=False))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_regimes_can_be_switched_off(name: str) -> None:
    case: Any = CASES[name]()
    plan = regimes_off(case, device("webgpu").caps)
    assert len(plan.regimes) == 1 and plan.options.regimes is False
    one = case.at(dict.fromkeys(plan.maxima, 1))
    assert wrong_outputs(one, run_plan(device("webgpu"), plan, one)[0]) == ""
