"""Qwen 2 and 2.5: llama with biases on q, k and v, and windows from some layer on."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.llama import layers
from pumice.models.params import LLAMA_NAMES

# Without `use_sliding_window` the window means nothing.
DEFAULTS = hf.LLAMA_DEFAULTS | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def windows(c: Fields) -> tuple[int | None, ...]:
    """Each layer's window; there are none unless `use_sliding_window` says so."""
    size = hf.window_size(c) if c.flag("use_sliding_window") else None
    first = c.whole("max_window_layers", least=0)
    return hf.windows(c, size, [i >= first for i in range(hf.layer_count(c))])


def read_hf(c: Fields) -> ModelArchConfig:
    c.refuse_if("use_mrope")
    return hf.decoder_config(c, "qwen2", qkv_bias=True, windows=windows(c))


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "qwen2")


ARCHITECTURE = CausalArchitecture(read_hf=read_hf, defaults=DEFAULTS, read_gguf=read_gguf, layers=layers, names=LLAMA_NAMES)
