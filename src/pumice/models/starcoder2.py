"""StarCoder 2: llama's attention with layer norms, biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from dataclasses import replace

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, FeedForward, layer_norm, layer_norm_decoder
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import layer_ropes


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and an MLP, each behind a norm."""
    return [
        Block(Attention(cfg, i, rope), FeedForward(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("use_bias", True)
    return hf.decoder_config(
        c,
        "starcoder2",
        norm_eps=c.positive("norm_epsilon", 1e-5),
        activation=hf.activation(c, "hidden_act", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        windows=(hf.window_size(c),) * hf.layer_count(c),
        tie_embeddings=c.flag("tie_word_embeddings", True),
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "starcoder2", layer_norm=True, activation="gelu_tanh")


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 49_152,
        "hidden_size": 3072,
        "intermediate_size": 12_288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=layer_norm_decoder,
    names=replace(LLAMA_NAMES, inner={**LLAMA_NAMES.inner, "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}),
)
