"""Short prompts of several sequences in one run: the same tokens as alone, in fewer runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams, TokenEvent
from pumice.run.executable import Executable
from tiny_models import GREEDY, PROMPT, tokens_of


def events_of(engine: Engine, requests: list[Request]) -> list[list[TokenEvent]]:
    out: list[list[TokenEvent]] = [[] for _ in requests]
    for event in engine.stream(requests):
        out[event.request].append(event)
    return out


def prompts_of(vocab: int, lengths: list[int], seed: int = 3) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, vocab, n).tolist() for n in lengths]


def ragged_of(engine: Engine) -> list[Executable]:
    return list(engine._runner._made[False, "ragged"].values())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each run that prefills."""
    seen: list[int] = []
    run = Executable._call

    def call(self: Executable, given: Any, *rest: Any) -> Any:
        if "tokens" in given:
            seen.append(given["tokens"].shape[1])
        return run(self, given, *rest)

    monkeypatch.setattr(Executable, "_call", call)
    return seen


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("llama", "host", {}),
        pytest.param("llama", "webgpu", {}, marks=pytest.mark.gpu),
        ("gemma3", "host", {}),
        ("gemma3n", "host", {"cache_dtype": "q8"}),
        ("qwen2", "host", {"cache_dtype": "q8"}),
        ("gpt2", "host", {"cache_dtype": "f16"}),
    ],
)
def test_short_prompts_share_a_run(
    name: str, target: str, options: dict[str, Any], engine: Callable[..., Engine], runs: list[int]
) -> None:
    together, alone = engine(name, target, slots=8, memory=1024, **options), engine(name, target, **options)
    prompts = prompts_of(together.cfg.vocab, [5, 1, 9, 3, 7])
    runs.clear()
    got = events_of(together, [Request(p, GREEDY, 4 + k) for k, p in enumerate(prompts)])
    assert runs == [25]
    for k, prompt in enumerate(prompts):
        assert [event.token for event in got[k]] == tokens_of(alone, prompt, 4 + k), k


def test_answers_to_one_prompt_run_what_they_do_not_share_together(engine: Callable[..., Engine], runs: list[int]) -> None:
    """The first answer computes the prompt, the others run its last token, and differ by their seeds."""
    e = engine("llama", slots=6, memory=1024)
    hot = [SamplingParams(temperature=2.0, seed=s) for s in range(6)]
    runs.clear()
    got = events_of(e, [Request(PROMPT * 3, s, 5) for s in hot])
    assert runs == [39, 5]
    alone = engine("llama")
    for answer, s in zip(got, hot, strict=True):
        assert [event.token for event in answer] == tokens_of(alone, PROMPT * 3, 5, s)


def test_rows_of_one_run_are_sampled_by_their_own_parameters(engine: Callable[..., Engine]) -> None:
    together, alone = engine("llama", slots=4, memory=1024), engine("llama")
    prompts = prompts_of(together.cfg.vocab, [6, 4, 8, 5])
    params = [
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0, repeat_penalty=1.5, presence_penalty=0.5),
        SamplingParams(temperature=1.2, seed=5),
        SamplingParams(temperature=0, logit_bias={7: 30.0}),
    ]
    got = events_of(together, [Request(p, s, 4) for p, s in zip(prompts, params, strict=True)])
    assert ragged_of(together)
    for answer, prompt, s in zip(got, prompts, params, strict=True):
        (want,) = events_of(alone, [Request(prompt, s, 4)])
        assert [event.token for event in answer] == [event.token for event in want]
        if s.logprobs is not None:
            np.testing.assert_allclose([e.logprob for e in answer], [e.logprob for e in want], atol=1e-4)
            assert [[t for t, _ in e.top] for e in answer] == [[t for t, _ in e.top] for e in want]


def test_runs_hold_no_more_than_a_batch(engine: Callable[..., Engine], runs: list[int]) -> None:
    e, alone = engine("llama", slots=8, chunk=24, memory=1024), engine("llama")
    prompts = prompts_of(e.cfg.vocab, [9, 9, 20, 4, 9, 1])
    runs.clear()
    got = events_of(e, [Request(p, GREEDY, 3) for p in prompts])
    assert max(runs) <= 24 + 8 and len(runs) <= 3 and sum(runs) == 52
    for answer, prompt in zip(got, prompts, strict=True):
        assert [event.token for event in answer] == tokens_of(alone, prompt, 3)


@pytest.mark.parametrize("name", ["lfm2", "phi3_longrope"])
def test_states_and_rotations_by_length_keep_prompts_apart(name: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, slots=4, memory=1024)
    events_of(e, [Request(p, GREEDY, 3) for p in prompts_of(e.cfg.vocab, [5, 4, 6])])
    assert not ragged_of(e)


def test_prompts_of_200_tokens_share_runs_on_a_processor(engine: Callable[..., Engine], runs: list[int]) -> None:
    """A batch has 512 tokens and six more: two prompts and a part of the third. Long sequences run alone."""
    sizes = {"context": 1024, "config": {"max_position_embeddings": 1024}}
    e, alone = engine("llama", slots=6, memory=4096, **sizes), engine("llama", **sizes)
    prompts = prompts_of(e.cfg.vocab, [200, 210, 190, 205])
    runs.clear()
    got = events_of(e, [Request(p, GREEDY, 4) for p in prompts])
    assert runs == [518, 287]
    for prompt, events in zip(prompts, got, strict=True):
        assert [event.token for event in events] == tokens_of(alone, prompt, 4)
    begun = prompts_of(e.cfg.vocab, [480, 490], seed=5)
    events_of(e, [Request(p, GREEDY, 1) for p in begun])
    runs.clear()
    events_of(e, [Request(p + more, GREEDY, 1) for p, more in zip(begun, prompts_of(e.cfg.vocab, [40, 50], seed=6), strict=True)])
    assert sorted(runs) == [40, 50]
