"""GLM 4: norms around each branch, rope of neighbouring pairs in half of each head, gate and up in one matrix."""

from __future__ import annotations

from dataclasses import replace

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import POST_NORM_NAMES
from pumice.models.rope import layer_ropes


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and a gated MLP, each between two norms."""
    return [
        Block(
            Attention(cfg, i, rope),
            gated_mlp(cfg, fused=True),
            mixer_norm=rms_norm(cfg),
            post_mixer_norm=rms_norm(cfg),
            ffn_norm=rms_norm(cfg),
            post_ffn_norm=rms_norm(cfg),
        )
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> ModelArchConfig:
    rope = replace(hf.rope_config(c, c.whole("head_dim"), part=0.5), interleaved=True)
    return hf.decoder_config(c, "glm4", qkv_bias=c.flag("attention_bias", True), rope=rope)


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "glm4", interleaved=True)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 13_696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1.5625e-7,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=replace(
        POST_NORM_NAMES,
        inner={
            **POST_NORM_NAMES.inner,
            "post_mixer_norm": "post_self_attn_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "post_ffn_norm": "post_mlp_layernorm",
        },
    ),
)
