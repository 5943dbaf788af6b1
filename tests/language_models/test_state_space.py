"""Models with state-space layers give the same whole, in chunks, token by token, in batches, packed, and when trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.formats import open_weights
from pumice.llm.engine import Engine
from pumice.llm.requests import Request
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.memory import KeysValues, Recurrent, State, WholeSequences
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.tensor import Tensor
from tiny_models import GOLDENS, GREEDY, PROMPT, tokens_of

NAMES = ("mamba", "falcon_mamba", "mamba2", "mamba2_groups", "bamba", "jamba", "rwkv7", "qwen3_next")
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


def golden(name: str, key: str) -> np.ndarray[Any, Any]:
    with open_weights(GOLDENS / name / "goldens.safetensors") as file:
        return np.array(file.array(key))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_every_size_give_what_transformers_gives(name: str, target: str, engine: Callable[..., Engine]) -> None:
    """A chunk of one token is token by token, one of 64 the whole prompt; 7 leaves padding. Answers are decoded step by step."""
    for chunk in (1, 7, 64) if target == "host" else (7,):
        e = engine(name, target, chunk=chunk)
        for length in (1, 7, 19, 40) if chunk == 7 else (19,):
            ids, want = golden(name, f"prompt.{length}.ids").tolist(), golden(name, f"prompt.{length}.greedy.ids").tolist()
            assert tokens_of(e, ids) == want, (chunk, length)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_prompt_in_parts_are_those_of_the_whole(name: str, engine: Callable[..., Engine]) -> None:
    for chunk in (1, 3):
        got, want = engine(name, chunk=chunk).logits(golden(name, "prompt.40.ids").tolist()), golden(name, "prompt.40.logits")
        assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("name", ["mamba", "bamba", "rwkv7", "qwen3_next"])
def test_sequences_in_a_batch_have_memories_of_their_own(name: str, engine: Callable[..., Engine]) -> None:
    prompts = [PROMPT, PROMPT[:4], [7], PROMPT[::-1]]
    want = [tokens_of(engine(name), p, 3 + i) for i, p in enumerate(prompts)]
    together = engine(name, slots=4, chunk=5)
    for _ in range(2):  # the second time in slots that others have used
        got: dict[int, list[int]] = {i: [] for i in range(4)}
        for event in together.stream([Request(p, GREEDY, 3 + i) for i, p in enumerate(prompts)]):
            got[event.request].append(event.token)
        assert [got[i] for i in range(4)] == want


def model(name: str) -> tuple[CausalArchitecture, ModelArchConfig]:
    cfg = ModelArchConfig.from_hf(json.loads((GOLDENS / name / "config.json").read_text()))
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    return arch, cfg


def test_layers_say_what_they_remember() -> None:
    arch, cfg = model("bamba")
    scan = Recurrent(State("conv", (3, 64 + 2 * 8))), Recurrent(State("ssm", (4, 8, 16)))
    assert arch.memories(cfg) == (scan, (KeysValues(2, 8, 8),), scan)


def compiled(name: str, fn: Callable[..., Any], **specs: Any) -> Any:
    arch, cfg = model(name)
    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        loaded = load_model_params(cfg, weights)
        exe = pm.compile(lambda params, **given: fn(arch, cfg, params, **given), params=loaded.specs, device="host", **specs)
        exe.set_params(loaded.arrays)
    return exe


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "rwkv7", "qwen3_next"])
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    """As in training: two texts in one row, positions from 0 in each."""

    def logits(arch: Any, cfg: Any, params: Any, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        mask = segments.reshape(1, 1, -1, 1) == segments.reshape(1, 1, 1, -1)
        found: Tensor = arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences(mask)))
        return found

    ids = pm.spec(1, 26, dtype="i32")
    with compiled(name, logits, tokens=ids, positions=ids, segments=ids) as exe:
        positions = np.concatenate([np.arange(7), np.arange(19)])[None].astype(np.int32)
        tokens = np.concatenate([golden(name, "prompt.7.ids"), golden(name, "prompt.19.ids")])[None]
        got = exe.run(tokens=tokens, positions=positions, segments=np.array([[0] * 7 + [1] * 19], np.int32))[0]
    want = np.concatenate([golden(name, "prompt.7.logits"), golden(name, "prompt.19.logits")])
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "rwkv7", "qwen3_next"])
def test_every_weight_has_a_gradient(name: str) -> None:
    """Of the loss of a whole sequence, through the recurrences; along it the loss changes by as much as it says."""
    arch, cfg = model(name)

    def loss(params: Any, tokens: Tensor) -> Tensor:
        positions = pm.broadcast_to(pm.arange(tokens.shape[1]), tokens.shape)
        logits = arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences()))
        return pm.cross_entropy(logits[:, :-1], tokens[:, 1:]).mean()

    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        loaded = load_model_params(cfg, weights)
        params = {path: np.array(loaded.arrays[path], np.float32) for path in loaded.arrays}
    specs = {path: pm.spec(*p.shape) for path, p in params.items()}
    ids = golden(name, "prompt.40.ids")[None]
    with pm.compile(pm.value_and_grad(loss), params=specs, tokens=pm.spec(1, 40, dtype="i32"), device="host") as exe:
        exe.set_params(params)
        _, gradients = exe.run(tokens=ids)
        assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in gradients.values())
        size = sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values())
        losses = []
        for step in (1e-5, -1e-5):
            exe.set_params({path: p + np.float32(step) * gradients[path] for path, p in params.items()})
            losses.append(float(exe.run(tokens=ids)[0]))
    assert abs((losses[0] - losses[1]) / (2e-5 * size) - 1) < 0.1
