"""Gemma 2: norms around each branch, scaled embeddings, softcaps, every other layer with a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Decoder, gated_mlp
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import POST_NORM_NAMES
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ModelArchConfig):
    attention_scale: float
    attention_softcap: float | None = None
    logits_softcap: float | None = None


def gemma_norm(cfg: ModelArchConfig, size: int) -> nn.RMSNorm:
    """A norm that multiplies by 1 + weight; in GGUF files the 1 is part of the weight."""
    return nn.RMSNorm(size, cfg.norm_eps, offset=1.0 if cfg.source == "hf" else 0.0)


class Gemma(Decoder):
    """A decoder with scaled embeddings, whose logits may be bounded."""

    def __init__(self, cfg: GemmaConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, gemma_norm(cfg, cfg.hidden))
        self.multiplier, self.softcap = math.sqrt(cfg.hidden), cfg.logits_softcap

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return super().embedded(tokens, positions) * self.multiplier

    def logits(self, x: Tensor) -> Tensor:
        y = super().logits(x)
        return y if self.softcap is None else F.tanh(y / self.softcap) * self.softcap


def gemma_block(cfg: GemmaConfig, layer: int, rope: Rope | None, *, head_norms: bool) -> Block:
    """Attention and a gated MLP, each between two norms."""
    norm = partial(gemma_norm, cfg)
    head_norm, scale, softcap = norm if head_norms else None, cfg.attention_scale, cfg.attention_softcap
    return Block(
        Attention(cfg, layer, rope, head_norm=head_norm, scale=scale, softcap=softcap),
        gated_mlp(cfg),
        mixer_norm=norm(cfg.hidden),
        post_mixer_norm=norm(cfg.hidden),
        ffn_norm=norm(cfg.hidden),
        post_ffn_norm=norm(cfg.hidden),
    )


def layers(cfg: GemmaConfig) -> list[Block]:
    """Gemma's blocks."""
    return [gemma_block(cfg, i, rope, head_norms=False) for i, rope in enumerate(layer_ropes(cfg))]


# What the config classes of Gemma 2 and 3 share.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def common_hf(c: Fields) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    c.refuse_if("use_bidirectional_attention")
    bias = c.flag("attention_bias")
    return {
        "activation": hf.activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        "qkv_bias": bias,
        "out_bias": bias,
        "attention_scale": c.positive("query_pre_attn_scalar") ** -0.5,
        "logits_softcap": softcap(c, "final_logit_softcapping"),
        "tie_embeddings": c.flag("tie_word_embeddings", True),
    }


def common_gguf(g: GgufFields, layers_of_27b: int) -> dict[str, Any]:
    """What Gemma 2 and 3 share in GGUF files."""
    hidden, heads = g.whole("embedding_length"), g.uniform("attention.head_count")
    # The files do not say how scores are scaled: by the head's size, except in the largest model of each family.
    largest = gguf.layer_count(g) == layers_of_27b
    scale = (hidden / heads if largest else g.whole("attention.key_length", max(hidden // heads, 1))) ** -0.5
    return {
        "activation": "gelu_tanh",
        "attention_scale": scale,
        "logits_softcap": softcap(g, "final_logit_softcapping"),
    }


def softcap(c: Fields, name: str, default: float | None = None) -> float | None:
    """A bound on scores or logits: the default where the file does not say, none where it says 0."""
    if not c.has(name):
        return default
    return c.positive(name) if c.get(name) else None


def gguf_entries(cfg: GemmaConfig) -> dict[str, Any]:
    """The caps, as the metadata of GGUF files have them."""
    caps = {"attn_logit_softcapping": cfg.attention_softcap, "final_logit_softcapping": cfg.logits_softcap}
    return {name: float(cap) for name, cap in caps.items() if cap is not None}


def read_hf(c: Fields) -> GemmaConfig:
    alternating = [i % 2 == 0 for i in range(hf.layer_count(c))]
    return hf.decoder_config(
        c,
        "gemma2",
        GemmaConfig,
        attention_softcap=softcap(c, "attn_logit_softcapping"),
        windows=hf.windows(c, hf.window_size(c), alternating),
        **common_hf(c),
    )


def read_gguf(g: GgufFields) -> GemmaConfig:
    rope = gguf.rope_config(g, gguf.head_size(g))
    local = replace(rope, theta=g.positive("rope.freq_base_swa", rope.theta))
    return gguf.decoder_config(
        g,
        "gemma2",
        GemmaConfig,
        attention_softcap=softcap(g, "attn_logit_softcapping", 50.0),
        rope=rope,
        local_rope=None if local == rope else local,
        windows=gguf.windows(g, gguf.window_size(g, 4096), every=2),
        **{**common_gguf(g, layers_of_27b=46), "logits_softcap": softcap(g, "final_logit_softcapping", 30.0)},
    )


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    # A cap that is null is none, one that is not named has the size of the published models.
    defaults=DEFAULTS
    | {
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=Gemma,
    names=POST_NORM_NAMES,
    gguf_entries=gguf_entries,
)
