"""`pumice inspect`: what it says of models, plans and weights, how graphs fall into parts, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice.cli.inspect import run
from pumice.cli.inspect_page.render import SCRIPTS, render
from pumice.cli.inspect_page.segments import split
from pumice.cli.inspect_page.text import render as as_text
from pumice.core.caps import Caps
from pumice.errors import InputError, PumiceError
from pumice.plan.build import build_plan
from pumice.plan.memory import value_lifetimes
from pumice.plan.plan import Plan
from tiny_models import GOLDENS

ROOT = Path(__file__).parents[2]
DEFAULTS: dict[str, Any] = {
    "device": "host",
    "html": None,
    "measured": False,
    "prefill": False,
    "weights": False,
    "context": 64,
    "at": (),
    "as_json": True,
}
Look = Callable[..., dict[str, Any]]


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Look:
    """The summary as data."""

    def inspect(model: object, **options: Any) -> dict[str, Any]:
        assert run(str(model), **{**DEFAULTS, **options}) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return inspect


@pytest.fixture(scope="module")
def plan() -> Plan:
    def net(params: Any, x: Any) -> Any:
        n = pm.state("n", (4,))
        pm.set_state(n, n + 1.0)
        for layer in params["layers"]:
            x = pm.relu(x @ layer["w"])
        return pm.softmax(x @ params["head"] + n)

    specs = {"layers": [{"w": pm.spec(8, 8)} for _ in range(3)], "head": pm.spec(8, 4)}
    return build_plan(pm.trace(net, params=specs, x=pm.spec("B", 8, max=16)), Caps.preset("browser-baseline"))


@pytest.fixture
def plan_file(plan: Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "net.plan")
    return tmp_path / "net.plan"


# -- what is said ---------------------------------------------------------------------------------------------------
def test_a_models_decode_step(look: Look) -> None:
    found = look(GOLDENS / "llama")
    assert found["kind"] == "model" and found["step"] == "token step, context 64"
    assert found["model"]["model_type"] == "llama" and found["model"]["layers"] == 2
    p = found["plan"]
    assert [part["count"] for part in p["parts"]] == [1, 2, 1]
    assert sum(part["nodes"] for part in p["parts"]) == p["nodes"] == sum(p["ops"].values())
    assert p["params"][0]["dtype"] == "bf16" and p["memory"]["param"] >= p["params"][0]["bytes"] > 0
    assert ("cache.0…1.k", 2) in [(s["name"], s["count"]) for s in p["states"]]
    assert len(p["largest"]) > 3 and p["largest"][0]["bytes"] == max(r["bytes"] for r in p["largest"])
    assert sum(row["steps"] for row in p["kernel_table"]) == len(p["steps"])
    assert found["weights"]["format"] == "safetensors"
    assert found["weights"]["bytes"] == sum(t["bytes"] for t in found["weights"]["tensors"])


def test_prompts_have_a_symbol_that_can_be_set(look: Look) -> None:
    largest = look(GOLDENS / "llama", prefill=True)["plan"]
    small = look(GOLDENS / "llama", prefill=True, at=["T=4"])["plan"]
    assert largest["env"] == {"T": 64} and small["env"] == {"T": 4}
    assert small["flops"] < largest["flops"] and small["memory"] == largest["memory"]


def test_an_encoder(look: Look) -> None:
    found = look(GOLDENS / "bert")
    assert found["step"] == "embedding of texts" and set(found["plan"]["env"]) == {"B", "T"}


def test_a_measured_run(look: Look) -> None:
    found = look(GOLDENS / "llama", measured=True, prefill=True)
    assert found["profile"]["clock"] == "host" and found["profile"]["measured"] == "a prompt of 64 tokens"
    assert found["plan"]["env"] == found["profile"]["env"] == {"T": 64}
    assert {s["step"] for s in found["profile"]["steps"]} >= set(range(len(found["plan"]["steps"])))


def test_a_plan_file(look: Look, plan_file: Path, plan: Plan) -> None:
    found = look(plan_file, at=["B=2"])
    assert found["kind"] == "plan" and found["plan"]["sha256"] == plan.sha256
    assert found["plan"]["target"] == "webgpu" and found["plan"]["env"] == {"B": 2}
    assert found["plan"]["kernels"] == len(plan.kernels) and found["plan"]["memory"] == plan.memory
    # What a file is goes by its content too.
    shutil.copy(plan_file, renamed := plan_file.with_name("net"))
    assert look(renamed)["plan"]["nodes"] == len(plan.graph)


@pytest.mark.gpu
def test_a_plan_file_is_run_on_zeros(look: Look, plan_file: Path, plan: Plan) -> None:
    found = look(plan_file, measured=True, device="webgpu")
    assert found["profile"]["measured"] == "weights and inputs are zeros" and found["profile"]["env"] == {"B": 16}
    assert len([s for s in found["profile"]["steps"] if s["step"] >= 0]) == len(plan.steps)


def test_weights_alone(look: Look, tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "llama" / "model.safetensors", tmp_path)
    found = look(tmp_path / "model.safetensors")
    assert found["kind"] == "weights" and "plan" not in found
    assert found["note"].startswith("not planned: ") and "config.json" in found["note"]
    assert look(GOLDENS / "llama", weights=True)["weights"]["tensors"] == found["weights"]["tensors"]
    with pytest.raises(InputError, match=r"config\.json"):
        run(str(tmp_path / "model.safetensors"), **{**DEFAULTS, "prefill": True})


def test_the_text_names_layers_kernels_and_states(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(plan_file), **{**DEFAULTS, "as_json": False})
    out = capsys.readouterr().out
    assert "net.plan · plan file\nplanned for webgpu, at B=16 of at most 16\n" in out
    assert "layers.0 … layers.2 (3 ×, " in out and re.search(r"layers\.0…2\.w +3 × +f32 +8×8 +768 B", out)
    assert re.search(r"(?m)^states .*\nn ", out) and "arena" in out and "why" in out


def test_text_from_files_does_not_steer_the_terminal() -> None:
    tensor = {"name": "a\x1b[2J\nb", "dtype": "f32", "shape": [2], "bytes": 8}
    weights = {"format": "gguf", "bytes": 8, "elements": 2, "metadata": {"k\x07": "v"}, "tensors": [tensor],
               "dtypes": [{"dtype": "f32", "tensors": 1, "elements": 2, "bytes": 8}]}  # fmt: skip
    out = as_text({"name": "m", "step": "", "kind": "weights", "note": "", "weights": weights})
    assert "\x1b" not in out and "\x07" not in out and "a\\x1b[2J" in out


# -- parts of graphs ------------------------------------------------------------------------------------------------
def test_a_tied_head_is_a_part_of_its_own_behind_the_layers() -> None:
    def model(params: Any, ids: Any) -> Any:
        x = pm.embedding(params["embed"], ids)
        for layer in params["layers"]:
            x = x + pm.tanh(x @ layer["w"])
        return x @ params["embed"].T

    specs = {"embed": pm.spec(11, 8), "layers": [{"w": pm.spec(8, 8)} for _ in range(4)]}
    graph = pm.trace(model, params=specs, ids=pm.spec(3, dtype="i32"))
    segments, stacks = split(graph)
    assert [(s.name, len(s.segments)) for s in stacks] == [("embed", 1), ("layers.0 … layers.3", 4), ("embed", 1)]
    assert sorted(n for s in segments for n in s.nodes) == list(range(len(graph)))
    assert len({segments[k].alike for k in stacks[1].segments}) == 1


def test_a_gradients_way_back_has_parts_too() -> None:
    def loss(params: Any, x: Any) -> Any:
        for layer in params["layers"]:
            x = pm.tanh(x @ layer["w"])
        return pm.mean(x * x)

    specs = {"layers": [{"w": pm.spec(8, 8)} for _ in range(3)]}
    graph = pm.trace(pm.value_and_grad(loss), params=specs, x=pm.spec(2, 8))
    # The first layer's gradient reads no params, and the last layer's follows its own part.
    assert [s.name for s in split(graph)[0]] == ["inputs", "layers.0", "layers.1", "layers.2", "layers.1"]


def test_what_follows_the_last_layer_is_no_part_of_it() -> None:
    def model(params: Any, x: Any) -> Any:
        for layer in params["layers"]:
            x = pm.tanh(x @ layer["w"])
        return pm.sqrt(pm.mean(x * x, axis=-1))

    graph = pm.trace(model, params={"layers": [{"w": pm.spec(4, 4)} for _ in range(3)]}, x=pm.spec(1, 4))
    segments, stacks = split(graph)
    assert [s.name for s in stacks] == ["layers.0 … layers.2", "outputs"]
    assert [graph.nodes[n].op for n in segments[-1].nodes] == ["mul", "reduce_mean", "sqrt"]
    assert [s.alike for s in segments] == [0, 0, 0, 1]


def test_layers_that_differ_are_told_apart() -> None:
    def model(params: Any, x: Any) -> Any:
        for k, layer in enumerate(params["layers"]):
            x = x @ layer["w"]
            x = pm.relu(x) if k % 2 else pm.tanh(x)
        return x

    graph = pm.trace(model, params={"layers": [{"w": pm.spec(4, 4)} for _ in range(4)]}, x=pm.spec(1, 4))
    segments, (stack,) = split(graph)
    assert [segments[k].alike for k in stack.segments] == [0, 1, 0, 1]


# -- the page -------------------------------------------------------------------------------------------------------
def test_the_page_fetches_nothing(plan_file: Path, tmp_path: Path, look: Look, plan: Plan) -> None:
    page = tmp_path / "net.html"
    assert look(plan_file, html=page)["html"] == str(page)
    text = page.read_text("utf-8")
    assert "default-src 'none'" in text and "<!--" not in text
    outside = set(re.findall(r"https?://[^\"'\s)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert outside == set() and not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\((?!#)", text)
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert [k["wgsl"] for k in data["kernels"]] == [k.wgsl for k in plan.kernels]
    spans = value_lifetimes(plan.graph, plan.steps)
    for value, buffer, offset, nbytes, first, last in data["memory"]["values"]:
        assert plan.values[value].parts[0].buffer == buffer and spans[value] == (first, last)
        assert offset + nbytes <= plan.buffers[buffer].nbytes
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_scripts_and_styles_are_in_the_package() -> None:
    import tomllib

    folder = ROOT / "src/pumice/cli/inspect_page"
    assert {p.name for p in folder.glob("*.js")} == set(SCRIPTS)
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pumice"]
    shipped = {p for pattern in patterns for p in (ROOT / "src/pumice").glob(pattern)}
    assert {p for p in folder.iterdir() if p.suffix in (".js", ".css", ".html")} <= shipped
    for p in folder.glob("*.js"):
        assert "</script" not in p.read_text() and len(p.read_text().splitlines()) <= 500
    assert render({"name": "a & b"}).count("<title>a &amp; b · Pumice</title>") == 1


# -- what is refused ------------------------------------------------------------------------------------------------
def test_a_command_line_ends_with_one_line_and_code_2(tmp_path: Path, plan_file: Path) -> None:
    (tmp_path / "notes.txt").write_text("no weights here")
    (tmp_path / "cut.plan").write_bytes(plan_file.read_bytes()[:-100])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_")} | {"PYTHONPATH": str(ROOT / "src")}
    for file, said in {"notes.txt": "is no plan, GGUF or safetensors file", "cut.plan": "its SHA-256"}.items():
        command = [sys.executable, "-m", "pumice.cli.main", "inspect", str(tmp_path / file), "--device", "host"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
        assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        ("none.plan", {}, "cannot be read"),
        ("empty.plan", {}, "no plan file"),
        ("net.plan", {"prefill": True}, "is a plan file"),
        ("net.plan", {"weights": True}, "is a plan file"),
        ("net.plan", {"at": ["B=17"]}, "at most 16"),
        ("net.plan", {"at": ["Q=1"]}, "no symbol 'Q'"),
        ("net.plan", {"at": ["B=-1"]}, "is no size"),
        ("net.plan", {"at": ["B"]}, "is no size"),
        ("net.plan", {"html": Path("no/such/folder/x.html")}, "cannot be written"),
        ("model.safetensors", {"measured": True}, "no steps to run"),
        ("nothing-of-this-name", {}, "there is no model"),
    ],
)
def test_refusals(file: str, options: dict[str, Any], said: str, plan_file: Path) -> None:
    folder = plan_file.parent
    (folder / "empty.plan").touch()
    shutil.copy(GOLDENS / "llama" / "model.safetensors", folder)
    known = file if file.startswith("nothing") else str(folder / file)
    with pytest.raises(PumiceError, match=said) as refused:
        run(known, **{**DEFAULTS, **options})
    assert refused.value.exit_code == 2


def test_an_encoder_has_no_prompts() -> None:
    with pytest.raises(InputError, match="encoder"):
        run(str(GOLDENS / "bert"), **{**DEFAULTS, "prefill": True})
