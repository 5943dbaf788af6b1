"""Speculation in an engine: whatever is drafted, alone or beside others, answers are those of plain sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from language_models.test_rope_regimes import CASES, opened
from language_models.test_shared_batches import answers_of, random_requests
from pumice.errors import ClosedError, InputError
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams, Timings
from pumice.llm.speculate import PromptLookup
from tiny_models import GREEDY, PROMPT, checkpoint, tokens_of

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
SETTINGS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=1.2, seed=5),
    "penalties": SamplingParams(temperature=0.9, repeat_penalty=1.4, frequency_penalty=0.6, logit_bias={9: 2.0}, seed=9),
    "log-probabilities": SamplingParams(temperature=0, logprobs=3),
}


class Script:
    """Drafts tokens that it knows to come, with a wrong one at every `wrong`-th place; with 0 there is none."""

    def __init__(self, whole: Sequence[int], wrong: int = 0, vocab: int = 100) -> None:
        self.whole, self.wrong, self.vocab = list(whole), wrong, vocab

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        known = self.whole[len(tokens) : len(tokens) + count]
        return [(t + 1) % self.vocab if self.wrong and (len(tokens) + k) % self.wrong == 0 else t for k, t in enumerate(known)]


def drafted(request: Request, answer: Sequence[int], wrong: int) -> Request:
    script = Script([*request.prompt, *answer], wrong)
    return Request(request.prompt, request.sampling, request.max_tokens, request.stop_ids, draft=script)


@pytest.mark.parametrize("target", TARGETS)
def test_answers_with_drafts_are_those_without(target: str, engine: Callable[..., Engine]) -> None:
    """Across page borders: of 13 + 48 tokens the 33rd is in the second page."""
    e = engine("llama", target, slots=2)
    for name, sampling in SETTINGS.items():
        request = Request(PROMPT, sampling, 48)
        want = list(e.stream([request]))
        tokens = [event.token for event in want]
        for wrong in (0, 1, 3, 7):
            timings = Timings()
            got = list(e.stream([drafted(request, tokens, wrong)], timings=timings))
            assert [(g.token, g.finish) for g in got] == [(w.token, w.finish) for w in want], (name, wrong)
            if sampling.logprobs is not None:
                assert [g.logprob for g in got] == pytest.approx([w.logprob for w in want], abs=1e-4)
                assert [[i for i, _ in g.top] for g in got] == [[i for i, _ in w.top] for w in want]
            seen = timings.drafts[0]
            assert seen.rate == {0: 1, 1: 0}.get(wrong, seen.rate) and (wrong == 0) == (seen.steps <= 7), (name, wrong, seen)
        assert tokens_of(e, PROMPT, 48, sampling, draft=PromptLookup()) == tokens
    assert e._scheduler.idle and e._scheduler.statistics.pages_used == 0


@pytest.mark.parametrize("target", TARGETS)
def test_wrong_drafts_leave_no_trace_in_pages_that_prompts_share(target: str, engine: Callable[..., Engine]) -> None:
    want = tokens_of(engine("llama", target, slots=1), PROMPT, 48)
    for length in (18, 19, 20, 30):
        e, timings = engine("llama", target, slots=2), Timings()
        assert answers_of(e, [drafted(Request(PROMPT, GREEDY, length), want, 3)]) == [want[:length]]
        got = answers_of(e, [Request([*PROMPT, *want[:length]], GREEDY, 10)], timings)
        assert got == [want[length : length + 10]] and timings.reused == [len(PROMPT) + length - 1]


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_speculate_run_beside_others(target: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target, slots=4)
    settings = [GREEDY, SETTINGS["sampled"], SETTINGS["penalties"], GREEDY]
    requests = [Request(PROMPT[k:], s, 40 - 5 * k) for k, s in enumerate(settings)]
    want = [answers_of(e, [r])[0] for r in requests]
    for speculating in ((0,), (1, 2), (0, 1, 2, 3)):
        mixed = [drafted(r, want[k], k + 2) if k in speculating else r for k, r in enumerate(requests)]
        timings = Timings()
        assert answers_of(e, mixed, timings) == want
        assert sorted(timings.drafts) == list(speculating) and all(a.accepted for a in timings.drafts.values())
    assert answers_of(e, requests) == want


@pytest.mark.parametrize("target", TARGETS)
def test_stop_tokens_and_limits_within_accepted_drafts(target: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target)
    want = tokens_of(e, PROMPT, 20)
    for count in range(1, 13):
        got = list(e.stream([drafted(Request(PROMPT, GREEDY, count), want, 0)]))
        assert [g.token for g in got] == want[:count] and got[-1].finish == "length"
    for stop in dict.fromkeys(want[1:12]):
        timings = Timings()
        got = list(e.stream([drafted(Request(PROMPT, GREEDY, 20, frozenset([stop])), want, 0)], timings=timings))
        assert [g.token for g in got] == want[: want.index(stop) + 1] and got[-1].finish == "stop"
        # Nothing is drafted after the token that ends the answer.
        assert timings.drafts[0].accepted == timings.drafts[0].drafted < len(got)
    assert e._scheduler.idle


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_full_pool_preempts_sequences_that_speculate(name: str, engine: Callable[..., Engine]) -> None:
    e, alone = engine(name, slots=4, memory=128, context=96, chunk=16), engine(name, slots=1, context=96)
    requests = random_requests(e.cfg.vocab, 30 if name == "llama" else 10, 7, 20, 60)
    want = [answers_of(alone, [r])[0] for r in requests]
    mixed = [drafted(r, want[k], k % 7 + 2) if k % 3 else r for k, r in enumerate(requests)]
    assert answers_of(e, mixed) == want
    assert e._scheduler.idle and (e._scheduler.statistics.preemptions > 0 or name != "llama")
    assert e._scheduler.statistics.pages_used == 0


@pytest.mark.parametrize("name", ["phi3_longrope", "llama_dynamic"])
def test_drafts_end_where_rotary_angles_change(name: str) -> None:
    answers = CASES[name]["answers"]
    requests = [Request(a["prompt"], GREEDY, len(a["tokens"])) for a in answers]
    with opened(name, slots=len(answers)) as e:
        timings = Timings()
        got = answers_of(e, [drafted(r, a["tokens"], 0) for r, a in zip(requests, answers, strict=True)], timings)
        assert got == [a["tokens"] for a in answers]
        assert any(seen.accepted for seen in timings.drafts.values())


def test_a_reader_that_is_slow_pauses_the_sequence(engine: Callable[..., Engine]) -> None:
    e = engine("llama", slots=2, context=256, config={"max_position_embeddings": 512})
    want, other = tokens_of(e, PROMPT, 200), tokens_of(e, PROMPT[:5], 150)
    slow = e.stream([drafted(Request(PROMPT, GREEDY, 200), want, 5)])
    got = [next(slow).token]
    assert tokens_of(e, PROMPT[:5], 150) == other  # this reader runs the batches of both
    (paused,) = e._live.values()
    assert paused.paused and 64 <= len(paused.tokens) < 80
    got += [event.token for event in slow]
    assert got == want and e._scheduler.idle


def test_a_sequence_that_is_cancelled_leaves_nothing(engine: Callable[..., Engine]) -> None:
    e = engine("llama", slots=2)
    want = tokens_of(e, PROMPT, 40)
    for count in (1, 2, 9):
        stream = e.stream([drafted(Request(PROMPT, GREEDY, 40), want, 4)])
        assert [next(stream).token for _ in range(count)] == want[:count]
        stream.close()
        assert not e._live and e._scheduler.idle and e._scheduler.statistics.pages_used == 0
    assert tokens_of(e, PROMPT, 40) == want


def test_plain_requests_neither_draft_nor_make_a_plan_for_it(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    tokens_of(e, PROMPT, 8)
    assert not e._runner._made[False, "verify"]


# --- what is refused ---


class Failing:
    def __init__(self, after: int, error: Exception) -> None:
        self.left, self.error = after, error

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return [7] * count


class Beyond:
    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        return [100_000]


class Words:
    def draft(self, tokens: Sequence[int], count: int) -> Any:
        return ["w7"] * count


@pytest.mark.parametrize(
    "drafter", [Failing(2, ClosedError("the model is closed")), Failing(1, KeyError("x")), Beyond(), Words()]
)
def test_a_drafter_that_fails_ends_its_own_call(drafter: Any, engine: Callable[..., Engine]) -> None:
    e = engine("llama", slots=2)
    want = tokens_of(e, PROMPT, 30)
    other = e.stream([Request(PROMPT, GREEDY, 30)])
    got = [next(other).token]
    with pytest.raises(
        (ClosedError, InputError), match=r"is closed|the token 100000 was drafted|failed after \d+ tokens: (KeyError|TypeError)"
    ):
        tokens_of(e, PROMPT[:6], 30, draft=drafter)
    assert got + [event.token for event in other] == want and e._scheduler.idle


class ByLast:
    """Allows a third of the tokens, another one after each token and each number of tokens; refuses to be asked twice."""

    def __init__(self, vocab: int, *, once: bool = False) -> None:
        self.vocab, self.asked = vocab, set[tuple[int, ...]]()
        self.once = once

    def allows(self, tokens: Sequence[int], token: int) -> bool:
        return (token + len(tokens) + (tokens[-1] if tokens else 0)) % 3 == 0

    def mask(self, tokens: Sequence[int]) -> Any:
        assert not self.once or tuple(tokens) not in self.asked, tokens
        self.asked.add(tuple(tokens))
        bits = np.array([self.allows(tokens, t) for t in range(-(-self.vocab // 32) * 32)])
        return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("target", TARGETS)
def test_drafts_under_a_grammar_give_what_it_allows(target: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target, slots=2)
    vocab, other = e.cfg.vocab, Request([9, 8, 7], GREEDY, 30)
    alone = tokens_of(e, [9, 8, 7], 30)
    for sampling in (GREEDY, SamplingParams(temperature=1.2, seed=3)):
        plain = Request(PROMPT, sampling, 30, grammar=ByLast(vocab))
        want = [event.token for event in e.stream([plain])]
        assert all(ByLast(vocab).allows(want[:k], t) for k, t in enumerate(want))
        for wrong in (0, 1, 2, 5):  # a wrong draft is one more than the right one, which the grammar does not allow
            script, timings = Script([*PROMPT, *want], wrong, vocab), Timings()
            speculating = Request(PROMPT, sampling, 30, grammar=ByLast(vocab, once=not wrong), draft=script)
            assert answers_of(e, [speculating, other], timings) == [want, alone], wrong
            assert timings.drafts[0].rate == (wrong != 1)  # what is not allowed is not even tried


def test_a_draft_that_is_allowed_and_not_drawn_is_refused(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    plain = Request(PROMPT, GREEDY, 30, grammar=ByLast(e.cfg.vocab))
    want = [event.token for event in e.stream([plain])]

    class Third:
        """Drafts the third token from the right one, which is allowed as well."""

        def draft(self, tokens: Sequence[int], count: int) -> list[int]:
            known = [*PROMPT, *want][len(tokens) : len(tokens) + 2]
            return [*known[:1], *((t + 3) % e.cfg.vocab for t in known[1:])]

    timings = Timings()
    plain.draft, plain.grammar = Third(), ByLast(e.cfg.vocab)
    assert answers_of(e, [plain], timings) == [want] and 0 < timings.drafts[0].rate < 1


def test_requests_that_cannot_speculate(engine: Callable[..., Engine]) -> None:
    with pytest.raises(InputError, match="lfm2 keeps states that drafts cannot be taken back from"):
        tokens_of(engine("lfm2"), PROMPT, 4, draft=PromptLookup())
    e = engine("llama")
    with pytest.raises(InputError, match="the drafter is 'lookup'"):
        tokens_of(e, PROMPT, 4, draft="lookup")


# --- models ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64) as loaded:
        yield loaded


@pytest.mark.parametrize("target", TARGETS)
def test_options_of_calls(folder: Path, model: Any, target: str) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 30, "ignore_eos": True}
    with pm.load(folder, device=device(target), context=64) as target_model:
        want = target_model.generate("w5 w17 w9 w5 w17", **options)
        assert "drafted" not in want.timings
        for draft in ("lookup", model):
            got = target_model.generate("w5 w17 w9 w5 w17", draft=draft, **options)
            t = got.timings
            assert got.tokens == want.tokens and t["drafted"] > 0 and t["acceptance_rate"] == t["accepted"] / t["drafted"]
            assert "".join(target_model.stream("w5 w17 w9 w5 w17", draft=draft, **options)) == want.text
        with pm.Engine(target_model, slots=4, context=64) as engine:
            handles = [engine.submit("w5 w17 w9 w5 w17", draft=d, **options) for d in (None, "lookup", model, target_model)]
            assert [h.result().tokens for h in handles] == [want.tokens] * 4
        greedy = {**options, "temperature": 0}
        assert target_model.generate("w5", draft=model, **greedy).timings["acceptance_rate"] == 1


def test_drafts_with_an_adapter(model: Any) -> None:
    from language_models.test_adapters import random_adapter

    options: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "adapter": "one"}
    with pm.Engine(model, slots=2, context=64) as engine:
        engine.adapters.add("one", random_adapter(engine.cfg, 1, targets=("all-linear",)))
        want = engine.submit(PROMPT, **options).result().tokens
        both = [engine.submit(PROMPT, draft=Script([*PROMPT, *want], 4), **options), engine.submit(PROMPT, **options)]
        assert [h.result().tokens for h in both] == [want, want] != model.generate(PROMPT, **{**options, "adapter": None}).tokens
        assert both[0].result().timings["accepted"] > 15


def test_models_that_wait_for_each_other_are_refused(folder: Path, model: Any) -> None:
    with pytest.raises(InputError, match="waits for drafts of this model itself"):
        model.generate("w5", draft=model)
    with pm.load(folder, device="host", context=64) as first, pm.load(folder, device="host", context=64) as second:
        assert first.generate("w5", draft=second, max_tokens=3, ignore_eos=True).tokens
        with pytest.raises(InputError, match="waits for drafts of this model itself"):
            second.generate("w5", draft=first)
    with pytest.raises(InputError, match="the drafter is 'look'"):
        model.generate("w5", draft="look")
    with pytest.raises(ClosedError):
        model.generate("w5", draft=second)
