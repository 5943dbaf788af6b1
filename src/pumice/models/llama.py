"""Llama, and models built like it: SmolLM2, TinyLlama, Llama 3; in GGUF files Mistral too."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "llama", qkv_bias=bias, out_bias=bias, mlp_bias=c.flag("mlp_bias"))


def read_gguf(g: GgufFields) -> ModelArchConfig:
    # The converter reorders the rows of q and k, so that the rotated pairs are neighbours.
    return gguf.decoder_config(g, "llama", interleaved=True, windows=(gguf.window_size(g),) * gguf.layer_count(g))


ARCHITECTURE = CausalArchitecture(read_hf=read_hf, defaults=hf.LLAMA_DEFAULTS, read_gguf=read_gguf, names=LLAMA_NAMES)
