"""Tokenisers from both file families: against other implementations, round trips, and files that do not fit together."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from pumice import sources
from pumice.errors import FormatError, InputError
from pumice.formats import open_weights
from pumice.text import ChatTemplate, Tokenizer, pretokenizers
from pumice.text.vocabulary import byte_alphabet, piece_bytes
from text.vocabularies import gguf, rows, wordpiece


@cache
def real(alias: str) -> Path:
    """A model that is in the cache already; these tests are not worth a download."""
    found = sources.present(alias)
    if found is None:
        pytest.skip(f"{alias} is not in the cache; `pumice pull {alias}` fetches it")
    return Path(found.path)


@cache
def smollm2() -> Tokenizer:
    with open_weights(real("smollm2")) as weights:
        return Tokenizer.from_gguf(weights.metadata)


@cache
def minilm() -> Tokenizer:
    return Tokenizer.from_folder(real("minilm"))


# Byte-level BPE


@pytest.mark.parametrize(("text", "ids"), rows("smollm2_tokens.json"))
def test_smollm2_as_the_textbook_has_it(text: str, ids: list[int]) -> None:
    tokenizer = smollm2()
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, skip_special=False) == text


def test_smollm2_checked_by_hand() -> None:
    tokenizer = smollm2()
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, {0, 2})
    assert tokenizer.special_ids == frozenset(range(17))
    assert [tokenizer.token_bytes(i) for i in (2, 198, 504, 3575)] == [b"", b"\n", b"The", b" capital"]


@given(st.text(max_size=40), st.data())
def test_bytes_of_tokens_are_the_text(text: str, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == text


@given(st.lists(st.integers(0, 270), max_size=20))
def test_streams_agree_with_decode_for_any_ids(ids: list[int]) -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)


def test_literal_and_special_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    ids = tokenizer.encode("the<think> the<|im_end|>")
    assert ids == [257, 260, 258, 259]
    assert [tokenizer.token_bytes(i) for i in ids] == [b"the", b"<think>", b" the", b""]
    assert tokenizer.decode(ids) == "the<think> the"
    assert tokenizer.decode(ids, skip_special=False) == "the<think> the<|im_end|>"
    assert tokenizer.token_text(258) == "Ġthe"


def test_bos_and_eos_as_the_file_says() -> None:
    def encoded(**changes: Any) -> list[int]:
        return Tokenizer.from_gguf(gguf(**changes)).encode("the")

    assert encoded() == [257]
    assert encoded(pre="llama-bpe") == [261, 257]
    assert encoded(pre="llama-bpe", add_bos_token=False) == [257]
    assert encoded(add_bos_token=True, add_eos_token=True) == [261, 257, 259]
    assert encoded(add_bos_token=True, bos_token_id=None) == [257]
    assert Tokenizer.from_gguf(gguf(add_bos_token=True)).encode("the", add_special=False) == [257]


def test_every_way_to_end_a_turn_is_found() -> None:
    names = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "plain"]
    tokens = [*byte_alphabet(), *names]
    made = gguf(tokens=tokens, token_type=[1] * 256 + [3, 3, 3, 3, 1, 1], merges=[], bos_token_id=None, eos_token_id=256)
    tokenizer = Tokenizer.from_gguf(made | {"tokenizer.ggml.eot_token_id": 261})
    assert tokenizer.eos_ids == {256, 257, 258, 259, 260, 261}
    assert tokenizer.eos_ids <= tokenizer.special_ids


def test_harmony_chats_go_on_after_end() -> None:
    tokens = [*byte_alphabet(), "<|end|>", "<|return|>", "<|call|>"]
    tokenizer = Tokenizer.from_gguf(
        gguf(tokens=tokens, token_type=[1] * 256 + [3] * 3, merges=[], bos_token_id=None, eos_token_id=257)
    )
    assert tokenizer.eos_ids == {257, 258}


def test_whole_words_come_before_merges() -> None:
    tokens, types = [*byte_alphabet(), "the", "<s>"], [1] * 257 + [3]
    made = gguf(tokens=tokens, token_type=types, merges=[], bos_token_id=257, eos_token_id=None, add_bos_token=False)
    assert len(Tokenizer.from_gguf(made).encode("the")) == 3
    assert Tokenizer.from_gguf({**made, "tokenizer.ggml.pre": "llama-bpe"}).encode("the") == [256]


@given(st.text(max_size=60))
def test_smollm_splits_as_its_original(text: str) -> None:
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    original = pre_tokenizers.Sequence([digits, words])
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in pretokenizers.find("smollm").patterns]
    ours = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    assert [piece for piece, _ in ours.pre_tokenize_str(text)] == [piece for piece, _ in original.pre_tokenize_str(text)]


# SentencePiece


def test_sentencepiece_as_the_original_library() -> None:
    golden = rows("sentencepiece.json")
    tokenizer = Tokenizer.from_gguf(golden["metadata"])
    for text, ids, decoded in golden["rows"]:
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.encode(text) == [tokenizer.bos_id, *ids]
        assert tokenizer.decode(ids) == decoded
        stream = tokenizer.stream(from_start=True)
        assert "".join([*map(stream.push, ids), stream.finish()]) == decoded


def unigram(name: str) -> Any:
    return rows("unigram.json")[name]


@pytest.mark.parametrize("name", ["plain", "rules", "bytes"])
def test_unigram_as_the_original_library(name: str, tmp_path: Path) -> None:
    golden = unigram(name)
    tokenizer = Tokenizer.from_gguf(golden["metadata"])
    tokenizer._parts.backend.save(str(tmp_path / "tokenizer.json"))
    folder = Tokenizer.from_folder(tmp_path)
    unknown = golden["metadata"]["tokenizer.ggml.unknown_token_id"]
    for text, ids, decoded in golden["rows"]:
        if name == "bytes" and "<0x" in text:
            continue  # the library finds the names of bytes in texts too
        assert tokenizer.encode(text, add_special=False) == folder.encode(text) == ids
        assert tokenizer.encode(text) == [*ids, *tokenizer.eos_ids]
        if unknown not in ids:  # which the original prints
            assert tokenizer.decode(ids) == folder.decode(ids) == decoded
            for one in (tokenizer, folder):
                stream = one.stream(from_start=True)
                assert "".join([*map(stream.push, ids), stream.finish()]) == decoded


def test_a_damaged_character_map_is_a_format_error(capfd: pytest.CaptureFixture[str]) -> None:
    metadata = unigram("rules")["metadata"]
    charsmap = metadata["tokenizer.ggml.precompiled_charsmap"]
    chooser, refused = random.Random(0), 0
    for _ in range(60):
        damaged = [chooser.randrange(256) if chooser.random() < 0.3 else byte for byte in charsmap]
        try:
            tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.precompiled_charsmap": damaged})
            for text, *_ in rows("unigram.json")["rules"]["rows"]:
                tokenizer.encode(text)
        except FormatError as error:
            refused += 1
            assert error.hint
    assert refused
    capfd.readouterr()  # the library prints its own traceback


def test_gemma4_merges_are_used_as_they_are_listed() -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "a", "b", "▁a", "▁a▁b", "▁b", "\n", "\n\n", "<0xC3>", "<0xA9>"]
    types = [3, 3, 3, 2, *[1] * 8, 6, 6]
    made = gguf(
        "gemma4", tokens=tokens, token_type=types, merges=["▁ a", "▁ b", "▁a ▁b", "\n \n"], bos_token_id=2, eos_token_id=1
    )
    made |= {"tokenizer.ggml.unknown_token_id": 3}
    tokenizer = Tokenizer.from_gguf(made)
    assert tokenizer.encode(" a b\n\né") == [2, 8, 11, 12, 13]
    assert tokenizer.decode([2, 8, 11, 12, 13]) == " a b\n\né"
    assert Tokenizer.from_gguf({**made, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gemma4"}).encode("a") == [2, 5]


def test_sentencepiece_without_the_leading_space() -> None:
    metadata = rows("sentencepiece.json")["metadata"] | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.strips_leading_space
    assert tokenizer.token_text(tokenizer.encode("the", add_special=False)[0]) == "the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_sentencepiece_special_tokens_split_the_text() -> None:
    tokenizer = Tokenizer.from_gguf(rows("sentencepiece.json")["metadata"])
    pieces = [tokenizer.token_text(i) for i in tokenizer.encode("cat<turn>cat</s>cat", add_special=False)]
    assert pieces == ["▁cat", "<turn>", "▁cat", "</s>", "▁cat"]
    assert tokenizer.token_bytes(tokenizer.encode("<turn>", add_special=False)[0]) == b"<turn>"


def test_phi3_tokens_swallow_the_space_after_them() -> None:
    metadata = rows("sentencepiece.json")["metadata"]
    spaced, joined = "</s>\ncat", "</s>cat"
    plain = Tokenizer.from_gguf(metadata)
    assert plain.encode(spaced) != plain.encode(joined)
    phi = Tokenizer.from_gguf(metadata | {"general.name": "Phi-3 Mini"})
    assert phi.encode(spaced) == phi.encode(joined) == plain.encode(joined)


# WordPiece


def test_wordpiece() -> None:
    tokenizer = Tokenizer.from_gguf(wordpiece())
    ids = tokenizer.encode("The cats!  CAT dog")
    assert ids == [2, 4, 5, 6, 7, 5, 1, 3]
    assert tokenizer.decode(ids) == "the cats! cat"
    assert [tokenizer.token_bytes(i) for i in ids[:4]] == [b"", b" the", b" cat", b"s"]
    assert tokenizer.encode("cat", add_special=False) == [5]


def test_wordpiece_keeps_case_where_the_vocabulary_has_it() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁The"]
    cased = wordpiece(tokens=tokens, token_type=[3, 3, 3, 3, 1, 1])
    assert Tokenizer.from_gguf(cased).encode("The the", add_special=False) == [5, 4]
    lowered = cased | {"tokenizer.ggml.normalizer.lowercase": True}
    assert Tokenizer.from_gguf(lowered).encode("The the", add_special=False) == [4, 4]


@pytest.mark.parametrize(("text", "ids", "decoded"), rows("minilm_tokens.json"))
def test_minilm_as_transformers(text: str, ids: list[int], decoded: str) -> None:
    tokenizer = minilm()
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == decoded


def test_minilm_rebuilt_as_a_gguf_file_would_hold_it() -> None:
    vocabulary = (real("minilm") / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    tokens = [t if t.startswith("[") and t.endswith("]") else t[2:] if t.startswith("##") else "▁" + t for t in vocabulary]
    types = [3 if t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else 1 for t in tokens]
    ids = {"cls_token_id": 101, "seperator_token_id": 102, "unknown_token_id": 100}
    tokenizer = Tokenizer.from_gguf(wordpiece(tokens=tokens, token_type=types, **ids))
    for text, expected, decoded in rows("minilm_tokens.json"):
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected) == decoded


# Hugging Face's files


def save(folder: Path, **files: Mapping[str, Any]) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def file_tokenizer(**changes: Any) -> dict[str, Any]:
    pieces = {c: i for i, c in enumerate(byte_alphabet())}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "!",
        },
        "added_tokens": [{"id": 258, "content": "<s>", **special}, {"id": 259, "content": "<|im_end|>", **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "vocab": {**pieces, "</s>": 256, "ab": 257}, "merges": [["a", "b"]],
        },
        **changes,
    }  # fmt: skip


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save(tmp_path, tokenizer=file_tokenizer()))
    assert tokenizer.encode("abcabc") == [258, 257, 99, 257, 99]
    assert tokenizer.encode_batch(["ab", "abab"]) == [[258, 257], [258, 257, 257]]


def test_settings_decide_what_goes_around_a_text(tmp_path: Path) -> None:
    named = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}
    save(tmp_path, tokenizer=file_tokenizer(), tokenizer_config=named)
    assert Tokenizer.from_folder(tmp_path).encode("ab") == [258, 257]
    save(tmp_path, tokenizer_config={**named, "add_bos_token": False})
    assert Tokenizer.from_folder(tmp_path).encode("ab") == [257]
    save(tmp_path, tokenizer_config={**named, "add_bos_token": True, "add_eos_token": True})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("ab") == [258, 257, 259]
    assert tokenizer.encode("ab", add_special=False) == [257]


@pytest.mark.parametrize(("ids", "expected"), [(3, {3, 259}), ([3, 4], {3, 4, 259}), (None, {259}), ([9999, "x", True], {259})])
def test_generation_settings_name_ends(tmp_path: Path, ids: Any, expected: set[int]) -> None:
    save(tmp_path, tokenizer=file_tokenizer(), generation_config={"eos_token_id": ids})
    assert Tokenizer.from_folder(tmp_path).eos_ids == expected


def test_special_tokens_come_from_any_of_the_files(tmp_path: Path) -> None:
    save(tmp_path, tokenizer=file_tokenizer(), special_tokens_map={"bos_token": "<s>", "eos_token": "</s>", "pad_token": "nope"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_ids) == (258, None, {256, 259})
    assert tokenizer.special_ids == {256, 258, 259}
    assert tokenizer.token_bytes(256) == b""
    save(tmp_path, tokenizer_config={"eos_token": "<|im_end|>", "bos_token": None}, config={"eos_token_id": 5})
    assert Tokenizer.from_folder(tmp_path).eos_ids == {5, 259}


def test_added_tokens_of_the_settings(tmp_path: Path) -> None:
    added = {"260": {"content": "<think>", "special": False}, "259": {"content": "<|im_end|>", "special": True}}
    save(tmp_path, tokenizer=file_tokenizer(), tokenizer_config={"added_tokens_decoder": added})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a<think>", add_special=False) == [97, 260]
    assert tokenizer.token_bytes(260) == b"<think>"
    assert tokenizer.vocab_size == 261
    save(tmp_path, tokenizer_config={"added_tokens_decoder": {"300": {"content": "<think>"}}})
    with pytest.raises(FormatError, match="300"):
        Tokenizer.from_folder(tmp_path)
    for broken in ({"x": {"content": "y"}}, {"300": "y"}, {"-1": {"content": "y"}}):
        save(tmp_path, tokenizer_config={"added_tokens_decoder": broken})
        with pytest.raises(FormatError, match="its settings add"):
            Tokenizer.from_folder(tmp_path)


def test_decoders_of_sentencepiece_files(tmp_path: Path) -> None:
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": True, "byte_fallback": True, "vocab": {"<unk>": 0, "▁a": 1, "<0xC3>": 2, "<0xA9>": 3}, "merges": [],
    }  # fmt: skip
    changes: dict[str, Any] = {"model": model, "added_tokens": [], "post_processor": None, "pre_tokenizer": None}
    for decoder, strips in (([*steps, strip], True), (steps, False)):
        save(tmp_path, tokenizer=file_tokenizer(decoder={"type": "Sequence", "decoders": decoder}, **changes))
        tokenizer = Tokenizer.from_folder(tmp_path)
        assert tokenizer.strips_leading_space == strips
        stream = tokenizer.stream(from_start=True)
        text = "".join([*map(stream.push, [1, 2, 3, 1]), stream.finish()])
        assert text == tokenizer.decode([1, 2, 3, 1]) == ("aé a" if strips else " aé a")


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_steps_that_grow_the_text_without_end_are_refused(part: str, tmp_path: Path) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    inner = {"type": "Sequence", f"{part}s": [step] * 15}
    save(tmp_path, tokenizer=file_tokenizer(**{part: {"type": "Sequence", f"{part}s": [inner, inner]}}))
    with pytest.raises(FormatError, match="replace one character by 1000000000"):
        Tokenizer.from_folder(tmp_path)


def test_a_pattern_that_backtracks_without_end_is_a_format_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    save(tmp_path, tokenizer=file_tokenizer(pre_tokenizer=split))
    tokenizer = Tokenizer.from_folder(tmp_path)
    with pytest.raises(FormatError, match=r"fails on this text: .*retry-limit"):
        tokenizer.encode("a" * 400)
    capfd.readouterr()  # the library prints its own traceback


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no tokeniser at") as failure:
        Tokenizer.from_folder(tmp_path)
    assert "save_pretrained" in failure.value.hint
    for text in ("", "{", "[]", '{"model": {"type": "Nope"}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(FormatError, match=r"cannot read tokenizer.json"):
            Tokenizer.from_folder(tmp_path)
    save(tmp_path, tokenizer=file_tokenizer())
    for text in ("[1]", "{", "nul", "[" * 100_000):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(FormatError, match=r"tokenizer_config.json cannot be read as JSON"):
            Tokenizer.from_folder(tmp_path)


# What does not fit together

BROKEN = {
    "no model": ({}, "has no tokeniser"),
    "another model": (gguf("rwkv"), "'rwkv'"),
    "no tokens": (gguf(tokens=None), "tokens is missing"),
    "empty tokens": (gguf(tokens=[]), "tokens is missing"),
    "tokens are numbers": (gguf(tokens=[1, 2]), "not a list of strings"),
    "too few types": (gguf(token_type=[1]), "has 1 entries for 262 tokens"),
    "types are text": (gguf(token_type=["x"] * 262), "something else than numbers"),
    "unknown pre": (gguf(pre="no-such"), "'no-such'"),
    "a merge of one piece": (gguf(merges=["abc"]), "not two pieces"),
    "a merge that is not in the vocabulary": (gguf(merges=["zz yy"]), "does not fit together"),
    "eos beyond the vocabulary": (gguf(eos_token_id=262), "eos_token_id is 262"),
    "bos below zero": (gguf(bos_token_id=-5), "bos_token_id' is -5, not an integer"),
    "no scores": (gguf("llama"), "scores is missing"),
    "too few scores": (gguf("llama", scores=[0.0]), "has 1 entries"),
    "a piece without end": (gguf("llama", tokens=["x" * 1000] + ["a"] * 261, scores=[0.0] * 262), "1000 characters"),
    "unknown beyond the vocabulary": (wordpiece(unknown_token_id=10), "unknown_token_id is 10"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_metadata_that_does_not_fit_together(name: str) -> None:
    metadata, message = BROKEN[name]
    with pytest.raises(FormatError, match=message) as failure:
        Tokenizer.from_gguf(metadata)
    assert failure.value.hint


KEYS = [
    *("model", "pre", "tokens", "scores", "token_type", "merges", "normalizer.lowercase", "normalizer.strip_accents"),
    *("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id", "eot_token_id", "cls_token_id"),
    *("add_bos_token", "add_eos_token", "add_space_prefix", "normalizer.nfc"),
]
WRONG: dict[str, Any] = {
    "number": 7, "float": 1.5, "text": "abc", "list": ["a", "b"], "empty list": [], "nested": [[1, [2]], ["x"]],
    "array": np.arange(3), "flag": True, "mapping": {"a": 1}, "big": 2**70,
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_wrong_type_is_a_format_error(key: str) -> None:
    refused = 0
    for made in (gguf(), gguf("llama", scores=[0.0] * 262), wordpiece()):
        for value in WRONG.values():
            try:
                Tokenizer.from_gguf({**made, f"tokenizer.ggml.{key}": value})
            except FormatError as error:
                refused += 1
                assert error.hint and key in str([error, error.fields])
    assert refused >= 5


@pytest.mark.parametrize("key", ["chat_template", "chat_templates", "chat_template.x", "ggml.tokens", "ggml.bos_token_id"])
def test_a_template_key_of_the_wrong_type_is_a_format_error(key: str) -> None:
    good = {"tokenizer.chat_template": "{{ bos_token }}", "tokenizer.chat_templates": ["x"], "tokenizer.chat_template.x": "hi"}
    metadata = {**gguf(), **good}
    assert ChatTemplate.from_gguf(metadata) is not None
    for value in (7.5, b"x", {"a": 1}, [[1]], [["x"]], np.arange(3.0)):
        with pytest.raises(FormatError) as failure:
            ChatTemplate.from_gguf({**metadata, f"tokenizer.{key}": value})
        assert failure.value.hint


def test_absent_ids_and_repeated_tokens_are_taken_as_they_are() -> None:
    tokenizer = Tokenizer.from_gguf(gguf(padding_token_id=0xFFFFFFFF))
    assert tokenizer.pad_id is None
    tokens = [*byte_alphabet(), "a", "<s>"]
    doubled = Tokenizer.from_gguf(gguf(tokens=tokens, token_type=None, merges=[], eos_token_id=None, bos_token_id=257))
    assert doubled.encode("a") == [97]
    assert doubled.token_bytes(256) == b"a"
    assert doubled.vocab_size == 258


def test_what_is_not_text_is_refused() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    with pytest.raises(InputError, match="cannot tokenise a bytes"):
        tokenizer.encode(b"x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="surrogate pair at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InputError, match="negative"):
        tokenizer.decode([-1])
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_bytes(10**6) == b""


def test_the_byte_alphabet_is_a_bijection() -> None:
    assert len(set(byte_alphabet())) == 256
    assert all(piece_bytes(c, "byte-level") == bytes([b]) for b, c in enumerate(byte_alphabet()))
    assert all(piece_bytes(f"<0x{b:02X}>", "metaspace") == bytes([b]) for b in range(256))
