"""Steps that write several results: what is stored, what takes an epilogue, what few bindings split, what files may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.plan.file_check import check_structure
from pumice.plan.plan import Binding, Plan, PlanOptions, Step

BASELINE, HOST = Caps.preset("browser-baseline"), Caps.preset("host")
on_both = pytest.mark.parametrize("caps", [BASELINE, HOST], ids=lambda c: c.name)


def planned(fn: Any, caps: Caps, **options: Any) -> Plan:
    return build_plan(pm.trace(fn, x=pm.spec(5, 37)), caps, PlanOptions(**options))


def written(step: Step) -> list[int]:
    return [b.value for b in step.bindings if b.access == "write"]


@on_both
def test_all_results_that_are_wanted_are_one_step(caps: Caps) -> None:
    plan = planned(lambda x: (pm.sort(x), pm.argsort(x)), caps)
    (step,) = plan.steps
    assert step.label == "sort" and sorted(written(step)) == sorted(i for _, i in plan.graph.outputs)


@on_both
def test_a_result_that_nothing_wants_has_no_memory(caps: Caps) -> None:
    for fn, op in ((pm.argsort, "result"), (pm.sort, "sort")):
        plan = planned(fn, caps)
        (step,) = plan.steps
        assert [plan.graph.nodes[v].op for v in written(step)] == [op]
        assert len(plan.values) == 2  # x and what is wanted of it


@on_both
@pytest.mark.parametrize("result", [0, 1])
def test_a_result_that_is_wanted_alone_takes_an_epilogue(caps: Caps, result: int) -> None:
    plan = planned(lambda x: pm.top_k(x, 3)[result] * 2 + 1, caps)
    assert [s.label for s in plan.steps] == ["top_k+mul+add"]
    apart = planned(lambda x: pm.top_k(x, 3)[result] * 2 + 1, caps, fuse=False)
    assert [s.label for s in apart.steps] == ["top_k", "mul", "add"]


@on_both
def test_several_results_take_none(caps: Caps) -> None:
    def fn(x: Any) -> Any:
        values, indices = pm.top_k(x, 3)
        return values * 2.0, indices + 1

    assert [s.label for s in planned(fn, caps).steps] == ["top_k", "mul", "add"]


def test_no_other_anchor_joins_an_epilogue() -> None:
    plan = planned(lambda x: pm.argsort(x).astype("f32") + pm.softmax(x), BASELINE)
    assert sorted(s.label for s in plan.steps) in (["softmax", "sort+cast+add"], ["cast+softmax+add", "sort"])


@on_both
def test_states_take_further_results(caps: Caps) -> None:
    def fn(x: Any) -> Any:
        values, indices = pm.top_k(x, 3)
        pm.set_state(pm.state("best", (5, 3)), values)
        pm.set_state(pm.state("places", (5, 3), "i32"), indices)
        return values

    plan = planned(fn, caps)
    assert len(plan.steps) == 1 and len(plan.copies) == 2
    assert [plan.graph.nodes[v].type.dtype.name for _, v in plan.copies] == ["f32", "i32"]


def test_results_share_arenas_by_lifetime() -> None:
    def fn(x: Any) -> Any:
        for _ in range(4):
            values, indices = pm.top_k(x, 37)
            x = pm.sin(values) * indices.astype("f32")
        return x

    shared, apart = (planned(fn, BASELINE, arena=arena).memory["arena"] for arena in (True, False))
    assert shared < apart


@pytest.mark.parametrize(("optional", "kernels"), [(1, 2), (2, 3)])
def test_results_have_kernels_of_their_own_where_bindings_are_few(optional: int, kernels: int) -> None:
    b = GraphBuilder()
    operands: list[int | None] = [b.source("input", n, TensorType(dtypes.f32, (1, 2, 20, 16))) for n in ("q", "k", "v", "dy")]
    numbers = [b.source("input", n, TensorType(dtypes.i32, ())) for n in ("offset", "kv_len")][:optional]
    outs = b.add_all("attention_gradient", [*operands, None, None, *numbers], {"causal": True})
    plan = build_plan(b.build([(str(k), i) for k, i in enumerate(outs)]), BASELINE)
    assert [s.label.split()[0] for s in plan.steps] == ["attention_gradient"] * kernels
    assert all(len(s.bindings) <= BASELINE.max_storage_buffers for s in plan.steps)


def test_files_keep_the_types_of_all_results() -> None:
    plan = planned(lambda x: pm.top_k(x, 3), BASELINE)
    again = Plan.load_bytes(plan.to_bytes())
    assert [n.results for n in again.graph] == [n.results for n in plan.graph]


def spoil(plan: Plan, bindings: tuple[Binding, ...]) -> Plan:
    (regime,) = plan.regimes
    return replace(plan, regimes=(replace(regime, steps=(replace(regime.steps[0], bindings=bindings), *regime.steps[1:])),))


def test_host_steps_of_a_file_write_results_of_their_anchor_alone() -> None:
    plan = planned(lambda x: (*pm.top_k(x, 3), pm.exp(x)), HOST)
    check_structure(plan)
    step = plan.steps[0]
    other = next(v for s in plan.steps[1:] for v in written(s))
    with pytest.raises(PlanError, match="no results of its anchor"):
        check_structure(spoil(plan, (*step.bindings, Binding(other, 0, "write"))))
    with pytest.raises(PlanError, match="no results of its anchor"):
        check_structure(spoil(plan, (*step.bindings, step.bindings[-1])))
