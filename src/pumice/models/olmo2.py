"""OLMo 2: norms after the branches only, and over the whole projections of q and k."""

from __future__ import annotations

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, normed, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import POST_NORM_NAMES
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor


class OlmoAttention(Attention):
    """Attention whose queries and keys are normed before they are split into heads."""

    def __init__(self, cfg: ModelArchConfig, layer: int, rope: Rope | None, *, clip: float | None = None) -> None:
        super().__init__(cfg, layer, rope, clip=clip)
        self.q_norm = nn.RMSNorm(cfg.heads * cfg.head_dim, cfg.norm_eps)
        self.k_norm = nn.RMSNorm(cfg.kv_heads * cfg.head_dim, cfg.norm_eps)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = normed(self.q_norm, self.q(x)), normed(self.k_norm, self.k(x)), self.v(x)
        q, k, v = self.clipped(q), self.clipped(k), self.clipped(v)
        return self.by_head(q, self.heads), self.by_head(k, self.kv_heads), self.by_head(v, self.kv_heads)


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and a gated MLP, each before a norm."""
    return [
        Block(OlmoAttention(cfg, i, rope), gated_mlp(cfg), post_mixer_norm=rms_norm(cfg), post_ffn_norm=rms_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "olmo2", qkv_bias=bias, out_bias=bias)


def read_gguf(g: GgufFields) -> ModelArchConfig:
    cfg: ModelArchConfig = gguf.decoder_config(g, "olmo2")
    if cfg.fused_qkv:
        raise g.refuse("olmo2 with q, k and v in one matrix")
    return cfg


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS | {"vocab_size": 50_304, "rms_norm_eps": 1e-5},
    read_gguf=read_gguf,
    layers=layers,
    names=POST_NORM_NAMES,
)
