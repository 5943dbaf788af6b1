"""PUMICE_DEBUG and the bisecting switches: what each says and does, in pm.compile and in pm.load; and `pumice run --profile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import config, errors
from pumice.backends.host.device import HostSession
from pumice.cli.main import app
from pumice.llm.engine import Engine
from pumice.passes import PASSES, optimize
from pumice.passes.rebuild import Rebuilder
from pumice.run.executable import Executable
from tiny_models import checkpoint

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, numpy as np, pumice as pm
def net(x):
    n = pm.state("n", (8,))
    pm.set_state(n, n + 1.0)
    return pm.softmax(x @ pm.ones((4, 8)) + n)
with pm.compile(net, x=pm.spec("B", 4, max=16), device=sys.argv[1]) as exe:
    print(float(exe.run(x=np.ones((2, 4), "f4")).sum()))
"""
# What first appears at each level, on a WebGPU device and on the host.
SAYS = {
    1: (["pumice: device", "features"], ["pumice: device host (host"]),
    2: (["planned in", "opened in", "step 0 ", "clock: timestamps", "at B=2"], ["[host]", "clock: host", "at B=2"]),
    3: (["buffer 0: input x", "value %0: f32", "read %0", "state n"], ["buffer 0: input x", "value %0: f32"]),
    4: (["@compute @workgroup_size", "// kernel 0"], []),
    5: (["graph as traced", 'input "x"', "graph as planned"], ["graph as traced", "graph as planned"]),
}


def stderr_at(level: int, device: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_")}
    env |= {"PYTHONPATH": str(ROOT / "src"), **({"PUMICE_DEBUG": str(level)} if level else {})}
    done = subprocess.run([sys.executable, "-c", SCRIPT, device], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0\n"  # nothing but the program's own output
    return done.stderr


@pytest.mark.parametrize("level", range(6))
@pytest.mark.parametrize(("device", "column"), [pytest.param("webgpu", 0, marks=pytest.mark.gpu), ("host", 1)])
def test_each_level_prints_its_own_and_the_lower_ones(level: int, device: str, column: int) -> None:
    said = stderr_at(level, device)
    for k, columns in SAYS.items():
        for text in columns[column]:
            assert (text in said) == (k <= level), f"level {level}: {text!r}"
    assert bool(said) == (level > 0)


# -- switches that help to find a fault ---------------------------------------------------------------------------------
def net(params: Any, x: Any) -> Any:
    for _ in range(3):
        x = pm.softmax(pm.relu(x @ params["w"] + 1.0) * 2.0)
    n = pm.state("n", (8,))
    pm.set_state(n, n + 1.0)
    return x + n


def compiled() -> Any:
    return pm.compile(net, params={"w": np.eye(8, dtype="f4")}, x=pm.spec("B", 8, max=4), device="host")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(params=["compile", "load"])
def executables(request: pytest.FixtureRequest, folder: Path) -> Callable[[], tuple[Any, list[Executable], Any]]:
    """Opens something with executables in it: (what to close, they, what runs them)."""

    def open_one() -> tuple[Any, list[Executable], Any]:
        if request.param == "compile":
            exe = compiled()
            return exe, [exe], lambda: exe.run(x=np.ones((2, 8), "f4"))
        model: Any = pm.load(folder, device="host", context=32)
        engine: Engine = model.engine
        return model, list(engine._exes.values()), lambda: model.generate([5, 6, 7], temperature=0, max_tokens=3).tokens

    return open_one


def test_nofuse_gives_each_op_its_own_step(executables: Any) -> None:
    plain, (fused, *_), run = executables()
    with plain:
        expected = run()
    with config.override(nofuse=True):
        opened, exes, run = executables()
    with opened:
        # Further results of an op are nodes too, which its own step writes.
        ops = [[e.graph.nodes[n].op for n in s.nodes] for e in exes for s in e.plan.steps]
        assert all(len([op for op in names if op != "result"]) == 1 for names in ops)
        assert len(exes[0].plan.steps) > len(fused.plan.steps)
        np.testing.assert_allclose(run(), expected, rtol=1e-5)


def test_noarena_gives_each_value_its_own_buffer(executables: Any) -> None:
    plain, (shared, *_), run = executables()
    with plain:
        expected = run()
    with config.override(noarena=True):
        opened, exes, run = executables()
    with opened:
        for e in exes:
            assert e.report().arena_saved_bytes <= 0
            written = {b.value for s in e.plan.steps for b in s.bindings if b.access == "write"}
            places = [(p.buffer, p.offset) for v in written for p in e.plan.values[v].parts]
            assert len(set(places)) == len(places)
        assert exes[0].plan.memory["arena"] > shared.plan.memory["arena"]
        np.testing.assert_array_equal(run(), expected)


@pytest.mark.parametrize("fault", ["outputs", "states"])
def test_validate_finds_a_device_that_is_wrong(executables: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with config.override(validate=True):
        opened, exes, run = executables()
        assert all(e._validate for e in exes)
    with opened:
        run()
        plain = HostSession.run

        def wrong(self: HostSession, env: Any, inputs: Any, outputs: Any) -> Any:
            results = plain(self, env, inputs, outputs)
            if fault == "outputs":
                return [r + 1 for r in results]
            for n in self.plan.graph.sources("state"):
                self.write(n.id, self.read(n.id) + 1)
            return results

        monkeypatch.setattr(HostSession, "run", wrong)
        with pytest.raises(errors.DeviceError, match="differs from the reference"):
            run()


def test_validate_checks_the_graph_after_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_types(graph: Any) -> Any:
        r = Rebuilder(graph)
        for n in graph:
            r.keep(n)
        made = r.finish()
        return type(made)(made.nodes[1:], *[getattr(made, f) for f in ("outputs", "updates", "captures", "symbols", "tree")])

    monkeypatch.setitem(PASSES, "cse", break_types)
    graph = pm.trace(lambda x: pm.relu(x), x=pm.spec(2))
    with config.override(validate=True), pytest.raises(errors.GraphError):
        pm.compile(graph, device="host")
    with pytest.raises(errors.GraphError):
        optimize(graph, skip=("simplify", "fold", "dce"), check=True)


# -- pumice run --profile -----------------------------------------------------------------------------------------------
def test_run_writes_the_trace_of_a_decode_step(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "decode.json"
    args = ["run", str(folder), "w5 w6", "--device", "host", "--max-tokens", "3", "--raw", "--profile", str(trace)]
    with pytest.raises(SystemExit) as done:
        app(args)
    assert done.value.code == 0
    steps = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["cat"] != "host"]
    assert any(e["cat"] == "attention" for e in steps)
    said = capsys.readouterr()
    assert "clock: host" in said.err and "ui.perfetto.dev" in said.err and "clock" not in said.out


def test_a_profile_leaves_the_conversation_as_it_is(folder: Path) -> None:
    with pm.load(folder, device="host", context=32) as model:
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
        with pytest.raises(errors.InputError, match="no sequence"):
            model.engine.profile()  # type: ignore[union-attr]
        first = model.generate([5, 6, 7], **options).tokens  # type: ignore[union-attr]
        found = model.engine.profile(repeats=2)  # type: ignore[union-attr]
        assert {"matmul", "attention"} <= {o.op for o in found.by_op()}
        assert model.generate([5, 6, 7], **options).tokens == first  # type: ignore[union-attr]
        longer = model.generate([5, 6, 7, *first], **options).tokens  # type: ignore[union-attr]
    with pm.load(folder, device="host", context=32) as fresh:
        assert fresh.generate([5, 6, 7, *first], **options).tokens == longer  # type: ignore[union-attr]
