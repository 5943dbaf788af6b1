"""Token steps in ranges: the same tokens, turns for others in between, and answers that end when they are cancelled or closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from tiny_models import checkpoint

WEBGPU = pytest.param("webgpu", marks=pytest.mark.gpu)
ANSWER: dict[str, Any] = {"max_tokens": 12, "raw": True, "ignore_eos": True, "seed": 3, "temperature": 1.0}
PROMPTS = ["w5 w9 w12", "w7 w8"]
WAIT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["host", WEBGPU])
def model(request: Any, folder: Path) -> Iterator[Any]:
    with pm.load(folder, device=request.param, context=64) as loaded:
        yield loaded


def answers(model: Any) -> list[list[int]]:
    return [answer.tokens for answer in model.generate(PROMPTS, **ANSWER)]


def test_the_same_tokens_in_every_mode(model: Any) -> None:
    want = answers(model)
    made = [
        pm.Cooperative(1.0, keep=50),
        pm.Cooperative(chunk=7, yield_ms=0.1, keep=50),
        pm.Cooperative(chunk=5, max_in_flight=3, keep=50),
        pm.Cooperative(mode="disabled", keep=50),
    ]
    for c in made:
        model.cooperate(c)
        assert answers(model) == want
        assert all(report["status"] == "succeeded" for report in c.executions if report["progress"]["percent"] == 100)
        assert c.report()["progress"]["percent"] == 100
        assert c.report()["maxObservedInFlightGpuDuties"] <= c.max_in_flight
    model.cooperate(None)
    assert answers(model) == want


def test_a_callback_has_its_turn_in_every_token_step(model: Any) -> None:
    turns: list[Any] = []
    with pm.compile(lambda x: x + 1.0, x=pm.spec(4), device=model.engine.device) as own:
        c = pm.Cooperative(chunk=20, hz=None, foreground=lambda: turns.append(own.run(x=np.zeros(4))))
        want = answers(model)
        model.cooperate(c)
        assert answers(model) == want
        model.cooperate(None)
    ranges = sum(len(report["boundaries"][0]["ranges"]) for report in c.executions)
    assert len(turns) == ranges >= 12


def test_a_cancel_ends_the_answer_and_nothing_else(model: Any) -> None:
    want = answers(model)
    c = pm.Cooperative(chunk=20)
    model.cooperate(c)
    turns = [0]

    def stop() -> None:
        turns[0] += 1
        if turns[0] == 20:
            c.cancel("enough")

    c.foreground, c.hz = stop, None
    with pytest.raises(errors.RunCancelled, match="enough"):
        model.generate(PROMPTS[0], **ANSWER)
    c.foreground = None
    assert answers(model) == want
    model.cooperate(None)


@pytest.mark.parametrize("device", ["host", WEBGPU])
def test_closing_a_paused_model(folder: Path, device: str) -> None:
    c = pm.Cooperative(chunk=4)
    model = pm.load(folder, device=device, context=64, cooperative=c)
    model.generate(PROMPTS[0], **ANSWER)
    c.pause()
    found: list[Any] = []

    def answer() -> None:
        try:
            model.generate(PROMPTS[0], **ANSWER)
        except errors.PumiceError as e:
            found.append(e)

    thread = threading.Thread(target=answer)
    thread.start()
    end = time.monotonic() + WAIT
    while c.progress()["status"] != "paused":
        assert time.monotonic() < end
        time.sleep(0.01)
    model.close()
    thread.join(WAIT)
    assert not thread.is_alive() and isinstance(found[0], errors.ClosedError)


def test_embeddings_are_the_same(tmp_path: Path) -> None:
    folder = checkpoint("bert", tmp_path)
    texts = [f"w{k} w{k + 1}" for k in range(5, 25)]
    with pm.load(folder, task="embed", device="host") as model:
        want = model.embed(texts)
        c = pm.Cooperative(chunk=3)
        model.cooperate(c)
        np.testing.assert_array_equal(model.embed(texts), want)
        assert c.report()["status"] == "succeeded"
