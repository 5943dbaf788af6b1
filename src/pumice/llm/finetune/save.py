"""Saves fine-tuned weights: an adapter's folder, or a whole model in the layout of its base model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.dtypes import f32
from pumice.core.json_file import read_json
from pumice.errors import InputError
from pumice.formats.gguf_metadata import Metadata
from pumice.formats.gguf_writer import GgufWriter, typed_pairs
from pumice.formats.safetensors_writer import write_safetensors
from pumice.formats.weights import TensorInfo
from pumice.llm.finetune.module import CausalModel
from pumice.llm.finetune.source import BaseModel
from pumice.models.peft import write_adapter
from pumice.sources.disk import disk_errors
from pumice.train.step import TrainStep

# The files of a Hugging Face folder beside its weights and its config.
_TEXT_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_ALL_F32 = 0  # in GGUF's general.file_type


def save_adapter(step: TrainStep, source: BaseModel, folder: Path) -> Path:
    """Write the adapter that a train step has trained, in PEFT's format."""
    model = _model(step)
    if model.settings is None:
        raise InputError("the model was trained as a whole, it has no adapter", hint="save_model writes it")
    adapter = model.adapter(step.executable.params(model.adapter_names()))
    with disk_errors(folder):
        write_adapter(model.cfg, adapter, folder, dropout=model.settings.dropout, base=source.name)
    return folder


def save_model(step: TrainStep, source: BaseModel, folder: Path) -> Path:
    """Write all weights of a model that a train step has trained, in f32; returns a path that can be loaded.

    A model that came from a GGUF file becomes one, else a folder as Hugging Face has them.
    """
    model = _model(step)
    if model.settings is not None:
        raise InputError("only adapters were trained, the model is as it was", hint="save_adapter writes them")
    params = {name.removeprefix("base."): value for name, value in step.params().items()}
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arrays = _by_file_name(source, params)
    return _write_gguf(source, arrays, folder) if source.weights.kind == "gguf" else _write_folder(source, arrays, folder)


def _model(step: TrainStep) -> CausalModel:
    if not isinstance(step.model, CausalModel):
        raise InputError(f"the step trains a {type(step.model).__name__}, not a language model")
    return step.model


def _by_file_name(source: BaseModel, params: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays under the names by which the model's own file has them."""
    found: dict[str, NDArray[Any]] = {}
    for p in source.arch.params(source.cfg):
        names = p.gguf if source.weights.kind == "gguf" else p.hf
        name = next((name for name in names if name in source.weights.tensors), None)
        if name is not None and p.path in params:
            found[name] = params[p.path]
    return found


def _write_folder(source: BaseModel, arrays: Mapping[str, NDArray[Any]], folder: Path) -> Path:
    home = source.path if source.path.is_dir() else source.path.parent
    config = read_json(home / "config.json")
    config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": "float32"}
    with disk_errors(folder):
        part = folder / ".model.safetensors.part"
        try:
            with part.open("wb") as file:
                write_safetensors(file, arrays, {"format": "pt"})
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, folder / "model.safetensors")
        finally:
            part.unlink(missing_ok=True)
        for name in _TEXT_FILES:
            if (home / name).is_file():
                shutil.copyfile(home / name, folder / name)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return folder


def _write_gguf(source: BaseModel, arrays: Mapping[str, NDArray[Any]], folder: Path) -> Path:
    path = folder / "model.gguf"
    weights = source.weights
    assert isinstance(weights.metadata, Metadata), "GGUF files have typed key-values"
    metadata = {**typed_pairs(weights.metadata), "general.file_type": np.uint32(_ALL_F32)}
    # The parts of a split file are one here.
    metadata = {key: value for key, value in metadata.items() if not key.startswith("split.")}
    infos = [TensorInfo(name, f32, info.shape) if name in arrays else info for name, info in weights.tensors.items()]
    with disk_errors(path), GgufWriter(path, metadata, infos, overwrite=True) as writer:
        for info in infos:
            writer.write(info.name, np.ascontiguousarray(arrays.get(info.name, weights.array(info.name))))
    return path
