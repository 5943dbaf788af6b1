"""Regimes: which borders plans have and why, what the verifier proves of them, and what files may not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import pumice as pm
from plan.plan_bytes import opened, sealed
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.errors import FormatError, PlanError
from pumice.plan.build import build_plan
from pumice.plan.file import plan_from_bytes
from pumice.plan.plan import Plan, PlanOptions, Regime
from pumice.plan.regimes import border_sizes
from pumice.plan.verify import MAX_REGIMES, verify_plan
from pumice.run.report import report_plan
from regime_cases import CASES, dense, quantised

H200 = Caps.preset("h200")
PRESETS = ("h200", "browser-baseline", "lavapipe")
B, T = sym("B"), sym("T")


def variants(regime: Regime) -> list[str]:
    return [s.variant for s in regime.steps]


# -- planning ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", CASES)
def test_plans_have_few_regimes_that_differ(name: str, preset: str) -> None:
    plan = build_plan(CASES[name]().graph, Caps.preset(preset))
    assert 1 < len(plan.regimes) <= MAX_REGIMES
    assert plan.regimes[-1].bounds == () and all(r.bounds for r in plan.regimes[:-1])
    assert all(r.reason for r in plan.regimes)
    for one, other in zip(plan.regimes, plan.regimes[1:], strict=False):
        assert one.steps != other.steps


def test_each_regime_is_what_a_plan_for_its_sizes_alone_would_be() -> None:
    graph = dense().graph
    plan = build_plan(graph, H200)
    for regime in plan.regimes[:-1]:
        ((_, most),) = regime.bounds
        alone = build_plan(graph, H200, PlanOptions(regimes=False), max={"B": most})
        assert variants(alone.regimes[0]) == variants(regime)
        assert [plan.kernels[s.kernel].wgsl for s in regime.steps] == [alone.kernels[s.kernel].wgsl for s in alone.steps]
        # What lies in between takes no more memory than it would there.
        own = {v.parts[0].nbytes for v in regime.values.values() if plan.buffers[v.parts[0].buffer].kind == "arena"}
        small = {v.parts[0].nbytes for v in alone.values.values() if alone.buffers[v.parts[0].buffer].kind == "arena"}
        assert own == small


def test_arenas_are_as_large_as_without_regimes() -> None:
    for name in CASES:
        graph = CASES[name]().graph
        with_regimes, without = (build_plan(graph, H200, PlanOptions(regimes=on)) for on in (True, False))
        assert with_regimes.memory == without.memory, name
        assert variants(with_regimes.regimes[-1]) == variants(without.regimes[-1])


def test_a_border_may_be_a_product_of_symbols() -> None:
    plan = build_plan(quantised().graph, H200)
    (bounds,) = {d for r in plan.regimes[:-1] for d, _ in r.bounds}
    assert bounds == B * T
    assert [plan.pick(env) for env in ({"B": 1, "T": 1}, {"B": 2, "T": 2}, {"B": 4, "T": 1}, {"B": 6, "T": 24})][::3] == [
        0,
        len(plan.regimes) - 1,
    ]
    assert plan.pick({"B": 2, "T": 2}) == plan.pick({"B": 4, "T": 1})


def test_choices_that_hardly_matter_make_no_regimes() -> None:
    """The elementwise kernel takes several elements a thread from some size on, but the matmul is all of the work."""

    def f(x: Any, w: Any) -> Any:
        return pm.exp(x), (w @ w).sum()

    graph = pm.trace(f, x=pm.spec("N", max=1 << 22), w=pm.spec(4096, 4096))
    assert len(build_plan(graph, H200).regimes) == 1
    alone = pm.trace(pm.exp, x=pm.spec("N", max=1 << 22))
    assert len(build_plan(alone, H200).regimes) > 1 or len(build_plan(alone, H200).kernels) == 1


def test_graphs_without_symbols_and_host_plans_have_one_regime() -> None:
    static = pm.trace(lambda x, w: x @ w, x=pm.spec(64, 64), w=pm.spec(64, 64))
    assert len(build_plan(static, H200).regimes) == 1
    assert len(build_plan(dense().graph, Caps.preset("host")).regimes) == 1


def test_more_borders_than_regimes_are_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = dense().graph
    whole = build_plan(graph, H200)
    monkeypatch.setattr("pumice.plan.regimes.MAX_REGIMES", 2)
    plan = build_plan(graph, H200)
    assert len(plan.regimes) == 2 < len(whole.regimes)
    assert "more borders were left out" in plan.regimes[-1].reason
    assert {r.bounds for r in plan.regimes} < {r.bounds for r in whole.regimes}


def test_the_report_says_why_each_regime_exists() -> None:
    plan = build_plan(dense().graph, H200)
    few, many = report_plan(plan, {"B": 1}), report_plan(plan, {})
    assert (few.regime, many.regime) == (0, len(plan.regimes) - 1)
    assert len(few.regimes) == len(plan.regimes) and few.regimes == many.regimes
    assert few.regimes[0].startswith("B ≤ 1, 2 steps; ") and "instead of" in few.regimes[0]
    assert "regime 0 (this one): B ≤ 1" in str(few)
    assert [s.variant for s in few.steps] == variants(plan.regimes[0])


def test_border_sizes_are_at_the_border() -> None:
    assert border_sizes({"B": 8, "T": 512}, (B * T, 32)) == {"B": 8, "T": 4}
    assert border_sizes({"B": 8, "T": 512}, (T, 32)) == {"B": 8, "T": 32}
    assert border_sizes({"B": 64, "T": 64}, (B * T, 8)) == {"B": 1, "T": 8}


# -- the verifier -----------------------------------------------------------------------------------------------------
def with_regimes(plan: Plan, *regimes: Regime) -> Plan:
    return replace(plan, regimes=regimes)


def bounded(regime: Regime, *bounds: tuple[Any, int]) -> Regime:
    return replace(regime, bounds=bounds)


def moved_source(plan: Plan) -> Plan:
    """An input that one regime reads elsewhere."""
    first, *rest = plan.regimes
    x = next(n.id for n in plan.graph.sources("input"))
    part = replace(first.values[x].parts[0], offset=256)
    return with_regimes(plan, replace(first, values={**first.values, x: replace(first.values[x], parts=(part,))}), *rest)


def outside_in_one(plan: Plan) -> Plan:
    """A value beyond its buffer, in the first regime only."""
    first, *rest = plan.regimes
    root = first.steps[0].root
    part = replace(first.values[root].parts[0], offset=1 << 30)
    return with_regimes(plan, replace(first, values={**first.values, root: replace(first.values[root], parts=(part,))}), *rest)


BAD: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "gap": (lambda p: with_regimes(p, *p.regimes[:-1]), "some sizes have no steps"),
    "none": (lambda p: with_regimes(p), "a plan has 1 to 8"),
    "too many": (
        lambda p: with_regimes(p, *(bounded(p.regimes[0], (B, k)) for k in range(1, 10)), p.regimes[-1]),
        "a plan has 1 to 8",
    ),
    "unbounded first": (lambda p: with_regimes(p, bounded(p.regimes[0]), *p.regimes[1:]), "never picked"),
    "overlap": (lambda p: with_regimes(p, *p.regimes[:2][::-1], *p.regimes[2:]), "never picked"),
    "unknown symbol": (lambda p: with_regimes(p, bounded(p.regimes[0], (sym("Z"), 1)), p.regimes[-1]), "the symbol Z"),
    "bound of everything": (lambda p: with_regimes(p, bounded(p.regimes[0], (B, 150)), p.regimes[-1]), "no part of"),
    "negative bound": (lambda p: with_regimes(p, bounded(p.regimes[0], (B, -1)), p.regimes[-1]), "no part of"),
    "source moved": (moved_source, "several places"),
    "value outside in one regime": (outside_in_one, "takes bytes"),
    "step of another regime": (
        lambda p: with_regimes(p, replace(p.regimes[0], steps=p.regimes[-1].steps), *p.regimes[1:]),
        "has no memory",
    ),
    "steps too small": (lambda p: with_regimes(p, bounded(p.regimes[0], (B, 149)), p.regimes[-1]), "has room for"),
}


@pytest.mark.parametrize("name", BAD)
def test_unsound_regimes_are_refused(name: str) -> None:
    make, message = BAD[name]
    plan = build_plan(dense().graph, H200)
    verify_plan(plan)
    with pytest.raises(PlanError, match=message):
        # Whether values fit is asked where a plan is written or read: the planner sizes them itself.
        make(plan).to_bytes()


# -- files ------------------------------------------------------------------------------------------------------------
def test_plans_with_regimes_come_back_from_files() -> None:
    for name, preset in ((name, preset) for name in CASES for preset in PRESETS):
        plan = build_plan(CASES[name]().graph, Caps.preset(preset))
        again = Plan.load_bytes(plan.to_bytes())
        assert again.regimes == plan.regimes and again.buffers == plan.buffers, (name, preset)
        assert again.to_bytes() == plan.to_bytes()


Header = dict[str, Any]


def drop_last(h: Header) -> None:
    h["regimes"].pop()


def repeat_first(h: Header) -> None:
    h["regimes"].insert(0, h["regimes"][0])


def nine(h: Header) -> None:
    h["regimes"] = [h["regimes"][0]] * 8 + [h["regimes"][-1]]


def swap(h: Header) -> None:
    h["regimes"][0], h["regimes"][1] = h["regimes"][1], h["regimes"][0]


def first(key: str, value: Any) -> Callable[[Header], None]:
    return lambda h: h["regimes"][0].__setitem__(key, value)


def bounds(**changes: Any) -> Callable[[Header], None]:
    return lambda h: h["regimes"][0]["bounds"].update(changes)


def shift(h: Header) -> None:
    h["regimes"][0]["values"]["parts"][-1][1] += 1 << 24


def source_again(h: Header) -> None:
    for column, values in h["values"].items():
        h["regimes"][0]["values"][column].insert(0, values[0])


ATTACKS: dict[str, Callable[[Header], None]] = {
    "gap": drop_last,
    "no regimes": lambda h: h.__setitem__("regimes", []),
    "regimes as text": lambda h: h.__setitem__("regimes", "all"),
    "regime of null": lambda h: h["regimes"].__setitem__(0, None),
    "the same regime twice": repeat_first,
    "more than eight": nine,
    "hidden by an earlier one": swap,
    "bounds of the last": lambda h: h["regimes"][-1].__setitem__("bounds", h["regimes"][0]["bounds"]),
    "no bounds": first("bounds", {"dim": [], "most": []}),
    "bounds missing": lambda h: h["regimes"][0].pop("bounds"),
    "a key too many": first("least", 0),
    "reason of number": first("reason", 7),
    "bound of no expression": bounds(dim=[{"e": 999}]),
    "bound of a number": bounds(dim=[1]),
    "bound over the maximum": bounds(most=[1 << 40]),
    "negative bound": bounds(most=[-1]),
    "fractional bound": bounds(most=[0.5]),
    "wider than its values": bounds(most=[149]),
    "columns of two lengths": bounds(most=[1, 2]),
    "value outside its buffer in one": shift,
    "value missing in one": lambda h: [c.pop() for c in h["regimes"][0]["values"].values()],
    "source in a regime": source_again,
    "steps of the last": lambda h: h["regimes"][0].__setitem__("steps", h["regimes"][-1]["steps"]),
    "no steps in one": lambda h: [c.clear() for c in h["regimes"][0]["steps"].values()],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_regimes_are_refused(name: str) -> None:
    header, blobs = opened(build_plan(dense().graph, H200).to_bytes())
    ATTACKS[name](header)
    with pytest.raises(FormatError):
        plan_from_bytes(sealed(header, blobs))
