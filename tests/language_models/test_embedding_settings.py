"""Case as sentence-transformers' and tokenisers' settings have it: what counts over the tokeniser's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

import pumice as pm
from pumice.errors import FormatError, InputError
from pumice.llm.embed import Pooling, pooling_of_gguf
from pumice.text.tokenizer import Tokenizer
from tiny_models import checkpoint

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "Hello", "hé", "he", "world"]
HELLO, CAPITAL, ACCENT, PLAIN, UNKNOWN = 5, 6, 7, 8, 1


def embedded(folder: Path, *texts: str) -> Any:
    with pm.load(folder, device="host") as model:
        return model.embed(list(texts))


@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_xlm-roberta_config.json"])
def test_sentence_transformers_lower_case_texts(file: str, tmp_path: Path) -> None:
    """The tokeniser knows w4 and not W4; its special tokens keep their case."""
    folder = checkpoint("bert", tmp_path, closing=True)
    capital, small, special = embedded(folder, "W4 w5", "w4 w5", "<s> w4 w5")
    assert np.abs(capital - small).max() > 0.01
    (folder / file).write_text(json.dumps({"max_seq_length": 7, "do_lower_case": True}))
    again = embedded(folder, "W4 w5", "W4 W5", "<s> W4 w5")
    np.testing.assert_allclose(again, np.stack([small, small, special]), atol=1e-5)
    assert Pooling.from_folder(folder) == Pooling(max_tokens=7, lower_case=True)
    (folder / file).write_text(json.dumps({"do_lower_case": "yes"}))
    with pytest.raises(FormatError, match="'do_lower_case' is 'yes', not true or false"):
        pm.load(folder, device="host")


def test_the_transformers_module_has_its_settings_in_its_own_folder(tmp_path: Path) -> None:
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    assert Pooling.from_folder(tmp_path) == Pooling("mean", False, 9, True)


def test_texts_are_cut_where_the_tokeniser_says_if_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 5}')
    assert Pooling.from_folder(tmp_path).max_tokens == 5
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    assert Pooling.from_folder(tmp_path).max_tokens == 9
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert Pooling.from_folder(tmp_path).max_tokens is None


@pytest.mark.parametrize(
    ("entry", "mode"),
    [("mean", "mean"), ("cls", "cls"), ("lasttoken", "last"), (["mean"], "mean"), ("max", None), (["cls", "mean"], None)],
)
def test_poolings_by_name(entry: Any, mode: str | None, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": entry}))
    if mode is not None:
        assert Pooling.from_folder(tmp_path).mode == mode
        return
    with pytest.raises(FormatError, match="mean, cls and last are supported"):
        Pooling.from_folder(tmp_path)


def test_a_prompt_before_every_text_is_refused_by_name(tmp_path: Path) -> None:
    """Prompts that are chosen by name change nothing, nor does an empty one."""
    file = tmp_path / "config_sentence_transformers.json"
    for plain in ({}, {"default_prompt_name": None}, {"default_prompt_name": "document"}):
        file.write_text(json.dumps({"prompts": {"query": "query: ", "document": ""}, **plain}))
        Pooling.from_folder(tmp_path)
    file.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": "query"}))
    with pytest.raises(InputError, match=r"default_prompt_name = 'query'[^§]*'query: '"):
        Pooling.from_folder(tmp_path)


def test_a_gguf_file_says_how_it_pools(tmp_path: Path) -> None:
    """As llama.cpp numbers it; where the file says nothing, the mean."""

    def pooling(**entries: Any) -> Pooling:
        return pooling_of_gguf({"general.architecture": "bert", **{f"bert.{k}": v for k, v in entries.items()}}, tmp_path)

    assert pooling() == pooling(pooling_type=0) == pooling(pooling_type=1) == Pooling("mean")
    assert (pooling(pooling_type=2), pooling(pooling_type=3)) == (Pooling("cls"), Pooling("last"))
    with pytest.raises(InputError, match=r"bert\.pooling_type = 4 is not supported"):
        pooling(pooling_type=4)


def bert_tokens(folder: Path, text: str, lowercase: bool, **settings: Any) -> list[int]:
    made = Backend(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "[UNK]", **settings}))
    return Tokenizer.from_folder(folder).encode(text)


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_settings_of_berts_tokenisers_count_over_their_file(name: str, lowercase: bool, tmp_path: Path) -> None:
    """As transformers 5.22.2 tokenises "Hello Hé" with each of these files."""

    def tokens(**settings: Any) -> list[int]:
        return bert_tokens(tmp_path, "Hello Hé", lowercase, tokenizer_class=name, **settings)

    assert tokens() == tokens(do_lower_case=True) == [HELLO, PLAIN]
    assert tokens(strip_accents=False) == tokens(do_lower_case=True, strip_accents=False) == [HELLO, ACCENT]
    assert tokens(do_lower_case=False) == tokens(do_lower_case=False, strip_accents=True) == [CAPITAL, UNKNOWN]
    (tmp_path / "config.json").write_text('{"model_type": "distilbert"}')
    assert bert_tokens(tmp_path, "Hello Hé", lowercase, do_lower_case=False) == [CAPITAL, UNKNOWN]


@pytest.mark.parametrize("settings", [{"tokenizer_class": "PreTrainedTokenizerFast"}, {}])
def test_other_tokenisers_are_as_their_file_says(settings: dict[str, Any], tmp_path: Path) -> None:
    assert bert_tokens(tmp_path, "Hello Hé", True, do_lower_case=False, **settings) == [HELLO, PLAIN]
    assert bert_tokens(tmp_path, "Hello Hé", False, do_lower_case=True, **settings) == [CAPITAL, UNKNOWN]


def test_lower_case_comes_before_every_other_step_and_only_once(tmp_path: Path) -> None:
    made = Backend(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    for own, steps in (
        (None, ["Lowercase"]),
        (normalizers.NFC(), ["Lowercase", "NFC"]),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Strip()]), ["Lowercase", "NFC", "Strip"]),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), ["NFC", "Lowercase"]),
    ):
        made.normalizer = own
        made.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.from_folder(tmp_path)
        tokenizer.lower_case()
        tokenizer.lower_case()
        found = json.loads(tokenizer._parts.backend.to_str())["normalizer"]
        assert [step["type"] for step in found["normalizers"]] == steps
