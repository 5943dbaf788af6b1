"""Finds the architecture of a config: by `model_type` in config.json, by `general.architecture` in GGUF files."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from pumice.core.fields import Fields
from pumice.errors import UnknownName
from pumice.formats.weights import TensorInfo
from pumice.models.arch import Architecture as Architecture
from pumice.models.arch import CausalArchitecture as CausalArchitecture
from pumice.models.arch import EncoderArchitecture as EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields

# Each has a module of that name; nothing else is ever imported by a name from a file.
ARCHITECTURES = (
    "bert", "distilbert", "gemma2", "gemma3", "gpt2", "gpt_neox", "granite", "llama", "mistral", "modernbert", "olmo2",
    "phi3", "qwen2", "qwen3", "roberta",
)  # fmt: skip
_HF_ALIASES = {"gemma3_text": "gemma3", "xlm-roberta": "roberta"}
_GGUF_NAMES = {
    "bert": "bert", "gemma2": "gemma2", "gemma3": "gemma3", "gpt2": "gpt2", "gptneox": "gpt_neox", "granite": "granite",
    "llama": "llama", "olmo2": "olmo2", "phi3": "phi3", "qwen2": "qwen2", "qwen3": "qwen3",
}  # fmt: skip


def get_architecture(model_type: str) -> Architecture:
    """The architecture of a `model_type`.

    >>> get_architecture("gemma3_text") is get_architecture("gemma3"), get_architecture("xlm-roberta").kind
    (True, 'encoder')
    """
    known = {**{name: name for name in ARCHITECTURES}, **_HF_ALIASES}
    module = importlib.import_module(f"pumice.models.{_known(model_type, known)}")
    found: Architecture = module.ARCHITECTURE
    return found


def read_hf(config: Mapping[str, Any]) -> ModelArchConfig:
    """`ModelArchConfig.from_hf`."""
    fields = Fields(config, "config.json")
    architecture = get_architecture(fields.text("model_type"))
    return architecture.read_hf(fields.filled(architecture.defaults))


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelArchConfig:
    """`ModelArchConfig.from_gguf`."""
    name = Fields(metadata, "the GGUF metadata").text("general.architecture")
    reader = get_architecture(_known(name, _GGUF_NAMES)).read_gguf
    assert reader is not None, "every architecture in the table of GGUF names has a reader"
    return reader(GgufFields(metadata, tensors, name))


def _known(name: str, known: Mapping[str, str]) -> str:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise UnknownName(
            f"the architecture {name!r:.60} is not supported",
            hint=(f"the nearest is {near[0]!r}; " if near else "") + "supported: " + " ".join(sorted(known)),
            name=name,
        )
    return known[name]
