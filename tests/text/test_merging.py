"""Short texts are merged in Python to the same ids that the library gives, until there are so many that its model is built."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pumice import config
from pumice.errors import FormatError
from pumice.formats import open_weights
from pumice.formats.gguf_metadata import metadata_digest
from pumice.text import Tokenizer, merging
from text.conformance import cases, vocabularies
from text.test_conformance import WITH_CASES, WITHOUT
from text.vocabularies import gguf

# Characters that vocabularies treat in their own ways: accents to compose, spaces, marks of spaces, digits, pairs of surrogates.
_CHARACTERS = "abcdehilnorstu  ABTW\n\t.,!'0123456789éüßñ\u0301你好世界ñ🙂👍🏽▁Ġ<>|_\u200d\u00a0\x07"
_QUICK = ("phi-3", "gpt-2")
_OTHER_KINDS = ("bert-bge", "nomic-bert-moe")  # WordPiece and unigram merge nothing
_ALL_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def texts(count: int) -> list[str]:
    rng = random.Random(count)
    return ["".join(rng.choices(_CHARACTERS, k=rng.randrange(50))) for _ in range(count)]


def both(metadata: Any, digest: str, home: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokeniser that merges itself, as a second start has it, and the library's."""
    with config.override(home=home):
        library = Tokenizer.from_gguf(metadata, digest)
        return Tokenizer.from_gguf(metadata, digest), library


def spm(**changes: Any) -> dict[str, Any]:
    words = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "\n", "<eot>", "<hi>"]
    tokens = ["<unk>", "<s>", *_ALL_BYTES, *words]
    types = [2, 3, *[6] * 256, *[1] * 9, 4, 3, 4]
    scores = [0.0] * 258 + [-9, -8, -7, -6, -2, -1, -1, -3, -2, 0, 0, 0]
    named = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 268, "pre": None, "merges": None}
    return gguf("llama", tokens=tokens, token_type=types, scores=scores, **{**named, **changes})


@pytest.mark.parametrize("metadata", [gguf(), gguf(pre="llama-bpe"), spm(), spm(add_space_prefix=False)])
def test_small_vocabularies(metadata: Any, tmp_path: Path) -> None:
    ours, library = both(metadata, "0" * 64, tmp_path)
    assert ours._short is not None and library._short is None
    extra = ["", "the the<think>the<|im_end|> th", " abcabc<eot> ab\nabc<hi>", "aabbabcbcaaabc", "<s>"]
    for text in [*extra, *texts(60)]:
        assert ours.encode(text) == library.encode(text), text
    assert ours.decode(ours.encode("the ab")) == library.decode(library.encode("the ab"))


@pytest.mark.parametrize("name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in WITH_CASES + WITHOUT])
def test_vocabularies_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = vocabularies() / f"ggml-vocab-{name}.gguf"
    with open_weights(path) as weights:
        digest = metadata_digest(weights.metadata)
        assert digest is not None
        ours, library = both(weights.metadata, digest, tmp_path)
    assert (ours._short is None) == (name in _OTHER_KINDS)
    known = [text for text, _ in cases(path)] if name in WITH_CASES else []
    for text in [*known, *texts(40)]:
        assert ours.encode(text) == library.encode(text), text


def test_many_texts_are_worth_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_MOST_CHARACTERS", 8)
    ours, library = both(gguf(), "1" * 64, tmp_path)
    for text in ("the the", "th the", "the"):
        assert ours.encode(text) == library.encode(text)
    assert ours._short is None


def test_what_does_not_fit_together_is_found_at_the_first_start(tmp_path: Path) -> None:
    with config.override(home=tmp_path), pytest.raises(FormatError, match="does not fit together"):
        Tokenizer.from_gguf(gguf(merges=["t h", "z z"]), "2" * 64)
    assert not (tmp_path / "tokenizers").exists()


def test_lower_case_goes_through_the_library(tmp_path: Path) -> None:
    ours, _ = both(gguf(), "3" * 64, tmp_path)
    ours.lower_case()
    assert ours.encode("THE") == [257]
