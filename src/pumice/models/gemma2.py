"""Gemma 2: norms around each branch, scaled embeddings, softcaps, every other layer with a window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES, POST_NORMS, HfNames

# What the config classes of Gemma 2 and 3 share.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def common_hf(c: Fields) -> dict[str, Any]:
    """What Gemma 2 and 3 share; their norms multiply by 1 + weight."""
    c.refuse_if("use_bidirectional_attention")
    bias = c.flag("attention_bias")
    return {
        "norms": "sandwich",
        "norm_offset": 1.0,
        "activation": hf.activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        "qkv_bias": bias,
        "out_bias": bias,
        "attention_scale": c.positive("query_pre_attn_scalar") ** -0.5,
        "embedding_multiplier": math.sqrt(c.whole("hidden_size")),
        "logits_softcap": softcap(c, "final_logit_softcapping"),
        "tie_embeddings": c.flag("tie_word_embeddings", True),
    }


def common_gguf(g: GgufFields, layers_of_27b: int) -> dict[str, Any]:
    """What Gemma 2 and 3 share in GGUF files; the 1 is part of the norms' weights there."""
    hidden, heads = g.whole("embedding_length"), g.uniform("attention.head_count")
    # The files do not say how scores are scaled: by the head's size, except in the largest model of each family.
    largest = gguf.layer_count(g) == layers_of_27b
    scale = (hidden / heads if largest else g.whole("attention.key_length", max(hidden // heads, 1))) ** -0.5
    return {
        "norms": "sandwich",
        "activation": "gelu_tanh",
        "attention_scale": scale,
        "embedding_multiplier": math.sqrt(hidden),
        "logits_softcap": softcap(g, "final_logit_softcapping"),
    }


def softcap(c: Fields, name: str, default: float | None = None) -> float | None:
    """A bound on scores or logits: the default where the file does not say, none where it says 0."""
    if not c.has(name):
        return default
    return c.positive(name) if c.get(name) else None


def read_hf(c: Fields) -> ModelArchConfig:
    alternating = [i % 2 == 0 for i in range(hf.layer_count(c))]
    return hf.decoder_config(
        c,
        "gemma2",
        attention_softcap=softcap(c, "attn_logit_softcapping"),
        windows=hf.windows(c, hf.window_size(c), alternating),
        **common_hf(c),
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    rope = gguf.rope_config(g, gguf.head_size(g))
    local = replace(rope, theta=g.positive("rope.freq_base_swa", rope.theta))
    return gguf.decoder_config(
        g,
        "gemma2",
        attention_softcap=softcap(g, "attn_logit_softcapping", 50.0),
        rope=rope,
        local_rope=None if local == rope else local,
        windows=gguf.windows(g, gguf.window_size(g, 4096), every=2),
        **{**common_gguf(g, layers_of_27b=46), "logits_softcap": softcap(g, "final_logit_softcapping", 30.0)},
    )


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    # A cap that is null is none, one that is not named has the size of the published models.
    defaults=DEFAULTS
    | {
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    read_gguf=read_gguf,
    names=HfNames({**LLAMA_NAMES.roles, **POST_NORMS}, LLAMA_NAMES.prefixes),
)
