"""Cohere 2 (Command R7B, Command A): attention and MLP side by side behind one norm; layers without a window have no rope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, HeadNormedAttention
from pumice.models.blocks import Block, Decoder, ParallelBlock, gated_mlp, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(ModelArchConfig):
    logits_multiplier: float
    rope_everywhere: bool = False  # also in layers without a window
    head_norms: bool = False  # of queries and keys


class Cohere(Decoder):
    """A decoder whose logits are scaled."""

    def __init__(self, cfg: CohereConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg, bias=False))
        self.multiplier = cfg.logits_multiplier

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x) * self.multiplier


def layers(cfg: CohereConfig) -> list[Block]:
    """Attention and a gated MLP side by side."""
    kind = HeadNormedAttention if cfg.head_norms else Attention

    def block(layer: int, rope: Rope | None) -> Block:
        turned = cfg.rope_everywhere or cfg.windows[layer] is not None
        attention = kind(cfg, layer, rope if turned else None)
        return ParallelBlock(attention, gated_mlp(cfg), mixer_norm=layer_norm(cfg, bias=False))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


DEFAULTS: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 8192,
    "intermediate_size": 22_528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
}


def common_hf(c: Fields, theta: float) -> dict[str, Any]:
    """What both generations share."""
    bias = c.flag("attention_bias")
    return {
        "norm_eps": c.positive("layer_norm_eps", 1e-5),
        "qkv_bias": bias,
        "out_bias": bias,
        "logits_multiplier": c.positive("logit_scale"),
        "rope": replace(hf.rope_config(c, hf.head_size(c), theta=theta), interleaved=True),
        "tie_embeddings": c.flag("tie_word_embeddings", True),
    }


def read_hf(c: Fields) -> CohereConfig:
    pattern = c.whole("sliding_window_pattern", 4)
    slides = [(i + 1) % pattern != 0 for i in range(hf.layer_count(c))]
    windows = hf.windows(c, hf.window_size(c), slides)
    return hf.decoder_config(c, "cohere2", CohereConfig, windows=windows, **common_hf(c, 10000.0))


def common_gguf(g: GgufFields) -> dict[str, Any]:
    """What both generations share in GGUF files."""
    return {"layer_norm": True, "interleaved": True, "logits_multiplier": gguf.multiplier(g, "logit_scale")}


def read_gguf(g: GgufFields) -> CohereConfig:
    windows = gguf.windows(g, gguf.window_size(g), every=4)
    return gguf.decoder_config(g, "cohere2", CohereConfig, windows=windows, **common_gguf(g))


def gguf_entries(cfg: CohereConfig) -> dict[str, Any]:
    return {"logit_scale": cfg.logits_multiplier}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS | {"sliding_window": 4096},
    read_gguf=read_gguf,
    layers=layers,
    decoder=Cohere,
    names=LLAMA_NAMES,
    gguf_entries=gguf_entries,
)
