"""Whole graphs in the browser under the oracle of all backends: random ones, regimes, states, device grids, parts and packs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from browser.agreement import ADAPTERS, BASELINE, Planned, disagreements, planned, states_of
from browser.lab import Job, Lab
from gpu.plans import affine_plan, counted_plan, counter_plan
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.plan.plan import DeviceCount, PlanOptions
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch
from regime_cases import CASES as REGIMES
from regime_cases import counter, draw, sizes_to_try

from fuzz.device_counts import counts_case
from fuzz.merged_matmuls import matmuls_case
from fuzz.random_graphs import random_case
from fuzz.several_results import results_case
from fuzz.test_random_regimes import random_chain
from harness import GUARD, Case

MAKERS = (random_case, results_case, matmuls_case, counts_case)
# How values are placed: each alone and guarded, or together in arenas; and whether steps are fused.
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"arena": True, "guard": 0}, {"fuse": False})
# Graphs to choose from for what always runs, and the WGSL that those of a kind may have: a software adapter compiles it slowly.
SEEDS, TEXT = 16, 48_000


# -- random graphs ------------------------------------------------------------------------------------------------------
def graphs(make: Callable[[int], Case], seeds: Iterable[int]) -> list[Planned]:
    """Each seed as one of the options and adapters, so that all meet all."""
    adapters = list(ADAPTERS)
    found = []
    for seed in seeds:
        adapter, options = adapters[seed % len(adapters)], OPTIONS[seed // len(adapters) % len(OPTIONS)]
        found.append(planned(f"{make.__name__}({seed}) {adapter} {options}", make(seed), ADAPTERS[adapter], **options))
    return found


def shortest(tried: list[Planned]) -> list[Planned]:
    """Those with the shortest shaders, as far as TEXT goes."""
    found: list[Planned] = []
    total = 0
    for size, one in sorted(((sum(len(k.wgsl) for k in one.plan.kernels), one) for one in tried), key=lambda pair: pair[0]):
        total += size
        if found and total > TEXT:
            break
        found.append(one)
    return found


@pytest.mark.parametrize("make", MAKERS)
def test_random_graphs_agree_with_the_reference(lab: Lab, make: Callable[[int], Case]) -> None:
    assert disagreements(lab, shortest(graphs(make, range(SEEDS)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("chunk", range(8))
def test_many_random_graphs_agree_with_the_reference(
    lab: Lab, make: Callable[[int], Case], chunk: int, request: pytest.FixtureRequest
) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    assert disagreements(lab, graphs(make, range(first + chunk, first + count, 8))) == []


# -- regimes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n if n in ("dense", "norms") else pytest.param(n, marks=pytest.mark.slow) for n in REGIMES])
def test_both_sides_of_every_border_agree_with_the_reference(lab: Lab, name: str) -> None:
    case = REGIMES[name]()
    plan = build_plan(case.graph, BASELINE, PlanOptions(arena=False, guard=GUARD))
    sizes = list(sizes_to_try(plan))
    assert {plan.pick(env) for env in sizes} == set(range(len(plan.regimes))) and len(plan.regimes) > 1
    assert disagreements(lab, (Planned(f"{name} {env}", case.at(env), plan) for env in sizes)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_chains_agree_on_both_sides_of_every_border(lab: Lab, seed: int) -> None:
    case = random_chain(seed)
    adapter = list(ADAPTERS)[seed % len(ADAPTERS)]
    plan = build_plan(case.graph, ADAPTERS[adapter], PlanOptions(arena=False, guard=GUARD) if seed % 2 else PlanOptions())
    tried = [Planned(f"{adapter} {env}", case.at(env), plan) for env in sizes_to_try(plan)]
    assert disagreements(lab, tried) == []


def test_runs_of_all_sizes_follow_each_other_on_one_executable(lab: Lab) -> None:
    """Larger and smaller ones, in every regime: none sees what another has left."""
    case = REGIMES["dense"]()
    plan = build_plan(case.graph, BASELINE)
    sizes = [env["B"] for env in sizes_to_try(plan)]
    runs = [case.at({"B": b}) for b in (*sizes, 150, 0, 1, *reversed(sizes))]
    done = lab.run_one(Job(plan, [run.inputs for run in runs], case.params))
    for run, outputs in zip(runs, done.outputs, strict=True):
        for (name, node), want in zip(plan.graph.outputs, bound_graph(plan.graph, run.inputs, run.params).outputs, strict=True):
            assert mismatch(outputs[name], want, plan.graph.nodes[node].type.dtype) == ""


# -- states -------------------------------------------------------------------------------------------------------------
def check_runs(lab: Lab, plan: Any, inputs: list[dict[str, Any]], params: dict[str, Any]) -> None:
    """Runs on one executable, each compared with the oracle over the states that the runs before it left."""
    jobs = [Job(plan, inputs[: k + 1], params) for k in range(len(inputs))]
    states: dict[str, Any] | None = None
    for k, job in enumerate(jobs):
        done = lab.run_one(job)
        bounds = bound_graph(plan.graph, inputs[k], params, states)
        for (name, node), want in zip(plan.graph.outputs, bounds.outputs, strict=True):
            assert mismatch(done.outputs[k][name], want, plan.graph.nodes[node].type.dtype) == "", (k, name)
        states = states_of(plan, done)
        for n in plan.graph.sources("state"):
            assert mismatch(states[n.name], bounds.state[n.name], n.type.dtype) == "", (k, n.name)


def test_states_pass_from_run_to_run_and_from_regime_to_regime(lab: Lab) -> None:
    case = counter()
    plan = build_plan(case.graph, BASELINE)
    runs = [120, 1, 3, 150, 7]
    assert len({plan.pick({"B": b}) for b in runs}) > 2
    check_runs(lab, plan, [dict(case.inputs({"B": b})) for b in runs], dict(case.params))


def test_states_of_several_dtypes_have_their_first_values(lab: Lab) -> None:
    def step(x: Any) -> Any:
        total = pm.state("total", (5,), init=np.arange(5, dtype=np.float32))
        count = pm.state("count", (1,), dtype="i32")
        half = pm.state("half", (3,), dtype="f16", init=np.float16([1, 2, 3]))
        pm.set_state(total, total + x)
        pm.set_state(count, count + 1)
        pm.set_state(half, half * 2.0)
        return total * 1.0, count, half

    plan = build_plan(pm.trace(step, x=pm.spec(5)), BASELINE)
    check_runs(lab, plan, [{"x": draw(k, 5)} for k in range(4)], {})


def test_a_state_that_is_copied_after_each_run(lab: Lab) -> None:
    x = np.arange(70, dtype=np.float32) / 8
    done = lab.run_one(Job(counter_plan(in_place=False), [{"x": x}] * 3))
    np.testing.assert_array_equal([run["sum"] for run in done.outputs], [3 + k * x for k in (1, 2, 3)])
    np.testing.assert_array_equal(np.frombuffer(done.states["s"], np.float32), 3 + 3 * x)


def test_a_plan_of_hand_written_kernels(lab: Lab) -> None:
    w = np.float32([1.5])
    for size in (0, 1, 64, 65, 1000):
        x = draw(size, size)
        (found,) = lab.run_one(Job(affine_plan(), [{"x": x}], {"w": w})).outputs
        np.testing.assert_allclose(found["y"], x * w + 0.5, rtol=1e-6)
        np.testing.assert_allclose(found["z"], 2 * found["y"], rtol=1e-6)


# -- grids from the device ----------------------------------------------------------------------------------------------
def test_so_many_workgroups_run_as_a_word_says_up_to_the_bound(lab: Lab) -> None:
    counts, bounds = (0, 1, 4, 5, 17, 60, 61, 1000, 2**31, 2**32 - 1), (60, 5, 0)
    tried = [(most, count) for most in bounds for count in counts]
    runs = [{"n": np.array([7777, count, 8888], np.uint32), "x": np.zeros(most, np.float32)} for most, count in tried]
    done = lab.run_one(Job(counted_plan(), runs))
    for (most, count), outputs in zip(tried, done.outputs, strict=True):
        wanted = min(most, count)
        y = outputs["y"]
        assert y[:wanted].tolist() == [1] * wanted and not y[wanted:].any(), (most, count)


@pytest.mark.parametrize("word", [0, 1, 2])
def test_the_word_may_be_any_of_the_value(lab: Lab, word: int) -> None:
    inputs = {"n": np.array([3, 4, 5], np.uint32), "x": np.zeros(100, np.float32)}
    (found,) = lab.run_one(Job(counted_plan(word=word), [inputs])).outputs
    assert found["y"].sum() == 3 + word


def test_groups_that_are_counted_on_the_device(lab: Lab) -> None:
    def experts(params: Any, x: Any, sizes: Any) -> Any:
        return pm.silu(pm.grouped_matmul(x, params["up"], sizes))

    params = {"up": draw(1, 4, 32, 64)}
    graph = pm.trace(experts, params={"up": pm.spec(4, 32, 64)}, x=pm.spec("T", 32, max=48), sizes=pm.spec(4, dtype="i32"))
    plan = build_plan(graph, BASELINE, PlanOptions(arena=False, guard=GUARD))
    assert any(isinstance(s.groups, DeviceCount) for regime in plan.regimes for s in regime.steps)
    sizes = ([0, 0, 0, 0], [1, 0, 3, 1], [12, 12, 12, 12], [0, 48, 0, 0], [5, -1, 2**31 - 1, 0])
    cases = [Case(graph, {"x": draw(2, 48, 32), "sizes": np.array(s, np.int32)}, params) for s in sizes]
    assert disagreements(lab, (Planned(str(s), case, plan) for s, case in zip(sizes, cases, strict=True))) == []


# -- params -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [1, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "weight",
    [
        *("f32", "f16", "q4_0", "q8_0", "q4_k", "q6_k", "mxfp4", "u4z_g128_f16"),
        *(pytest.param(w, marks=pytest.mark.slow) for w in ("iq3_s", "iq2_xs", "iq1_m", "tq1_0")),
    ],
)
def test_weights_larger_than_a_binding_are_read_from_their_parts(lab: Lab, rows: int, weight: str) -> None:
    dtype = dtypes.dtype(weight)
    # A binding must also hold the table that the codes of some formats point into, x and the result.
    binding, columns = (20 << 10, 400) if weight.startswith(("iq", "tq")) else (12 << 10, 120)
    if not dtype.is_quant:
        binding = 8192 * dtype.itemsize
    caps = BASELINE.with_(max_binding_bytes=binding)
    b = GraphBuilder()
    x, w = b.source("input", "x", TensorType(dtypes.f32, (rows, 256))), b.source("param", "w", TensorType(dtype, (columns, 256)))
    out = b.add("qmatmul", [x, w]) if dtype.is_quant else b.add("matmul", [x, b.add("transpose", [w], {"perm": (1, 0)})])
    values = draw(1, columns, 256)
    packed = quantize_rows(dtype, values) if dtype.is_quant else values.astype(dtype.np)
    case = Case(b.build([("out", out)]), {"x": draw(2, rows, 256)}, {"w": packed})
    plan = build_plan(case.graph, caps)
    assert len(plan.values[w].parts) > 1
    assert disagreements(lab, [Planned(weight, case, plan)]) == []


@pytest.mark.parametrize("weight", ["f32", "q4_0", *(pytest.param(w, marks=pytest.mark.slow) for w in ("f16", "q6_k"))])
def test_params_that_a_plan_packs(lab: Lab, weight: str) -> None:
    dtype = dtypes.dtype(weight)

    def heads(params: Any, x: Any) -> Any:
        def project(name: str, count: int) -> Any:
            y = pm.qmatmul(x, params[name]) if dtype.is_quant else x @ params[name].T
            return pm.reshape(y, (1, x.shape[1], count, 32))

        return pm.attention(project("q", 4), project("k", 2), project("v", 2), layout="bshd", causal=True)

    shapes = {"q": (128, 256), "k": (64, 256), "v": (64, 256)}
    values = {name: draw(k, *shape) / np.float32(16) for k, (name, shape) in enumerate(shapes.items())}
    params = {n: quantize_rows(dtype, v) if dtype.is_quant else v.astype(dtype.np) for n, v in values.items()}
    specs = {name: pm.spec(*shape, dtype=weight) for name, shape in shapes.items()}
    graph = pm.trace(heads, params=specs, x=pm.spec(1, "B", 256, max=4))
    plan = build_plan(graph, BASELINE)
    assert plan.packing
    cases = [Case(graph, {"x": draw(7, 1, n, 256)}, params) for n in (1, 4)]
    assert disagreements(lab, (Planned(weight, case, plan) for case in cases)) == []


def test_params_that_a_run_updates(lab: Lab) -> None:
    def step(params: Any, g: Any) -> Any:
        for name, rate in (("a", 0.5), ("b", 0.25)):
            m = pm.state(f"m.{name}", (48,))
            new = m * 0.9 + g * rate
            pm.set_state(m, new)
            pm.set_param(params[name], params[name] - new)
        return params["a"] * 1.0

    graph = pm.trace(step, params={"a": pm.spec(48), "b": pm.spec(48)}, g=pm.spec(48))
    case = Case(graph, {"g": draw(1, 48)}, {"a": draw(2, 48), "b": draw(3, 48)})
    assert disagreements(lab, [planned(str(options), case, **options) for options in OPTIONS]) == []


def test_memory_is_given_back(lab: Lab) -> None:
    case = REGIMES["quantised"]()
    plan = build_plan(case.graph, BASELINE)
    job = Job(plan, [case.at({"B": 2, "T": 3}).inputs], case.params)
    lab.run([job])
    before = lab.call("allocated")
    lab.run([job] * 5)
    assert lab.call("allocated") == before
