"""Bamba: recurrences of Mamba-2 in most layers, attention in the others, each with a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Mixer, gated_mlp, rms_norm
from pumice.models.mamba2 import INNER_NAMES, HeadScan, Mamba2Config, check_time_steps
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes


@dataclass(frozen=True, slots=True, kw_only=True)
class BambaConfig(Mamba2Config):
    attends: tuple[bool, ...]  # for each layer whether it has attention


def layers(cfg: BambaConfig) -> list[Block]:
    """A recurrence or attention, and a gated MLP, each behind a norm."""

    def mixer(layer: int, rope: Rope | None) -> Mixer:
        return Attention(cfg, layer, rope) if cfg.attends[layer] else HeadScan(cfg)

    return [
        Block(mixer(i, rope), gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> BambaConfig:
    check_time_steps(c)
    hidden, count = c.whole("hidden_size"), hf.layer_count(c)
    heads, inner = c.whole("mamba_n_heads"), int(c.positive("mamba_expand") * hidden)
    size = inner // heads if c.get("mamba_d_head") == "auto" else c.whole("mamba_d_head")
    if size * heads != inner:
        raise c.refuse(f"{heads} heads of {size}, which are not mamba_expand times hidden_size")
    # transformers has it behind the convolutions too.
    if hf.activation(c, "hidden_act", "silu") != "silu":
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: silu")
    # Half of a head turns unless the rope's own entries say otherwise: transformers overrules an entry beside them.
    rope = hf.rope_config(Fields({**c.values, "partial_rotary_factor": None}, c.origin), hf.head_size(c), part=0.5)
    listed = c.items("attn_layer_indices") if c.has("attn_layer_indices") else []
    bias = c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "bamba",
        BambaConfig,
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        attends=tuple(i in listed for i in range(count)),
        ssm_heads=heads,
        ssm_head_dim=size,
        groups=c.whole("mamba_n_groups"),
        size=c.whole("mamba_d_state"),
        taps=c.whole("mamba_d_conv"),
        conv_bias=c.flag("mamba_conv_bias", True),
        linear_bias=c.flag("mamba_proj_bias"),
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 128_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_FEED_FORWARD = {f"ffn.{role}": f"feed_forward.{role}_proj" for role in ("gate", "up", "down")}

ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    layers=layers,
    names=replace(
        LLAMA_NAMES,
        outer={"embed": "embed_tokens", "norm": "final_layernorm"},
        inner={
            **LLAMA_NAMES.inner,
            **{role: f"mamba.{name}" for role, name in INNER_NAMES.items()},
            **_FEED_FORWARD,
            "ffn_norm": "pre_ff_layernorm",
        },
        whole=("mixer.a", "mixer.d", "mixer.dt_bias"),
    ),
)
