"""Falcon: attention and MLP side by side behind one norm or one each, with fewer key heads, or one, in a fused projection.

Its first models, such as falcon-rw-1b, have them one after the other, and ALiBi instead of a rope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, HeadwiseAttention, alibi_slopes
from pumice.models.blocks import Block, FeedForward, ParallelBlock, layer_norm, layer_norm_decoder
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.models.rope import Rope, layer_ropes
from pumice.models.rows import fused_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(ModelArchConfig):
    two_norms: bool  # one for each branch
    sequential: bool = False  # the MLP reads what attention has added to
    alibi: bool = False  # instead of a rope


def layers(cfg: FalconConfig) -> list[Block]:
    """Attention and an MLP side by side; GGUF files have all of q, then k, then v."""
    attention = HeadwiseAttention if cfg.source == "hf" else Attention
    # The distances are added before the scores are scaled.
    slopes = [slope * cfg.head_dim**-0.5 for slope in alibi_slopes(cfg.heads)] if cfg.alibi else None

    def block(layer: int, rope: Rope | None) -> Block:
        mixer, ffn_norm = attention(cfg, layer, rope, slopes=slopes), layer_norm(cfg) if cfg.two_norms else None
        kind = Block if cfg.sequential else ParallelBlock
        return kind(mixer, FeedForward(cfg), mixer_norm=layer_norm(cfg), ffn_norm=ffn_norm)

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> FalconConfig:
    heads, hidden = c.whole("num_attention_heads"), c.whole("n_embed", c.whole("hidden_size"))
    grouped = c.flag("new_decoder_architecture")
    several = c.whole("num_kv_heads", heads) if grouped else heads
    bias, head_dim, alibi = c.flag("bias"), max(hidden // heads, 1), c.flag("alibi")
    # The newer models are side by side, whatever this says.
    sequential = not grouped and not c.flag("parallel_attn", True)
    norms = c.whole("num_ln_in_parallel_attn", 2) if grouped else 1
    c = c.with_defaults(intermediate_size=c.whole("ffn_hidden_size", 4 * hidden))
    return hf.decoder_config(
        c,
        "falcon",
        FalconConfig,
        hidden=hidden,
        head_dim=head_dim,
        kv_heads=several if grouped or not c.flag("multi_query", True) else 1,
        norm_eps=c.positive("layer_norm_epsilon", 1e-5),
        activation=hf.activation(c, "activation", "gelu"),
        fused_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        rope=None if alibi else hf.rope_config(c, head_dim),
        two_norms=sequential or norms == 2,
        sequential=sequential,
        alibi=alibi,
        tie_embeddings=c.flag("tie_word_embeddings", True),
    )


def read_gguf(g: GgufFields) -> FalconConfig:
    two = "blk.0.attn_norm_2.weight" in g.tensors
    return gguf.decoder_config(g, "falcon", FalconConfig, layer_norm=True, activation="gelu", two_norms=two)


_INNER = {
    "mixer.qkv": "self_attention.query_key_value",
    "mixer.o": "self_attention.dense",
    "ffn.up": "mlp.dense_h_to_4h",
    "ffn.down": "mlp.dense_4h_to_h",
}


def _names(cfg: FalconConfig) -> TensorNames:
    """The only norm has another name than each of two has; in GGUF files the first of two is that of the MLP."""
    side_by_side = cfg.two_norms and not cfg.sequential
    norms = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if side_by_side:
        norms = {"mixer_norm": "ln_attn", "ffn_norm": "ln_mlp"}
    return TensorNames(
        {"embed": "word_embeddings", "norm": "ln_f"},
        {**_INNER, **norms},
        layer="h.{}.",
        prefixes=("transformer.", ""),
        gguf={"mixer_norm": ("attn_norm_2",), "ffn_norm": ("attn_norm",)} if side_by_side else {},
    )


def _gguf_entries(cfg: FalconConfig) -> dict[str, Any]:
    return {"tensor_data_layout": "jploski"}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 65_024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "max_position_embeddings": 2048,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=layer_norm_decoder,
    names=_names,
    gguf_entries=_gguf_entries,
    gguf_rows={"mixer.qkv": lambda cfg: fused_rows(cfg.kv_heads, cfg.head_dim, cfg.heads // cfg.kv_heads)},
)
