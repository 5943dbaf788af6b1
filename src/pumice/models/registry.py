"""Finds the architecture of a config: by `model_type` in config.json, by `general.architecture` in GGUF files.

Built-in ones have a module each; other packages can add some (`pumice.models.plugins`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pumice.core.fields import Fields
from pumice.errors import InputError, PluginError, UnknownName
from pumice.formats.quantization import Quantization
from pumice.formats.weights import TensorInfo
from pumice.models.arch import Architecture as Architecture
from pumice.models.arch import CausalArchitecture as CausalArchitecture
from pumice.models.arch import EncoderArchitecture as EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.plugins import find_plugin, installed_plugins

# Each has a module of that name. A name from a file imports nothing else but the plug-in that announces it.
ARCHITECTURES = (
    "bamba", "bert", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "distilbert", "falcon", "falcon_mamba",
    "gemma", "gemma2", "gemma3", "gemma3n", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "jamba", "lfm2", "llama",
    "mamba", "mamba2", "ministral", "mistral", "mixtral", "modernbert", "mpt", "olmo", "olmo2", "olmoe", "opt", "phi", "phi3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "roberta", "rwkv7", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
_HF_ALIASES = {"gemma3_text": "gemma3", "gemma3n_text": "gemma3n", "xlm-roberta": "roberta"}
_GGUF_NAMES = {
    "bert": "bert", "bloom": "bloom", "cohere2": "cohere2", "command-r": "cohere", "deepseek2": "deepseek_v2",
    "falcon": "falcon", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3n": "gemma3n", "glm4": "glm4",
    "gpt-oss": "gpt_oss", "gpt2": "gpt2", "gptneox": "gpt_neox", "granite": "granite", "jamba": "jamba", "lfm2": "lfm2",
    "llama": "llama", "mamba": "mamba", "mamba2": "mamba2", "mpt": "mpt", "olmo": "olmo", "olmo2": "olmo2", "olmoe": "olmoe",
    "phi2": "phi", "phi3": "phi3", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
}  # fmt: skip

# The same name means another model where there are experts.
_GGUF_EXPERTS = {"llama": "mixtral"}


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
    cfg = architecture.read_hf(fields.filled(architecture.defaults))
    return replace(_checked(name, architecture, cfg), quantization=Quantization.from_config(config))


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelArchConfig:
    """`ModelArchConfig.from_gguf`."""
    name = Fields(metadata, "the GGUF metadata").text("general.architecture")
    known = _GGUF_NAMES | (_GGUF_EXPERTS if metadata.get(f"{name}.expert_count") else {})
    architecture = _architecture(name, known)
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
