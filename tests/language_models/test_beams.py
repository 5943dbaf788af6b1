"""Beam search: answers are those of transformers, shared pages are forked, and a search ends as other calls do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError, NotFinite
from pumice.llm.beams import BeamSearch
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from tiny_models import GOLDENS, GREEDY, PROMPT, checkpoint, settled, tokens_of

CASES = json.loads((GOLDENS / "beams.json").read_text())
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


def answers(e: Engine, case: dict[str, Any], n: int | None = None) -> list[list[int]]:
    requests = [request(case, k) for k in range(n or case["beams"])]
    got: list[list[int]] = [[] for _ in requests]
    for event in e.stream(requests):
        got[event.request].append(event.token)
    return got


def request(case: dict[str, Any], choice: int = 0) -> Request:
    ends = frozenset(case["stop_ids"])
    more = {"beams": case["beams"], "length_penalty": case["length_penalty"], "choice": choice}
    return Request(case["prompt"], GREEDY, case["max_tokens"], ends, **more)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=[f"{c['model']}-{c['beams']}-{c['length_penalty']}" for c in CASES])
def test_all_answers_are_those_of_transformers(case: dict[str, Any], target: str, engine: Callable[..., Engine]) -> None:
    if target == "webgpu" and case["beams"] != 4:
        pytest.skip("the host shows it")
    e = engine(case["model"], target, slots=6)
    assert answers(e, case) == case["answers"]
    assert settled(e)


def test_slots_and_pages_for_a_part_of_the_beams_suffice(engine: Callable[..., Engine]) -> None:
    case = CASES[4]
    for sizes in ({"slots": 1}, {"slots": 3}, {"slots": 6, "memory": 64}):
        e = engine("llama", **sizes)
        assert answers(e, case) == case["answers"], sizes
        assert settled(e)


def test_searches_and_others_share_batches(engine: Callable[..., Engine]) -> None:
    cases = [c for c in CASES if c["model"] == "llama"]
    want = tokens_of(engine("llama"), PROMPT, 30)
    e = engine("llama", slots=5)
    requests = [*(request(c) for c in cases), Request(PROMPT, GREEDY, 30)]
    got: list[list[int]] = [[] for _ in requests]
    for event in e.stream(requests):
        got[event.request].append(event.token)
    assert got == [*(c["answers"][0] for c in cases), want] and settled(e)


def test_a_fork_copies_one_page_and_shares_the_others(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    e, copied, chunks = engine("llama", slots=4, context=128, memory=512), list[int](), list[int]()
    start = e._runner.start

    def note(batch: Any, *args: Any, **kwargs: Any) -> Any:
        copied.append(len(batch.copies))
        chunks.extend(len(c.tokens) for c in batch.prefill)
        return start(batch, *args, **kwargs)

    monkeypatch.setattr(e._runner, "start", note)
    case = {**CASES[1], "prompt": CASES[1]["prompt"] * 8}
    answers(e, case)
    # The prompt once; then a token of each fork, and no copy for the beams that go on by themselves.
    assert chunks[0] == 72 and set(chunks[1:]) == {1} and sum(copied) == len(chunks) - 1 < 4 * 11


def exhaustive(table: np.ndarray[Any, Any], length: int, ends: set[int], penalty: float) -> list[tuple[int, ...]]:
    """All answers over a distribution that depends on the last token, the best first."""
    found = []
    for size in range(1, length + 1):
        for tokens in itertools.product(range(len(table)), repeat=size):
            if not ends & set(tokens[:-1]) and (tokens[-1] in ends or size == length):
                total = sum(table[a, b] for a, b in itertools.pairwise([0, *tokens]))
                found.append((total / size**penalty, tokens))
    return [tokens for _, tokens in sorted(found, reverse=True)]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_search_as_wide_as_all_answers_finds_the_best(penalty: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        table = np.log(rng.dirichlet(np.ones(4), size=4))
        search = BeamSearch(64, 4, frozenset({3}), penalty)
        while not search.over:
            rows = [beam.tokens[-1] if beam.tokens else 0 for beam in search.running]
            search.advance([[(t, float(table[row, t])) for t in range(4)] for row in rows])
        assert search.results[0].tokens == exhaustive(table, 4, {3}, penalty)[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pm.load(checkpoint("llama", tmp_path_factory.mktemp("beams")), device="host", context=64) as made:
        yield made


def test_generate_takes_beams(model: Any) -> None:
    case = CASES[1]
    same = {"beams": 4, "max_tokens": 12, "raw": True, "ignore_eos": True}
    best = model.generate(case["prompt"], **same)
    assert best.tokens == case["answers"][0] and best.finish_reason == "length" and best.logprobs is None
    several = model.generate([case["prompt"], PROMPT], n=3, logprobs=0, **same)
    assert [a.tokens for a in several[0]] == case["answers"][:3] and len(several[1]) == 3
    logits = model.logits([*case["prompt"], *best.tokens])
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    want = [logp[len(case["prompt"]) - 1 + k, t] for k, t in enumerate(best.tokens)]
    assert [entry["logprob"] for entry in several[0][0].logprobs] == pytest.approx(want, abs=1e-4)
    assert "".join(model.stream(case["prompt"], **same)) == best.text
    with pm.Engine(model, slots=2, context=64) as engine:
        assert engine.submit(case["prompt"], **same).result().tokens == best.tokens
    assert best.receipt.document["pumice"]["request"]["beams"] == 4


@pytest.mark.parametrize(
    "options",
    [
        {"beams": 0},
        {"beams": 17},
        {"beams": 2.0},
        {"beams": 4, "n": 5},
        {"beams": 4, "temperature": 0.5},
        {"beams": 4, "draft": "lookup"},
        {"beams": 4, "repeat_penalty": 1.1},
        {"beams": 4, "forbid": [5]},
        {"beams": 4, "length_penalty": float("nan")},
        {"beams": 16, "stop_tokens": [5, 6, 7, 8, 9]},
    ],
)
def test_beams_that_cannot_be_are_refused(options: dict[str, Any], model: Any) -> None:
    with pytest.raises(InputError, match=r"beams|n is|length_penalty"):
        model.generate("w5", **options)


def test_best_of_gives_the_most_likely_of_those_that_were_drawn(model: Any) -> None:
    same = {"max_tokens": 6, "raw": True, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    drawn = model.generate(PROMPT, n=5, logprobs=0, **same)
    ranked = sorted(drawn, key=lambda a: -sum(entry["logprob"] for entry in a.logprobs))
    best = model.generate(PROMPT, best_of=5, **same)
    assert best.tokens == ranked[0].tokens and best.logprobs is None and best.seed == ranked[0].seed
    several = model.generate([PROMPT, [5]], n=2, best_of=5, logprobs=1, **same)
    assert [a.tokens for a in several[0]] == [a.tokens for a in ranked[:2]] and len(several) == 2
    assert several[0][0].logprobs and len(several[0][0].logprobs[0]["top"]) == 1
    for wrong in ({"best_of": 1, "n": 2}, {"best_of": 2.5}, {"best_of": 2, "beams": 2}, {"best_of": 2, "on_text": print}):
        with pytest.raises(InputError, match="best"):
            model.generate(PROMPT, **{**same, **wrong})


@pytest.mark.parametrize(
    "changes",
    [{"beams": 0}, {"choice": 1}, {"sampling": SamplingParams(temperature=0, logit_bias={5: 1.0})}, {"beams": 20}, {"choice": 4}],
)
def test_requests_that_are_no_search_are_refused(changes: dict[str, Any], engine: Callable[..., Engine]) -> None:
    with pytest.raises(InputError, match=r"beam"):
        list(engine("llama").stream([replace(request(CASES[2]), **changes)]))


def test_logits_that_are_not_finite_end_the_search_alone(engine: Callable[..., Engine]) -> None:
    e = engine("llama", slots=6)
    name = next(n for n in e._store if n.endswith("embed.weight") or "embed" in n)
    held = e._store.read(name)
    broken = held.copy()
    broken[CASES[1]["answers"][0][2]] = np.nan  # a token that one beam comes to
    e._store.write({name: broken})
    with pytest.raises(NotFinite):
        answers(e, CASES[1])
    assert settled(e)
    e._store.write({name: held})
    assert answers(e, CASES[1]) == CASES[1]["answers"]


def test_a_cancelled_search_leaves_nothing_behind(model: Any) -> None:
    stops = iter([False] * 4 + [True] * 1000)
    answer = model.generate("w5 w6", beams=4, max_tokens=40, ignore_eos=True, cancelled=lambda: next(stops))
    assert answer.finish_reason == "cancelled" and settled(model.engine)


def test_a_search_that_a_batch_failed_starts_over(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    case, e = CASES[1], engine("llama", slots=6)
    feed, calls = e._runner.feed, itertools.count()

    def failing(*args: Any) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        feed(*args)

    monkeypatch.setattr(e._runner, "feed", failing)
    handle = e.stream([request(case), Request(PROMPT, SamplingParams(temperature=0), 4)])
    with pytest.raises(KeyboardInterrupt):
        list(handle)
    assert settled(e)
    other, got = e.stream([request(case)]), list[int]()
    for event in other:
        got.append(event.token)
    assert got == case["answers"][0] and settled(e)
