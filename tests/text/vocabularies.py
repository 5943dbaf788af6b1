"""Small vocabularies as GGUF's key-values, and the golden files, for the tests of tokenisers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pumice.text.vocabulary import byte_alphabet

DATA = Path(__file__).parent / "data"


def rows(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def gguf(model: str = "gpt2", **changes: Any) -> dict[str, Any]:
    """Key-values of a small vocabulary of every byte and some words."""
    words = ["th", "the", "Ġthe", "<|im_end|>", "<think>", "<s>"]
    values: dict[str, Any] = {
        "tokens": [*byte_alphabet(), *words],
        "token_type": [1] * 256 + [1, 1, 1, 3, 4, 3],
        "merges": ["t h", "th e", "Ġ the"],
        "pre": "gpt-2",
        "eos_token_id": 259,
        "bos_token_id": 261,
    }
    values.update(changes)
    given = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return {"tokenizer.ggml.model": model, **given}


def wordpiece(**changes: Any) -> dict[str, Any]:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁cat", "s", "▁!", "▁ca", "t"]
    values = {"tokens": tokens, "token_type": [3, 3, 3, 3, *[1] * 6], "cls_token_id": 2, "seperator_token_id": 3}
    return gguf("bert", **{**values, "unknown_token_id": 1, "bos_token_id": None, "eos_token_id": None, **changes})
