"""GPT-NeoX and Pythia: partial rope, layer norms, attention and MLP side by side."""

from __future__ import annotations

from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import HfNames

_COMMON: dict[str, Any] = {"norm": "layer", "norm_bias": True, "gated": False, "mlp_bias": True}


def read_hf(c: Fields) -> ModelArchConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    bias = c.flag("attention_bias", True)
    return hf.decoder_config(
        c,
        "gpt_neox",
        norm_eps=c.positive("layer_norm_eps", 1e-5),
        activation=hf.activation(c, "hidden_act", "gelu"),
        parallel_residual=c.flag("use_parallel_residual", True),
        qkv="by_head",
        qkv_bias=bias,
        out_bias=bias,
        rope=hf.rope_config(c, head_dim, theta_name="rotary_emb_base", part_name="rotary_pct", part=0.25),
        **_COMMON,
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(
        g, "gpt_neox", activation="gelu", parallel_residual=g.flag("use_parallel_residual", True), **_COMMON
    )


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
    names=HfNames(
        {
            "embed": "embed_in",
            "attn_norm": "layers.{}.input_layernorm",
            "qkv": "layers.{}.attention.query_key_value",
            "o": "layers.{}.attention.dense",
            "mlp_norm": "layers.{}.post_attention_layernorm",
            "up": "layers.{}.mlp.dense_h_to_4h",
            "down": "layers.{}.mlp.dense_4h_to_h",
            "norm": "final_layer_norm",
        },
        prefixes=("gpt_neox.", ""),
        head=("embed_out", "lm_head"),
    ),
    ignored=(r"(gpt_neox\.)?layers\.\d+\.attention\.bias",),  # the causal mask
)
