"""GPT-NeoX and Pythia: partial rope, layer norms, attention and MLP side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, HeadwiseAttention
from pumice.models.blocks import Block, FeedForward, ParallelBlock, layer_norm, layer_norm_decoder
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.models.rope import Rope, layer_ropes
from pumice.models.rows import fused_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class NeoxConfig(ModelArchConfig):
    parallel_residual: bool


def layers(cfg: NeoxConfig) -> list[Block]:
    """Attention and an MLP, in turn or side by side; GGUF files have all of q, then k, then v."""
    kind = ParallelBlock if cfg.parallel_residual else Block
    attention = HeadwiseAttention if cfg.source == "hf" else Attention

    def block(layer: int, rope: Rope | None) -> Block:
        return kind(attention(cfg, layer, rope), FeedForward(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> NeoxConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    bias = c.flag("attention_bias", True)
    return hf.decoder_config(
        c,
        "gpt_neox",
        NeoxConfig,
        norm_eps=c.positive("layer_norm_eps", 1e-5),
        activation=hf.activation(c, "hidden_act", "gelu"),
        parallel_residual=c.flag("use_parallel_residual", True),
        fused_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        rope=hf.rope_config(c, head_dim, theta_name="rotary_emb_base", part_name="rotary_pct", part=0.25),
        mlp_bias=True,
    )


def read_gguf(g: GgufFields) -> NeoxConfig:
    parallel = g.flag("use_parallel_residual", True)
    return gguf.decoder_config(
        g, "gpt_neox", NeoxConfig, layer_norm=True, activation="gelu", mlp_bias=True, parallel_residual=parallel
    )


def _gguf_entries(cfg: NeoxConfig) -> dict[str, Any]:
    return {"use_parallel_residual": cfg.parallel_residual}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 50_432,
        "hidden_size": 6144,
        "intermediate_size": 24_576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "max_position_embeddings": 2048,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=layer_norm_decoder,
    names=TensorNames(
        {"embed": "embed_in", "norm": "final_layer_norm"},
        {
            "mixer_norm": "input_layernorm",
            "mixer.qkv": "attention.query_key_value",
            "mixer.o": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn.up": "mlp.dense_h_to_4h",
            "ffn.down": "mlp.dense_4h_to_h",
        },
        prefixes=("gpt_neox.", ""),
        head=("embed_out", "lm_head"),
    ),
    ignored=(r"(gpt_neox\.)?layers\.\d+\.attention\.bias",),  # the causal mask
    gguf_entries=_gguf_entries,
    gguf_rows={"mixer.qkv": lambda cfg: fused_rows(cfg.heads, cfg.head_dim)},
)
