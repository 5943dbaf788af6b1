"""Bundles of train steps: what they say, their data, and that their plans train as the step itself does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from cli_harness import pumice, refused
from pumice import nn, optim, train
from pumice.errors import IndexRangeError, InputError, MissingName
from pumice.train.recipes import StepFunction


def loss(model: nn.Module, x: Any, y: Any) -> Any:
    logits = model(x)
    return nn.cross_entropy(logits, y), {"mean": pm.mean(logits)}


SPECS = {"x": pm.spec("B", 4), "y": pm.spec("B", dtype="i32")}


def samples(count: int = 10) -> train.Arrays:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype("f4")
    return train.Arrays(x=x, y=(x.sum(1) > 0).astype("i8"))


def small_step(**settings: Any) -> train.TrainStep:
    optimizer = settings.pop("optimizer", optim.AdamW(optim.schedules.warmup(3, 0.05)))
    return train.compile_step(nn.MLP(4, 8, 2), loss, optimizer, SPECS, device="host", max=4, aux=True, **settings)


def read_field(folder: Path, part: dict[str, Any], name: str) -> np.ndarray[Any, Any]:
    field = part["fields"][name]
    kind = {"f32": "<f4", "i32": "<i4"}[field["dtype"]]
    return np.fromfile(folder / field["file"], kind).reshape(part["samples"], *field["shape"])


def test_the_manifest_says_how_to_train(tmp_path: Path) -> None:
    data = train.Batches(samples(), 4, seed=5, drop_last=True)
    with small_step(seed=3) as step:
        logits = StepFunction(lambda model, x: {"logits": model(x)}, {"x": pm.spec("N", 4)}, {"N": 16})
        manifest = train.export_step(step, tmp_path / "web", data=data, functions={"logits": logits}, name="small")
        expected = step.params()
    section = manifest["train"]
    assert manifest["kind"] == "train" and manifest["model"]["name"] == "small"
    assert sorted(manifest["variants"][0]["steps"]) == ["evaluate", "logits", "train"]
    assert (section["seed"], section["accumulate"], section["batch"]) == (3, 1, ["x", "y"])
    assert section["inputs"] == {"key": "step.key", "learning_rate": "step.lr", "number": "step.number"}
    assert section["batch_size"] == {"max": 4, "fixed": False}
    assert (section["loss"], section["metrics"]) == ("0", {"mean": "1.mean"})
    assert section["labels"] == [{"input": "y", "classes": 2, "ignored": -100}]
    assert optim.Schedule.from_dict(section["schedule"]) == optim.schedules.warmup(3, 0.05)
    part = section["data"]["train"]
    assert {k: part[k] for k in ("kind", "samples", "batch", "seed", "shuffle", "drop_last")} == {
        "kind": "arrays", "samples": 10, "batch": 4, "seed": 5, "shuffle": True, "drop_last": True,
    }  # fmt: skip
    taken = samples().take(np.arange(10))
    assert (read_field(tmp_path / "web", part, "x") == taken["x"]).all()
    assert (read_field(tmp_path / "web", part, "y") == taken["y"]).all()
    table = manifest["weights"]
    for name, shape, pieces in zip(table["name"], table["shape"], table["pieces"], strict=True):
        ((file, offset, size),) = pieces
        raw = (tmp_path / "web" / file).read_bytes()[offset : offset + size]
        assert (np.frombuffer(raw, "<f4").reshape(shape) == expected[name]).all()
    assert sorted(table["name"]) == sorted(expected)


def test_a_plan_of_the_bundle_trains_as_the_step_does(tmp_path: Path) -> None:
    data = train.Batches(samples(), 4, seed=5)
    with small_step() as step:
        manifest = train.export_step(step, tmp_path / "web", data=data)
        first = step.params()
        expected = [step(data.batch(i // 3, i % 3))[0] for i in range(6)]
    rates = optim.Schedule.from_dict(manifest["train"]["schedule"])
    plan = manifest["variants"][0]["steps"]["train"]["plan"]
    with pm.load_plan(tmp_path / "web" / plan, device="webgpu") as exe:
        exe.set_params(first)
        found = []
        for i in range(6):
            given = {"step.lr": np.float32(rates(i)), "step.number": np.float32(i + 1), "step.key": np.uint32([0, i])}
            found.append(float(exe.run({**data.batch(i // 3, i % 3), **given})[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_tokens_are_stored_as_narrow_as_they_fit(tmp_path: Path) -> None:
    tokens, letters = train.text_tokens("the sea, the sea. " * 20, 8, stride=4)

    def next_loss(model: nn.Module, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x), y)

    model = nn.Sequential(nn.Embedding(len(letters), 4), nn.Linear(4, len(letters)))
    shape = pm.spec("B", 8, dtype="i32")
    with train.compile_step(model, next_loss, optim.SGD(0.1), {"x": shape, "y": shape}, device="host", max=4) as step:
        manifest = train.export_step(step, tmp_path / "web", data=train.Batches(tokens, 4))
    part = manifest["train"]["data"]["train"]
    assert (part["kind"], part["dtype"], part["context"], part["stride"], part["samples"]) == ("tokens", "u8", 8, 4, len(tokens))
    assert (np.fromfile(tmp_path / "web" / part["file"], "u1") == tokens.tokens).all()
    assert manifest["train"]["loss"] == "out"


def test_accumulated_gradients_have_a_plan_that_applies_them(tmp_path: Path) -> None:
    with small_step(accumulate=2, optimizer=optim.SGD(0.1, ema=0.9)) as step:
        manifest = train.export_step(step, tmp_path / "web")
    assert sorted(manifest["variants"][0]["steps"]) == ["apply", "evaluate", "train"]
    section = manifest["train"]
    assert section["inputs"]["first"] == "step.first" and section["data"] == {}
    assert section["averages"] == {f"optim.ema.{name}": name for name in section["trained"]}
    shared = manifest["variants"][0]["shared"]
    assert {f"grad.{name}" for name in section["trained"]} <= set(shared["name"])


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    class Endless:
        def batch(self, epoch: int, index: int) -> dict[str, Any]:
            return {}

    fn = StepFunction(lambda model, x: model(x), {"x": pm.spec("B", 4)})
    with small_step() as step:
        with pytest.raises(InputError, match="Endless, whose batches a bundle cannot describe"):
            train.export_step(step, tmp_path / "web", data=Endless())  # type: ignore[arg-type]
        with pytest.raises(MissingName, match="gives x, the step takes x y"):
            train.export_step(step, tmp_path / "web", data=train.Batches(train.Arrays(x=np.ones((3, 4), "f4")), 2))
        with pytest.raises(IndexRangeError, match="the label 7 in row 1"):
            wrong = train.Arrays(x=np.ones((2, 4), "f4"), y=np.int32([0, 7]))
            train.export_step(step, tmp_path / "web", data=train.Batches(wrong, 2))
        with pytest.raises(InputError, match="'evaluate' is a step of its own"):
            train.export_step(step, tmp_path / "web", functions={"evaluate": fn})
        with pytest.raises(InputError, match="not MLP"):
            train.export_step(step.model, tmp_path / "web")  # type: ignore[arg-type]
    assert not (tmp_path / "web").exists()


def test_a_configuration_becomes_a_web_folder(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("she sells sea shells on the sea shore. " * 30)
    (tmp_path / "words.toml").write_text(
        'recipe = "characters"\n[model]\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n'
        '[data]\nfiles = ["words.txt"]\nbatch = 2\n[run]\nsteps = 5\n'
    )
    web = tmp_path / "web"
    refused(pumice("export", tmp_path / "words.toml", "--web", web, "--slots", 2), "leave it out: models have one")
    found = pumice("export", tmp_path / "words.toml", "--web", web, "--variants", "browser-baseline", "--json")
    summary = json.loads(found.stdout)
    assert (summary["kind"], summary["model"]["name"], summary["web"]) == ("train", "words", True)
    assert sorted(summary["variants"][0]["steps"]) == ["evaluate", "sample", "train"]
    section = json.loads((web / "manifest.json").read_text())["train"]
    assert section["text"]["context"] == 8 and sorted(section["data"]) == ["train", "validation"]
