"""The JSON files of models: what is too deep, too large or no JSON is a FormatError, wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pumice.core import json_file
from pumice.errors import FormatError
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors
from pumice.llm.embed import Pooling
from pumice.llm.load import read_config, read_template, read_tokenizer
from pumice.models.config import ModelArchConfig
from pumice.models.peft import read_adapter
from pumice.train.checkpoint import read_manifest


def with_weights(read: Callable[..., object]) -> Callable[[Path], object]:
    def attempt(folder: Path) -> object:
        with (folder / "model.safetensors").open("wb") as file:
            write_safetensors(file, {})
        with open_weights(folder) as weights:
            return read(folder, weights)

    return attempt


def adapter(folder: Path) -> object:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8}
    return read_adapter(ModelArchConfig.from_hf({"model_type": "llama", "max_position_embeddings": 8, **sizes}), folder)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": with_weights(read_config),
    "tokenizer.json": with_weights(read_tokenizer),
    "tokenizer_config.json": with_weights(read_template),
    "chat_template.json": with_weights(read_template),
    "model.safetensors.index.json": open_weights,
    "modules.json": Pooling.from_folder,
    "sentence_bert_config.json": Pooling.from_folder,
    "adapter_config.json": adapter,
    "manifest.json": read_manifest,
}
DEEP = {"lists": '{"a":' + "[" * 100_000, "objects": '{"a":' * 100_000, "closed": '{"a":' + "[" * 500 + "]" * 500 + "}"}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("name", READERS)
def test_deep_json_is_a_format_error(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DEEP[kind])
    with pytest.raises(FormatError) as failure:
        READERS[name](tmp_path)
    assert failure.value.hint and len(str(failure.value)) < 1500


NO_OBJECTS = [
    "",
    "{",
    "[1]",
    "nul",
    '{"a":\xff}',
    '{"a": 1' + "0" * 5000 + "}",
    "[" + "[]," * 1_100_000 + "0]",
    '{"a": ["\\ud800"]}',
]


@pytest.mark.parametrize("text", NO_OBJECTS, ids=lambda text: repr(text[:9]))
def test_what_is_no_object_is_a_format_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match="cannot be read as JSON"):
        json_file.read_json(path)


def test_names_that_the_system_does_not_take(tmp_path: Path) -> None:
    for name in ("x" * 5000, "a\0b", "none"):
        assert json_file.read_optional_json(tmp_path / name) == {}
        with pytest.raises(FormatError, match="no such file"):
            json_file.read_json(tmp_path / name)


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_file, "MAX_BYTES", 4)
    (tmp_path / "config.json").write_text('{"a": 1}')
    with pytest.raises(FormatError, match="it has 8 bytes, more than 4"):
        json_file.read_json(tmp_path / "config.json")


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", 3, None])
def test_a_module_outside_the_model_is_refused(path: object, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": path}]))
    with pytest.raises(FormatError, match="has the path"):
        Pooling.from_folder(tmp_path)
