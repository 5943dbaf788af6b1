"""Llama, and models built like it: SmolLM2, TinyLlama, Llama 3; in GGUF files Mistral too."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import layer_ropes
from pumice.models.rows import interleaved_rows


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention with rope and a gated MLP, each behind a norm."""
    return [
        Block(Attention(cfg, i, rope), gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "llama", qkv_bias=bias, out_bias=bias, mlp_bias=c.flag("mlp_bias"))


def read_gguf(g: GgufFields) -> ModelArchConfig:
    # The converter reorders the rows of q and k, so that the rotated pairs are neighbours.
    return gguf.decoder_config(g, "llama", interleaved=True, windows=(gguf.window_size(g),) * gguf.layer_count(g))


GGUF_ROWS = {
    "mixer.q": lambda cfg: interleaved_rows(cfg.heads, cfg.head_dim, cfg.rope.rotary_dim),
    "mixer.k": lambda cfg: interleaved_rows(cfg.kv_heads, cfg.head_dim, cfg.rope.rotary_dim),
}

ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    names=LLAMA_NAMES,
    gguf_rows=GGUF_ROWS,
)
