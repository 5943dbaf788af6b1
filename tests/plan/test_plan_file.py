"""Plans as files: the same plan comes back, in another process and on the same device with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from gpu.plans import affine_plan, counted_plan, counter_plan, shard_plan
from plan.plan_cases import CASES
from pumice.backends.null import NullDevice
from pumice.core.caps import Caps
from pumice.core.dims import dim_max, evaluate, sym
from pumice.errors import InputError, LimitError, PlanError
from pumice.ir.graph import Graph
from pumice.ir.registry import all_ops
from pumice.ir.symbols import infer_env
from pumice.plan.build import build_plan
from pumice.plan.file_exprs import check_exact, decode_dim, encode_dim
from pumice.plan.file_symbols import solutions
from pumice.plan.file_write import encode
from pumice.plan.needs import AT_LEAST, needed_caps
from pumice.plan.plan import Plan

from fuzz.random_graphs import random_case
from harness import device, one_op

TESTS = Path(__file__).parent.parent
PRESETS = ("browser-baseline", "h200", "host")


def same(again: Plan, plan: Plan) -> None:
    """What a runtime looks at is equal, and so is the file."""
    assert again.regimes == plan.regimes
    assert again.kernels == plan.kernels
    assert again.buffers == plan.buffers
    assert dict(again.values) == dict(plan.values)
    assert (again.copies, dict(again.maxima)) == (plan.copies, dict(plan.maxima))
    assert again.graph.outputs == plan.graph.outputs
    assert again.to_bytes() == plan.to_bytes()


@pytest.mark.parametrize("preset", PRESETS)
def test_random_plans_come_back(preset: str) -> None:
    for seed in range(25):
        plan = build_plan(random_case(seed).graph, Caps.preset(preset))
        again = Plan.load_bytes(plan.to_bytes())
        same(again, plan)
        assert again.graph.hash == plan.graph.hash


@pytest.mark.parametrize("preset", ["browser-baseline", "host"])
def test_plans_of_every_op_come_back(preset: str) -> None:
    for spec in all_ops():
        for sample in list(spec.samples())[:2] if spec.samples else []:
            plan = build_plan(one_op(spec, sample).graph, Caps.preset(preset))
            same(Plan.load_bytes(plan.to_bytes()), plan)


@pytest.mark.parametrize("make", [affine_plan, shard_plan, lambda: counter_plan(in_place=False), counted_plan])
def test_hand_made_plans_come_back(make: Callable[[], Plan]) -> None:
    same(Plan.load_bytes(make().to_bytes()), make())


@pytest.mark.parametrize("name", CASES)
def test_the_caps_of_a_loaded_plan_are_its_needs(name: str) -> None:
    plan = CASES[name]().plan()
    again = Plan.load_bytes(plan.to_bytes())
    assert again.caps == needed_caps(plan) == needed_caps(again)
    assert all(getattr(again.caps, limit) <= getattr(plan.caps, limit) for limit in AT_LEAST)


def test_states_that_start_as_zeros_take_no_room() -> None:
    def f(x: Any) -> Any:
        cache = pm.state("cache", (1000, 100), init=np.zeros((1000, 100), "f4"))
        pm.set_state("cache", cache + x)
        return cache.sum()

    plan = build_plan(pm.trace(f, x=pm.spec(100)), Caps.preset("browser-baseline"))
    data = plan.to_bytes()
    assert len(data) < 20_000
    with pm.load_plan(data, NullDevice()) as exe:
        exe.state["cache"].reset()
        assert not exe.state["cache"].read().any()


def test_equal_constants_are_written_once() -> None:
    table = np.arange(500, dtype="f4")
    one = pm.trace(lambda x: x * table, x=pm.spec(500))
    two = pm.trace(lambda x: (x * table, pm.sin(x) + table), x=pm.spec(500))
    blobs = [encode(build_plan(g, Caps.preset("browser-baseline"))).blobs for g in (one, two)]
    assert [sum(len(b) == 2000 for b in found) for found in blobs] == [1, 1]


# -- files ------------------------------------------------------------------------------------------------------------
def test_save_and_load(tmp_path: Path) -> None:
    plan = CASES["mlp"]().plan()
    path = tmp_path / "mlp.plan"
    path.write_bytes(b"old")
    plan.save(path)
    assert path.read_bytes() == plan.to_bytes()
    assert path.read_bytes()[-32:].hex() == plan.sha256 == Plan.load(path).sha256
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    plan = CASES["mlp"]().plan()
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        plan.save(tmp_path / "taken")
    with pytest.raises(InputError, match="cannot be written"):
        plan.save(tmp_path / "missing" / "a.plan")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


_SAVE = """
import sys
import numpy as np
import pumice as pm
from plan.plan_cases import CASES
name, target, folder = sys.argv[1:]
case = CASES[name]()
with pm.compile(case.graph, device=target, max=case.max) as exe:
    exe.plan.save(f"{folder}/saved.plan")
    exe.set_params(case.params)
    runs = [exe.run(inputs, outputs=range(len(exe.graph.outputs))) for inputs in case.runs]
    np.savez(f"{folder}/results.npz", **{f"{r} {i}": a for r, run in enumerate(runs) for i, a in enumerate(run)})
print(exe.plan.sha256)
"""


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["decoder_step", "several_results"])
def test_saved_by_one_process_and_run_by_another(name: str, target: str, tmp_path: Path) -> None:
    # Bits are compared: where the environment picks BLAS's kernels, it does so for both.
    blas = {key: value for key, value in os.environ.items() if key.startswith("OPENBLAS_")}
    done = subprocess.run(
        [sys.executable, "-c", _SAVE, name, target, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}", "PATH": "", "HOME": str(tmp_path), **blas},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    case = CASES[name]()
    with pm.load_plan(tmp_path / "saved.plan", device(target)) as exe, np.load(tmp_path / "results.npz") as want:
        assert done.stdout.split()[-1] == exe.plan.sha256
        # Planned here, the bytes are those that the other process made.
        assert build_plan(case.graph, device(target).caps, max=case.max).to_bytes() == (tmp_path / "saved.plan").read_bytes()
        exe.set_params(case.params)
        for run, inputs in enumerate(case.runs):
            for i, array in enumerate(exe.run(inputs, outputs=range(len(exe.graph.outputs)))):
                assert array.tobytes() == want[f"{run} {i}"].tobytes()


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_params_that_a_plan_updates(target: str) -> None:
    """One weight is updated in place, one is copied after the run, as its old value is an output."""

    def f(params: Any, x: Any) -> Any:
        pm.set_param(params["a"], params["a"] - x)
        pm.set_param(params["b"], params["b"] * 2.0)
        return params["b"], x.sum()

    specs = {"a": pm.spec(6), "b": pm.spec(6)}
    plan = build_plan(pm.trace(f, params=specs, x=pm.spec(6)), device(target).caps)
    with pm.load_plan(plan.to_bytes(), device(target)) as exe:
        exe.set_params({"a": np.zeros(6, "f4"), "b": np.ones(6, "f4")})
        results = [exe.run(x=np.full(6, 0.5, "f4"))[0].tolist() for _ in range(3)]
        assert results == [[1.0] * 6, [2.0] * 6, [4.0] * 6]
        assert exe.params()["a"].tolist() == [-1.5] * 6


def test_loaded_plans_know_their_requirements_and_index_ranges() -> None:
    case = CASES["several_results"]()
    with pm.load_plan(case.plan("host").to_bytes()) as exe:
        assert exe.device.name == "host"
        result = exe.run(case.runs[0])
        assert set(result) == {"half", "rest", "seen"} and isinstance(result["rest"], tuple)
        with pytest.raises(pm.errors.IndexRangeError):
            exe.run(x=np.zeros((3, 4), "f4"), ids=np.int32([0, 6]))
        with pytest.raises(pm.errors.SymbolError, match="out of range"):
            exe.run(x=np.zeros((2, 4), "f4"), ids=np.int32([0]))


# -- devices ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        *({limit: 1} for limit in AT_LEAST),
        {"storage_alignment": 512},
        {"subgroups": False},
        {"max_groups": 1},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_device_that_has_less_is_refused_by_name(change: dict[str, Any]) -> None:
    def f(x: Any, y: Any) -> Any:
        return pm.softmax(x @ y) @ pm.gelu(y).T

    plan = build_plan(pm.trace(f, x=pm.spec("T", 640), y=pm.spec(640, 512)), Caps.preset("h200"), max={"T": 100})
    loaded, need = plan.to_bytes(), needed_caps(plan)
    pm.load_plan(loaded, NullDevice(Caps.preset("h200"))).close()
    with pytest.raises(LimitError) as caught:
        pm.load_plan(loaded, NullDevice(Caps.preset("h200").with_(**change)))
    (limit,) = change
    assert caught.value.fields["limit"] == limit
    assert caught.value.fields["available"] == change[limit]
    if limit != "max_groups":
        assert caught.value.fields["needed"] == getattr(need, limit)
    assert limit in caught.value.message and caught.value.hint


def test_a_plan_for_a_large_device_runs_on_a_small_one_that_has_enough() -> None:
    plan = build_plan(pm.trace(lambda x: pm.relu(x), x=pm.spec(64)), Caps.preset("lavapipe"))
    pm.load_plan(plan.to_bytes(), NullDevice(Caps.preset("browser-baseline"))).close()
    pm.load_plan(plan, NullDevice(Caps.preset("browser-baseline"))).close()


def test_a_plan_for_another_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["mlp"]()
    with pytest.raises(PlanError, match="target webgpu") as caught:
        pm.load_plan(case.plan().to_bytes(), "host")
    assert 'device="webgpu"' in caught.value.hint
    with pytest.raises(PlanError, match="target host"):
        pm.load_plan(case.plan("host").to_bytes(), NullDevice())
    monkeypatch.setenv("PUMICE_DEVICE", "host")
    with pytest.raises(PlanError, match="auto comes to the host") as caught:
        pm.load_plan(case.plan().to_bytes())
    assert 'device="webgpu"' in caught.value.hint


def test_host_plans_say_so_and_have_no_kernels() -> None:
    header = encode(CASES["mlp"]().plan("host")).header
    assert (header["target"], header["kernels"]["wgsl"], header["needs"]) == ("host", [], {})
    assert set(header["regimes"][0]["steps"]["kernel"]) == {None}


# -- expressions and symbols ------------------------------------------------------------------------------------------
def test_expressions_come_back() -> None:
    t, s = sym("T"), sym("S")
    dims = [t, t * 3 - 1, (t + 63) // 64, t * t * s - 2 * s, (t % 7) * s + (s // (t + 1)), dim_max(t, s) * 2]
    for d in dims:
        assert decode_dim(encode_dim(d), {"T", "S"}) == d
    with pytest.raises(PlanError, match=r"2\^53"):
        check_exact(t * t * t, {"T": 1 << 20})


@pytest.mark.parametrize(
    ("specs", "sizes"),
    [
        ({"x": ("T", "2*T+S"), "y": ("S",)}, {"T": 3, "S": 4}),
        ({"x": ("2*T+3*S", "S")}, {"T": 5, "S": 0}),
        ({"x": ("T*S", "T")}, {"T": 3, "S": 2}),
        ({"x": ("4*T-1",), "y": ("T+U", "U-1")}, {"T": 2, "U": 9}),
    ],
)
def test_the_recipe_for_symbols_agrees_with_inference(specs: dict[str, tuple[str, ...]], sizes: dict[str, int]) -> None:
    graph: Graph = pm.trace(lambda **xs: [x.sum() for x in xs.values()], **{n: pm.spec(*s) for n, s in specs.items()})
    shapes = {n.name: tuple(evaluate(d, sizes) for d in n.type.shape) for n in graph.sources("input")}
    env: dict[str, int] = {}
    for row in solutions(graph):
        env[row.symbol] = (shapes[row.input][row.axis] - evaluate(row.rest, env)) // evaluate(row.slope, env)
    assert env == sizes == infer_env(graph, shapes)


def test_the_specification_names_every_key() -> None:
    text = (TESTS.parent / "docs" / "plan-format.md").read_text()
    header = encode(CASES["several_results"]().plan()).header
    keys = {*header, *header["needs"]}
    for table in (*header.values(), *header["graph"].values()):
        keys |= set(table) if isinstance(table, dict) else set()
    assert not [k for k in keys if f"`{k}`" not in text and k not in text]
