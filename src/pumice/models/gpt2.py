"""GPT-2: learned positions, layer norms, biases everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Decoder, FeedForward, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config(ModelArchConfig):
    position_rows: int  # of the table of learned positions
    attention_scale: float | None = None  # 1/√head_dim where None
    scaled_by_layer: bool = False  # whether the scores of the n-th layer are divided by n


class Gpt2(Decoder):
    """A decoder that adds rows of a table to its embeddings, by position."""

    def __init__(self, cfg: Gpt2Config, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        self.position_table = nn.Embedding(cfg.position_rows, cfg.hidden)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return super().embedded(tokens, positions) + F.astype(self.position_table(positions), "f32")


def layers(cfg: Gpt2Config) -> list[Block]:
    """Attention and an MLP, each behind a norm; Hugging Face files keep their weights as [in, out]."""

    def block(layer: int) -> Block:
        turned = cfg.source == "hf"
        scale = cfg.attention_scale
        if cfg.scaled_by_layer:
            scale = (cfg.head_dim**-0.5 if scale is None else scale) / (layer + 1)
        attention = Attention(cfg, layer, scale=scale, transposed=turned)
        ffn = FeedForward(cfg, transposed=turned)
        return Block(attention, ffn, mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))

    return [block(i) for i in range(cfg.layers)]


_COMMON: dict[str, Any] = {"fused_qkv": True, "rope": None, "qkv_bias": True, "out_bias": True, "mlp_bias": True}


def read_hf(c: Fields) -> Gpt2Config:
    c.refuse_if("add_cross_attention")
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
        Gpt2Config,
        norm_eps=c.positive("layer_norm_epsilon", 1e-5),
        activation=hf.activation(c, "activation_function", "gelu_new"),
        attention_scale=None if c.flag("scale_attn_weights", True) else 1.0,
        scaled_by_layer=c.flag("scale_attn_by_inverse_layer_idx"),
        position_rows=c.whole("max_position_embeddings"),
        tie_embeddings=c.flag("tie_word_embeddings", True),
        **_COMMON,
    )


def read_gguf(g: GgufFields) -> Gpt2Config:
    rows = g.rows("position_embd.weight")
    return gguf.decoder_config(g, "gpt2", Gpt2Config, layer_norm=True, activation="gelu_tanh", position_rows=rows, **_COMMON)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    read_gguf=read_gguf,
    layers=layers,
    decoder=Gpt2,
    names=TensorNames(
        {"embed": "wte", "position_table": "wpe", "norm": "ln_f"},
        {
            "mixer_norm": "ln_1",
            "mixer.qkv": "attn.c_attn",
            "mixer.o": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn.up": "mlp.c_fc",
            "ffn.down": "mlp.c_proj",
        },
        layer="h.{}.",
        prefixes=("transformer.", ""),
    ),
    ignored=(r"(transformer\.)?h\.\d+\.attn\.bias",),  # the causal mask
)
