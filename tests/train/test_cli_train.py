"""`pumice train`: configurations with named errors, the examples, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from pumice.cli import INTERRUPTED, TERMINATED
from pumice.cli.main import app, error_text
from pumice.errors import FormatError, InputError, MissingName, PumiceError, UnknownName
from pumice.train import Checkpoints
from pumice.train.config import load_config, make_optimizer, make_schedule, parse_config
from pumice.train.recipes import RECIPES

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
# Every example as small as it can be; what they are good for is in the slow tests below.
SMALL = {
    "digits-mlp": ["run.epochs=1", "model.hidden=[16]"],
    "digits-conv": ["run.epochs=1", "data.batch=500", "model.channels=[2, 3]"],
    "addition": ["run.steps=3", "model.width=8", "model.layers=1", "data.unseen=0.02"],
    "characters": ["run.steps=3", "model.width=8", "model.layers=1", "model.context=16", "data.validation=0.02"],
    "siren": ["run.epochs=2", "data.size=16", "data.batch=64"],
}
MEASURED = {
    "digits-mlp": "test_accuracy",
    "digits-conv": "test_accuracy",
    "addition": "unseen_exact",
    "characters": "sample",
    "siren": "psnr",
}


def words(name: str, out: Path, *changes: str) -> list[str]:
    settings = [word for change in (*SMALL[name], *changes) for word in ("--set", change)]
    return ["train", str(EXAMPLES / f"{name}.toml"), "--device", "host", "--out", str(out), *settings]


def run(arguments: list[str]) -> dict[str, Any]:
    found = CliRunner().invoke(app, [*arguments, "--json"])
    if isinstance(found.exception, PumiceError):
        raise found.exception
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_every_recipe_has_an_example():
    assert {load_config(path).recipe.name for path in EXAMPLES.glob("*.toml")} >= set(SMALL) == set(MEASURED) <= set(RECIPES)


@pytest.mark.parametrize("name", SMALL)
def test_examples_run(tmp_path, name):
    out = tmp_path / "run"
    found = run(words(name, out))
    assert found["stopped"] == "done" and found["device"] == "host" and found["parameters"] > 0
    assert MEASURED[name] in found["measured"] and found["validation"]["loss"] > 0
    left = {p.name for p in out.iterdir()}
    assert {"checkpoints", "log.jsonl", "report.html", "config.json"} <= left
    assert {"characters": "sample.txt", "siren": "fit.png"}.get(name, "log.jsonl") in left
    assert json.loads((out / "config.json").read_text())["recipe"] == name


def test_a_run_is_not_overwritten_and_can_be_resumed(tmp_path):
    name, whole, parts = "siren", tmp_path / "whole", tmp_path / "parts"
    constant = ["schedule.kind=constant"]  # a cosine depends on the length of the run
    wanted = run(words(name, whole, *constant, "run.epochs=4"))
    run(words(name, parts, *constant))
    with pytest.raises(InputError, match="has checkpoints of an earlier run") as error:
        run(words(name, parts, *constant, "run.epochs=4"))
    assert "--resume" in error.value.cli_hint
    found = run([*words(name, parts, *constant, "run.epochs=4"), "--resume"])
    assert found["loss"] == wanted["loss"] and found["resumed_from"].endswith("step-00000008")
    assert found["measured"] == wanted["measured"]
    started = run([*words(name, tmp_path / "new", *constant), "--resume"])
    assert started["resumed_from"] is None, "without a checkpoint --resume starts"


@pytest.mark.parametrize(
    ("table", "kind", "text"),
    [
        ({}, MissingName, "no 'recipe'"),
        ({"recipe": 3}, InputError, "not a name"),
        ({"recipe": "sirenn"}, UnknownName, "did you mean 'siren'"),
        ({"recipe": "siren", "runn": {}}, UnknownName, "'runn'.*did you mean 'run'"),
        ({"recipe": "siren", "run": {"epoch": 1}}, UnknownName, "'run.epoch'.*did you mean 'epochs'"),
        ({"recipe": "siren", "run": {"epochs": "3"}}, InputError, "'run.epochs' is '3', not an integer"),
        ({"recipe": "siren", "run": {"epochs": True}}, InputError, "'run.epochs' is True, not an integer"),
        ({"recipe": "siren", "run": 3}, InputError, "'run' is 3, not a table"),
        ({"recipe": "siren", "run": {}}, InputError, "epochs or of steps"),
        ({"recipe": "siren", "run": {"epochs": 1, "precision": "f8"}}, InputError, "'run.precision' is 'f8'.*one of f32 f16"),
        ({"recipe": "siren", "optimizer": {"betas": [0.9]}}, InputError, "not a list of 2"),
        ({"recipe": "digits-mlp", "model": {"hidden": [3, "x"]}}, InputError, r"'model.hidden\[1\]' is 'x'"),
        ({"recipe": "addition", "model": {"width": 7}}, InputError, "width 7"),
    ],
)
def test_wrong_settings_are_named(table, kind, text):
    with pytest.raises(kind, match=f"(?s){text}"):
        parse_config(table)


def test_wrong_files_and_changes(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("recipe = [")
    with pytest.raises(FormatError, match="is no TOML"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_text('recipe = "siren"\n[run]\nepochs = 3\n')
    config = load_config(tmp_path / "good.toml", ["run.epochs=5", "optimizer.kind=lion", "model.omega=3"])
    assert (config.run.epochs, config.optimizer.kind, config.model.omega, config.run.name) == (5, "lion", 3.0, "good")
    for change in ("epochs", "=3", "recipe.x=3"):
        with pytest.raises(InputError):
            load_config(tmp_path / "good.toml", [change])
    found = CliRunner().invoke(app, ["train", str(tmp_path / "good.toml"), "--set", "run.epocs=3"])
    assert isinstance(found.exception, UnknownName) and not list(tmp_path.glob("runs"))
    with pytest.raises(InputError, match="names no file"):
        table = {"recipe": "characters", "data": {"files": ["none-*.txt"]}, "run": {"steps": 1}}
        from pumice.train.launch import launch

        launch(parse_config(table, folder=tmp_path))


@pytest.mark.parametrize("key", ["epochs", "steps", "every", "keep", "patience", "log_every", "accumulate"])
def test_numbers_of_a_run_that_make_no_sense_are_named(key):
    for value in (0, -1):
        length = {} if key == "steps" else {"epochs": 1}
        with pytest.raises(InputError, match=f"'run.{key}' is {value}, it must be at least 1"):
            parse_config({"recipe": "siren", "run": {**length, key: value}})


def test_a_length_that_is_asked_for_replaces_the_file_s(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('recipe = "siren"\n[run]\nepochs = 3\npatience = 2\n')
    run = load_config(path, ["run.steps=7"]).run
    assert (run.steps, run.epochs) == (7, None)
    run = load_config(path, ["run.epochs=", "run.steps=7", "run.patience="]).run
    assert (run.steps, run.epochs, run.patience) == (7, None, None)
    assert load_config(path, ["run.steps="]).run.epochs == 3
    with pytest.raises(InputError, match="epochs or of steps"):
        load_config(path, ["run.steps=7", "run.epochs=2"])


def test_validation_can_be_turned_off(tmp_path):
    found = run(words("digits-mlp", tmp_path / "run", "run.validate=false", "run.every=8", "run.monitor=-accuracy"))
    assert found["validation"] == {} and found["best"] is not None and any("validation is off" in n for n in found["notes"])
    for name in ("digits-mlp", "characters"):
        found = run(words(name, tmp_path / name, "data.validation=0"))
        assert found["validation"] == {} and any("validation is off" in n for n in found["notes"])


# What looks like Python in a hint: keyword arguments, calls, names of modules.
_PYTHON = re.compile(r"(?<![.\w])[a-z_]+=|\bpm\.|\boptim\.\w+\(|\w\(\)|\w\(\.\.\.")


def test_errors_at_the_command_line_recommend_what_works_there(tmp_path, monkeypatch):
    out = tmp_path / "run"
    run(words("siren", out))

    def says(*arguments: str) -> str:
        found = CliRunner().invoke(app, list(arguments))
        assert isinstance(found.exception, PumiceError), found.output
        text = error_text(found.exception)
        assert not _PYTHON.search(text.replace(str(tmp_path), "")), text
        return text

    assert "--resume" in says(*words("siren", out)) and "--out" in says(*words("siren", out))
    assert "--set run.params=" in says(*words("siren", out, "data.batch=32"), "--resume")
    assert "another folder" in says(*words("siren", out, "model.width=16"), "--resume")
    assert "--set optimizer.lr=" in says(*words("siren", tmp_path / "b", "optimizer.kind=sgd", "optimizer.lr=1e30"))
    says(*words("siren", tmp_path / "c", "run.monitor=accuracy"))
    says(*words("siren", tmp_path / "c", "run.accumulate=0"))
    says(*words("siren", tmp_path / "c", "optimizer.lr=-1"))
    says(*words("siren", tmp_path / "c", "optimizer.clip_norm=-1"))
    says(*words("siren", tmp_path / "c", "optimizer.betas=[0.9, 2.0]"))
    says(*words("siren", tmp_path / "c", "schedule.warmup=-3"))
    says(*words("siren", tmp_path / "c", "run.params=none.safetensors"))
    says(*words("siren", tmp_path / "c", "data.batch=0"))
    with Checkpoints(out / "checkpoints"):
        assert "--out" in says(*words("siren", out), "--resume")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    assert "start again" in says(*words("siren", tmp_path / "d"))


def test_optimizers_and_schedules_of_a_configuration():
    table = {
        "recipe": "siren",
        "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9, "nesterov": True},
        "schedule": {"kind": "multi_step", "at": [3, 6], "gamma": 0.5, "warmup": 2},
        "run": {"steps": 10},
    }
    config = parse_config(table)
    schedule = make_schedule(config.schedule, config.optimizer.lr, 10)
    assert [schedule(i) for i in (0, 1, 2, 5, 8)] == [0.25, 0.5, 0.5, 0.25, 0.125]
    made = make_optimizer(config.optimizer, schedule)
    assert (made.kind, made.momentum, made.nesterov, made.lr) == ("sgd", 0.9, True, schedule)
    assert json.loads(json.dumps(config.as_json()))["schedule"]["at"] == [3, 6]
    for kind in ("constant", "linear", "cosine", "one_cycle"):
        settings = parse_config({"recipe": "siren", "schedule": {"kind": kind}, "run": {"steps": 1}}).schedule
        assert make_schedule(settings, 0.1, 100).kind == kind


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_signals_end_the_command_with_a_checkpoint(tmp_path, number, code):
    out = tmp_path / "run"
    arguments = words("siren", out, "run.epochs=1000000", "run.every=1000000")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pumice.cli.main", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        log = out / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size > 1000):
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert "--resume goes on from there" in said
    (saved,) = (out / "checkpoints").glob("step-*")
    assert int(saved.name.removeprefix("step-")) > 0


def test_digits_are_learnt(tmp_path):
    found = run(["train", str(EXAMPLES / "digits-mlp.toml"), "--device", "host", "--out", str(tmp_path)])
    assert found["measured"]["test_accuracy"] >= 0.97


@pytest.mark.slow
def test_digits_are_learnt_by_convolutions(tmp_path):
    found = run(["train", str(EXAMPLES / "digits-conv.toml"), "--device", "host", "--out", str(tmp_path)])
    assert found["measured"]["test_accuracy"] >= 0.975


@pytest.mark.slow
def test_addition_is_learnt(tmp_path):
    found = run(["train", str(EXAMPLES / "addition.toml"), "--device", "host", "--out", str(tmp_path)])
    assert found["measured"]["unseen_exact"] >= 0.99 and found["measured"]["unseen_loss"] < 0.1 and found["loss"] < 0.1


@pytest.mark.slow
def test_an_image_is_fitted(tmp_path):
    found = run(["train", str(EXAMPLES / "siren.toml"), "--device", "host", "--out", str(tmp_path)])
    assert found["measured"]["psnr"] > 30
