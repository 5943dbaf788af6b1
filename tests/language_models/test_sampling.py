"""Sampling on the device against a NumPy oracle of the distribution, and models whose logits are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.special import threefry2x32
from pumice.errors import NotFinite
from pumice.formats import open_weights
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.sampling import COLUMNS, NOT_FINITE, Sampling, next_token, sampling_specs
from pumice.run.executable import Executable
from tiny_models import GOLDENS, GREEDY, PROMPT, checkpoint, tokens_of

from harness import device

VOCAB = 600
ROWS = 64
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
Array = np.ndarray[Any, Any]

CUTS: dict[str, dict[str, float]] = {
    "nothing is cut": {"temperature": 1.0},
    "hot": {"temperature": 50.0},
    "cold": {"temperature": 0.05},
    "top_k 257": {"temperature": 2.0, "top_k": 257},
    "top_k 258": {"temperature": 30.0, "top_k": 258},
    "top_k one below the vocabulary": {"temperature": 30.0, "top_k": VOCAB - 1},
    "top_k as large as the vocabulary": {"temperature": 30.0, "top_k": VOCAB},
    "top_k beyond the vocabulary": {"temperature": 30.0, "top_k": 10**6},
    "top_p alone": {"temperature": 2.0, "top_p": 0.9},
    "a wide top_p": {"temperature": 30.0, "top_p": 0.999},
    "min_p alone": {"temperature": 3.0, "min_p": 0.02},
    "top_k, then top_p of what is left": {"temperature": 30.0, "top_k": 300, "top_p": 0.5},
    "all three": {"temperature": 5.0, "top_k": 400, "top_p": 0.95, "min_p": 0.1},
    "top_k below the candidates": {"temperature": 30.0, "top_k": 200, "top_p": 0.9},
    "typical_p alone": {"temperature": 1.0, "typical_p": 0.3},
    "a wide typical_p": {"temperature": 30.0, "typical_p": 0.97},
    "typical_p of 0: the most typical token": {"temperature": 2.0, "typical_p": 0.0},
    "typical_p after the others": {"temperature": 3.0, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.6},
    "greedy": {"temperature": 0.0},
}


def logits_for(kind: str) -> Array:
    x = np.random.default_rng(3).normal(scale=4.0, size=VOCAB).astype(np.float32)
    if kind == "ties":
        x = np.round(x)  # about 25 values: every cut falls among equal ones
    return x


def distribution(logits: Array, n: dict[str, float]) -> tuple[Array, Array]:
    """Tokens in the order in which they are drawn, and their probabilities, in float64."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    if n["temperature"] == 0:
        return order[:1], np.ones(1)
    if n["top_k"]:
        order = order[: int(n["top_k"])]
    scaled = logits[order].astype(np.float64) / n["temperature"]
    p = np.exp(scaled - scaled[0])
    p /= p.sum()
    before = np.cumsum(p) - p
    kept = ((before < n["top_p"]) | (n["top_p"] == 1)) & (p >= n["min_p"] * p[0])
    kept[0] = True
    order, p = order[kept], p[kept] / p[kept].sum()
    if n["typical_p"] < 1:
        surprise = -np.log(p)
        off = np.abs(surprise - (p * surprise).sum())
        # Those that are nearer to the expected surprise come first; equally near ones stay or go together.
        near = np.array([o == off.min() or p[off < o].sum() < n["typical_p"] for o in off])
        order, p = order[near], p[near] / p[near].sum()
    return order, p


@cache
def drawer(target: str, whole: bool, rows: int = ROWS, vocab: int = VOCAB) -> Executable:
    sampling = Sampling(greedy=False, whole=whole, typical=whole)
    specs = sampling_specs(lambda dtype, *shape: pm.spec(rows, *shape, dtype=dtype), sampling, vocab)
    return pm.compile(
        lambda logits, **inputs: next_token(logits, sampling, inputs, slots=1, slot=pm.zeros((rows,), "i32"))["token"],
        device=device(target),
        logits=pm.spec(rows, vocab),
        **specs,
    )


def numbers_of(cut: dict[str, float]) -> dict[str, float]:
    return {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **cut}


def columns(cut: dict[str, float], u: Array) -> Array:
    """The input `numbers` for one cut and several u."""
    one = {**dict.fromkeys(COLUMNS, 0.0), **numbers_of(cut)}
    return np.stack([u if name == "u" else np.full(len(u), one[name]) for name in COLUMNS], axis=1).astype(np.float32)


def draw(target: str, logits: Array, cut: dict[str, float], u: Array, *, whole: bool = True) -> Array:
    """The tokens for several u, `ROWS` at a time."""
    out = []
    for first in range(0, len(u), ROWS):
        numbers = columns(cut, np.resize(u[first : first + ROWS], ROWS))
        out.append(drawer(target, whole).run(logits=np.tile(logits, (ROWS, 1)), numbers=numbers)[: len(u) - first])
    return np.concatenate(out)


@pytest.mark.parametrize("kind", ["floats", "ties"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_number_draws_the_token_that_the_distribution_has_there(target: str, cut: str, kind: str) -> None:
    logits = logits_for(kind)
    tokens, p = distribution(logits, numbers_of(CUTS[cut]))
    ends = np.cumsum(p)
    # The middle of each token's share, where float32 resolves it, and what random numbers hit, unless they hit a border.
    u = np.concatenate([(ends - p / 2)[p > 1e-4][:ROWS], np.random.default_rng(4).random(ROWS), [0.0]])
    u = u.astype(np.float32).astype(np.float64)
    border = np.abs(u[:, None] - ends).min(axis=1) < VOCAB * 2.0**-25  # what a float32 sum of so many may be off by
    u = u[~border]
    assert len(u) > ROWS * 0.9
    want = tokens[np.searchsorted(ends, u, side="right")]
    np.testing.assert_array_equal(draw(target, logits, CUTS[cut], u), want)


@pytest.mark.parametrize("seed", [0, 7, (1 << 32) - 1, 1 << 40, (1 << 64) - 1])
def test_the_numbers_of_a_seed_are_threefry_of_their_index(seed: int) -> None:
    at = np.arange(130, dtype=np.uint32)
    words, _ = threefry2x32(seed & 0xFFFFFFFF, seed >> 32, at, np.uint32(0x70756D69))
    assert [SamplingParams(seed=seed).uniform(i) for i in range(130)] == [(w >> 8) / (1 << 24) for w in words.tolist()]


@pytest.mark.parametrize(
    "cut", ["nothing is cut", "hot", "top_k 257", "all three", "a wide typical_p", "typical_p after the others"]
)
def test_many_draws_follow_the_distribution(cut: str) -> None:
    """Chi-square over bins of at least 20 expected draws, with the numbers that a seed gives."""
    logits = logits_for("floats")
    tokens, p = distribution(logits, numbers_of(CUTS[cut]))
    count = 96 * ROWS
    u = np.array([SamplingParams(seed=11).uniform(i) for i in range(count)])
    got = np.bincount(draw("host", logits, CUTS[cut], u), minlength=VOCAB)[tokens]
    assert got.sum() == count, "a token was drawn that the cuts exclude"
    edges = np.concatenate([[0], np.flatnonzero(np.diff(np.floor(np.cumsum(p) * count / 20))) + 1])
    seen, expected = np.add.reduceat(got, edges), np.add.reduceat(p, edges) * count
    chi, freedom = float(((seen - expected) ** 2 / expected).sum()), len(edges) - 1
    assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom), (chi, freedom)
    if cut == "hot":
        # What 256 candidates cut off: more than half of the draws at this temperature.
        assert got[256:].sum() > count / 2


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_need_few_candidates_are_drawn_as_without_the_others(target: str) -> None:
    logits, u = logits_for("floats"), np.random.default_rng(5).random(ROWS)
    cut = CUTS["top_k below the candidates"]
    np.testing.assert_array_equal(draw(target, logits, cut, u), draw(target, logits, cut, u, whole=False))


@pytest.mark.parametrize("target", TARGETS)
def test_a_vocabulary_that_no_workgroup_can_hold(target: str) -> None:
    """Rows beyond one block are sorted in global memory, and summed in chunks."""
    vocab, ranks = 5000, [0, 255, 256, 300, 2500, 4998]
    logits = np.random.default_rng(8).normal(scale=4.0, size=vocab).astype(np.float32)
    tokens, p = distribution(logits, numbers_of({"temperature": 50.0}))
    u = (np.cumsum(p) - p / 2)[ranks].astype(np.float32)
    with drawer.__wrapped__(target, True, len(u), vocab) as exe:
        got = exe.run(logits=np.tile(logits, (len(u), 1)), numbers=columns({"temperature": 50.0}, u))
    np.testing.assert_array_equal(got, tokens[ranks])


@pytest.mark.gpu
def test_host_and_webgpu_draw_the_same_tokens() -> None:
    u = np.random.default_rng(6).random(ROWS)
    for name in ("hot", "all three"):
        host, gpu = (draw(target, logits_for("ties"), CUTS[name], u) for target in ("host", "webgpu"))
        # Equal logits have equal probabilities on both, so only a number that falls on a border may differ.
        assert (host != gpu).sum() <= 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_without_numbers_are_marked(target: str, whole: bool, value: float) -> None:
    logits = logits_for("floats").copy()
    logits[77] = value
    assert set(draw(target, logits, {"temperature": 1.0, "top_k": 9}, np.zeros(4), whole=whole)) == {NOT_FINITE}
    masked = logits_for("floats").copy()
    masked[3:9] = -np.inf  # as models mask tokens
    assert min(draw(target, masked, {"temperature": 1.0, "top_k": 9}, np.linspace(0, 0.99, 9), whole=whole)) >= 0


# --- models ---


SAMPLED = SamplingParams(temperature=1.0, seed=5)
SETTINGS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "penalty": SamplingParams(temperature=0, repeat_penalty=1.2),
    "logprobs": SamplingParams(temperature=0, logprobs=2),
}


def spoil(e: Engine, row: int | None) -> None:
    """NaN in one token's embedding, or in all of the output matrix; both are bf16."""
    name, key = ("head.weight", "lm_head.weight") if row is None else ("embed.weight", "model.embed_tokens.weight")
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights:
        table = np.array(weights.array(key))
    table.view(np.uint16)[slice(None) if row is None else row] = 0x7FC0
    next(iter(e._exes.values())).set_params({name: table}, partial=True)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("target", TARGETS)
def test_nan_weights_are_an_error_that_names_the_model(target: str, setting: str, engine: Callable[..., Engine]) -> None:
    e = engine("llama", target, name="my-model")
    spoil(e, None)
    with pytest.raises(NotFinite, match="my-model computes NaN or infinite logits after 13 tokens"):
        tokens_of(e, PROMPT, 4, SETTINGS[setting])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("target", TARGETS)
def test_nan_that_shows_while_decoding(target: str, setting: str, engine: Callable[..., Engine]) -> None:
    """A token's embedding is NaN: answers are right up to the step that runs it, and others stay right afterwards."""
    e = engine("llama", target)
    e._ahead, e._bursts = 3, 2
    want = tokens_of(e, PROMPT, 6, SETTINGS[setting])
    other = [t for t in range(4, 40) if t not in (*PROMPT, *want)][:9]
    healthy = tokens_of(e, other, 4, SETTINGS[setting])
    bad = want[1]
    assert bad not in (*PROMPT, want[0], *other, *healthy[:3])
    spoil(e, bad)
    with pytest.raises(NotFinite, match=f"after {len(PROMPT) + 2} tokens"):
        tokens_of(e, PROMPT, 6, SETTINGS[setting])
    assert tokens_of(e, other, 4, SETTINGS[setting]) == healthy
    assert tokens_of(e, PROMPT, 2, SETTINGS[setting]) == want[:2]


def test_a_batch_of_wide_and_narrow_requests(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a large vocabulary: what one request asks for changes no other."""
    monkeypatch.setattr("pumice.llm.sampling.CANDIDATES", 16)
    narrow = SamplingParams(temperature=2.0, top_k=9, seed=3)
    wide = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=4)
    alone = engine("llama")
    want = [tokens_of(alone, PROMPT, 8, s) for s in (narrow, wide, GREEDY)]
    together = engine("llama", slots=3)
    got: list[list[int]] = [[], [], []]
    for event in together.stream([Request(PROMPT, s, 8) for s in (narrow, wide, GREEDY)]):
        got[event.request].append(event.token)
    assert got == want and {key[2].whole for key in alone._exes} == {False, True}


def test_an_encoder_with_nan_weights(tmp_path: Path) -> None:
    with pm.load(checkpoint("bert", tmp_path, closing=True), device="host") as model:
        bias = "layers.0.ffn.down.bias"
        model._exe.set_params({bias: np.full(model.dim, np.nan, np.float32)}, partial=True)
        with pytest.raises(NotFinite, match="bert computes NaN or infinite values for text 0"):
            model.embed(["w5", "w6"])
