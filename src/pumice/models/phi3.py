"""Phi 3, 3.5 and 4: llama with fused projections and, for long texts, longrope."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config(ModelArchConfig):
    fused_gate_up: bool

    @property
    def recompute_beyond(self) -> int | None:
        """The length beyond which all keys rotate by longrope's long factors: there transformers recomputes the cache.

        It does so in this model alone. In others with longrope it keeps the keys that the cache holds, and so do we.
        """
        scaled = self.rope is not None and self.rope.scaling.kind == "longrope"
        return self.rope.scaling.original_positions if self.rope is not None and scaled else None


def layers(cfg: Phi3Config) -> list[Block]:
    """Llama's, with gate and up in one matrix."""

    def block(layer: int, rope: Rope | None) -> Block:
        ffn = gated_mlp(cfg, fused=cfg.fused_gate_up)
        return Block(Attention(cfg, layer, rope), ffn, mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> Phi3Config:
    # Both older names mean longrope here, also "yarn".
    rope = hf.rope_config(c, hf.head_size(c), part=1.0, longrope_names=("su", "yarn"))
    return hf.decoder_config(
        c,
        "phi3",
        Phi3Config,
        fused_qkv=True,
        fused_gate_up=True,
        rope=rope,
        windows=(hf.window_size(c),) * hf.layer_count(c),
    )


def read_gguf(g: GgufFields) -> Phi3Config:
    rope = gguf.rope_config(g, gguf.head_size(g))
    return gguf.decoder_config(
        g,
        "phi3",
        Phi3Config,
        fused_gate_up="blk.0.ffn_gate.weight" not in g.tensors,
        rope=rope,
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
    layers=layers,
    names=LLAMA_NAMES,
)
