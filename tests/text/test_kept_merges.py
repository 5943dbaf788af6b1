"""The merges of large SentencePiece vocabularies are kept: a second start reads them, and gets the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pumice import config
from pumice.text import Tokenizer, gguf_tokenizer

_LETTERS = "abcdefghij"


def _metadata(scores: float = 1.0) -> dict[str, Any]:
    pieces = ["<unk>", "<s>", "</s>", "▁", *_LETTERS, *(a + b for a in _LETTERS for b in _LETTERS)]
    types = [2, 3, 3] + [1] * (len(pieces) - 3)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [-scores * i for i in range(len(pieces))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_a_second_start_finds_no_merges_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_tokenizer, "_LARGE_VOCABULARY", 1)
    with config.override(home=tmp_path):
        first = Tokenizer.from_gguf(_metadata()).encode("abcdefj jihgfab")
        (kept,) = (tmp_path / "merges").iterdir()
        monkeypatch.setattr(gguf_tokenizer, "_find_merges", lambda *args: pytest.fail("found again"))
        assert Tokenizer.from_gguf(_metadata()).encode("abcdefj jihgfab") == first
        monkeypatch.undo()
        monkeypatch.setattr(gguf_tokenizer, "_LARGE_VOCABULARY", 1)
        kept.write_bytes(kept.read_bytes()[:-1] + b"\0")  # damaged: made again
        assert Tokenizer.from_gguf(_metadata()).encode("abcdefj jihgfab") == first


def test_other_scores_have_merges_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_tokenizer, "_LARGE_VOCABULARY", 1)
    with config.override(home=tmp_path):
        ids = [Tokenizer.from_gguf(_metadata(sign)).encode("abcde") for sign in (1.0, -1.0)]
        assert ids[0] != ids[1]
        assert len(list((tmp_path / "merges").iterdir())) == 2
