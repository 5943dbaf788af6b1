"""BLOOM: ALiBi instead of positions, layer norms, also of the embeddings, and biases everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, HeadwiseAttention, alibi_slopes
from pumice.models.blocks import Block, Decoder, FeedForward, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.models.rows import fused_rows
from pumice.tensor import Tensor


class Bloom(Decoder):
    """A decoder with a norm of the embeddings."""

    def __init__(self, cfg: ModelArchConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        self.embed_norm = layer_norm(cfg)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        y: Tensor = self.embed_norm(super().embedded(tokens, positions))
        return y


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and an MLP, each behind a norm; GGUF files have all of q, then k, then v."""
    attention, slopes = HeadwiseAttention if cfg.source == "hf" else Attention, alibi_slopes(cfg.heads)
    return [
        Block(attention(cfg, i, slopes=slopes), FeedForward(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))
        for i in range(cfg.layers)
    ]


_COMMON: dict[str, Any] = {"rope": None, "activation": "gelu_tanh", "qkv_bias": True, "out_bias": True, "mlp_bias": True}


def read_hf(c: Fields) -> ModelArchConfig:
    c.refuse_if("apply_residual_connection_post_layernorm")
    hidden = c.whole("n_embed", c.whole("hidden_size"))
    c = c.with_defaults(
        num_hidden_layers=c.whole("n_layer"),
        num_attention_heads=c.whole("n_head"),
        intermediate_size=4 * hidden,
        max_position_embeddings=c.whole("seq_length", 2048),
    )
    cfg: ModelArchConfig = hf.decoder_config(
        c,
        "bloom",
        hidden=hidden,
        head_dim=max(hidden // c.whole("num_attention_heads"), 1),
        norm_eps=c.positive("layer_norm_epsilon", 1e-5),
        fused_qkv=True,
        tie_embeddings=c.flag("tie_word_embeddings", True),
        **_COMMON,
    )
    return cfg


def read_gguf(g: GgufFields) -> ModelArchConfig:
    cfg: ModelArchConfig = gguf.decoder_config(g, "bloom", layer_norm=True, **_COMMON)
    return cfg


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={"vocab_size": 250_880, "hidden_size": 64, "n_layer": 2, "n_head": 8},
    read_gguf=read_gguf,
    layers=layers,
    decoder=Bloom,
    names=TensorNames(
        {"embed": "word_embeddings", "embed_norm": "word_embeddings_layernorm", "norm": "ln_f"},
        {
            "mixer_norm": "input_layernorm",
            "mixer.qkv": "self_attention.query_key_value",
            "mixer.o": "self_attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn.up": "mlp.dense_h_to_4h",
            "ffn.down": "mlp.dense_4h_to_h",
        },
        layer="h.{}.",
        prefixes=("transformer.", ""),
    ),
    gguf_rows={"mixer.qkv": lambda cfg: fused_rows(cfg.heads, cfg.head_dim)},
)
