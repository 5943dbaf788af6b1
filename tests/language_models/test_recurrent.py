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
from pumice.llm.requests import Request, Timings
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


LONG = [(7 * k) % 60 + 4 for k in range(90)]


def reused(e: Engine, prompts: list[list[int]], n: int = 4) -> tuple[list[list[int]], list[int]]:
    """The answers to prompts at once, and how many tokens of each were not run again."""
    timings, got = Timings(), [list[int]() for _ in prompts]
    for event in e.stream([Request(p, GREEDY, n) for p in prompts], timings=timings):
        got[event.request].append(event.token)
    return got, timings.reused


@pytest.mark.parametrize("target", TARGETS)
def test_a_prompt_goes_on_from_the_last_snapshot_of_its_beginning(target: str, engine: Callable[..., Engine]) -> None:
    """Pages of 32 tokens: a snapshot after 64 of the 90, and one where the answer ends."""
    e = engine("lfm2", target, context=128)

    def alone(prompt: list[int], n: int = 4) -> list[int]:
        return tokens_of(engine("lfm2", context=128), prompt, n)

    (answer,), (nothing,) = reused(e, [LONG], 8)
    assert nothing == 0 and answer == alone(LONG, 8)
    for prompt, want in (
        ([*LONG[:70], 3], 64),
        (LONG, 64),  # four more tokens, and a snapshot after three of them
        (LONG + answer, 97),  # all but the last token have run
        (LONG + answer[:3] + [3], 93),
        (LONG[:40], 0),
        ([3, *LONG], 0),
    ):
        got, found = reused(e, [prompt])
        assert (got[0], found[0]) == (alone(prompt), want), len(prompt)
    # Where two prompts part, the third one of them goes on.
    reused(e, [LONG[::-1]])
    assert [reused(e, [LONG[:39:-1] + [k] * 9])[1] for k in (4, 5, 6)] == [[0], [32], [32]]


def test_answers_to_one_prompt_share_its_snapshot(engine: Callable[..., Engine]) -> None:
    e = engine("lfm2", context=128, slots=3)
    got, found = reused(e, [LONG] * 3)
    assert found == [0, 64, 64] and got == [tokens_of(engine("lfm2", context=128), LONG, 4)] * 3


def test_a_full_pool_gives_the_answers_computed_alone(engine: Callable[..., Engine]) -> None:
    prompts = [[k, *LONG[:60]] for k in range(4, 10)]
    want = [tokens_of(engine("lfm2", context=128), p, 40) for p in prompts]
    e = engine("lfm2", context=128, slots=4, memory=256)
    got, _ = reused(e, prompts, 40)
    assert got == want and e._scheduler.statistics.preemptions and e._scheduler.statistics.pages_used == 0


def test_states_are_saved_and_restored_with_their_pages(engine: Callable[..., Engine]) -> None:
    e = engine("lfm2", context=128)
    answer = tokens_of(e, LONG, 6)
    known, saved = e.save_cache(LONG + answer)
    assert known == 95 and saved["cache-slots.0.conv"].shape == (1, 1, 64)
    other = engine("lfm2", context=128)
    assert other.restore_cache((LONG + answer)[:known], saved)
    assert reused(other, [LONG + answer]) == ([tokens_of(engine("lfm2", context=128), LONG + answer, 4)], [95])
    assert not other.restore_cache(LONG[:40], saved)  # its pages are others
    del saved["cache-slots.0.conv"]
    assert not other.restore_cache((LONG + answer)[:known], saved)


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
