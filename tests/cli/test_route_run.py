"""`pumice route run`: functions and tasks as routes, their files and receipts, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import route_kit as kit
from cli_harness import ROOT, pumice, refused
from pumice import config
from pumice.cli.main import app
from pumice.errors import InputError, MissingName, PumiceError, UnknownName
from pumice.receipts.envelope import read_envelope
from pumice.receipts.section import receipt_errors
from pumice.routes.kinds import document_errors
from pumice.routes.own import BY_ID, CLASSIFY, EMBED, RANK
from pumice.routes.results import result_errors
from tiny_models import TEMPLATE, checkpoint

CLASSIFIERS = ROOT / "tests" / "models" / "goldens" / "classifiers"
EDGES = """import pumice as pm

@pm.route("my.edges.v0", image=pm.spec("H", "W"), gain=pm.spec())
def edges(image, gain):
    return {"dx": (image[:, 1:] - image[:, :-1]) * gain, "a/b": image.sum()}
"""
IMAGE = np.float32([[1, 3, 6]])


@pytest.fixture
def edges(tmp_path: Path) -> str:
    (tmp_path / "edges.py").write_text(EDGES)
    np.save(tmp_path / "image.npy", IMAGE)
    return f"{tmp_path / 'edges.py'}:edges"


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[None]:
    with config.override(home=tmp_path / "home"):
        yield


def invoke(*words: object) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["route", "run", *map(str, words), "--json"])
    if isinstance(found.exception, PumiceError):
        raise found.exception
    assert found.exit_code == 0, found.output
    out: dict[str, Any] = json.loads(found.stdout)
    return out


def accepted(result: dict[str, Any], definition: dict[str, Any]) -> None:
    """Both sides take the worker result; the package knows no runtime but a browser's."""
    assert result_errors(result, definition) == [] and receipt_errors(result["receipt"]) == []
    browser = {**result, "backend": {**result["backend"], "runtime": "browser"}}
    answers = kit.call(
        [
            ("validateRouteDefinition", definition),
            ("validateRouteInvocationRequest", result["request"], definition),
            ("validateRouteWorkerResult", browser, definition),
            ("validateRouteReceipt", result["receipt"]),
        ]
    )
    assert [a["value"]["errors"] for a in answers] == [[]] * 4


def test_a_function_of_a_file_runs_and_leaves_everything(edges: str, tmp_path: Path) -> None:
    out, signed = tmp_path / "out", tmp_path / "receipt.json"
    words = ("route", "run", edges, "--input", f"image={tmp_path / 'image.npy'}", "--input", "gain=2", "--device", "host")
    done = pumice(*words, "--out", out, "--receipt", signed, PUMICE_HOME=str(tmp_path / "home"))
    assert done.returncode == 0 and "fallback" in done.stderr and done.stdout.startswith("dx: 1×2, sha256 ")
    np.testing.assert_array_equal(np.load(out / "output-dx.npy"), [[4, 6]])
    documents = {name: json.loads((out / f"{name}.json").read_text()) for name in ("route", "request", "result")}
    accepted(documents["result"], documents["route"])
    assert document_errors(documents["request"], documents["route"]) == []
    hashes = {e["role"]: e["sha256"] for e in documents["result"]["outputs"]}
    files = {"dx": "output-dx.npy", "a/b": "output-ab.npy"}
    assert hashes == {role: hashlib.sha256((out / file).read_bytes()).hexdigest() for role, file in files.items()}
    envelope = read_envelope(signed.read_bytes())
    assert envelope.predicate["outputs"] == documents["result"]["outputs"]
    assert envelope.predicate["pumice"]["request"]["function"] == edges
    checked = pumice("receipt", "verify", signed, PUMICE_HOME=str(tmp_path / "home"))
    assert checked.returncode == 0
    assert pumice("route", "validate", out / "result.json", "--route", out / "route.json").returncode == 0


def test_inputs_are_files_or_numbers(edges: str, tmp_path: Path) -> None:
    first = invoke(edges, "--input", f"image={tmp_path / 'image.npy'}", "--input", "gain=2", "--device", "host")
    second = invoke(edges, "--input", "image=[[1, 3, 6]]", "--input", "gain=2.0", "--device", "host", "--config", "note=x")
    assert first["outputs"] == second["outputs"] and first["route"] == "my.edges.v0"
    assert second["result"]["request"]["routeConfig"] == {"note": "x"}
    assert first["result"]["request"]["inputs"] == second["result"]["request"]["inputs"]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["--input", "image=[[1, 2]]"], MissingName, "'gain' was not given"),
        (["--input", "image=[[1, 2]]", "--input", "gian=1"], UnknownName, "there is no input 'gian'"),
        (["--input", "image=none.npy", "--input", "gain=1"], InputError, "cannot be read from none.npy"),
        (["--input", "image=what", "--input", "gain=1"], InputError, "the input 'image' is 'what'"),
        (["--input", "gain=1", "--input", "gain=2"], InputError, "'gain' is given 2 times"),
        (["--input", "image"], InputError, "--input is 'image'"),
        (["--model", "smollm2"], InputError, "a function has no --model"),
    ],
)
def test_wrong_inputs_are_refused(edges: str, words: list[str], error: type[PumiceError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        invoke(edges, *words, "--device", "host")
    assert caught.value.exit_code == 2


def test_wrong_routes_are_refused(tmp_path: Path) -> None:
    refused(pumice("route", "run", "nope.v1"), "there is no route nope.v1")
    for words, said in (
        (["moge.depth-normal.webgpu-local.v0"], "nothing that runs it"),
        (["pumice.generate.v1"], "needs a model"),
        (["pumice.train-step.v1", "--model", "x", "--input", "batch=1"], "is not run by itself"),
        (["pumice.generate.v1", "--model", "x", "--input", "prompt=a", "--input", "prompt=b"], "given 2 times"),
        (["pumice.embed.v1", "--model", "x", "--input", "texts=a", "--config", "top=1"], "no option 'top'"),
        (["pumice.generate.v1", "--model", "x", "--input", f"prompt=@{tmp_path / 'none.txt'}"], "none.txt"),
        (["pumice.generate.v1", "--model", "x", "--receipt-private", "--input", "prompt=a"], "there is none"),
        (["pumice.generate.v1", "--model", "x", "--config", "top_p=[1e999]", "--input", "prompt=a"], "finite numbers only"),
    ):
        with pytest.raises(PumiceError, match=said):
            invoke(*words)


def test_generation_is_a_route(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "prompt.txt").write_text("w5 w17 w9")
    words = ("--model", model, "--config", "max_tokens=4", "--config", "temperature=0", "--device", "host")
    found = invoke("pumice.generate.v1", *words, "--input", f"prompt=@{tmp_path / 'prompt.txt'}")
    again = invoke("pumice.generate.v1", *words, "--input", "prompt=w5 w17 w9")
    assert {r: o["sha256"] for r, o in found["outputs"].items()} == {r: o["sha256"] for r, o in again["outputs"].items()}
    accepted(found["result"], json.loads(BY_ID["pumice.generate.v1"].definition(model.name).to_json()))
    receipt = found["result"]["receipt"]
    assert receipt["pumice"]["request"]["max_tokens"] == 4
    assert [s["name"] for s in receipt["timings"]["stages"]] == ["prefill", "decode"]


def test_encoders_are_routes(tmp_path: Path) -> None:
    encoder = checkpoint("bert", tmp_path, closing=True)
    runs = (
        (EMBED, encoder, ["texts=w5 w6", "texts=w7"]),
        (RANK, CLASSIFIERS / "bert", ["query=a12 b7", "texts=d4 a9", "texts=a12"]),
        (CLASSIFY, CLASSIFIERS / "bert", ["texts=d4 a9"]),
    )
    for route, model, inputs in runs:
        found = invoke(route.route_id, "--model", model, "--device", "host", *(w for i in inputs for w in ("--input", i)))
        accepted(found["result"], json.loads(route.definition(model.name).to_json()))
        assert set(found["outputs"]) == {role.role for role in route.outputs}
