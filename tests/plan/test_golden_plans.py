"""Golden plan files: they still load, give the recorded numbers with and without Pumice, and are what is emitted now."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from plan.plan_cases import CASES, GOLDEN
from pumice.plan.plan import Plan
from pumice.reference.bounds import Bounds
from pumice.reference.compare import mismatch

from harness import device

READER = Path(__file__).parent / "plan_reader.py"
# Written once by the first release of the format and never again: later ones must read it.
KEPT = "kept_v1"
NAMES = [*CASES, KEPT]


def recorded(name: str) -> dict[str, Any]:
    with np.load(GOLDEN / f"{name}.npz") as data:
        return dict(data)


def inputs_of(data: dict[str, Any], run: int) -> dict[str, Any]:
    return {k.split(" ", 1)[1]: a for k, a in data.items() if k.startswith(f"{run} ") and not _is_result(k)}


def _is_result(name: str) -> bool:
    return name.split(" ")[1] in ("outputs", "captures")


def agrees(got: Any, want: Any, dtype: Any) -> str:
    """The graph's own bounds are compared elsewhere; recorded floats are kept to a part in 50,000 of their row's greatest."""
    if not dtype.is_float:
        return mismatch(got, Bounds.exact(want), dtype)
    value = want.astype(np.float64)
    off = 2e-5 * np.max(np.abs(value), axis=-1, keepdims=True, initial=0) if value.ndim else 2e-5 * np.abs(value)
    return mismatch(got, Bounds(value, value - off, value + off), dtype)


@pytest.mark.parametrize("name", CASES)
def test_emitted_plans_are_the_accepted_ones(name: str, request: pytest.FixtureRequest) -> None:
    case = CASES[name]()
    data, path = case.plan().to_bytes(), GOLDEN / f"{name}.plan"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_bytes(data)
        results = {f"{k} {n}": a for k, run in enumerate(case.expected()) for n, a in run.items()}
        np.savez(GOLDEN / f"{name}.npz", **case.arrays(), **results)  # type: ignore[arg-type]
    assert path.exists(), "no golden file: run `make golden` and look at what it writes"
    assert data == path.read_bytes(), f"{path.name} differs: if that is meant, run `make golden`"


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_golden_plans_give_the_recorded_numbers(name: str) -> None:
    data = recorded(name)
    with pm.load_plan(GOLDEN / f"{name}.plan", device("webgpu")) as exe:
        params = {k.removeprefix("param "): a for k, a in data.items() if k.startswith("param ")}
        exe.set_params(params)
        runs = 0
        while inputs := inputs_of(data, runs):
            result, captures = exe.run(inputs, outputs=range(len(exe.graph.outputs)), captures=True)
            named = {f"outputs {n}": (i, a) for (n, i), a in zip(exe.graph.outputs, result, strict=True)}
            named |= {f"captures {n}": (i, captures[n]) for n, i in exe.graph.captures}
            for label, (node, got) in named.items():
                assert agrees(got, data[f"{runs} {label}"], exe.graph.nodes[node].type.dtype) == "", label
            runs += 1
    assert runs


@pytest.mark.gpu
def test_a_reader_without_pumice_gets_the_same_numbers(tmp_path: Path) -> None:
    shutil.copy(READER, tmp_path)  # from here no path leads to the package
    arguments: list[str] = []
    for name in NAMES:
        np.savez(tmp_path / f"{name}.npz", **{k: a for k, a in recorded(name).items() if not _is_result(k)})
        arguments += [str(GOLDEN / f"{name}.plan"), str(tmp_path / f"{name}.npz"), str(tmp_path / f"{name}.out.npz")]
    command = [sys.executable, "-P", str(tmp_path / READER.name), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = next(line for line in done.stdout.splitlines() if line.startswith("modules:")).split()
    assert "wgpu" in loaded and "pumice" not in loaded
    for name in NAMES:
        graph = Plan.load(GOLDEN / f"{name}.plan").graph
        types = {f"outputs {n}": graph.nodes[i].type for n, i in graph.outputs}
        types |= {f"captures {n}": graph.nodes[i].type for n, i in graph.captures}
        want = {k: a for k, a in recorded(name).items() if _is_result(k)}
        with np.load(tmp_path / f"{name}.out.npz") as got:
            assert set(got) == set(want)
            for key, array in want.items():
                dtype = types[key.split(" ", 1)[1]].dtype
                assert agrees(got[key], array, dtype) == "", f"{name}: {key}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_reader_and_the_executable_agree_bit_by_bit(name: str) -> None:
    """Both run the same kernels on the same device, so nothing may differ at all."""
    from plan import plan_reader

    data = recorded(name)
    runtime = plan_reader.Runtime((GOLDEN / f"{name}.plan").read_bytes())
    with pm.load_plan(GOLDEN / f"{name}.plan", device("webgpu")) as exe:
        for key in (k for k in data if k.startswith("param ")):
            runtime.set_param(key.removeprefix("param "), data[key])
        exe.set_params({k.removeprefix("param "): a for k, a in data.items() if k.startswith("param ")})
        for run in range(len(CASES[name]().runs)):
            ours = exe.run(inputs_of(data, run), outputs=range(len(exe.graph.outputs)))
            theirs = runtime.run(inputs_of(data, run))
            for (output, _), array in zip(exe.graph.outputs, ours, strict=True):
                assert theirs[f"outputs {output}"][2] == array.tobytes()
