"""GPT-2: learned positions, layer norms, biases everywhere."""

from __future__ import annotations

from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import HfNames

_COMMON: dict[str, Any] = {
    "norm": "layer",
    "norm_bias": True,
    "gated": False,
    "qkv": "fused",
    "rope": None,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
}


def read_hf(c: Fields) -> ModelArchConfig:
    c.refuse_if("add_cross_attention")
    c.refuse_if("scale_attn_by_inverse_layer_idx")
    # Files may have the names of other models too.
    hidden = c.whole("hidden_size", c.whole("n_embd"))
    c = c.with_defaults(
        hidden_size=hidden,
        num_hidden_layers=c.whole("n_layer"),
        num_attention_heads=c.whole("n_head"),
        intermediate_size=c.whole("n_inner", 4 * hidden),
        max_position_embeddings=c.whole("n_positions"),
    )
    return hf.decoder_config(
        c,
        "gpt2",
        norm_eps=c.positive("layer_norm_epsilon", 1e-5),
        activation=hf.activation(c, "activation_function", "gelu_new"),
        attention_scale=None if c.flag("scale_attn_weights", True) else 1.0,
        position_rows=c.whole("max_position_embeddings"),
        transposed_weights=True,
        tie_embeddings=c.flag("tie_word_embeddings", True),
        **_COMMON,
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "gpt2", activation="gelu_tanh", position_rows=g.rows("position_embd.weight"), **_COMMON)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    read_gguf=read_gguf,
    names=HfNames(
        {
            "embed": "wte",
            "positions": "wpe",
            "attn_norm": "h.{}.ln_1",
            "qkv": "h.{}.attn.c_attn",
            "o": "h.{}.attn.c_proj",
            "mlp_norm": "h.{}.ln_2",
            "up": "h.{}.mlp.c_fc",
            "down": "h.{}.mlp.c_proj",
            "norm": "ln_f",
        },
        prefixes=("transformer.", ""),
    ),
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias",),  # the causal mask
)
