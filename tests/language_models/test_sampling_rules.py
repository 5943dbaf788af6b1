"""Logit bias, penalties and masks on the device against a NumPy oracle, alone and in batches, and through an engine's slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.sampling import (
    COLUMNS,
    NOTHING_ALLOWED,
    Sampling,
    SamplingRow,
    next_token,
    sampling_inputs,
    sampling_specs,
    slot_rows,
    trace_slot_row,
    words_of,
)
from pumice.run.executable import Executable
from tiny_models import GREEDY, PROMPT, tokens_of

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
VOCAB, SLOTS = 77, 4
EVERYTHING = Sampling(greedy=False, penalty=True, logprobs=True, whole=True, typical=True, bias=True, mask=True)
HOT = {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# Requests that need different parts; each is drawn with plans that hold its own parts, and with one that holds all.
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "usual": {},
    "repeat": {"temperature": 0, "repeat_penalty": 1.7},
    "repeat less than 1": {"temperature": 0, "repeat_penalty": 0.5},
    "presence": {"temperature": 0, "presence_penalty": 1.5},
    "frequency": {"temperature": 0, "frequency_penalty": 0.7},
    "negative": {"temperature": 0, "presence_penalty": -1.0, "frequency_penalty": -0.5},
    "bias": {"temperature": 0, "logit_bias": {3: 4.0, 9: -100.0, 76: 6.5}},
    "forbidden": {**HOT, "logit_bias": {t: float("-inf") for t in range(60)}},
    "all": {
        **HOT,
        "top_k": 30,
        "typical_p": 0.8,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {5: 3.0, 6: -2.0},
        "logprobs": 3,
    },
}


def mask_of(tokens: Sequence[int]) -> Array:
    words = np.zeros(words_of(VOCAB), np.uint32)
    for t in tokens:
        words[t // 32] |= np.uint32(1 << t % 32)
    return words


def expected(logits: Array, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], allowed: Any = None) -> Array:
    """Logits after bias, penalties and mask, in float64."""
    x = logits.astype(np.float64)
    for t, value in params.biases:
        x[t] += value
    for t in {*prompt, *answer}:
        x[t] = x[t] / params.repeat_penalty if x[t] > 0 else x[t] * params.repeat_penalty
    for t in set(answer):
        x[t] -= params.frequency_penalty * list(answer).count(t) + params.presence_penalty
    return x if allowed is None else np.where([t in allowed for t in range(len(x))], x, -np.inf)


def drawn(x: Array, params: SamplingParams, position: int) -> int | None:
    """The token by the rules of docs/sampling.md; None where u falls on a border."""
    order = np.argsort(-x, kind="stable")
    if params.greedy:
        return int(order[0]) if x[order[0]] - x[order[1]] > 1e-4 else None
    order = order[: params.top_k or VOCAB]
    scaled = x[order] / params.temperature
    p = np.exp(scaled - scaled[0])
    p /= p.sum()
    kept = ((np.cumsum(p) - p < params.top_p) | (params.top_p == 1)) & (p >= params.min_p * p[0]) & (p > 0)
    order, p = order[kept], p[kept] / p[kept].sum()
    if params.typical_p < 1:
        surprise = -np.log(p)
        off = np.abs(surprise - (p * surprise).sum())
        near = np.array([o == off.min() or p[off < o].sum() < params.typical_p for o in off])
        order, p = order[near], p[near] / p[near].sum()
    ends, u = np.cumsum(p), params.uniform(position)
    return None if np.abs(ends - u).min() < 1e-5 else int(order[np.searchsorted(ends, u, side="right")])


@cache
def stepper(target: str, sampling: Sampling, rows: int) -> tuple[Executable, dict[str, Executable]]:
    """A token step without a model: logits and fed tokens are inputs; and what writes a slot's states."""
    store = pm.Store(device(target))

    def step(logits: Any, slot: Any, fed: Any, **inputs: Any) -> Any:
        return next_token(logits, sampling, inputs, slots=SLOTS, slot=slot, fed=fed)

    specs: dict[str, Any] = {
        "logits": pm.spec(rows, VOCAB),
        "slot": pm.spec(rows, dtype="i32"),
        "fed": pm.spec(rows, dtype="i32"),
    }
    specs |= sampling_specs(lambda dtype, *shape: pm.spec(rows, *shape, dtype=dtype), sampling, VOCAB)
    writers = {name: pm.compile(trace_slot_row(name, SLOTS, VOCAB), store=store) for name in sampling.slot_states}
    return pm.compile(step, store=store, **specs), writers


def generate(
    target: str, requests: Sequence[tuple[SamplingParams, int, Any]], sampling: Sampling | None = None, steps: int = 5
) -> list[list[int]]:
    """Answers of (parameters, slot, allowed tokens) in one batch, with logits that depend on slot and position alone."""
    params = [p for p, _, _ in requests]
    if sampling is None:
        sampling = Sampling.of(params, VOCAB, mask=any(a is not None for _, _, a in requests))
    exe, writers = stepper(target, sampling, len(requests))
    prompts = [prompt_of(slot) for _, slot, _ in requests]
    answers = [[int(np.argmax(logits_of(slot, 0)))] for _, slot, _ in requests]
    for (p, slot, _), prompt in zip(requests, prompts, strict=True):
        for name, row in slot_rows(p, prompt, [], sampling, VOCAB).items():
            writers[name].run({"slot": np.array([slot], np.int32), "row": row[None]}, outputs=[])
    for k in range(1, steps):
        rows = [SamplingRow(p, k, None if a is None else mask_of(a)) for p, _, a in requests]
        inputs = sampling_inputs(rows, sampling, VOCAB) | {
            "logits": np.stack([logits_of(slot, k) for _, slot, _ in requests]),
            "slot": np.array([slot for _, slot, _ in requests], np.int32),
            "fed": np.array([a[-1] for a in answers], np.int32),
        }
        for answer, token in zip(answers, exe.run(inputs, outputs=["token"])[0], strict=True):
            answer.append(int(token))
    return answers


def logits_of(slot: int, step: int) -> Array:
    return np.random.default_rng([slot, step]).normal(scale=2.0, size=VOCAB).astype(np.float32)


def prompt_of(slot: int) -> list[int]:
    return np.random.default_rng([slot, 99]).integers(0, VOCAB, 30).tolist()


@pytest.mark.parametrize("allowed", [None, (1, 31, 32, 40, 63, 64, 76)])
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("target", TARGETS)
def test_each_rule_agrees_with_the_oracle(target: str, name: str, allowed: Any) -> None:
    params = SamplingParams(**REQUESTS[name], seed=7)
    (got,) = generate(target, [(params, 2, allowed)])
    for k in range(1, len(got)):
        want = drawn(expected(logits_of(2, k), params, prompt_of(2), got[:k], allowed), params, k)
        assert want is None or got[k] == want, (k, got)
    assert allowed is None or set(got[1:]) <= set(allowed)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_do_not_depend_on_the_others_or_on_the_parts_of_the_plan(target: str) -> None:
    """Every request alone with its own plan, alone with all parts, and in a batch in which the slots held others before."""
    names = list(REQUESTS)
    mixed = [
        (SamplingParams(**REQUESTS[n], seed=k), (20, 30, 40, 50, 60, 70, 76) if k % 3 == 2 else None) for k, n in enumerate(names)
    ]
    for first in range(0, len(mixed), SLOTS):
        batch = [(p, slot, a) for slot, (p, a) in enumerate(mixed[first : first + SLOTS])]
        together = generate(target, batch, EVERYTHING)
        for row, request in enumerate(batch):
            assert generate(target, [request]) == [together[row]], names[first + row]
            assert generate(target, [request], EVERYTHING) == [together[row]], names[first + row]


@pytest.mark.parametrize("target", TARGETS)
def test_penalties_and_masks_follow_the_distribution(target: str) -> None:
    """Chi-square of one row's draws over many seeds, after penalties, bias and mask; 64 rows share the slot."""
    params = SamplingParams(**{**HOT, "presence_penalty": 1.0, "repeat_penalty": 1.3, "logit_bias": {20: 2.0}})
    allowed, rows, rounds = (10, 20, 30, 40, 50, 60, 70), 64, 16 if target == "host" else 2
    sampling = Sampling.of([params], VOCAB, mask=True)
    exe, writers = stepper(target, sampling, rows)
    answer = [20, 30, 30]
    for name, row in slot_rows(params, prompt_of(1), answer, sampling, VOCAB).items():
        writers[name].run({"slot": np.array([1], np.int32), "row": row[None]}, outputs=[])
    counts = np.zeros(VOCAB)
    for k in range(rounds):
        seeds = [SamplingParams(**{**HOT, **vars_of(params)}, seed=k * rows + r) for r in range(rows)]
        inputs = sampling_inputs([SamplingRow(p, 3, mask_of(allowed)) for p in seeds], sampling, VOCAB) | {
            "logits": np.tile(logits_of(1, 0), (rows, 1)),
            "slot": np.full(rows, 1, np.int32),
            "fed": np.full(rows, 3 * VOCAB, np.int32),  # beyond the counts: nothing is fed
        }
        np.add.at(counts, exe.run(inputs, outputs=["token"])[0], 1)
    x = expected(logits_of(1, 0), params, prompt_of(1), answer, allowed) / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    assert counts[p == 0].sum() == 0
    want = p[list(allowed)] * counts.sum()
    chi = float(((counts[list(allowed)] - want) ** 2 / want).sum())
    assert chi < 22.5, (chi, counts[list(allowed)], want)  # a chance of 0.001 with 6 degrees of freedom


def vars_of(params: SamplingParams) -> dict[str, Any]:
    return {n: getattr(params, n) for n in ("presence_penalty", "repeat_penalty", "logit_bias")}


@pytest.mark.parametrize("target", TARGETS)
def test_a_bias_and_a_mask_that_leave_nothing_are_marked(target: str) -> None:
    forbidding = SamplingParams(temperature=0, logit_bias={4: float("-inf"), 5: float("-inf")})
    answers = generate(target, [(forbidding, 0, (4, 5)), (SamplingParams(temperature=0), 1, (4, 5))], steps=2)
    assert answers[0][1] == NOTHING_ALLOWED and answers[1][1] in (4, 5)


# --- engines ---


class Odd:
    """Allows odd tokens after even ones and the other way round; keeps what it was asked."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.asked: list[list[int]] = []

    def mask(self, tokens: Sequence[int]) -> Array:
        self.asked.append(list(tokens))
        odd = not tokens or tokens[-1] % 2 == 0
        return np.full(words_of(self.vocab), 0xAAAAAAAA if odd else 0x55555555, np.uint32)


SETTINGS = [
    SamplingParams(temperature=0, repeat_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=0, presence_penalty=2.0),
    SamplingParams(temperature=1.0, frequency_penalty=-0.4, seed=3),
    SamplingParams(temperature=0, logit_bias={7: 5.0, 8: float("-inf")}),
    SamplingParams(temperature=0.9, typical_p=0.7, seed=8, logprobs=2),
    GREEDY,
]


def greedy_answer(e: Engine, params: SamplingParams, n: int) -> list[int]:
    """Greedy tokens from whole-sequence logits."""
    answer: list[int] = []
    while len(answer) < n:
        answer.append(int(np.argmax(expected(e.logits([*PROMPT, *answer])[-1], params, PROMPT, answer))))
    return answer


@pytest.mark.parametrize("chunk", [4, 64])
def test_counts_are_right_with_prefill_chunks_and_reused_prompts(chunk: int, engine: Callable[..., Engine]) -> None:
    e = engine("llama", chunk=chunk)
    for params in (SETTINGS[0], SETTINGS[1], SETTINGS[3], SETTINGS[1], SETTINGS[0]):
        assert tokens_of(e, PROMPT, 8, params) == greedy_answer(e, params, 8)


def test_a_batch_in_which_every_row_samples_otherwise(engine: Callable[..., Engine]) -> None:
    alone = engine("llama")
    vocab = alone.cfg.vocab
    want = [tokens_of(alone, PROMPT, 8, s, grammar=Odd(vocab) if k % 2 else None) for k, s in enumerate(SETTINGS)]
    together = engine("llama", slots=len(SETTINGS))
    for _ in range(2):  # the second time every slot holds what another request left
        got: dict[int, list[int]] = {k: [] for k in range(len(SETTINGS))}
        requests = [Request(PROMPT, s, 8, grammar=Odd(vocab) if k % 2 else None) for k, s in enumerate(SETTINGS)]
        for event in together.stream(requests):
            got[event.request].append(event.token)
        assert list(got.values()) == want


def test_a_mask_is_asked_for_once_a_token_with_the_answer_so_far(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    e._ahead, e._bursts = 3, 2
    odd = Odd(e.cfg.vocab)
    got = tokens_of(e, PROMPT, 6, grammar=odd)
    assert odd.asked == [got[:k] for k in range(6)]
    assert [t % 2 for t in got] == [1, 0, 1, 0, 1, 0]


class Fixed:
    def __init__(self, words: Any) -> None:
        self.words = words

    def mask(self, tokens: Sequence[int]) -> Any:
        return self.words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.ones(99, np.uint32), r"mask of allowed tokens is uint32 \[99\]"),
        (np.ones(2, np.float32), "float32"),
        (np.ones((1, 2), np.uint32), r"\[1, 2\]"),
        (None, "object"),
        ("none", "allows none"),
    ],
)
def test_masks_that_cannot_be_used_are_refused(words: Any, message: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    if isinstance(words, str):
        words = np.zeros(words_of(e.cfg.vocab), np.uint32)
    with pytest.raises(InputError, match=message):
        tokens_of(e, PROMPT, 4, grammar=Fixed(words))
    assert len(tokens_of(e, PROMPT, 4)) == 4


BAD: list[tuple[dict[str, Any], str]] = [
    ({"typical_p": 1.5}, "typical_p is 1.5"),
    ({"typical_p": float("nan")}, "typical_p is nan"),
    ({"repeat_penalty": -1.0}, "repeat_penalty is -1.0"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
    ({"frequency_penalty": "much"}, "frequency_penalty is 'much'"),
    ({"logit_bias": {5: 101}}, "logit_bias of the token 5 is 101"),
    ({"logit_bias": {5: float("nan")}}, "logit_bias of the token 5 is nan"),
    ({"logit_bias": {5: float("inf")}}, "logit_bias of the token 5 is inf"),
    ({"logit_bias": {-5: 1}}, "a token of logit_bias is -5"),
    ({"logit_bias": {"five": 1}}, "a token of logit_bias is 'five'"),
    ({"logit_bias": 5}, "logit_bias is 5"),
    ({"logit_bias": [1, 2]}, r"logit_bias is \[1, 2\]"),
]


@pytest.mark.parametrize(("numbers", "message"), BAD)
def test_bad_parameters_name_themselves(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**numbers)


def test_a_bias_on_tokens_that_there_are_not(engine: Callable[..., Engine]) -> None:
    e = engine("llama")
    with pytest.raises(InputError, match=f"names the token {e.cfg.vocab}, which is not in the vocabulary of {e.cfg.vocab}"):
        tokens_of(e, PROMPT, 2, SamplingParams(logit_bias={e.cfg.vocab: 1.0}))
    with pytest.raises(InputError, match="forbids every token"):
        tokens_of(e, PROMPT, 2, SamplingParams(logit_bias={t: float("-inf") for t in range(e.cfg.vocab)}))
    assert len(tokens_of(e, PROMPT, 2)) == 2


# --- what transformers makes of the same logits ---


@pytest.mark.parametrize(
    "case",
    json.loads((Path(__file__).parent / "golden_sampling.json").read_text()),
    ids=lambda c: " ".join(k for k in c if k not in ("logits", "tokens", "p")),
)
def test_the_rules_that_transformers_has_too(case: dict[str, Any]) -> None:
    """The middle of each token's share of transformers' distribution draws that token."""
    logits, p = np.array(case["logits"], np.float32), np.array(case["p"])
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    params = SamplingParams(**{**off, **{k: v for k, v in case.items() if k not in ("logits", "tokens", "p")}})
    sampling = Sampling.of([params], len(p))
    order = np.argsort(-p, kind="stable")
    order = order[p[order] > 1e-5]
    middle = np.cumsum(p[order]) - p[order] / 2
    store = pm.Store("host")
    specs = sampling_specs(lambda dtype, *shape: pm.spec(len(order), *shape, dtype=dtype), sampling, len(p))
    exe = pm.compile(
        lambda logits, slot, **inputs: next_token(logits, sampling, inputs, slots=1, slot=slot)["token"],
        store=store,
        logits=pm.spec(len(order), len(p)),
        slot=pm.spec(len(order), dtype="i32"),
        **specs,
    )
    for name, row in slot_rows(params, case["tokens"], [], sampling, len(p)).items():
        pm.compile(trace_slot_row(name, 1, len(p)), store=store).run(
            {"slot": np.zeros(1, np.int32), "row": row[None]}, outputs=[]
        )
    inputs = sampling_inputs([SamplingRow(params, 0)] * len(order), sampling, len(p))
    inputs["numbers"][:, COLUMNS.index("u")] = middle
    got = exe.run({"logits": np.tile(logits, (len(order), 1)), "slot": np.zeros(len(order), np.int32), **inputs})
    np.testing.assert_array_equal(got, order)
    store.close()
