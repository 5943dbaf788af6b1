"""The engine on tiny checkpoints: cached steps against whole sequences, chunks, prefixes, sampling, batches, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pumice import errors
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams, Timings
from pumice.models.registry import get_architecture
from tiny_models import GOLDENS, GREEDY, PROMPT, make_engine, tokens_of, whole_sequences

CAUSAL = sorted(
    p.name for p in GOLDENS.iterdir() if (p / "config.json").exists() and "vocab" in (p / "config.json").read_text()
    and get_architecture(json.loads((p / "config.json").read_text())["model_type"]).kind == "causal"
)  # fmt: skip
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


def whole_sequence_greedy(e: Engine, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
    """Greedy tokens without a cache, each from a run over the whole sequence, and how clear each choice was."""
    out, margins = list(prompt), []
    with whole_sequences(e, len(prompt) + n) as exe:
        for _ in range(n):
            logits = exe.run(tokens=np.array([out], np.int32))[0, -1]
            best = np.sort(logits)
            margins.append(float(best[-1] - best[-2]))
            out.append(int(np.argmax(logits)))
    return out[len(prompt) :], margins


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_steps_equal_whole_sequences(name: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, chunk=5)  # the prompt takes three chunks
    want, margins = whole_sequence_greedy(e, PROMPT, 8)
    assert min(margins) > 1e-4, "the golden model's choices are too close to compare"
    assert tokens_of(e, PROMPT) == want
    assert tokens_of(e, PROMPT[:1]) == whole_sequence_greedy(e, PROMPT[:1], 8)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_neox"])
def test_webgpu_makes_the_same_tokens_as_the_host(name: str, engine: Callable[..., Engine]) -> None:
    host, gpu = engine(name), engine(name, "webgpu")
    assert tokens_of(gpu, PROMPT, 6) == tokens_of(host, PROMPT, 6)
    got, want = gpu.logits(PROMPT), host.logits(PROMPT)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("target", TARGETS)
def test_several_steps_in_flight_change_nothing(target: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target)
    e._ahead = 1
    want = tokens_of(e, PROMPT, 10)
    for e._ahead, e._bursts in ((4, 1), (1, 2), (3, 3)):
        assert tokens_of(e, PROMPT, 10) == want
        stop = frozenset([want[5]])
        ended = tokens_of(e, PROMPT, 10, stop_ids=stop)
        assert ended == want[: want.index(want[5]) + 1]
        assert tokens_of(e, PROMPT + want[:2], 8) == want[2:]  # what ran past the end left no trace


@pytest.mark.gpu
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_prompts_of_every_regime_share_one_executable(penalty: float, engine: Callable[..., Engine]) -> None:
    """Prefill in one regime, in several one after the other, and decoding what they left in the cache."""
    sampling = SamplingParams(temperature=0, repeat_penalty=penalty)
    plain, split = engine("llama", chunk=12), engine("llama", "webgpu", chunk=12)
    for length in (1, 3, 4, 5, 8, 9, 12, 13):
        assert tokens_of(split, PROMPT[:length], 4, sampling) == tokens_of(plain, PROMPT[:length], 4, sampling)
    plan = next(e.plan for (decoding, *_), e in reversed(split._exes.items()) if not decoding)
    assert {size for _, size, _ in split._exes} == {1, 12}
    assert {plan.pick({"T": t}) for t in (1, 4, 8, 12)} == set(range(len(plan.regimes))) and len(plan.regimes) > 2


def test_a_longer_prompt_reuses_what_the_cache_holds(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    answer = tokens_of(e, PROMPT, 4)
    timings = Timings()
    follow = PROMPT + answer + [3, 4]
    fresh = engine("llama")
    got = [event.token for event in e.stream([Request(follow, GREEDY, 4)], timings=timings)]
    assert got == tokens_of(fresh, follow, 4)
    assert sum(timings.reused) == len(PROMPT) + len(answer) - 1 and timings.prompt_tokens == 3
    fork = [*PROMPT[:5], 1]
    assert tokens_of(e, fork, 4) == tokens_of(engine("llama"), fork, 4)


def test_sequences_in_a_batch_do_not_see_each_other(engine: Callable[..., Engine]) -> None:
    alone = engine("qwen2")
    prompts = [PROMPT, PROMPT[:4], [7], PROMPT[::-1]]
    together = engine("qwen2", slots=4)
    got: dict[int, list[int]] = {i: [] for i in range(4)}
    for event in together.stream([Request(p, GREEDY, 3 + i) for i, p in enumerate(prompts)]):
        got[event.request].append(event.token)
    assert [got[i] for i in range(4)] == [tokens_of(alone, p, 3 + i) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_seed_gives_the_same_tokens_again_and_others_differ(target: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target)
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    first = tokens_of(e, PROMPT, 12, SamplingParams(seed=1, **hot))
    assert tokens_of(e, PROMPT, 12, SamplingParams(seed=1, **hot)) == first
    assert any(tokens_of(e, PROMPT, 12, SamplingParams(seed=s, **hot)) != first for s in (2, 3, 4))


def test_sampling_follows_the_probabilities(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    logits = e.logits(PROMPT)[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    draws = [tokens_of(e, PROMPT, 1, SamplingParams(temperature=1, top_k=3, top_p=1, min_p=0, seed=s))[0] for s in range(300)]
    top = np.argsort(-p)[:3]
    assert set(draws) <= set(top.tolist())
    want = p[top] / p[top].sum()
    got = np.array([draws.count(int(t)) for t in top]) / len(draws)
    # Five standard deviations of a binomial share of 300 draws.
    assert np.all(np.abs(got - want) <= 5 * np.sqrt(want * (1 - want) / len(draws)) + 1e-9)
    narrow = [tokens_of(e, PROMPT, 1, SamplingParams(temperature=1, top_k=0, top_p=1e-6, min_p=0, seed=s))[0] for s in range(5)]
    assert set(narrow) == {int(top[0])}
    strict = [tokens_of(e, PROMPT, 1, SamplingParams(temperature=1, top_k=0, top_p=1, min_p=1.0, seed=s))[0] for s in range(5)]
    assert set(strict) == {int(top[0])}


def test_log_probabilities_are_those_of_the_logits(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    events = list(e.stream([Request(PROMPT, SamplingParams(temperature=0, logprobs=4), 3)]))
    sequence = list(PROMPT)
    for event in events:
        row = e.logits(sequence)[-1].astype(np.float64)
        logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert event.logprob == pytest.approx(logp[event.token], abs=1e-3)
        assert [t for t, _ in event.top] == np.argsort(-logp, kind="stable")[:4].tolist()
        sequence.append(event.token)


def test_the_repeat_penalty_holds_back_what_was_said(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    strong = SamplingParams(temperature=0, repeat_penalty=50.0)
    got = tokens_of(e, PROMPT, 10, strong)
    sequence = list(PROMPT)
    for token in got:
        row = e.logits(sequence)[-1].astype(np.float64)
        seen = list(set(sequence))
        row[seen] = np.where(row[seen] > 0, row[seen] / 50, row[seen] * 50)
        assert token == int(np.argmax(row))
        sequence.append(token)


def test_stopping_between_steps(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    count = 0

    def cancelled() -> bool:
        return count >= 3

    for _ in e.stream([Request(PROMPT, GREEDY, 20)], cancelled=cancelled):
        count += 1
    assert 3 <= count <= 3 + e._ahead
    stream = e.stream([Request(PROMPT, GREEDY, 20)])
    next(stream)
    stream.close()
    assert tokens_of(e, PROMPT, 3) == tokens_of(engine("llama"), PROMPT, 3)


BAD: list[tuple[list[int], dict[str, Any], str]] = [
    (PROMPT, {"max_tokens": 60}, "context holds 64"),
    ([], {"max_tokens": 1}, "no tokens"),
    ([1, 100000], {"max_tokens": 1}, "100000"),
    (PROMPT, {"max_tokens": 0}, "max_tokens is 0"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), BAD)
def test_bad_requests_are_refused(
    prompt: list[int], options: dict[str, Any], message: str, engine: Callable[..., Engine]
) -> None:
    with pytest.raises(errors.InputError, match=message):
        list(engine("llama").stream([Request(prompt, GREEDY, **options)]))


@pytest.mark.parametrize(
    "numbers", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 1.5}, {"min_p": -0.1}, {"logprobs": 99}]
)
def test_bad_sampling_numbers_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(errors.InputError, match=next(iter(numbers))):
        SamplingParams(**numbers)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "bytes_per_number"), [("f16", 2), ("q8", 1.5)])
def test_a_smaller_cache_changes_little(dtype: str, bytes_per_number: float, target: str, engine: Callable[..., Engine]) -> None:
    small, full = engine("llama", target, cache_dtype=dtype), engine("llama", target)
    assert tokens_of(small, PROMPT, 4) == tokens_of(full, PROMPT, 4)
    plan = next(iter(small._exes.values())).plan
    numbers = 2 * small.cfg.layers * small.layout.rows() * small.cfg.kv_heads * small.cfg.head_dim
    cache = sum(b.nbytes for b in plan.buffers if b.kind == "state" and b.name.startswith("cache"))
    assert cache <= numbers * bytes_per_number and not plan.copies


def test_an_unknown_cache_dtype_is_refused() -> None:
    with pytest.raises(errors.InputError, match="int4"):
        make_engine("llama", cache_dtype="int4")


@pytest.mark.parametrize("target", TARGETS)
def test_ever_new_options_keep_few_executables(
    target: str, engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumice.llm.runner.MOST_EXECUTABLES", 3)
    e = engine("llama", target)
    rules: list[dict[str, Any]] = [{}, {"presence_penalty": 0.5}, {"logprobs": 2}, {"typical_p": 0.9}, {"logit_bias": {3: 0.5}}]
    first = [tokens_of(e, PROMPT, 6, SamplingParams(seed=5, **rule)) for rule in rules]
    assert len(e._runner.exes) == 3, "the others were given up"
    assert [tokens_of(e, PROMPT, 6, SamplingParams(seed=5, **rule)) for rule in reversed(rules)] == first[::-1]
    assert len(e._runner.exes) == 3
