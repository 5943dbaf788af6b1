"""Granite: llama with multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Decoder, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.llama import GGUF_ROWS
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import layer_ropes
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteConfig(ModelArchConfig):
    attention_scale: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float


class GraniteBlock(Block):
    """A block whose branches are scaled before they are added."""

    def __init__(self, cfg: GraniteConfig, mixer: Attention) -> None:
        super().__init__(mixer, gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))
        self.multiplier = cfg.residual_multiplier

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + (branch if self.multiplier == 1.0 else branch * self.multiplier)


class Granite(Decoder):
    """A decoder with scaled embeddings and logits."""

    def __init__(self, cfg: GraniteConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers)
        self.multiplier, self.divisor = cfg.embedding_multiplier, cfg.logits_divisor

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = super().embedded(tokens, positions)
        return x if self.multiplier == 1.0 else x * self.multiplier

    def logits(self, x: Tensor) -> Tensor:
        y = super().logits(x)
        return y if self.divisor == 1.0 else y / self.divisor


def layers(cfg: GraniteConfig) -> list[Block]:
    """Llama's, with scaled scores and branches."""
    return [GraniteBlock(cfg, Attention(cfg, i, rope, scale=cfg.attention_scale)) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> GraniteConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "granite",
        GraniteConfig,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        attention_scale=c.positive("attention_multiplier", 1.0),
        embedding_multiplier=c.positive("embedding_multiplier", 1.0),
        residual_multiplier=c.positive("residual_multiplier", 1.0),
        logits_divisor=c.positive("logits_scaling", 1.0),
    )


def read_gguf(g: GgufFields) -> GraniteConfig:
    if not g.flag("rope.scaling.finetuned", True):
        raise g.refuse("granite without rope (rope.scaling.finetuned = false)")
    return gguf.decoder_config(
        g,
        "granite",
        GraniteConfig,
        interleaved=True,
        attention_scale=g.positive("attention.scale") if g.get("attention.scale") else gguf.head_size(g) ** -0.5,
        embedding_multiplier=gguf.multiplier(g, "embedding_scale"),
        residual_multiplier=gguf.multiplier(g, "residual_scale"),
        logits_divisor=gguf.multiplier(g, "logit_scale"),
    )


def _gguf_entries(cfg: GraniteConfig) -> dict[str, Any]:
    return {
        "attention.scale": cfg.attention_scale,
        "embedding_scale": cfg.embedding_multiplier,
        "residual_scale": cfg.residual_multiplier,
        "logit_scale": cfg.logits_divisor,
    }


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    decoder=Granite,
    names=LLAMA_NAMES,
    gguf_entries=_gguf_entries,
    gguf_rows=GGUF_ROWS,
)
