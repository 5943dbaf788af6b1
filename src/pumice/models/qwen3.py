"""Qwen 3: llama with a norm on each head of q and k."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.qwen2 import DEFAULTS, windows


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "qwen3", qk_norm="head", qkv_bias=bias, out_bias=bias, windows=windows(c))


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "qwen3", qk_norm="head")


ARCHITECTURE = CausalArchitecture(read_hf=read_hf, defaults={**DEFAULTS, "head_dim": 128}, read_gguf=read_gguf, names=LLAMA_NAMES)
