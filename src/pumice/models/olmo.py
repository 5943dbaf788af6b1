"""OLMo 1: llama with norms that have no weights, and clipped queries, keys and values."""

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
from pumice.models.blocks import Block, Decoder, gated_mlp
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.llama import GGUF_ROWS
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoConfig(ModelArchConfig):
    clip: float | None = None  # of queries, keys and values


class BareNorm(nn.Module):
    """x less its mean, over its standard deviation."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, eps=self.eps)


def layers(cfg: OlmoConfig) -> list[Block]:
    """Llama's, with norms without weights."""

    def block(layer: int, rope: Rope | None) -> Block:
        attention = Attention(cfg, layer, rope, clip=cfg.clip)
        return Block(attention, gated_mlp(cfg), mixer_norm=BareNorm(cfg.norm_eps), ffn_norm=BareNorm(cfg.norm_eps))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def _decoder(cfg: OlmoConfig, layers: Sequence[Block]) -> Decoder:
    return Decoder(cfg, layers, BareNorm(cfg.norm_eps))


def read_hf(c: Fields) -> OlmoConfig:
    bias = c.flag("attention_bias")
    clip = c.positive("clip_qkv") if c.has("clip_qkv") else None
    return hf.decoder_config(c, "olmo", OlmoConfig, qkv_bias=bias, out_bias=bias, clip=clip, norm_eps=1e-5)


def read_gguf(g: GgufFields) -> OlmoConfig:
    clip = g.positive("attention.clamp_kqv") if g.get("attention.clamp_kqv") else None
    handled = ("attention.clamp_kqv",)
    return gguf.decoder_config(g, "olmo", OlmoConfig, interleaved=True, layer_norm=True, handled=handled, clip=clip)


def _gguf_entries(cfg: OlmoConfig) -> dict[str, Any]:
    clip = {} if cfg.clip is None else {"attention.clamp_kqv": cfg.clip}
    return {"attention.layer_norm_epsilon": cfg.norm_eps, **clip}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS | {"vocab_size": 50_304},
    read_gguf=read_gguf,
    layers=layers,
    decoder=_decoder,
    names=LLAMA_NAMES,
    gguf_entries=_gguf_entries,
    gguf_rows=GGUF_ROWS,
)
