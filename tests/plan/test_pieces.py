"""Large steps are planned as several dispatches of some of their workgroups each; everything else stays as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import pumice as pm
from plan.plan_cases import CASES
from pumice.core.caps import Caps
from pumice.core.dims import evaluate
from pumice.errors import InputError
from pumice.plan.build import build_plan
from pumice.plan.cost import in_pieces, step_costs
from pumice.plan.plan import DeviceCount, Plan, PlanOptions
from pumice.run.report import report_plan

H200 = Caps.preset("h200")
# busy_groups is 2 there, so that small graphs have pieces, too.
SOFTWARE = Caps.preset("lavapipe")


def layer(x: Any, w: Any, b: Any) -> Any:
    return pm.relu(x @ w + b)


def layer_graph(rows: int | str = "B") -> Any:
    return pm.trace(layer, x=pm.spec(rows, 2048), w=pm.spec(2048, 2048), b=pm.spec(2048))


def in_pieces_of(largest: int, graph: Any = None, caps: Caps = H200, **options: Any) -> Plan:
    return build_plan(graph or layer_graph(), caps, PlanOptions(largest_step=largest), max={"B": 4096}, **options)


def test_a_large_matmul_becomes_dispatches_of_at_most_that_much_work() -> None:
    whole, split = build_plan(layer_graph(), H200, max={"B": 4096}), in_pieces_of(8 * 10**9)
    assert [s.label for s in whole.steps] == ["matmul+add+relu"] and {s.label for s in split.steps} == {"matmul+add+relu"}
    flops = 2 * 4096 * 2048 * 2048
    costs = step_costs(split, {"B": 4096})
    assert sum(c.flops or 0 for c in costs) == flops and len(costs) > flops / 8e9
    assert max(c.work for c in costs) <= 1.02 * 8e9  # in whole workgroups
    assert sum(c.moved for c in costs) == sum(c.moved for c in step_costs(whole, {"B": 4096}))


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("caps", [H200, SOFTWARE, Caps.preset("browser-baseline")], ids=lambda c: c.name)
def test_pieces_cover_every_workgroup_once_and_nothing_else_changes(name: str, caps: Caps) -> None:
    case = CASES[name]()
    whole, split = (build_plan(case.graph, caps, PlanOptions(largest_step=n), max=case.max) for n in (None, 1))
    assert split.buffers == whole.buffers and len(split.regimes) == len(whole.regimes)
    for before, after in zip(whole.regimes, split.regimes, strict=True):
        assert after.values == before.values and after.copies == before.copies and after.bounds == before.bounds
        runs = list(in_pieces(after.steps))
        assert [r[0].whole_variant for r in runs] == [s.variant for s in before.steps]
        domain = whole.domain(before)
        for env in (domain.maxima, dict.fromkeys(whole.maxima, 1)):
            for step, pieces in zip(before.steps, runs, strict=True):
                groups = evaluate(step.most_groups, env)
                assert sum(evaluate(p.most_groups, env) for p in pieces) == groups
                if len(pieces) > 1:
                    ends = [p.uniforms[-2:] for p in pieces]
                    assert ends[0][0] == 0 and [e[0] for e in ends[1:]] == [e[1] for e in ends[:-1]]
                    assert all(p.bindings == step.bindings and p.nodes == step.nodes for p in pieces)
                    assert all(p.uniforms[:-2] == step.uniforms for p in pieces)
    assert Plan.load_bytes(split.to_bytes()).to_bytes() == split.to_bytes()


def test_without_the_option_plans_are_the_same_bytes() -> None:
    graph = layer_graph()
    plain = build_plan(graph, H200, max={"B": 4096}).to_bytes()
    assert in_pieces_of(10**15, graph).to_bytes() == plain
    assert in_pieces_of(10**9, graph).to_bytes() == in_pieces_of(10**9, graph).to_bytes() != plain
    # The host divides its work itself, among threads.
    host = Caps.preset("host")
    assert in_pieces_of(1, graph, host).to_bytes() == build_plan(graph, host, max={"B": 4096}).to_bytes()


def test_at_few_rows_the_last_pieces_are_empty() -> None:
    split = in_pieces_of(10**9)
    fewest = min(n for n in range(1, 4097) if split.pick({"B": n}) == len(split.regimes) - 1)
    counts = [evaluate(s.most_groups, {"B": fewest}) for s in split.steps]
    assert counts[0] > 0 and counts[-1] == 0 and counts == sorted(counts, reverse=True)


def test_a_piece_keeps_the_device_busy() -> None:
    # Fewer workgroups than the device runs at once would take as long as those.
    counts = [evaluate(s.most_groups, {"B": 4096}) for s in in_pieces_of(1).steps]
    assert set(counts[:-1]) == {H200.busy_groups} and 0 < counts[-1] <= H200.busy_groups


def test_one_vector_is_split_by_columns() -> None:
    graph = pm.trace(lambda x, w: x @ w, x=pm.spec(1, 4096), w=pm.spec(4096, 65536))
    pieces = in_pieces_of_static(graph, 10**9)
    assert len(pieces.steps) > 4 and all("matvec" in s.variant for s in pieces.steps)


def in_pieces_of_static(graph: Any, largest: int, caps: Caps = H200) -> Plan:
    return build_plan(graph, caps, PlanOptions(largest_step=largest))


def test_a_grid_from_the_device_becomes_grids_that_end_at_its_count() -> None:
    graph = pm.trace(
        lambda x, w, sizes: pm.grouped_matmul(x, w, sizes),
        x=pm.spec(4096, 64),
        w=pm.spec(8, 64, 64),
        sizes=pm.spec(8, dtype="i32"),
    )
    (whole,) = (s for s in build_plan(graph, SOFTWARE).steps if isinstance(s.groups, DeviceCount))
    plan = in_pieces_of_static(graph, 1, SOFTWARE)
    pieces = [s for s in plan.steps if s.root == whole.root and s.whole_variant == whole.variant]
    assert len(pieces) > 4 and not any(isinstance(s.groups, DeviceCount) for s in pieces)
    assert sum(evaluate(s.groups, {}) for s in pieces if not isinstance(s.groups, DeviceCount)) == whole.most_groups


def test_the_report_says_what_was_split() -> None:
    report = report_plan(in_pieces_of(8 * 10**9), {"B": 4096})
    count = len(report.steps)
    assert f"large steps in pieces: matmul+add+relu in {count}" in str(report)
    assert [s.piece for s in report.steps] == [(k + 1, count) for k in range(count)]
    whole = report_plan(build_plan(layer_graph(), H200, max={"B": 4096}), {})
    assert {s.why for s in report.steps} == {s.why for s in whole.steps}
    assert all(s.variant.endswith(f"piece {k + 1} of {count}") for k, s in enumerate(report.steps))
    assert "in pieces" not in str(whole)


def test_what_a_file_says_of_pieces_is_not_relied_on() -> None:
    plan = build_plan(layer_graph(64), H200)
    (step,) = plan.steps[-1:]
    lying = replace(plan.regimes[-1], steps=(replace(step, variant="tiled, piece 1 of 999999"),))
    costs = step_costs(replace(plan, regimes=(lying,)), {})
    assert [c.flops for c in costs] == [2 * 64 * 2048 * 2048]


@pytest.mark.parametrize("value", [0, -1, 0.5, True, "1e9", float("inf"), float("nan"), 2.0**63])
def test_no_other_bounds_are_taken(value: Any) -> None:
    with pytest.raises(InputError, match="largest_step is") as e:
        pm.Store("host", largest_step=value)
    assert e.value.fields["name"] == "largest_step"
    with pytest.raises(InputError):
        pm.compile(lambda x: x + 1.0, x=pm.spec(2), device="host", largest_step=value)


def test_executables_take_the_bound_of_their_store() -> None:
    with pm.Store("null", largest_step=1e6) as store:
        assert store.largest_step == 10**6 == store.child().largest_step
        with pm.compile(layer, x=pm.spec(512, 512), w=pm.spec(512, 512), b=pm.spec(512), store=store) as exe:
            assert exe.plan.options.largest_step == 10**6
        own = {"x": pm.spec(8), "largest_step": 5e6, "store": store}
        with pm.compile(lambda x: x + 1.0, **own) as exe:
            assert exe.plan.options.largest_step == 5 * 10**6
