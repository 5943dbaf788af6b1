"""Receipts of train steps and of whole runs: parameters before and after, batch, loss, settings, checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
import route_kit as kit
from pumice import nn, optim, train
from pumice.errors import InputError
from pumice.receipts.section import receipt_errors
from pumice.routes.documents import plain
from pumice.routes.own import TRAIN_STEP
from pumice.routes.requests import route_request
from pumice.routes.results import result_errors, worker_result
from pumice.run.receipts import RecordedRun
from pumice.train.config import load_config
from pumice.train.launch import launch

from harness import device

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
X = np.float32([[0, 0], [0, 1], [1, 0], [1, 1]])
BATCH = {"x": X, "y": X.sum(1, keepdims=True)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def npy_hash(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return sha256(file.getvalue())


def loss(model: Any, x: Any, y: Any) -> Any:
    found = nn.mse(model(x), y)
    pm.capture("prediction", model(x))
    return found, {"mean": x.mean()}


def compiled(target: str = "host", **options: Any) -> train.TrainStep:
    specs = {"x": pm.spec("B", 2), "y": pm.spec("B", 1)}
    optimizer = optim.AdamW(1e-2)
    return train.compile_step(nn.Linear(2, 1), loss, optimizer, specs, device=device(target), max=4, aux=True, **options)


def params_hash(params: Mapping[str, Any]) -> str:
    lines = [f"{name} f32[{','.join(map(str, a.shape))}] {sha256(a.tobytes())}\n" for name, a in sorted(params.items())]
    return sha256("".join(lines).encode())


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_names_parameters_batch_and_loss(target: str) -> None:
    with compiled(target, seed=7) as step, compiled(target, seed=7) as other:
        before = params_hash(step.params())
        (value, aux), captured, receipt = step.run(BATCH, captures=True, receipt=True)
        (same, _), _ = other.run(BATCH, captures=True)
        assert value == same and step.count == 1
        document = plain(receipt.document)
        own = document["pumice"]
        assert receipt_errors(document) == []
        hashes = {e["role"]: e["sha256"] for e in document["inputs"] + document["outputs"]}
        assert hashes == {
            "x": npy_hash(X),
            "y": npy_hash(BATCH["y"]),
            "loss": npy_hash(np.float32(value)),
            "aux.mean": npy_hash(aux["mean"]),
            "capture.prediction": npy_hash(captured["prediction"]),
        }
        assert own["model"]["params"]["sha256"] == before
        assert own["conditions"]["params_after"]["sha256"] == params_hash(step.params()) != before
        states = own["conditions"]["optimizer_states"]
        assert states["count"] > 0 and states["before"] != states["after"] and own["conditions"]["updated"] is True
        assert own["request"]["seed"] == 7 and own["request"]["step"] == 0 and own["request"]["lr"] == pytest.approx(1e-2)
        assert own["request"]["optimizer"] == step.optimizer.to_dict()
        assert own["plans"] == [{"name": "step", "digest": step.executable.plan.sha256}]
        later = plain(step(BATCH, receipt=True)[-1].document)["pumice"]
        assert later["model"]["params"]["sha256"] == own["conditions"]["params_after"]["sha256"]
        assert later["conditions"]["optimizer_states"]["before"] == states["after"] and later["request"]["step"] == 1


def test_micro_batches_update_with_the_last_one() -> None:
    with compiled(accumulate=2) as step:
        first, second = (plain(step(BATCH, receipt=True)[-1].document) for _ in range(2))
        assert [d["pumice"]["conditions"]["updated"] for d in (first, second)] == [False, True]
        assert [[p["name"] for p in d["pumice"]["plans"]] for d in (first, second)] == [["step"], ["step", "update"]]
        assert [s["name"] for s in second["timings"]["stages"]] == ["run", "update"]
        before = first["pumice"]["model"]["params"]
        assert first["pumice"]["conditions"]["params_after"] == before == second["pumice"]["model"]["params"]
        assert second["pumice"]["conditions"]["params_after"]["sha256"] == params_hash(step.params()) != before["sha256"]


def test_a_step_is_a_worker_result_of_its_route() -> None:
    with compiled() as step:
        receipt = plain(step(BATCH, receipt=True)[-1].document)
    # What comes with the loss is no role of the route: a result has those that it names.
    named = {**receipt, "outputs": [entry for entry in receipt["outputs"] if entry["role"] == "loss"]}
    definition = TRAIN_STEP.definition("Linear", inputs=["x", "y"])
    inputs = {entry["role"]: entry for entry in receipt["inputs"]}
    request = route_request(definition, "r", inputs=inputs, outputs={"loss": {"artifactId": "l"}})
    result = plain(worker_result(definition, request, named))
    assert result_errors(result, definition) == []
    answers = kit.call(
        [
            ("validateRouteDefinition", plain(definition)),
            ("validateRouteReceipt", receipt),
            ("validateRouteWorkerResult", {**result, "backend": {**result["backend"], "runtime": "browser"}}, plain(definition)),
        ]
    )
    assert [a["value"] for a in answers] == [{"ok": True, "errors": []}] * 3


def test_without_a_receipt_nothing_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a step without a receipt did work for one")

    monkeypatch.setattr(RecordedRun, "__init__", refuse)
    monkeypatch.setattr("pumice.run.digests.array_digest", refuse)
    with compiled() as step:
        assert isinstance(step(BATCH)[0], float)


def test_a_bad_batch_changes_nothing_and_has_no_receipt() -> None:
    with compiled() as step:
        before = params_hash(step.params())
        with pytest.raises(InputError):
            step({"x": X}, receipt=True)
        with pytest.raises(InputError):
            step({**BATCH, "x": X * np.nan}, receipt=True)
        assert params_hash(step.params()) == before and step.count == 0


def test_a_whole_run_has_a_receipt(tmp_path: Path) -> None:
    out = tmp_path / "run"
    changes = ["run.epochs=2", "data.size=16", "data.batch=64", 'run.device="host"', f"run.out={json.dumps(str(out))}"]
    outcome = launch(load_config(EXAMPLES / "siren.toml", changes), progress=False, receipt=True)
    assert outcome.receipt is not None
    document = plain(outcome.receipt.document)
    own = document["pumice"]
    assert receipt_errors(document) == [] and own["task"] == "train" and document["status"] == "fallback"
    contents = {role: json.loads(a.content) for role, a in outcome.receipt.artifacts.items()}
    assert contents["config"]["recipe"] == "siren" and str(tmp_path) not in json.dumps(contents)
    assert contents["result"]["steps"] == outcome.result.steps and "psnr" in contents["result"]["measured"]
    (out_dir,) = {c["name"] for c in contents["checkpoints"][-1:]}
    for name, about in contents["checkpoints"][-1]["files"].items():
        assert sha256((out / "checkpoints" / out_dir / name).read_bytes()) == about["sha256"]
    saved = params_hash(train.load_params(out / "checkpoints" / out_dir))
    assert own["model"]["params"]["sha256"] == saved != own["conditions"]["params_before"]["sha256"]
    assert launch(load_config(EXAMPLES / "siren.toml", changes), progress=False).receipt is None
