"""Model folders with a damaged file among them: safetensors, index, config, tokenizer, template and settings."""

from __future__ import annotations

import base64
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from formats.safetensors_corpus import safetensors
from pumice.errors import PumiceError
from tiny_models import GOLDENS, TEMPLATE, write_tokenizer

from fuzz.hostile import damaged, damaged_json, fuzz, nested
from fuzz.model_files import UNIGRAM, use_model

INDEX = "model.safetensors.index.json"
CHARSMAP = base64.b64encode(
    bytes(json.loads(UNIGRAM.read_text())["rules"]["metadata"]["tokenizer.ggml.precompiled_charsmap"])
).decode()
Files = dict[str, bytes]


def _unigram() -> dict[str, Any]:
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["▁the", -1.0], ["▁", -2.0], ["c", -3.0], ["at", -3.5]]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **added} for i, text in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                {"type": "NFC"},
            ],
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }


def _byte_level() -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|\w+|\s+"}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyzĠ")} | {"th": 27, "the": 28}
    model = {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"]], "unk_token": None, "fuse_unk": False}
    given = {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}
    return {**_unigram(), **given, "post_processor": level, "decoder": level, "model": model, "added_tokens": []}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    """Folders that are in order: decoders and encoders, one file and shards, three kinds of tokenizers."""
    found = []
    for name in ("llama", "gemma3", "phi3_longrope", "bert", "modernbert"):
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(GOLDENS / name / "config.json", folder)
        shutil.copy(GOLDENS / name / "model.safetensors", folder)
        write_tokenizer(folder, 60)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files["tokenizer_config.json"] = json.dumps(
            {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE, "add_bos_token": True,
             "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}}, "additional_special_tokens": ["<pad>"]}
        ).encode()  # fmt: skip
        files["special_tokens_map.json"] = b'{"pad_token": "<pad>"}'
        files["generation_config.json"] = b'{"temperature": 0.7, "top_k": 20, "eos_token_id": [2, 3], "do_sample": true}'
        files["chat_template.json"] = json.dumps({"chat_template": TEMPLATE}).encode()
        if "bert" in name:
            modules = [{"type": "s.Transformer", "path": ""}, {"type": "s.Pooling", "path": "1_Pooling"}, {"type": "s.Normalize"}]
            files["modules.json"] = json.dumps(modules).encode()
            files["sentence_bert_config.json"] = b'{"max_seq_length": 16, "do_lower_case": false}'
        found.append(files)
    shards = dict(found[0])
    shards["model-00001-of-00001.safetensors"] = shards.pop("model.safetensors")
    names = json.loads(shards["model-00001-of-00001.safetensors"][8:].split(b"}}")[0] + b"}}")
    names.pop("__metadata__", None)
    shards[INDEX] = json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}).encode()
    unigram = {**found[0], "tokenizer.json": json.dumps(_unigram()).encode()}
    bytewise = {**found[0], "tokenizer.json": json.dumps(_byte_level()).encode(), "tokenizer_config.json": b"{}"}
    return [*found, shards, unigram, bytewise]


def hostile(rng: random.Random, models: list[Files]) -> Files:
    files = dict(rng.choice(models))
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(files))
        files[name] = _damaged_file(rng, name, files[name])
        if rng.random() < 0.05:
            del files[name]
            if not files:
                break
    return files


def _damaged_file(rng: random.Random, name: str, data: bytes) -> bytes:
    if name.endswith(".safetensors"):
        length = int.from_bytes(data[:8], "little")
        if length <= len(data) and rng.random() < 0.5:
            try:
                header = json.loads(data[8 : 8 + length])
            except (ValueError, RecursionError):
                return damaged(rng, data)
            return safetensors(damaged_json(rng, header), data[8 + length :])
        return damaged(rng, data[: min(len(data), 3000)]) + data[3000:]
    if rng.random() < 0.25:
        return damaged(rng, data)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(rng, data)
    if rng.random() < 0.03:
        return b"[" * rng.choice((1000, 100_000)) if rng.random() < 0.5 else json.dumps({"a": nested(300)}).encode()
    return json.dumps(damaged_json(rng, value)).encode(errors="surrogatepass")


def test_what_is_damaged_is_valid(models: list[Files], tmp_path: Path) -> None:
    from pumice.formats import open_weights
    from pumice.llm.load import read_config, read_tokenizer
    from pumice.models.load import load_model_params

    for number, files in enumerate(models):
        folder = _written(tmp_path / str(number), files)
        with open_weights(folder) as weights:
            assert load_model_params(read_config(folder, weights), weights).nbytes
            assert read_tokenizer(folder, weights).encode("the cat")


def test_hostile_model_folders(request: pytest.FixtureRequest, models: list[Files], tmp_path: Path) -> None:
    def attempt(files: Files) -> None:
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        use_model(_written(folder, files))

    fuzz(request, lambda rng: hostile(rng, models), attempt, allowed=PumiceError)


def _written(folder: Path, files: Files) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
