"""`--receipt FILE` and `--receipt-private`: each command that runs a model writes a receipt that verifies, or refuses first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli_harness import RUN, pumice, refused
from pumice.cli.main import app, error_text
from pumice.errors import PumiceError
from pumice.receipts.envelope import read_envelope
from pumice.receipts.log import ReceiptLog
from tiny_models import TEMPLATE, checkpoint

CLASSIFIERS = Path(__file__).parents[1] / "models" / "goldens" / "classifiers"
DIGITS = Path(__file__).parents[2] / "examples" / "train" / "digits-mlp.toml"
HOST = ["--device", "host"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def invoke(*words: object, said: str = "") -> Any:
    return CliRunner().invoke(app, [str(w) for w in words], input=said)


def answered(*words: object) -> dict[str, Any]:
    """What a command prints with --json, after its receipt was verified by the command for that."""
    found = invoke(*words, "--json")
    assert found.exit_code == 0, (found.output, found.exception)
    out: dict[str, Any] = json.loads(found.stdout)
    verified = invoke("receipt", "verify", out["receipt"]["file"])
    assert verified.exit_code == 0, (verified.output, verified.exception)
    return out


def predicate(path: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = read_envelope(Path(path).read_bytes()).statement["predicate"]
    return found


def content(receipt: dict[str, Any], side: str, role: str) -> Any:
    return receipt["pumice"]["artifacts"][side][role]["content"]


def test_an_answer_from_an_empty_home(folder: Path, home: Path, tmp_path: Path) -> None:
    done = pumice("run", folder, "w5 w6", *RUN, "--max-tokens", 4, "--receipt", tmp_path / "r.json", PUMICE_HOME=str(home))
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == f"receipt: {tmp_path / 'r.json'}"
    receipt = predicate(tmp_path / "r.json")
    assert content(receipt, "inputs", "prompt") == "w5 w6" and content(receipt, "outputs", "text") == done.stdout.rstrip("\n")
    assert receipt["pumice"]["log"]["index"] == 0 and ReceiptLog(home / "receipts").verify().receipts == 1


def test_every_command_that_runs_a_model_has_receipts(folder: Path, tmp_path: Path) -> None:
    run = answered("run", folder, "w5 w6", *RUN, "--max-tokens", 4, "--seed", 7, "--receipt", "run.json")
    assert run["receipt"] == {"file": "run.json", "private": False}
    found = predicate("run.json")["pumice"]
    assert found["request"]["seed"] == 7 and found["request"]["context"] == 64
    assert json.loads(content(predicate("run.json"), "outputs", "tokens")) == run["tokens"]

    bert = checkpoint("bert", tmp_path, closing=True)
    answered("embed", bert, "w5", "w6", *HOST, "--receipt", "embed.json")
    assert json.loads(content(predicate("embed.json"), "inputs", "texts")) == ["w5", "w6"]

    label = answered("classify", CLASSIFIERS / "bert", "a cat", *HOST, "--receipt", "classify.json")
    assert json.loads(content(predicate("classify.json"), "outputs", "labels")) == [r["label"] for r in label["results"]]

    ranker = next(p for p in sorted(CLASSIFIERS.iterdir()) if len(json.loads((p / "config.json").read_text())["id2label"]) == 1)
    ranked = answered("rerank", ranker, "a cat", "a dog", "a cat", *HOST, "--receipt", "rank.json")
    assert json.loads(content(predicate("rank.json"), "outputs", "ranking")) == [r["index"] for r in ranked["results"]]

    bench = ["--prompt", 8, "--answer", 4, *HOST, "--receipt", "bench.json"]
    answered("bench", folder, *bench)
    measured = predicate("bench.json")
    assert len(json.loads(content(measured, "inputs", "prompt_tokens"))) == 8 and measured["outputs"][1]["shape"] == [4]

    words = ["--set", "run.epochs=1", "--set", "model.hidden=[16]", "--out", tmp_path / "runs"]
    answered("train", DIGITS, *HOST, *words, "--receipt", "train.json")
    assert predicate("train.json")["pumice"]["task"] == "train"

    tasks = [predicate(line_file)["pumice"]["log"]["index"] for line_file in ("run.json", "embed.json", "train.json")]
    assert tasks == [0, 1, 5] and ReceiptLog().verify().receipts == 6


def test_a_chat_has_a_receipt_for_each_answer(folder: Path, tmp_path: Path) -> None:
    words = ["chat", folder, *RUN, "--max-tokens", 3, "--receipt", "talk.json"]
    for expected in (["talk-1.json", "talk-2.json"], ["talk-1.json", "talk-2.json", "talk-3.json"]):
        found = invoke(*words, said="w5\nw6\n/quit\n" if len(expected) == 2 else "w7\n/quit\n")
        assert found.exit_code == 0 and f"receipt: {expected[-1]}" in found.stderr
        assert sorted(p.name for p in tmp_path.glob("talk*")) == expected
    asked = [json.loads(content(predicate(f"talk-{k}.json"), "inputs", "prompt")) for k in (1, 2, 3)]
    assert [len(messages) for messages in asked] == [1, 3, 1]


def test_a_private_receipt_shows_no_text(folder: Path, home: Path) -> None:
    answered("run", folder, "w5 w6 secret", *RUN, "--max-tokens", 4, "--receipt", "p.json", "--receipt-private")
    receipt = predicate("p.json")
    assert all("content" not in entry for side in receipt["pumice"]["artifacts"].values() for entry in side.values())
    assert "secret" not in json.dumps(receipt)
    page = invoke("receipt", "show", "p.json", "--html", "p.html")
    assert page.exit_code == 0
    text, log = Path("p.html").read_text(), (home / "receipts" / "log.jsonl").read_text()
    for shown in (text, log):
        assert "secret" not in shown and "w5 w6" not in shown and "[5,6" not in shown
    opened = invoke("receipt", "open", "p.json", "prompt", "-o", "o.json")
    assert opened.exit_code == 0 and invoke("receipt", "verify", "p.json", "--opening", "o.json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nothing", "Hi", "--receipt", "nowhere/r.json"], "there is no folder nowhere"),
        (["chat", "nothing", "--receipt", "."], "is a folder"),
        (["embed", "nothing", "Hi", "--receipt-private"], "add --receipt FILE"),
        (["bench", "--receipt", "r.json"], "bench ops runs no model"),
        (["bench", "--tune", "--receipt", "r.json"], "--tune runs no model"),
    ],
)
def test_what_would_fail_is_refused_before_a_model_is_loaded(words: list[str], said: str) -> None:
    found = invoke(*words)
    assert isinstance(found.exception, PumiceError) and said in error_text(found.exception) and found.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: another user runs this test")
def test_a_folder_that_is_closed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    found = invoke("run", "nothing", "Hi", "--receipt", "closed/r.json")
    assert isinstance(found.exception, PumiceError) and "is closed to you" in error_text(found.exception)


def test_without_the_package_that_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.packs.extra import missing_extra

    def nobody(*_: object) -> None:
        raise missing_extra("cryptography")

    monkeypatch.setattr("pumice.receipts.keys.own_key", nobody)
    found = invoke("run", "nothing", "Hi", "--receipt", "r.json")
    assert isinstance(found.exception, PumiceError)
    assert error_text(found.exception) == "pumice: signed receipts need the package cryptography; pip install 'pumice[packs]'"


def test_the_command_line_says_so_in_one_line(home: Path) -> None:
    refused(pumice("run", "nothing", "Hi", "--receipt", "nowhere/r.json", PUMICE_HOME=str(home)), "there is no folder nowhere")
