"""Speculation: whatever is drafted, a verifying token step gives the tokens that plain token steps give."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.llm.graphs import RING, trace_token_step
from pumice.llm.memory import CacheLayout
from pumice.llm.requests import SamplingParams
from pumice.llm.sampling import Sampling, SamplingRow, sampling_inputs, slot_rows, trace_slot_row, words_of
from pumice.llm.speculate import Acceptance, Drafter, DraftModel, PromptLookup, Speculator, confirmed, drafter_of
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.registry import get_architecture
from pumice.run.executable import Executable
from tiny_models import GOLDENS, PROMPT, checkpoint

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
CHUNK = 16


class Steps:
    """Token steps of a tiny model for one sequence, without an engine."""

    def __init__(self, target: str, sampling: Sampling) -> None:
        folder = GOLDENS / "llama"
        self.cfg = ModelArchConfig.from_hf(json.loads((folder / "config.json").read_text()))
        self.sampling, self.store = sampling, pm.Store(device(target))
        # Two slots, of which the second is used: the first would hide a wrong one.
        self.layout = CacheLayout(2, 64)
        with open_weights(folder / "model.safetensors") as weights:
            params = load_model_params(self.cfg, weights)
            arch = get_architecture(self.cfg.model_type)

            def make(**kind: Any) -> Executable:
                graph = trace_token_step(arch, self.cfg, params.specs, self.layout, sampling, rows=1, **kind)
                return pm.compile(graph, store=self.store)

            self.prefill, self.decode, self.verify = make(chunk=CHUNK), make(chunk=None), make(chunk=CHUNK, verify=True)
            self.prefill.set_params(dict(params.arrays))
        self.writers = {n: pm.compile(trace_slot_row(n, 2, self.cfg.vocab), store=self.store) for n in sampling.slot_states}

    def inputs(
        self, params: SamplingParams, start: int, length: int, numbers: Sequence[int], mask: Any, answer: Any
    ) -> dict[str, Array]:
        """What all token steps have; `numbers` are those of the tokens that are sampled."""
        page, table = self.layout.page, np.arange(self.layout.table, dtype=np.int32) + self.layout.table
        at = np.arange(start, start + length, dtype=np.int32)
        out = {n: np.array([v], np.int32) for n, v in (("slot", 1), ("start", start), ("total", start + length))}
        out |= {"pages": table[None], "row": table[at // page] * page + at % page}
        out["at"] = np.array([n % RING * 2 + 1 for n in numbers], np.int32)
        rows = [SamplingRow(params, n, None if mask is None else mask(answer[:n])) for n in numbers]
        return out | sampling_inputs(rows, self.sampling, self.cfg.vocab)

    def start(self, params: SamplingParams, mask: Any) -> list[int]:
        for name, row in slot_rows(params, PROMPT, [], self.sampling, self.cfg.vocab).items():
            self.writers[name].run({"slot": np.array([1], np.int32), "row": row[None]}, outputs=[])
        given = self.inputs(params, 0, len(PROMPT), [0], mask, [])
        tokens = {"tokens": np.array([PROMPT], np.int32), "length": np.array([len(PROMPT)], np.int32)}
        return [int(self.prefill.run(given | tokens, outputs=["token"])[0][0])]

    def plain(self, params: SamplingParams, n: int, mask: Any = None) -> list[int]:
        answer = self.start(params, mask)
        while len(answer) < n:
            k = len(answer)
            given = self.inputs(params, len(PROMPT) + k - 1, 1, [k], mask, answer)
            fed = {"fed": np.array([(k - 1) % RING * 2 + 1], np.int32)}
            answer.append(int(self.decode.run(given | fed, outputs=["token"])[0][0]))
        return answer

    def speculative(self, params: SamplingParams, n: int, drafter: Drafter, mask: Any = None) -> tuple[list[int], Acceptance]:
        answer, speculator = self.start(params, mask), Speculator(drafter, most=5)
        while len(answer) < n:
            k = len(answer)
            drafts = speculator.propose([*PROMPT, *answer], n - k)
            run = [answer[-1], *drafts]
            given = self.inputs(params, len(PROMPT) + k - 1, len(run), range(k, k + len(run)), mask, [*answer, *drafts])
            given |= {"tokens": np.array([run], np.int32), "length": np.array([len(run)], np.int32)}
            answer += speculator.take(self.verify.run(given, outputs=["token"])[0].tolist(), drafts)
        return answer, speculator.seen


@cache
def steps(target: str, sampling: Sampling) -> Steps:
    return Steps(target, sampling)


class Scripted:
    """Drafts what it knows to come, with a wrong token at every `wrong`-th place; with 0 it makes none."""

    def __init__(self, answer: Sequence[int], wrong: int) -> None:
        self.whole, self.wrong = [*PROMPT, *answer], wrong

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        known = self.whole[len(tokens) : len(tokens) + count]
        return [(t + 1) % 100 if self.wrong and (len(tokens) + k) % self.wrong == 0 else t for k, t in enumerate(known)]


def odd_after_even(vocab: int) -> Callable[[Sequence[int]], Array]:
    def mask(tokens: Sequence[int]) -> Array:
        return np.full(words_of(vocab), 0x55555555 if tokens and tokens[-1] % 2 else 0xAAAAAAAA, np.uint32)

    return mask


SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.2, seed=5),
    "penalties": SamplingParams(temperature=0, repeat_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.3),
    "sampled with penalties": SamplingParams(temperature=1.0, frequency_penalty=-0.8, logit_bias={9: 2.0}, seed=9),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("target", TARGETS)
def test_drafts_do_not_change_the_answer(target: str, setting: str, masked: bool) -> None:
    params = SETTINGS[setting]
    made = steps(target, Sampling.of([params], 128, mask=masked))
    mask = odd_after_even(128) if masked else None
    want = made.plain(params, 24, mask)
    for wrong in (0, 1, 2, 3, 7):
        got, seen = made.speculative(params, 24, Scripted(want, wrong), mask)
        assert got == want, wrong
        if wrong == 0:
            assert seen.rate == 1 and seen.steps <= 5
        if wrong == 1:
            assert seen.rate == 0 and seen.steps >= 22
    assert made.speculative(params, 24, PromptLookup(), mask)[0] == want
    # Tokens after rejected drafts leave no trace in pages or counts.
    assert made.plain(params, 24, mask) == want


def test_speculation_draws_as_plain_sampling_does() -> None:
    """Chi-square of two samples: the third token of answers with and without drafts, by different seeds."""
    made, count = steps("host", Sampling.of([SamplingParams()], 128)), 250
    likely = Scripted(made.plain(SamplingParams(temperature=0.01), 4), 0)
    hot = {"temperature": 0.9, "top_k": 4, "top_p": 1.0, "min_p": 0.0}
    plain = [made.plain(SamplingParams(**hot, seed=s), 3)[2] for s in range(count)]
    runs = [made.speculative(SamplingParams(**hot, seed=10_000 + s), 3, likely) for s in range(count)]
    drafted = [answer[2] for answer, _ in runs]
    assert 0.1 < sum(s.accepted for _, s in runs) / sum(s.drafted for _, s in runs) < 0.9
    kinds, index = np.unique([*plain, *drafted], return_inverse=True)
    table = np.array([np.bincount(index[:count], minlength=len(kinds)), np.bincount(index[count:], minlength=len(kinds))])
    often = table.sum(axis=0) >= 20
    table = np.concatenate([table[:, often], table[:, ~often].sum(axis=1, keepdims=True)], axis=1)
    want = table.sum(axis=0) / 2
    chi, freedom = float(((table - want) ** 2 / np.maximum(want, 1)).sum()), table.shape[1] - 1
    assert freedom >= 3 and chi < freedom + 4 * np.sqrt(2 * freedom), (chi, freedom)


# --- drafts ---


def test_lookup_prefers_long_and_late_matches() -> None:
    lookup = PromptLookup(longest=3)
    assert lookup.draft([1, 2, 3, 8, 2, 3, 9, 1, 2, 3], 2) == [8, 2]  # three tokens agree before two
    assert lookup.draft([5, 1, 5, 2, 5], 4) == [2, 5]  # the latest place
    assert lookup.draft([4, 4, 4], 4) == [4]
    assert lookup.draft([6], 4) == lookup.draft([], 4) == []
    assert PromptLookup(longest=4, shortest=2).draft([5, 1, 5], 4) == []
    # Bytes of 0x0100 and 0x01000000 agree off the borders of tokens.
    assert PromptLookup(longest=1).draft([0x100, 0x10000, 1], 4) == []
    rng = np.random.default_rng(2)
    for _ in range(50):
        tokens = rng.integers(0, 4, 30).tolist()
        size = next(n for n in (3, 2, 1, 0) if n == 0 or any(tokens[k : k + n] == tokens[-n:] for k in range(30 - n)))
        at = max((k for k in range(30 - size) if tokens[k : k + size] == tokens[-size:]), default=0)
        assert lookup.draft(tokens, 5) == (tokens[at + size : at + size + 5] if size else [])


def test_the_number_of_drafts_follows_what_is_accepted() -> None:
    drafts = Scripted(range(100), 0)
    s = Speculator(drafts, most=4)
    tokens = list(PROMPT)
    assert len(s.propose(tokens, room=99)) == 4 and len(s.propose(tokens, room=3)) == 2 and s.propose(tokens, room=1) == []
    assert s.take([0, 7, 7, 7, 7], [0, 1, 2, 3]) == [0, 7] and len(s.propose(tokens, room=99)) == 2
    assert s.take([0, 1, 2], [0, 1]) == [0, 1, 2] and len(s.propose(tokens, room=99)) == 3
    assert s.take([9, 9], [0]) == [9] and len(s.propose(tokens, room=99)) == 1
    assert s.seen == Acceptance(steps=3, drafted=7, accepted=3) and s.seen.tokens_per_step == 2.0
    assert confirmed([1, 2], [1]) == [1, 2] and Acceptance().rate == Acceptance().tokens_per_step == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pm.load(checkpoint("llama", tmp_path_factory.mktemp("llama")), device="host", context=64) as loaded:
        yield loaded


def test_a_model_that_drafts_for_itself_is_always_right(model: Any) -> None:
    made, params = steps("host", Sampling()), SamplingParams(temperature=0)
    want = made.plain(params, 20)
    got, seen = made.speculative(params, 20, DraftModel(model, model))
    assert got == want and seen.rate == 1
    assert DraftModel(model, model).draft([5] * 64, 4) == []


def test_drafters_that_cannot_be_used(model: Any) -> None:
    class Words:
        def __init__(self, text: Callable[[int], str]) -> None:
            self.token_text = text

    def like(vocab: int, text: Callable[[int], str]) -> Any:
        return SimpleNamespace(engine=SimpleNamespace(cfg=SimpleNamespace(vocab=vocab)), tokenizer=Words(text))

    vocab, text = model.engine.cfg.vocab, model.tokenizer.token_text
    with pytest.raises(InputError, match=f"the draft model has a vocabulary of {vocab + 1}, the model one of {vocab}"):
        DraftModel(like(vocab + 1, text), model)
    with pytest.raises(InputError, match="the token 7 is 'odd' in the draft model, 'w7' in the model"):
        DraftModel(like(vocab, lambda t: "odd" if t == 7 else text(t)), model)
    with pytest.raises(InputError, match="the drafter is 5"):
        drafter_of(5, model)
    with pytest.raises(InputError, match="shortest is 4"):
        PromptLookup(longest=3, shortest=4)
    assert isinstance(drafter_of(model, model), DraftModel) and drafter_of(Scripted([], 0), model).draft([1], 1) == [PROMPT[1]]


def test_models_with_recurrent_memory_are_refused() -> None:
    cfg = ModelArchConfig.from_hf(json.loads((GOLDENS / "lfm2" / "config.json").read_text()))
    with pytest.raises(InputError, match="lfm2 keeps states that drafts cannot be taken back from"):
        trace_token_step(get_architecture("lfm2"), cfg, {}, CacheLayout(1, 64), Sampling(), chunk=4, verify=True)
