"""LFM2: gated short convolutions in most layers, attention with norms of the heads in the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, LayerContext
from pumice.models.blocks import Block, Mixer, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.memory import MemorySpec, Recurrent
from pumice.models.params import LLAMA_NAMES
from pumice.models.recurrent import CausalConvolution
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2Config(ModelArchConfig):
    convolutions: tuple[bool, ...]  # for each layer whether it has one instead of attention
    taps: int  # tokens that a convolution sees, counting the newest


class ShortConvolution(nn.Module):
    """c · conv(b · v) for three projections b, c and v of x; the convolution sees each element's last few tokens."""

    def __init__(self, cfg: Lfm2Config) -> None:
        self.hidden = cfg.hidden
        self.into = nn.Linear(cfg.hidden, 3 * cfg.hidden, bias=False)
        self.conv = CausalConvolution(cfg, cfg.hidden, cfg.taps)
        self.out = nn.Linear(cfg.hidden, cfg.hidden, bias=False)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return (Recurrent(self.conv.state),)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        projected = self.into(x)
        b, c, v = (projected[..., k * self.hidden : (k + 1) * self.hidden] for k in range(3))
        y: Tensor = self.out(c * self.conv(b * v, context))
        return y


def layers(cfg: Lfm2Config) -> list[Block]:
    """A convolution or attention, and a gated MLP, each behind a norm."""

    def mixer(layer: int, rope: Rope | None) -> Mixer:
        if cfg.convolutions[layer]:
            return ShortConvolution(cfg)
        return Attention(cfg, layer, rope, head_norm=lambda size: nn.RMSNorm(size, cfg.norm_eps))

    return [
        Block(mixer(i, rope), gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> Lfm2Config:
    c.refuse_if("conv_bias")
    count = hf.layer_count(c)
    kinds = c.texts("layer_types")
    for kind in kinds:
        if kind not in ("conv", "full_attention"):
            raise c.refuse(f"a layer of type {kind!r:.60}", "supported: conv full_attention")
    attends = c.items("full_attn_idxs") if c.has("full_attn_idxs") else list(range(count))
    convolutions = tuple(kind == "conv" for kind in kinds) or tuple(i not in attends for i in range(count))
    if len(convolutions) != count:
        raise c.refuse(f"{len(convolutions)} layer_types of {count} layers")
    return hf.decoder_config(
        c,
        "lfm2",
        Lfm2Config,
        intermediate=_intermediate(c),
        norm_eps=c.positive("norm_eps", 1e-5),
        activation="silu",
        rope=hf.rope_config(c, hf.head_size(c), theta=1e6),
        tie_embeddings=c.flag("tie_embedding", c.flag("tie_word_embeddings", True)),
        convolutions=convolutions,
        taps=c.whole("conv_L_cache", 3),
    )


def read_gguf(g: GgufFields) -> Lfm2Config:
    # Layers without key heads have convolutions.
    same, attends = gguf.attending_layers(g)
    convolutions = tuple(not attention for attention in attends)
    return gguf.decoder_config(same, "lfm2", Lfm2Config, convolutions=convolutions, taps=g.whole("shortconv.l_cache"))


def _gguf_entries(cfg: Lfm2Config) -> dict[str, Any]:
    heads = [0 if convolution else cfg.kv_heads for convolution in cfg.convolutions]
    return {"attention.head_count_kv": heads, "shortconv.l_cache": cfg.taps}


def _intermediate(c: Fields) -> int:
    """The size inside the MLPs: two thirds of the one stated, rounded up, unless the file says that it is exact."""
    size = c.whole("block_ff_dim", c.whole("intermediate_size"))
    if not c.flag("block_auto_adjust_ff_dim", True):
        return size
    step = c.whole("block_multiple_of", 256)
    return -(-int(c.positive("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3)) // step) * step


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 65_536,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
}

ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    names=replace(
        LLAMA_NAMES,
        outer={"embed": "embed_tokens", "norm": "embedding_norm"},
        inner={
            "mixer_norm": "operator_norm",
            "mixer.q": "self_attn.q_proj",
            "mixer.k": "self_attn.k_proj",
            "mixer.v": "self_attn.v_proj",
            "mixer.q_norm": "self_attn.q_layernorm",
            "mixer.k_norm": "self_attn.k_layernorm",
            "mixer.o": "self_attn.out_proj",
            "mixer.into": "conv.in_proj",
            "mixer.conv": "conv.conv",
            "mixer.out": "conv.out_proj",
            "ffn_norm": "ffn_norm",
            "ffn.gate": "feed_forward.w1",
            "ffn.up": "feed_forward.w3",
            "ffn.down": "feed_forward.w2",
        },
        gguf={
            "norm": ("token_embd_norm", "output_norm"),
            "mixer.into": ("shortconv.in_proj",),
            "mixer.conv": ("shortconv.conv",),
            "mixer.out": ("shortconv.out_proj",),
        },
    ),
    gguf_entries=_gguf_entries,
)
