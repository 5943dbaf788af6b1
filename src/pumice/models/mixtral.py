"""Mixtral: mistral with experts."""

from __future__ import annotations

from dataclasses import replace

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block
from pumice.models.experts import EXPERT_NAMES, ExpertsConfig, expert_blocks, gguf_entries, gguf_sizes, hf_sizes
from pumice.models.gguf import GgufFields
from pumice.models.llama import GGUF_ROWS
from pumice.models.mistral import DEFAULTS


def layers(cfg: ExpertsConfig) -> list[Block]:
    """Mistral's, with experts."""
    return expert_blocks(cfg, lambda layer, rope: Attention(cfg, layer, rope))


def read_hf(c: Fields) -> ExpertsConfig:
    return hf.decoder_config(
        c,
        "mixtral",
        ExpertsConfig,
        normalised=True,
        rope=hf.rope_config(c, hf.head_size(c), theta=1e6),
        windows=(hf.window_size(c),) * hf.layer_count(c),
        **hf_sizes(c, "num_local_experts", "intermediate_size"),
    )


def read_gguf(g: GgufFields) -> ExpertsConfig:
    windows = (gguf.window_size(g),) * gguf.layer_count(g)
    return gguf.decoder_config(g, "mixtral", ExpertsConfig, interleaved=True, normalised=True, windows=windows, **gguf_sizes(g))


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS | {"rms_norm_eps": 1e-5, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
    read_gguf=read_gguf,
    layers=layers,
    names=replace(
        EXPERT_NAMES,
        inner={
            **EXPERT_NAMES.inner,
            "ffn.router": "block_sparse_moe.gate",
            "ffn.experts.gate": "block_sparse_moe.experts.{}.w1",
            "ffn.experts.up": "block_sparse_moe.experts.{}.w3",
            "ffn.experts.down": "block_sparse_moe.experts.{}.w2",
        },
    ),
    gguf_entries=gguf_entries,
    gguf_rows=GGUF_ROWS,
)
