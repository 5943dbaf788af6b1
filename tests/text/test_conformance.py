"""Every vocabulary that llama.cpp tests its tokenisers with: the same ids, or refused for a reason that is named here.

The first run fetches 77 MB into `PUMICE_HOME`; without a network the tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumice.formats import open_weights
from pumice.text import Tokenizer
from text.conformance import cases, vocabularies

# Vocabularies that come with expected ids, and those that only have to load.
WITH_CASES = [
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm"),
    *("mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
]
WITHOUT = ["aquila", "baichuan", "gpt-neox", "nomic-bert-moe"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    yield vocabularies()


def tokenizer_of(path: Path) -> Tokenizer:
    with open_weights(path) as weights:
        return Tokenizer.from_gguf(weights.metadata)


def test_no_vocabulary_is_left_out(folder: Path) -> None:
    assert sorted(path.name for path in folder.glob("*.gguf")) == [f"ggml-vocab-{n}.gguf" for n in sorted(WITH_CASES + WITHOUT)]


@pytest.mark.parametrize("name", WITH_CASES)
def test_ids_are_those_of_llama_cpp(name: str, folder: Path) -> None:
    path = folder / f"ggml-vocab-{name}.gguf"
    tokenizer = tokenizer_of(path)
    rows = cases(path)
    assert len(rows) >= 46
    wrong = {text: ids for text, ids in rows if tokenizer.encode(text, add_special=False) != ids}
    assert not wrong


@pytest.mark.parametrize("name", WITHOUT)
def test_vocabularies_without_cases_keep_the_text(name: str, folder: Path) -> None:
    tokenizer = tokenizer_of(folder / f"ggml-vocab-{name}.gguf")
    for text in ("The cat sat on 123 mats.", "Ça va déjà? 你好", "def f(x):"):
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("？", "?")


@pytest.mark.parametrize("name", WITH_CASES + WITHOUT)
def test_a_tokeniser_is_the_same_after_it_was_written_and_read(name: str, folder: Path) -> None:
    """As bundles keep it: the text of a tokenizer.json, and the settings that JSON keeps."""
    path = folder / f"ggml-vocab-{name}.gguf"
    first = tokenizer_of(path)
    again = Tokenizer.from_json(first.to_json(), json.loads(json.dumps(first.settings())))
    texts = [text for text, _ in cases(path)] if name in WITH_CASES else ["The cat sat on 123 mats.", "Ça va déjà? 你好"]
    for text in texts:
        ids = first.encode(text)
        assert again.encode(text) == ids and again.decode(ids) == first.decode(ids)
    tokens = range(first.vocab_size + 2)
    assert [again.token_bytes(i) for i in tokens] == [first.token_bytes(i) for i in tokens]
