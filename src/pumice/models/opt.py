"""OPT: learned positions, layer norms, biases everywhere, relu; the one of 350M has its norms behind the branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.bert import BertBlock
from pumice.models.blocks import Block, Decoder, FeedForward, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.params import TensorNames
from pumice.tensor import Tensor

# Rows of the table before that of position 0.
_SKIPPED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelArchConfig):
    position_rows: int
    table_width: int  # of the token table; where it is not the size of the vectors between layers two matrices stand between
    norms_before: bool = True  # whether norms are before the branches, and one behind the last layer
    last_norm: bool = True


class Opt(Decoder):
    """A decoder that adds rows of a table to its embeddings, by position."""

    norm: Any

    def __init__(self, cfg: OptConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        if not (cfg.norms_before and cfg.last_norm):
            self.norm = None
        self.position_table = nn.Embedding(cfg.position_rows, cfg.hidden)
        narrow = cfg.table_width != cfg.hidden
        if narrow:
            self.embed = nn.Embedding(cfg.vocab, cfg.table_width)
            self.head = None if cfg.tie_embeddings else nn.Linear(cfg.table_width, cfg.vocab, bias=False)
        self.widen = nn.Linear(cfg.table_width, cfg.hidden, bias=False) if narrow else None
        self.narrow = nn.Linear(cfg.hidden, cfg.table_width, bias=False) if narrow else None

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = super().embedded(tokens, positions)
        x = x if self.widen is None else self.widen(x)
        return x + F.astype(self.position_table(positions + _SKIPPED), "f32")

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x if self.narrow is None else self.narrow(x))


def layers(cfg: OptConfig) -> list[Block]:
    """Attention and an MLP, each behind a norm or before one."""

    def block(layer: int) -> Block:
        mixer, ffn, first, second = Attention(cfg, layer), FeedForward(cfg), layer_norm(cfg), layer_norm(cfg)
        if cfg.norms_before:
            return Block(mixer, ffn, mixer_norm=first, ffn_norm=second)
        return BertBlock(mixer, ffn, post_mixer_norm=first, post_ffn_norm=second)

    return [block(i) for i in range(cfg.layers)]


def read_hf(c: Fields) -> OptConfig:
    if not c.flag("layer_norm_elementwise_affine", True):
        raise c.refuse("opt with layer_norm_elementwise_affine = false")
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
        table_width=c.whole("word_embed_proj_dim", c.whole("hidden_size")),
        norms_before=c.flag("do_layer_norm_before", True),
        last_norm=not c.flag("_remove_final_layer_norm"),
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
        {
            "embed": "embed_tokens",
            "position_table": "embed_positions",
            "widen": "project_in",
            "narrow": "project_out",
            "norm": "final_layer_norm",
        },
        {
            "mixer_norm": "self_attn_layer_norm",
            "post_mixer_norm": "self_attn_layer_norm",
            "mixer.q": "self_attn.q_proj",
            "mixer.k": "self_attn.k_proj",
            "mixer.v": "self_attn.v_proj",
            "mixer.o": "self_attn.out_proj",
            "ffn_norm": "final_layer_norm",
            "post_ffn_norm": "final_layer_norm",
            "ffn.up": "fc1",
            "ffn.down": "fc2",
        },
        prefixes=("model.decoder.", "decoder."),
    ),
)
