"""Gemma 1: llama with scaled embeddings, norms that multiply by 1 + weight, and gelu."""

from __future__ import annotations

from functools import partial

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp
from pumice.models.gemma2 import Gemma, GemmaConfig, gemma_norm
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import layer_ropes


def layers(cfg: GemmaConfig) -> list[Block]:
    """Llama's, with Gemma's norms."""
    norm = partial(gemma_norm, cfg, cfg.hidden)
    return [
        Block(Attention(cfg, i, rope), gated_mlp(cfg), mixer_norm=norm(), ffn_norm=norm())
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> GemmaConfig:
    c.refuse_if("use_bidirectional_attention")
    bias, act = c.flag("attention_bias"), c.text("hidden_act", "gelu")
    return hf.decoder_config(
        c,
        "gemma",
        GemmaConfig,
        # The first files say "gelu" and mean the other one; `hidden_activation` of later ones says the same as the default.
        activation="gelu_tanh" if act == "gelu" else hf.activation(c, "hidden_act", act),
        qkv_bias=bias,
        out_bias=bias,
        attention_scale=c.whole("head_dim") ** -0.5,
        tie_embeddings=c.flag("tie_word_embeddings", True),
    )


def read_gguf(g: GgufFields) -> GemmaConfig:
    scale = gguf.head_size(g) ** -0.5
    return gguf.decoder_config(g, "gemma", GemmaConfig, activation="gelu_tanh", attention_scale=scale)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 256_000,
        "hidden_size": 3072,
        "intermediate_size": 24_576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=Gemma,
    names=LLAMA_NAMES,
)
