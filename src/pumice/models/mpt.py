"""MPT: ALiBi instead of positions, layer norms, no biases anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, alibi_slopes
from pumice.models.blocks import Block, Decoder, FeedForward, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames


@dataclass(frozen=True, slots=True, kw_only=True)
class MptConfig(ModelArchConfig):
    clip: float | None = None  # of queries, keys and values
    most_slope: float = 8.0  # the exponent of the least slope
    attention_scale: float | None = None  # 1/√head_dim where None


def layers(cfg: MptConfig) -> list[Block]:
    """Attention and an MLP, each behind a norm."""

    def block(layer: int) -> Block:
        slopes = alibi_slopes(cfg.heads, cfg.most_slope)
        attention = Attention(cfg, layer, slopes=slopes, clip=cfg.clip, scale=cfg.attention_scale)
        return Block(attention, FeedForward(cfg), mixer_norm=layer_norm(cfg, bias=False), ffn_norm=layer_norm(cfg, bias=False))

    return [block(i) for i in range(cfg.layers)]


def _decoder(cfg: MptConfig, layers: Sequence[Block]) -> Decoder:
    return Decoder(cfg, layers, layer_norm(cfg, bias=False))


_COMMON: dict[str, Any] = {"rope": None, "activation": "gelu", "fused_qkv": True}


def read_hf(c: Fields) -> MptConfig:
    attention = c.section("attn_config")
    for name in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        attention.refuse_if(name)
    attention.refuse_if("attn_type", "multihead_attention")
    # transformers does not look at these.
    c.refuse_if("logit_scale")
    c.refuse_if("expansion_ratio", 4)
    if not attention.flag("alibi", True):
        raise c.refuse("mpt without alibi")
    if not c.flag("no_bias", True):
        raise c.refuse("mpt with biases")
    hidden = c.whole("hidden_size", c.whole("d_model"))
    c = c.with_defaults(
        hidden_size=hidden,
        num_hidden_layers=c.whole("n_layers"),
        num_attention_heads=c.whole("n_heads"),
        intermediate_size=4 * hidden,
        max_position_embeddings=c.whole("max_seq_len", 2048),
    )
    return hf.decoder_config(
        c,
        "mpt",
        MptConfig,
        norm_eps=c.positive("layer_norm_epsilon", 1e-5),
        clip=attention.positive("clip_qkv") if attention.get("clip_qkv") else None,
        attention_scale=attention.positive("softmax_scale") if attention.get("softmax_scale") else None,
        tie_embeddings=c.flag("tie_word_embeddings", True),
        **_COMMON,
    )


def read_gguf(g: GgufFields) -> MptConfig:
    clip = g.positive("attention.clamp_kqv") if g.get("attention.clamp_kqv") else None
    return gguf.decoder_config(
        g,
        "mpt",
        MptConfig,
        layer_norm=True,
        handled=("attention.clamp_kqv", "attention.max_alibi_bias"),
        clip=clip,
        most_slope=g.positive("attention.max_alibi_bias"),
        **_COMMON,
    )


def _gguf_entries(cfg: MptConfig) -> dict[str, Any]:
    clip = {} if cfg.clip is None else {"attention.clamp_kqv": cfg.clip}
    return {"attention.max_alibi_bias": cfg.most_slope, **clip}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={"vocab_size": 50_368, "d_model": 2048, "n_heads": 16, "n_layers": 24},
    read_gguf=read_gguf,
    layers=layers,
    decoder=_decoder,
    names=TensorNames(
        {"embed": "wte", "norm": "norm_f"},
        {
            "mixer_norm": "norm_1",
            "mixer.qkv": "attn.Wqkv",
            "mixer.o": "attn.out_proj",
            "ffn_norm": "norm_2",
            "ffn.up": "ffn.up_proj",
            "ffn.down": "ffn.down_proj",
        },
        layer="blocks.{}.",
        prefixes=("transformer.", ""),
    ),
    gguf_entries=_gguf_entries,
)
