"""Qwen 1.5 and 2 with experts: qwen2 with experts and an MLP, behind a gate, that all tokens share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    """Qwen2's, with experts."""
    return expert_blocks(cfg, lambda layer, rope: Attention(cfg, layer, rope))


def _windows(c: Fields) -> tuple[int | None, ...]:
    """Every other one of the first layers slides, where windows are used at all."""
    used, most = c.flag("use_sliding_window"), c.whole("max_window_layers", 28, least=0)
    slides = [used and i % 2 == 0 and i < most for i in range(hf.layer_count(c))]
    # The files of models without windows say 0.
    size = c.whole("sliding_window") if used and c.get("sliding_window") else None
    return hf.windows(c, size, slides)


def read_hf(c: Fields) -> ExpertsConfig:
    return hf.decoder_config(
        c,
        "qwen2_moe",
        ExpertsConfig,
        qkv_bias=c.flag("qkv_bias", True),
        windows=_windows(c),
        normalised=c.flag("norm_topk_prob"),
        shared_hidden=c.whole("shared_expert_intermediate_size"),
        shared_gate=True,
        dense_layers=sparse_layers(c),
        **hf_sizes(c, "num_experts"),
    )


def read_gguf(g: GgufFields) -> ExpertsConfig:
    shared = g.uniform("expert_shared_feed_forward_length")
    return gguf.decoder_config(g, "qwen2_moe", ExpertsConfig, shared_hidden=shared, shared_gate=True, **gguf_sizes(g))


def shared_gguf_entries(cfg: ExpertsConfig) -> dict[str, Any]:
    """What GGUF metadata say of experts and of the MLP that all tokens share."""
    return {**gguf_entries(cfg), "expert_shared_feed_forward_length": cfg.shared_hidden}


NAMES = replace(
    EXPERT_NAMES,
    inner={
        **EXPERT_NAMES.inner,
        "ffn.shared.gate": "mlp.shared_expert.gate_proj",
        "ffn.shared.up": "mlp.shared_expert.up_proj",
        "ffn.shared.down": "mlp.shared_expert.down_proj",
        "ffn.shared_gate": "mlp.shared_expert_gate",
    },
)
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "num_experts": 60,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=NAMES,
    gguf_entries=shared_gguf_entries,
)
