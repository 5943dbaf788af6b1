"""Phi 3, 3.5 and 4: llama with fused projections and, for long texts, longrope."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig, RopeConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES


def _border(rope: RopeConfig) -> int | None:
    """The length beyond which all keys rotate by longrope's long factors: there transformers recomputes the cache.

    It does so in this model alone. In others with longrope it keeps the keys that the cache holds, and so do we.
    """
    return rope.scaling.original_positions if rope.scaling.kind == "longrope" else None


def read_hf(c: Fields) -> ModelArchConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    # Both older names mean longrope here, also "yarn".
    rope = hf.rope_config(c, head_dim, part=1.0, longrope_names=("su", "yarn"))
    return hf.decoder_config(
        c,
        "phi3",
        qkv="fused",
        fused_gate_up=True,
        rope=rope,
        recompute_beyond=_border(rope),
        windows=(hf.window_size(c),) * hf.layer_count(c),
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    rope = gguf.rope_config(g, gguf.head_size(g))
    return gguf.decoder_config(
        g,
        "phi3",
        fused_gate_up="blk.0.ffn_gate.weight" not in g.tensors,
        rope=rope,
        recompute_beyond=_border(rope),
        windows=(gguf.window_size(g),) * gguf.layer_count(g),
    )


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS
    | {
        "vocab_size": 32_064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    read_gguf=read_gguf,
    names=LLAMA_NAMES,
)
