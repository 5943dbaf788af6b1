"""Granite: llama with multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "granite",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        attention_scale=c.positive("attention_multiplier", 1.0),
        embedding_multiplier=c.positive("embedding_multiplier", 1.0),
        residual_multiplier=c.positive("residual_multiplier", 1.0),
        logits_divisor=c.positive("logits_scaling", 1.0),
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    if not g.flag("rope.scaling.finetuned", True):
        raise g.refuse("granite without rope (rope.scaling.finetuned = false)")
    return gguf.decoder_config(
        g,
        "granite",
        interleaved=True,
        attention_scale=g.positive("attention.scale") if g.get("attention.scale") else None,
        embedding_multiplier=gguf.multiplier(g, "embedding_scale"),
        residual_multiplier=gguf.multiplier(g, "residual_scale"),
        logits_divisor=gguf.multiplier(g, "logit_scale"),
    )


ARCHITECTURE = CausalArchitecture(read_hf=read_hf, defaults=hf.LLAMA_DEFAULTS, read_gguf=read_gguf, names=LLAMA_NAMES)
