"""Mistral: llama with one window for all layers."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.llama import GGUF_ROWS, layers
from pumice.models.params import LLAMA_NAMES


def read_hf(c: Fields) -> ModelArchConfig:
    if len({str(kind) for kind in c.items("layer_types")}) > 1:
        raise c.refuse("mistral with layers of different types")
    return hf.decoder_config(c, "mistral", windows=(hf.window_size(c),) * hf.layer_count(c))


DEFAULTS = hf.LLAMA_DEFAULTS | {
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}

ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS,
    layers=layers,
    names=LLAMA_NAMES,
    gguf_rows=GGUF_ROWS,
)
