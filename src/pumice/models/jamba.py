"""Jamba: selective scans in most layers, attention without positions in the others, experts or a gated MLP in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pumice import nn
from pumice.core.fields import Fields
from pumice.errors import FormatError
from pumice.models import gguf, hf, mamba
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Mixer, gated_mlp, rms_norm
from pumice.models.gguf import GgufFields
from pumice.models.mamba import MambaConfig, SelectiveScan
from pumice.models.params import LLAMA_NAMES
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class JambaConfig(MambaConfig):
    attends: tuple[bool, ...]  # for each layer whether it has attention instead of a scan
    routes: tuple[bool, ...]  # for each layer whether it has experts instead of one MLP
    experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        MambaConfig.__post_init__(self)
        for described in (self.attends, self.routes):
            if len(described) != self.layers:
                raise FormatError(f"the config describes {len(described)} layers, the model has {self.layers}")


class NormedScan(SelectiveScan):
    """A selective scan with norms of what decides about time steps, b and c."""

    def __init__(self, cfg: JambaConfig) -> None:
        super().__init__(cfg)
        self.dt_norm = nn.RMSNorm(cfg.rank, cfg.norm_eps)
        self.b_norm, self.c_norm = nn.RMSNorm(cfg.size, cfg.norm_eps), nn.RMSNorm(cfg.size, cfg.norm_eps)

    def normed(self, time: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.dt_norm(time), self.b_norm(b), self.c_norm(c)


def layers(cfg: JambaConfig) -> list[Block]:
    """A scan or attention, and experts or a gated MLP, each behind a norm."""

    def block(layer: int) -> Block:
        mixer: Mixer = Attention(cfg, layer) if cfg.attends[layer] else NormedScan(cfg)
        ffn: nn.Module = gated_mlp(cfg)
        if cfg.routes[layer]:
            router = nn.Router(cfg.hidden, cfg.experts, cfg.experts_per_token)
            ffn = nn.MixtureOfExperts(router, nn.Experts(cfg.experts, cfg.hidden, cfg.intermediate, act=cfg.activation))
        return Block(mixer, ffn, mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(layer) for layer in range(cfg.layers)]


def _every(c: Fields, kind: str) -> tuple[bool, ...]:
    """The layers whose number leaves `offset` when it is divided by `period`."""
    period = c.whole(f"{kind}_layer_period")
    offset = c.whole(f"{kind}_layer_offset", least=0, most=period - 1)
    return tuple(i % period == offset for i in range(hf.layer_count(c)))


def read_hf(c: Fields) -> JambaConfig:
    hidden, count = c.whole("hidden_size"), c.whole("num_experts")
    if hf.activation(c, "hidden_act", "silu") != "silu":
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: silu")
    return hf.decoder_config(
        c,
        "jamba",
        JambaConfig,
        rope=None,
        attends=_every(c, "attn"),
        # One expert is an MLP.
        routes=tuple(routed and count > 1 for routed in _every(c, "expert")),
        experts=count,
        experts_per_token=c.whole("num_experts_per_tok", most=count),
        inner=int(c.positive("mamba_expand") * hidden),
        size=c.whole("mamba_d_state"),
        rank=-(-hidden // 16) if c.get("mamba_dt_rank") == "auto" else c.whole("mamba_dt_rank"),
        taps=c.whole("mamba_d_conv"),
        conv_bias=c.flag("mamba_conv_bias", True),
        linear_bias=c.flag("mamba_proj_bias"),
    )


def read_gguf(g: GgufFields) -> JambaConfig:
    same, attends = gguf.attending_layers(g)
    count = g.whole("expert_count", 1)
    return gguf.decoder_config(
        same,
        "jamba",
        JambaConfig,
        rope=None,
        handled=("expert_count",),
        attends=attends,
        routes=tuple(f"blk.{i}.ffn_gate_inp.weight" in g.tensors for i in range(len(attends))),
        experts=count,
        experts_per_token=g.whole("expert_used_count", 1, most=count),
        inner=g.whole("ssm.inner_size"),
        size=g.whole("ssm.state_size"),
        rank=g.whole("ssm.time_step_rank"),
        taps=g.whole("ssm.conv_kernel"),
        conv_bias=any(name.endswith("ssm_conv1d.bias") for name in g.tensors),
        linear_bias=any(name.endswith("ssm_in.bias") for name in g.tensors),
    )


def _gguf_entries(cfg: JambaConfig) -> dict[str, Any]:
    return {
        "attention.head_count_kv": [cfg.kv_heads if attends else 0 for attends in cfg.attends],
        "expert_count": cfg.experts,
        "expert_used_count": cfg.experts_per_token,
        "ssm.inner_size": cfg.inner,
        "ssm.state_size": cfg.size,
        "ssm.time_step_rank": cfg.rank,
        "ssm.conv_kernel": cfg.taps,
    }


_FEED_FORWARD = {f"ffn.{role}": f"feed_forward.{role}_proj" for role in ("gate", "up", "down")}
_EXPERTS = {f"ffn.experts.{role}": f"feed_forward.experts.{{}}.{role}_proj" for role in ("gate", "up", "down")}
_NORMS = {f"mixer.{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")}
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 65_536,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262_144,
        "num_experts_per_tok": 2,
        "num_experts": 16,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
    },
    read_gguf=read_gguf,
    layers=layers,
    names=replace(
        LLAMA_NAMES,
        outer={"embed": "embed_tokens", "norm": "final_layernorm"},
        inner={
            **LLAMA_NAMES.inner,
            **{role: name.replace("mixer.", "mamba.") for role, name in mamba.NAMES.inner.items() if role != "mixer_norm"},
            **_NORMS,
            **_FEED_FORWARD,
            **_EXPERTS,
            "ffn.router": "feed_forward.router",
            "ffn_norm": "pre_ff_layernorm",
        },
        gguf={**mamba.NAMES.gguf, **{f"mixer.{part}_norm": (f"ssm_{part}_norm",) for part in ("dt", "b", "c")}},
        whole=mamba.NAMES.whole,
    ),
    gguf_entries=_gguf_entries,
    gguf_values=mamba.ARCHITECTURE.gguf_values,
)
