"""StableLM 2 and 3B: llama with layer norms and partial rope; attention and MLP may stand side by side behind one norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, HeadNormedAttention
from pumice.models.blocks import Block, ParallelBlock, gated_mlp, layer_norm, layer_norm_decoder
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes


@dataclass(frozen=True, slots=True, kw_only=True)
class StableLmConfig(ModelArchConfig):
    parallel_residual: bool
    head_norms: bool = False  # of queries and keys


def layers(cfg: StableLmConfig) -> list[Block]:
    """Attention and a gated MLP, in turn or side by side."""

    def block(layer: int, rope: Rope | None) -> Block:
        attention = HeadNormedAttention(cfg, layer, rope) if cfg.head_norms else Attention(cfg, layer, rope)
        if cfg.parallel_residual:
            return ParallelBlock(attention, gated_mlp(cfg), mixer_norm=layer_norm(cfg))
        return Block(attention, gated_mlp(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> StableLmConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    return hf.decoder_config(
        c,
        "stablelm",
        StableLmConfig,
        head_dim=head_dim,
        norm_eps=c.positive("layer_norm_eps", 1e-5),
        qkv_bias=c.flag("use_qkv_bias"),
        rope=hf.rope_config(c, head_dim, part=0.25),
        parallel_residual=c.flag("use_parallel_residual"),
        head_norms=c.flag("qk_layernorm"),
    )


def read_gguf(g: GgufFields) -> StableLmConfig:
    parallel, norms = "blk.0.ffn_norm.weight" not in g.tensors, "blk.0.attn_q_norm.weight" in g.tensors
    return gguf.decoder_config(g, "stablelm", StableLmConfig, layer_norm=True, parallel_residual=parallel, head_norms=norms)


def _gguf_entries(cfg: StableLmConfig) -> dict[str, Any]:
    return {"use_parallel_residual": cfg.parallel_residual}


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 50_304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=layer_norm_decoder,
    names=replace(
        LLAMA_NAMES,
        # The norm of each head is a module of its own.
        inner={
            **LLAMA_NAMES.inner,
            "mixer.q_norm": "self_attn.q_layernorm.norms.{}",
            "mixer.k_norm": "self_attn.k_layernorm.norms.{}",
        },
    ),
    gguf_entries=_gguf_entries,
)
