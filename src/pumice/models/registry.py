"""Finds the architecture of a config: by `model_type` in config.json, by `general.architecture` in GGUF files.

Built-in ones have a module each; other packages can add some (`pumice.models.plugins`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from pumice.core.fields import Fields
from pumice.errors import InputError, PluginError, UnknownName
from pumice.formats.weights import TensorInfo
from pumice.models.arch import Architecture as Architecture
from pumice.models.arch import CausalArchitecture as CausalArchitecture
from pumice.models.arch import EncoderArchitecture as EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.plugins import find_plugin, installed_plugins

# Each has a module of that name. A name from a file imports nothing else but the plug-in that announces it.
ARCHITECTURES = (
    "bert", "distilbert", "gemma2", "gemma3", "gpt2", "gpt_neox", "granite", "lfm2", "llama", "mistral", "modernbert",
    "olmo2", "phi3", "qwen2", "qwen3", "roberta",
)  # fmt: skip
_HF_ALIASES = {"gemma3_text": "gemma3", "xlm-roberta": "roberta"}
_GGUF_NAMES = {
    "bert": "bert", "gemma2": "gemma2", "gemma3": "gemma3", "gpt2": "gpt2", "gptneox": "gpt_neox", "granite": "granite",
    "lfm2": "lfm2", "llama": "llama", "olmo2": "olmo2", "phi3": "phi3", "qwen2": "qwen2", "qwen3": "qwen3",
}  # fmt: skip


def get_architecture(model_type: str) -> Architecture:
    """The architecture of a `model_type`: a built-in one, else one that an installed plug-in announces under that name.

    >>> get_architecture("gemma3_text") is get_architecture("gemma3"), get_architecture("xlm-roberta").kind
    (True, 'encoder')
    """
    return _architecture(model_type, {**{name: name for name in ARCHITECTURES}, **_HF_ALIASES})


def is_built_in(model_type: str) -> bool:
    """Whether an architecture is one of Pumice's own, which no plug-in replaces."""
    return model_type in ARCHITECTURES or model_type in _HF_ALIASES


def read_hf(config: Mapping[str, Any]) -> ModelArchConfig:
    """`ModelArchConfig.from_hf`."""
    fields = Fields(config, "config.json")
    name = fields.text("model_type")
    architecture = get_architecture(name)
    return _checked(name, architecture, architecture.read_hf(fields.filled(architecture.defaults)))


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelArchConfig:
    """`ModelArchConfig.from_gguf`."""
    name = Fields(metadata, "the GGUF metadata").text("general.architecture")
    architecture = _architecture(name, _GGUF_NAMES)
    if architecture.read_gguf is None:
        hint = "convert the model to a Hugging Face folder, or ask the plug-in's authors"
        raise InputError(f"the plug-in of the architecture {name!r:.60} reads no GGUF files", hint=hint, name=name)
    return _checked(name, architecture, architecture.read_gguf(GgufFields(metadata, tensors, name)))


def _architecture(name: str, built_in: Mapping[str, str]) -> Architecture:
    """Built-in architectures come first, so that no plug-in can replace one; plug-ins are looked for only beyond them."""
    if name in built_in:
        module = importlib.import_module(f"pumice.models.{built_in[name]}")
        found: Architecture = module.ARCHITECTURE
        return found
    added = None if is_built_in(name) else find_plugin(name)
    if added is not None:
        return added
    known = sorted({*built_in, *(p.name for p in installed_plugins())})
    near = difflib.get_close_matches(name, known, 1)
    raise UnknownName(
        f"the architecture {name!r:.60} is not supported",
        hint=(f"the nearest is {near[0]!r}; " if near else "") + "supported: " + " ".join(known),
        name=name,
    )


def _checked(name: str, architecture: Architecture, cfg: ModelArchConfig) -> ModelArchConfig:
    """The config, which must lead back to the architecture that read it: everything else looks it up by this name."""
    if get_architecture(cfg.model_type) is not architecture:
        raise PluginError(
            f"the plug-in of the architecture {name!r:.60} makes a config with the model_type {cfg.model_type!r:.60}",
            hint=f"its config must have the model_type {name!r:.60}",
            name=name,
        )
    return cfg
