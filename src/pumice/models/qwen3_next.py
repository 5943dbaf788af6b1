"""Qwen 3 Next: gated delta nets in most layers, attention with a gated result in the others, experts in all or some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.errors import FormatError
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention, LayerContext
from pumice.models.blocks import Block, Decoder, Mixer, gated_mlp
from pumice.models.experts import ExpertsConfig, gguf_sizes, hf_sizes, mixture, sparse_layers
from pumice.models.gemma2 import gemma_norm
from pumice.models.gguf import GgufFields
from pumice.models.memory import MemorySpec, Recurrent, State
from pumice.models.qwen2_moe import NAMES, shared_gguf_entries
from pumice.models.recurrent import CausalConvolution, only_real, recalled, starts
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor

# Keys and queries are divided by √(their squares' sum + this).
_UNIT_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextConfig(ExpertsConfig):
    attends: tuple[bool, ...]  # for each layer whether it has attention instead of a delta net
    key_heads: int  # of delta nets, each for as many value heads side by side
    value_heads: int
    key_size: int  # of a delta net's head
    value_size: int
    taps: int  # tokens that a convolution sees, counting the newest
    parts: bool = False  # whether a file has the projection of q, k and v, and that of the gate, apart

    def __post_init__(self) -> None:
        ExpertsConfig.__post_init__(self)
        if len(self.attends) != self.layers:
            raise FormatError(f"the config describes {len(self.attends)} layers, the model has {self.layers}")
        if self.value_heads % self.key_heads:
            raise FormatError(
                f"the {self.value_heads} value heads of delta nets are no multiple of the {self.key_heads} key heads",
                value_heads=self.value_heads,
                key_heads=self.key_heads,
            )


class GatedAttention(Attention):
    """Attention whose result is multiplied by the sigmoid of a gate; a head's rows of `q` are its query's, then its gate's."""

    def __init__(self, cfg: Qwen3NextConfig, layer: int, rope: Rope | None) -> None:
        super().__init__(cfg, layer, rope, head_norm=partial(gemma_norm, cfg))
        self.q = nn.Linear(cfg.hidden, 2 * cfg.heads * cfg.head_dim, cfg.qkv_bias)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        both = F.reshape(self.q(x), (*x.shape[:2], self.heads, 2 * self.head_dim))
        q, gate = both[..., : self.head_dim], both[..., self.head_dim :]
        k, v = (self.by_head(projection(x), self.kv_heads) for projection in (self.k, self.v))
        q, k = self.normed(q, k)
        mixed: Tensor = self.o(self.attended(q, k, v, context) * F.sigmoid(F.reshape(gate, (*x.shape[:2], -1))))
        return mixed


class DeltaNet(nn.Module):
    """norm(delta net(silu(conv(q, k, v)))) · silu(gate); keys and queries have unit length.

    Rows of `into` go by key head: its query, its key, the values that it serves, and their gates; those of `rates` likewise,
    learning rates and then decays. Some GGUF files have `qkv`, all queries, keys and values, and `gate` apart.
    """

    a: Any
    dt_bias: Any

    def __init__(self, cfg: Qwen3NextConfig) -> None:
        self.key_heads, self.heads, self.key_size, self.value_size = cfg.key_heads, cfg.value_heads, cfg.key_size, cfg.value_size
        self.keys, self.values = cfg.key_heads * cfg.key_size, cfg.value_heads * cfg.value_size
        self.stored_log, self.parts = cfg.source == "hf", cfg.parts
        self.state = State("delta", (cfg.value_heads, cfg.key_size, cfg.value_size))
        mixed = 2 * self.keys + self.values
        if cfg.parts:
            self.qkv, self.gate = (nn.Linear(cfg.hidden, size, bias=False) for size in (mixed, self.values))
        else:
            self.into = nn.Linear(cfg.hidden, mixed + self.values, bias=False)
        self.rates = nn.Linear(cfg.hidden, 2 * cfg.value_heads, bias=False)
        self.conv = CausalConvolution(cfg, mixed, cfg.taps)
        self.dt_bias, self.a = nn.Parameter(cfg.value_heads), nn.Parameter(cfg.value_heads)
        self.norm = nn.RMSNorm(cfg.value_size, cfg.norm_eps)
        self.out = nn.Linear(self.values, cfg.hidden, bias=False)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return Recurrent(self.conv.state), Recurrent(self.state)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        tokens = x.shape[:2]
        mixed, gate = self._projected(x)
        q, k, v = F.split(F.silu(self.conv(mixed, context)), [self.keys, 2 * self.keys], axis=2)
        q, k = (_unit(F.reshape(t, (*tokens, self.key_heads, self.key_size))) for t in (q, k))
        rate, step = self._by_key_head(self.rates(x), 2)
        a = F.astype(self.a, "f32")
        decay = (-F.exp(a) if self.stored_log else a) * F.softplus(step + F.astype(self.dt_bias, "f32"))
        y, last = F.gated_delta_net(
            q,
            k,
            F.reshape(v, (*tokens, self.heads, self.value_size)),
            only_real(context, decay),
            only_real(context, F.sigmoid(rate)),
            recalled(context, self.state, tokens[0]),
            starts(context),
        )
        context.keep(self.state, last)
        gated = F.reshape(self.norm(y), (*tokens, self.values)) * F.silu(gate)
        found: Tensor = self.out(gated)
        return found

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All queries, then all keys, then all values [B, T, …], and the gates [B, T, values]."""
        if self.parts:
            return self.qkv(x), self.gate(x)
        each, served = self.key_size, self.values // self.key_heads
        by_head = F.reshape(self.into(x), (*x.shape[:2], self.key_heads, 2 * (each + served)))
        q, k, v, gate = F.split(by_head, [each, 2 * each, 2 * each + served], axis=3)
        q, k, v, gate = (F.reshape(t, (*x.shape[:2], -1)) for t in (q, k, v, gate))
        return F.concatenate([q, k, v], axis=2), gate

    def _by_key_head(self, x: Tensor, parts: int) -> list[Tensor]:
        """The parts [B, T, heads] of which each key head has those of its value heads together."""
        by_head = F.reshape(x, (*x.shape[:2], self.key_heads, parts, self.heads // self.key_heads))
        return [F.reshape(by_head[:, :, :, part], (*x.shape[:2], self.heads)) for part in range(parts)]


def _unit(x: Tensor) -> Tensor:
    return x * F.rsqrt(F.sum(F.square(x), axis=-1, keepdims=True) + _UNIT_EPS)


def layers(cfg: Qwen3NextConfig) -> list[Block]:
    """Attention or a delta net, and experts or a gated MLP, each behind a norm."""
    norm = partial(gemma_norm, cfg, cfg.hidden)

    def block(layer: int, rope: Rope | None) -> Block:
        mixer: Mixer = GatedAttention(cfg, layer, rope) if cfg.attends[layer] else DeltaNet(cfg)
        ffn = gated_mlp(cfg) if layer in cfg.dense_layers else mixture(cfg)
        return Block(mixer, ffn, mixer_norm=norm(), ffn_norm=norm())

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def _decoder(cfg: Qwen3NextConfig, layers: Sequence[Block]) -> Decoder:
    return Decoder(cfg, layers, gemma_norm(cfg, cfg.hidden))


def _attends(c: Fields) -> tuple[bool, ...]:
    kinds = c.texts("layer_types")
    known = {"full_attention": True, "linear_attention": False}
    for kind in kinds:
        if kind not in known:
            raise c.refuse(f"a layer of type {kind!r:.60}", "supported: " + " ".join(known))
    every = c.whole("full_attention_interval", 4)
    return tuple(known[kind] for kind in kinds) or tuple((i + 1) % every == 0 for i in range(hf.layer_count(c)))


def read_hf(c: Fields) -> Qwen3NextConfig:
    bias, head_dim = c.flag("attention_bias"), c.whole("head_dim")
    if hf.activation(c, "hidden_act", "silu") != "silu":
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: silu")
    return hf.decoder_config(
        c,
        "qwen3_next",
        Qwen3NextConfig,
        rope=hf.rope_config(c, head_dim, part=0.25),
        qkv_bias=bias,
        out_bias=bias,
        normalised=c.flag("norm_topk_prob", True),
        shared_hidden=c.whole("shared_expert_intermediate_size"),
        shared_gate=True,
        dense_layers=sparse_layers(c),
        attends=_attends(c),
        key_heads=c.whole("linear_num_key_heads"),
        value_heads=c.whole("linear_num_value_heads"),
        key_size=c.whole("linear_key_head_dim"),
        value_size=c.whole("linear_value_head_dim"),
        taps=c.whole("linear_conv_kernel_dim"),
        **hf_sizes(c, "num_experts"),
    )


def read_gguf(g: GgufFields) -> Qwen3NextConfig:
    every, count = g.whole("full_attention_interval", 4), gguf.layer_count(g)
    heads, inner = g.whole("ssm.time_step_rank"), g.whole("ssm.inner_size")
    if inner % heads:
        raise g.refuse(f"an ssm.inner_size of {inner} for {heads} heads")
    return gguf.decoder_config(
        g,
        "qwen3_next",
        Qwen3NextConfig,
        # In layers without attention these are tensors of the delta net.
        fused_qkv=False,
        qkv_bias=any(name.endswith("attn_q.bias") for name in g.tensors),
        out_bias=any(name.endswith("attn_output.bias") for name in g.tensors),
        parts=any(name.endswith("attn_qkv.weight") for name in g.tensors),
        normalised=True,
        shared_hidden=g.uniform("expert_shared_feed_forward_length"),
        shared_gate=True,
        attends=tuple((i + 1) % every == 0 for i in range(count)),
        key_heads=g.whole("ssm.group_count"),
        value_heads=heads,
        key_size=g.whole("ssm.state_size"),
        value_size=inner // heads,
        taps=g.whole("ssm.conv_kernel"),
        **gguf_sizes(g),
    )


def _gguf_entries(cfg: Qwen3NextConfig) -> dict[str, Any]:
    return {
        **shared_gguf_entries(cfg),
        "full_attention_interval": cfg.attends.index(True) + 1 if True in cfg.attends else cfg.layers + 1,
        "ssm.conv_kernel": cfg.taps,
        "ssm.state_size": cfg.key_size,
        "ssm.group_count": cfg.key_heads,
        "ssm.time_step_rank": cfg.value_heads,
        "ssm.inner_size": cfg.value_heads * cfg.value_size,
    }


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=_decoder,
    names=replace(
        NAMES,
        inner={
            **NAMES.inner,
            "mixer.into": "linear_attn.in_proj_qkvz",
            "mixer.rates": "linear_attn.in_proj_ba",
            "mixer.conv": "linear_attn.conv1d",
            "mixer.a": "linear_attn.A_log",
            "mixer.dt_bias": "linear_attn.dt_bias",
            "mixer.norm": "linear_attn.norm",
            "mixer.out": "linear_attn.out_proj",
        },
        gguf={
            "ffn_norm": ("post_attention_norm",),
            "mixer.into": ("ssm_in",),
            "mixer.qkv": ("attn_qkv",),
            "mixer.gate": ("attn_gate",),
            "mixer.rates": ("ssm_ba",),
            "mixer.conv": ("ssm_conv1d",),
            "mixer.a": ("ssm_a",),
            "mixer.dt_bias": ("ssm_dt.bias",),
            "mixer.norm": ("ssm_norm",),
            "mixer.out": ("ssm_out",),
        },
        whole=("mixer.a", "mixer.dt_bias"),
    ),
    # A small model beside it that guesses several tokens ahead.
    ignored=(r"mtp\..*",),
    gguf_entries=_gguf_entries,
    gguf_values={"mixer.a": lambda log: -np.exp(log)},
)
