"""Rope scalings that depend on a sequence's length: answers are those of `transformers.generate`, whatever ran before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pumice.formats import open_weights
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams, Timings
from pumice.llm.weights import ModelWeights
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.registry import get_architecture

from harness import device

GOLDENS = Path(__file__).parent.parent / "models" / "goldens"
CASES: dict[str, Any] = json.loads((GOLDENS / "generate.json").read_text())
GREEDY = SamplingParams(temperature=0)
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


@contextmanager
def opened(name: str, target: str = "host", **options: Any) -> Iterator[Engine]:
    folder = GOLDENS / CASES[name]["checkpoint"]
    cfg = ModelArchConfig.from_hf(json.loads((folder / "config.json").read_text()) | CASES[name]["config"])
    with open_weights(folder / "model.safetensors") as weights:
        params = load_model_params(cfg, weights)
        weights = ModelWeights(get_architecture(cfg.model_type), cfg, params, device(target))
        engine = Engine(weights, **{"context": 64, "chunk": 9, **options})
    try:
        yield engine
    finally:
        engine.close()


def request(answer: dict[str, Any], tokens: int | None = None, **options: Any) -> Request:
    return Request(answer["prompt"], SamplingParams(**{"temperature": 0, **options}), tokens or len(answer["tokens"]))


def answers_of(engine: Engine, requests: list[Request], timings: Timings | None = None) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in requests]
    for event in engine.stream(requests, timings=timings):
        out[event.request].append(event.token)
    return out


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_answers_beyond_the_original_length_equal_generate(name: str, target: str) -> None:
    """One engine answers all prompts, then the same ones again: prompts of another length leave nothing that is reused."""
    with opened(name, target) as engine:
        for answer in [*CASES[name]["answers"], *reversed(CASES[name]["answers"])]:
            assert answers_of(engine, [request(answer)]) == [answer["tokens"]], len(answer["prompt"])


@pytest.mark.parametrize("name", CASES)
def test_prompts_that_share_a_beginning_do_not_share_a_regime(name: str) -> None:
    """What was cached as a longer prompt, a shorter one or an answer gives the tokens of an engine that ran nothing."""
    longest = CASES[name]["answers"][-1]["prompt"]
    with opened(name) as engine:
        for length in (len(longest), 12, len(longest) - 3, 20, len(longest)):
            r = Request(longest[:length], GREEDY, 16)
            with opened(name) as fresh:
                assert answers_of(engine, [r]) == answers_of(fresh, [r]), length


@pytest.mark.parametrize("name", CASES)
def test_within_one_regime_prefixes_are_reused(name: str) -> None:
    prompt = CASES[name]["answers"][0]["prompt"][:8]
    with opened(name) as engine:
        [answer] = answers_of(engine, [Request(prompt, GREEDY, 4)])
        timings = Timings()
        answers_of(engine, [Request([*prompt, *answer, 5], GREEDY, 2)], timings)
    assert sum(timings.reused) == len(prompt) + len(answer) - 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["phi3_longrope", "llama_dynamic"])
def test_sequences_of_a_batch_cross_the_border_each_at_its_own_time(name: str, target: str) -> None:
    answers = CASES[name]["answers"]
    with opened(name, target, slots=len(answers)) as engine:
        engine._ahead, engine._bursts = 3, 2
        assert answers_of(engine, [request(a) for a in answers]) == [a["tokens"] for a in answers]


def test_a_recomputed_cache_continues_seeds_penalties_and_log_probabilities() -> None:
    """Bursts of steps stop at the border: what is sampled there does not depend on how many steps are under way."""
    answer = CASES["phi3_longrope"]["answers"][0]
    r = request(answer, temperature=0.9, repeat_penalty=1.4, seed=11, logprobs=3)
    found = []
    for ahead, bursts in ((1, 1), (4, 2)):
        with opened("phi3_longrope") as engine:
            engine._ahead, engine._bursts = ahead, bursts
            found.append([(e.token, e.logprob) for e in engine.stream([r])])
    assert found[0] == found[1] and len(found[0]) == len(answer["tokens"])


def test_cancelling_while_the_cache_is_recomputed_ends_the_answer() -> None:
    answer = CASES["phi3_longrope"]["answers"][1]  # one token below the border
    with opened("phi3_longrope", chunk=4) as engine:
        taken: list[int] = []
        timings = Timings()
        checks = iter([False, False])  # before two of the chunks

        def cancelled() -> bool:
            return len(taken) == 2 and next(checks, True)

        for event in engine.stream([request(answer)], cancelled=cancelled, timings=timings):
            taken.append(event.token)
        assert taken == answer["tokens"][:2] and timings.prompt_tokens == len(answer["prompt"]) + 2 * 4
        assert not engine._live and engine._scheduler.idle
        assert answers_of(engine, [request(answer)]) == [answer["tokens"]]
