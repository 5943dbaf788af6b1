"""Qwen 3: llama with a norm on each head of q and k."""

from __future__ import annotations

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.qwen2 import DEFAULTS, windows
from pumice.models.rope import Rope, layer_ropes


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Llama's, with norms of the heads."""

    def block(layer: int, rope: Rope | None) -> Block:
        attention = Attention(cfg, layer, rope, head_norm=lambda size: nn.RMSNorm(size, cfg.norm_eps))
        return Block(attention, gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "qwen3", qkv_bias=bias, out_bias=bias, windows=windows(c))


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "qwen3")


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf, defaults={**DEFAULTS, "head_dim": 128}, read_gguf=read_gguf, layers=layers, names=LLAMA_NAMES
)
