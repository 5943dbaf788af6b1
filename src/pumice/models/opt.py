"""OPT: learned positions, layer norms, biases everywhere, relu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Decoder, FeedForward, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.params import TensorNames
from pumice.tensor import Tensor

# Rows of the table before that of position 0.
_SKIPPED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelArchConfig):
    position_rows: int


class Opt(Decoder):
    """A decoder that adds rows of a table to its embeddings, by position."""

    def __init__(self, cfg: OptConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        self.position_table = nn.Embedding(cfg.position_rows, cfg.hidden)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return super().embedded(tokens, positions) + F.astype(self.position_table(positions + _SKIPPED), "f32")


def layers(cfg: OptConfig) -> list[Block]:
    """Attention and an MLP, each behind a norm."""
    return [
        Block(Attention(cfg, i), FeedForward(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))
        for i in range(cfg.layers)
    ]


def read_hf(c: Fields) -> OptConfig:
    hidden = c.whole("hidden_size")
    c.refuse_if("word_embed_proj_dim", hidden)
    c.refuse_if("_remove_final_layer_norm")
    for name in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if not c.flag(name, True):
            raise c.refuse(f"opt with {name} = false")
    bias = c.flag("enable_bias", True)
    return hf.decoder_config(
        c.with_defaults(intermediate_size=c.whole("ffn_dim")),
        "opt",
        OptConfig,
        norm_eps=1e-5,
        activation=hf.activation(c, "activation_function", "relu"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        rope=None,
        position_rows=c.whole("max_position_embeddings") + _SKIPPED,
        tie_embeddings=c.flag("tie_word_embeddings", True),
    )


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 50_272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
    },
    layers=layers,
    decoder=Opt,
    names=TensorNames(
        {"embed": "embed_tokens", "position_table": "embed_positions", "norm": "final_layer_norm"},
        {
            "mixer_norm": "self_attn_layer_norm",
            "mixer.q": "self_attn.q_proj",
            "mixer.k": "self_attn.k_proj",
            "mixer.v": "self_attn.v_proj",
            "mixer.o": "self_attn.out_proj",
            "ffn_norm": "final_layer_norm",
            "ffn.up": "fc1",
            "ffn.down": "fc2",
        },
        prefixes=("model.decoder.", "decoder."),
    ),
)
