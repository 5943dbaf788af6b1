"""Mamba-2: layers of a short convolution and a recurrence with one decay a head, without attention and without MLPs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.errors import FormatError
from pumice.models import gguf, hf, mamba
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import LayerContext
from pumice.models.blocks import Block, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.mamba import LONGEST, without_heads
from pumice.models.memory import MemorySpec, Recurrent, State
from pumice.models.recurrent import CausalConvolution, only_real, recalled, starts
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config(ModelArchConfig):
    ssm_heads: int
    ssm_head_dim: int
    groups: int  # of b and c, each for as many heads side by side
    size: int  # of the state of each entry of a head
    taps: int  # tokens that a convolution sees, counting the newest
    norm_groups: int = 1  # parts of the gated result that are normed for themselves
    conv_bias: bool = True
    linear_bias: bool = False

    def __post_init__(self) -> None:
        ModelArchConfig.__post_init__(self)
        if self.ssm_heads % self.groups:
            raise FormatError(f"the {self.ssm_heads} heads are no multiple of the {self.groups} groups")

    @property
    def inner(self) -> int:
        return self.ssm_heads * self.ssm_head_dim


class HeadScan(nn.Module):
    """norm(scan(silu(conv(u, b, c))) · silu(gate)); gate, u, b, c and the time steps are one projection of x."""

    a: Any
    d: Any
    dt_bias: Any

    def __init__(self, cfg: Mamba2Config) -> None:
        self.heads, self.head_dim, self.groups, self.size = cfg.ssm_heads, cfg.ssm_head_dim, cfg.groups, cfg.size
        self.inner, self.norm_groups, self.stored_log = cfg.inner, cfg.norm_groups, cfg.source == "hf"
        self.state = State("ssm", (cfg.ssm_heads, cfg.size, cfg.ssm_head_dim))
        channels = cfg.inner + 2 * cfg.groups * cfg.size
        self.into = nn.Linear(cfg.hidden, cfg.inner + channels + cfg.ssm_heads, cfg.linear_bias)
        self.conv = CausalConvolution(cfg, channels, cfg.taps, cfg.conv_bias)
        self.dt_bias = nn.Parameter(cfg.ssm_heads)
        # GGUF files have these as columns, and the norm's weight by group.
        each = (cfg.ssm_heads,) if self.stored_log else (cfg.ssm_heads, 1)
        self.a, self.d = nn.Parameter(each), nn.Parameter(each)
        self.norm = GatedNorm(cfg)
        self.out = nn.Linear(cfg.inner, cfg.hidden, cfg.linear_bias)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return Recurrent(self.conv.state), Recurrent(self.state)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        batch, time = x.shape[:2]
        shared = self.groups * self.size
        gate, mixed, steps = F.split(self.into(x), [self.inner, 2 * self.inner + 2 * shared], axis=2)
        u, b, c = F.split(F.silu(self.conv(mixed, context)), [self.inner, self.inner + shared], axis=2)
        delta = only_real(context, F.softplus(steps + F.astype(self.dt_bias, "f32")))
        a, d = (F.reshape(F.astype(p, "f32"), (self.heads,)) for p in (self.a, self.d))
        y, last = F.ssd(
            F.reshape(u, (batch, time, self.heads, self.head_dim)),
            delta,
            -F.exp(a) if self.stored_log else a,
            F.reshape(b, (batch, time, self.groups, self.size)),
            F.reshape(c, (batch, time, self.groups, self.size)),
            d,
            recalled(context, self.state, batch),
            starts(context),
        )
        context.keep(self.state, last)
        found: Tensor = self.out(self.norm(F.reshape(y, (batch, time, self.inner)), gate))
        return found


class GatedNorm(nn.Module):
    """The norm of y · silu(gate), over all of it or over each of its groups."""

    weight: Any

    def __init__(self, cfg: Mamba2Config) -> None:
        self.groups, self.eps, self.inner = cfg.norm_groups, cfg.norm_eps, cfg.inner
        by_group = (cfg.norm_groups, cfg.inner // cfg.norm_groups)
        self.weight = nn.Parameter((cfg.inner,) if cfg.source == "hf" else by_group, init=nn.init.ones())

    def forward(self, y: Tensor, gate: Tensor) -> Tensor:
        gated = F.reshape(y * F.silu(gate), (*y.shape[:2], self.groups, self.inner // self.groups))
        weight = F.reshape(F.astype(self.weight, "f32"), (self.inner,))
        return F.reshape(F.rms_norm(gated, eps=self.eps), y.shape) * weight


def layers(cfg: Mamba2Config) -> list[Block]:
    """A recurrence behind a norm."""
    return [Block(HeadScan(cfg), mixer_norm=rms_norm(cfg)) for _ in range(cfg.layers)]


def check_time_steps(c: Fields) -> None:
    """Refuses bounds of time steps: no published model has any."""
    limits = c.get("time_step_limit")
    # JSON has no infinity: transformers writes it as a word of its own, or in an object.
    if limits not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise c.refuse(f"a time_step_limit of {limits!r:.60}")


def read_hf(c: Fields) -> Mamba2Config:
    check_time_steps(c)
    hidden = c.whole("hidden_size")
    heads, head_dim = c.whole("num_heads"), c.whole("head_dim")
    if int(c.positive("expand") * hidden) != heads * head_dim:
        raise c.refuse(f"{heads} heads of {head_dim}, which are not expand times hidden_size")
    if c.text("hidden_act") not in ("silu", "swish"):
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: silu")
    return Mamba2Config(
        model_type="mamba2",
        source="hf",
        hidden=hidden,
        layers=hf.layer_count(c),
        heads=1,
        kv_heads=1,
        head_dim=head_dim,
        intermediate=heads * head_dim,
        vocab=c.whole("vocab_size"),
        max_positions=LONGEST,
        norm_eps=c.positive("layer_norm_epsilon"),
        activation="silu",
        windows=(None,) * hf.layer_count(c),
        tie_embeddings=c.flag("tie_word_embeddings"),
        ssm_heads=heads,
        ssm_head_dim=head_dim,
        groups=c.whole("n_groups"),
        size=c.whole("state_size"),
        taps=c.whole("conv_kernel"),
        conv_bias=c.flag("use_conv_bias", True),
        linear_bias=c.flag("use_bias"),
    )


def read_gguf(g: GgufFields) -> Mamba2Config:
    heads, inner, groups = g.whole("ssm.time_step_rank"), g.whole("ssm.inner_size"), g.whole("ssm.group_count")
    if inner % heads or inner % groups:
        raise g.refuse(f"an ssm.inner_size of {inner} for {heads} heads in {groups} groups")
    return gguf.decoder_config(
        without_heads(g),
        "mamba2",
        Mamba2Config,
        rope=None,
        head_dim=inner // heads,
        ssm_heads=heads,
        ssm_head_dim=inner // heads,
        groups=groups,
        norm_groups=groups,
        size=g.whole("ssm.state_size"),
        taps=g.whole("ssm.conv_kernel"),
        conv_bias="blk.0.ssm_conv1d.bias" in g.tensors,
        linear_bias="blk.0.ssm_in.bias" in g.tensors,
    )


def _gguf_entries(cfg: Mamba2Config) -> dict[str, Any]:
    none = dict.fromkeys(("attention.head_count", "attention.head_count_kv", "feed_forward_length"), 0)
    return none | {
        "attention.key_length": None,
        "attention.value_length": None,
        "ssm.inner_size": cfg.inner,
        "ssm.state_size": cfg.size,
        "ssm.time_step_rank": cfg.ssm_heads,
        "ssm.group_count": cfg.groups,
        "ssm.conv_kernel": cfg.taps,
    }


_DEFAULTS: dict[str, Any] = {
    **mamba.DEFAULTS,
    "vocab_size": 32_768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
}
INNER_NAMES = {
    "mixer.into": "in_proj",
    "mixer.conv": "conv1d",
    "mixer.a": "A_log",
    "mixer.d": "D",
    "mixer.dt_bias": "dt_bias",
    "mixer.norm": "norm",
    "mixer.out": "out_proj",
}
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    names=replace(
        mamba.NAMES,
        inner={"mixer_norm": "norm", **{role: f"mixer.{name}" for role, name in INNER_NAMES.items()}},
        gguf={**mamba.NAMES.gguf, "mixer.dt_bias": ("ssm_dt.bias",), "mixer.norm": ("ssm_norm",)},
        whole=("mixer.a", "mixer.d", "mixer.dt_bias"),
    ),
    gguf_entries=_gguf_entries,
    gguf_values={"mixer.a": lambda log: -np.exp(log)},
)
