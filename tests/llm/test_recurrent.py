"""Recurrent memory: a model with short convolutions gives the same in chunks, token by token, in batches and in used slots."""

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
from pumice.models.memory import KeysValues, Recurrent, State, WholeSequences, pages_suffice
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.tensor import Tensor
from tiny_models import GOLDENS, GREEDY, PROMPT, tokens_of

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


def golden(key: str) -> np.ndarray[Any, Any]:
    with open_weights(GOLDENS / "lfm2" / "goldens.safetensors") as file:
        return np.array(file.array(key))


@pytest.mark.parametrize("target", TARGETS)
def test_chunks_of_every_size_give_what_transformers_gives(target: str, engine: Callable[..., Engine]) -> None:
    """A chunk of one token is token by token, one of 64 the whole prompt; 2 is as long as the memory, 7 leaves padding."""
    for chunk in (1, 2, 7, 64) if target == "host" else (7, 64):
        e = engine("lfm2", target, chunk=chunk)
        for length in (1, 7, 19, 40):
            ids, want = golden(f"prompt.{length}.ids").tolist(), golden(f"prompt.{length}.greedy.ids").tolist()
            assert tokens_of(e, ids) == want, (chunk, length)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_logits_of_a_prompt_in_parts_are_those_of_the_whole(chunk: int, engine: Callable[..., Engine]) -> None:
    got, want = engine("lfm2", chunk=chunk).logits(golden("prompt.40.ids").tolist()), golden("prompt.40.logits")
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


def test_sequences_in_a_batch_have_memories_of_their_own(engine: Callable[..., Engine]) -> None:
    prompts = [PROMPT, PROMPT[:4], [7], PROMPT[::-1]]
    want = [tokens_of(engine("lfm2"), p, 3 + i) for i, p in enumerate(prompts)]
    together = engine("lfm2", slots=4, chunk=5)
    for _ in range(2):  # the second time in slots that others have used
        got: dict[int, list[int]] = {i: [] for i in range(4)}
        for event in together.stream([Request(p, GREEDY, 3 + i) for i, p in enumerate(prompts)]):
            got[event.request].append(event.token)
        assert [got[i] for i in range(4)] == want


def test_a_prompt_that_another_begins_with_is_run_again(engine: Callable[..., Engine]) -> None:
    """Pages would hold its keys, but nothing holds the convolutions' last tokens at the place where they part."""
    e = engine("lfm2")
    answer = tokens_of(e, PROMPT, 6)
    assert tokens_of(e, PROMPT + answer[:2], 4) == answer[2:6]
    assert tokens_of(e, PROMPT[:6], 4) == tokens_of(engine("lfm2"), PROMPT[:6], 4)


def model() -> tuple[CausalArchitecture, ModelArchConfig]:
    cfg = ModelArchConfig.from_hf(json.loads((GOLDENS / "lfm2" / "config.json").read_text()))
    arch = get_architecture("lfm2")
    assert isinstance(arch, CausalArchitecture)
    return arch, cfg


def test_layers_say_what_they_remember() -> None:
    arch, cfg = model()
    conv, attention = (Recurrent(State("conv", (2, 32))),), (KeysValues(2, 8, 8),)
    assert arch.memories(cfg) == (conv, attention, conv, attention)
    assert not pages_suffice(arch.memories(cfg))


def test_packed_sequences_do_not_see_each_other() -> None:
    """As in training: two texts in one row, positions from 0 in each."""
    arch, cfg = model()
    first, second = golden("prompt.7.ids"), golden("prompt.19.ids")

    def logits(params: Any, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        mask = segments.reshape(1, 1, -1, 1) == segments.reshape(1, 1, 1, -1)
        return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences(mask)))

    ids = pm.spec(1, 26, dtype="i32")
    with open_weights(GOLDENS / "lfm2" / "model.safetensors") as weights:
        loaded = load_model_params(cfg, weights)
        exe = pm.compile(logits, params=loaded.specs, tokens=ids, positions=ids, segments=ids, device="host")
        exe.set_params(loaded.arrays)
    with exe:
        positions = np.concatenate([np.arange(7), np.arange(19)])[None].astype(np.int32)
        segments = np.array([[0] * 7 + [1] * 19], np.int32)
        got = exe.run(tokens=np.concatenate([first, second])[None], positions=positions, segments=segments)[0]
    want = np.concatenate([golden("prompt.7.logits"), golden("prompt.19.logits")])
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)
