"""Pairs are cut and joined as the tokenizers library does it with its own truncation."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers

from pumice.errors import InputError
from pumice.text.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "models" / "goldens" / "classifiers"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm_roberta", "modernbert_cls"])
def test_pairs_of_any_length_equal_the_librarys_own(name: str, side: str) -> None:
    own = Tokenizer.from_folder(GOLDENS / name)
    library = tokenizers.Tokenizer.from_file(str(GOLDENS / name / "tokenizer.json"))
    library.no_padding()
    rng = random.Random(f"{name}/{side}")
    for _ in range(300):
        longest, count = rng.randint(5, 20), rng.choice((1, 2))
        texts = tuple(
            " ".join(f"{rng.choice('abcd')}{rng.randint(0, 30)}" for _ in range(rng.randint(0, 16))) for _ in range(count)
        )
        library.enable_truncation(longest, strategy="longest_first", direction=side)
        wanted = library.encode(*texts)
        [got] = own.encode_pairs([texts], longest=longest, side=side)
        assert (got.ids, got.types) == (wanted.ids, wanted.type_ids), (texts, longest)
        assert len(got.ids) <= longest


def test_without_a_post_processor_types_tell_the_texts_apart(tmp_path: Path) -> None:
    state = json.loads((GOLDENS / "modernbert_cls" / "tokenizer.json").read_text())
    for processor in (None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "post_processor": processor}))
        [got] = Tokenizer.from_folder(tmp_path).encode_pairs([("a1 b2", "c3")], longest=9)
        wanted = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a1 b2", "c3")
        assert (got.ids, got.types) == (wanted.ids, wanted.type_ids) and got.types == [0, 0, 1]


def test_tokens_that_the_settings_put_around_a_text_are_around_both(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((GOLDENS / "modernbert_cls" / "tokenizer.json").read_text())
    settings = {"bos_token": "[CLS]", "eos_token": "[SEP]", "add_bos_token": True, "add_eos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_folder(tmp_path)
    a, b = tokenizer.encode("a1 b2", add_special=False), tokenizer.encode("c3 d4 a5", add_special=False)
    [whole, cut] = tokenizer.encode_pairs([("a1 b2", "c3 d4 a5"), ("a1 b2", "c3 d4 a5")], longest=9)
    assert whole.ids == cut.ids == [1, *a, 2, 1, *b, 2] and whole.types == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    [cut] = tokenizer.encode_pairs([("a1 b2", "c3 d4 a5")], longest=8)
    assert cut.ids == [1, *a, 2, 1, *b[:2], 2]


def test_what_cannot_be_encoded_is_refused() -> None:
    tokenizer = Tokenizer.from_folder(GOLDENS / "bert")
    with pytest.raises(InputError, match="surrogate"):
        tokenizer.encode_pairs([("a1", "\ud800")], longest=9)
    assert tokenizer.encode_pairs([], longest=9) == []
