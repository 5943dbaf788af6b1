"""Qwen 3 with experts: qwen3 with experts, in all layers or in some."""

from __future__ import annotations

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block
from pumice.models.experts import (
    EXPERT_NAMES,
    ExpertsConfig,
    expert_blocks,
    gguf_entries,
    gguf_sizes,
    hf_sizes,
    sparse_layers,
)
from pumice.models.gguf import GgufFields


def layers(cfg: ExpertsConfig) -> list[Block]:
    """Qwen3's, with experts."""
    return expert_blocks(
        cfg, lambda layer, rope: Attention(cfg, layer, rope, head_norm=lambda size: nn.RMSNorm(size, cfg.norm_eps))
    )


def read_hf(c: Fields) -> ExpertsConfig:
    bias = c.flag("attention_bias")
    size = hf.window_size(c) if c.flag("use_sliding_window") else None
    return hf.decoder_config(
        c,
        "qwen3_moe",
        ExpertsConfig,
        qkv_bias=bias,
        out_bias=bias,
        windows=(size,) * hf.layer_count(c),
        normalised=c.flag("norm_topk_prob"),
        dense_layers=sparse_layers(c),
        **hf_sizes(c, "num_local_experts" if c.has("num_local_experts") else "num_experts"),
    )


def read_gguf(g: GgufFields) -> ExpertsConfig:
    return gguf.decoder_config(g, "qwen3_moe", ExpertsConfig, normalised=True, **gguf_sizes(g))


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=EXPERT_NAMES,
    gguf_entries=gguf_entries,
)
