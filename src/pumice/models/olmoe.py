"""OLMoE: llama with experts, and norms over the whole projections of q and k."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.blocks import Block
from pumice.models.experts import EXPERT_NAMES, ExpertsConfig, expert_blocks, gguf_entries, gguf_sizes, hf_sizes
from pumice.models.gguf import GgufFields
from pumice.models.olmo2 import OlmoAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoeConfig(ExpertsConfig):
    clip: float | None = None  # of queries and keys behind their norms, and of values


def layers(cfg: OlmoeConfig) -> list[Block]:
    """Llama's, with OLMo's attention and experts."""
    return expert_blocks(cfg, lambda layer, rope: OlmoAttention(cfg, layer, rope, clip=cfg.clip))


def read_hf(c: Fields) -> OlmoeConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "olmoe",
        OlmoeConfig,
        qkv_bias=bias,
        out_bias=bias,
        normalised=c.flag("norm_topk_prob"),
        clip=c.positive("clip_qkv") if c.has("clip_qkv") else None,
        **hf_sizes(c, "num_experts", "intermediate_size"),
    )


def read_gguf(g: GgufFields) -> OlmoeConfig:
    return gguf.decoder_config(g, "olmoe", OlmoeConfig, **gguf_sizes(g))


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 50_304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "num_experts": 64,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=EXPERT_NAMES,
    gguf_entries=gguf_entries,
)
