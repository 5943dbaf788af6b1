"""Mamba: layers of a short convolution and a selective scan, without attention and without MLPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import LayerContext
from pumice.models.blocks import Block, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.memory import MemorySpec, Recurrent, State
from pumice.models.params import TensorNames
from pumice.models.recurrent import CausalConvolution, only_real, recalled, starts
from pumice.tensor import Tensor

# Nothing in these models depends on positions; files of llama.cpp state this length too.
LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig(ModelArchConfig):
    inner: int  # channels
    size: int  # of each channel's state
    rank: int  # of the projection to time steps
    taps: int  # tokens that a convolution sees, counting the newest
    conv_bias: bool = True
    linear_bias: bool = False
    mixer_eps: float | None = None  # of norms without weights over time steps, b and c


class SelectiveScan(nn.Module):
    """silu(gate) · scan(silu(conv(u))), for two projections u and gate of x; u also decides about time steps, b and c."""

    a: Any
    d: Any

    def __init__(self, cfg: MambaConfig) -> None:
        self.inner, self.rank, self.eps = cfg.inner, cfg.rank, cfg.mixer_eps
        self.stored_log = cfg.source == "hf"
        self.state = State("ssm", (cfg.inner, cfg.size))
        self.into = nn.Linear(cfg.hidden, 2 * cfg.inner, cfg.linear_bias)
        self.conv = CausalConvolution(cfg, cfg.inner, cfg.taps, cfg.conv_bias)
        self.x = nn.Linear(cfg.inner, cfg.rank + 2 * cfg.size, bias=False)
        self.dt = nn.Linear(cfg.rank, cfg.inner)
        self.a = nn.Parameter((cfg.inner, cfg.size))
        self.d = nn.Parameter(cfg.inner)
        self.out = nn.Linear(cfg.inner, cfg.hidden, cfg.linear_bias)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return Recurrent(self.conv.state), Recurrent(self.state)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        projected = self.into(x)
        u = F.silu(self.conv(projected[..., : self.inner], context))
        size = self.state.shape[1]
        time, b, c = self.normed(*F.split(self.x(u), [self.rank, self.rank + size], axis=2))
        delta = only_real(context, F.softplus(self.dt(time)))
        a = F.astype(self.a, "f32")
        y, last = F.selective_scan(
            u,
            delta,
            -F.exp(a) if self.stored_log else a,
            b,
            c,
            d=F.astype(self.d, "f32"),
            z=projected[..., self.inner :],
            state=recalled(context, self.state, x.shape[0]),
            starts=starts(context),
        )
        context.keep(self.state, last)
        mixed: Tensor = self.out(y)
        return mixed

    def normed(self, time: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What decides about time steps, b and c, through norms where the model has them."""
        if self.eps is None:
            return time, b, c
        return F.rms_norm(time, eps=self.eps), F.rms_norm(b, eps=self.eps), F.rms_norm(c, eps=self.eps)


def layers(cfg: MambaConfig) -> list[Block]:
    """A selective scan behind a norm."""
    return [Block(SelectiveScan(cfg), mixer_norm=rms_norm(cfg)) for _ in range(cfg.layers)]


def read_hf(c: Fields, model_type: str = "mamba", **changes: Any) -> MambaConfig:
    hidden = c.whole("hidden_size")
    # Where both are stated transformers takes the number of channels itself, whatever the factor says.
    inner = c.whole("intermediate_size", int(c.positive("expand") * hidden))
    rank = -(-hidden // 16) if c.get("time_step_rank") == "auto" else c.whole("time_step_rank")
    if c.text("hidden_act") not in ("silu", "swish"):
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: silu")
    return MambaConfig(
        model_type=model_type,
        source="hf",
        hidden=hidden,
        layers=hf.layer_count(c),
        heads=1,
        kv_heads=1,
        head_dim=1,
        intermediate=inner,
        vocab=c.whole("vocab_size"),
        max_positions=LONGEST,
        norm_eps=c.positive("layer_norm_epsilon"),
        activation="silu",
        windows=(None,) * hf.layer_count(c),
        tie_embeddings=c.flag("tie_word_embeddings", True),
        inner=inner,
        size=c.whole("state_size"),
        rank=rank,
        taps=c.whole("conv_kernel"),
        conv_bias=c.flag("use_conv_bias", True),
        linear_bias=c.flag("use_bias"),
        **changes,
    )


def without_heads(g: GgufFields) -> GgufFields:
    """The metadata with what files of models without attention say 0 of."""
    missing = {"attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": 1, "attention.value_length": 1}
    missing["feed_forward_length"] = g.whole("ssm.inner_size")
    arch = g.prefix.removesuffix(".")
    return GgufFields({**g.values, **{g.prefix + name: value for name, value in missing.items()}}, g.tensors, arch)


def read_gguf(g: GgufFields) -> MambaConfig:
    found = without_heads(g)
    # Files have norms of time steps, b and c by Falcon Mamba, with the eps of all others.
    normed = bool(g.get("ssm.dt_b_c_rms"))
    return gguf.decoder_config(
        found,
        "mamba",
        MambaConfig,
        rope=None,
        inner=g.whole("ssm.inner_size"),
        size=g.whole("ssm.state_size"),
        rank=g.whole("ssm.time_step_rank"),
        taps=g.whole("ssm.conv_kernel"),
        conv_bias="blk.0.ssm_conv1d.bias" in g.tensors,
        linear_bias="blk.0.ssm_in.bias" in g.tensors,
        mixer_eps=g.positive("attention.layer_norm_rms_epsilon") if normed else None,
    )


def gguf_entries(cfg: MambaConfig) -> dict[str, Any]:
    """What a file says of the scans; there are no heads and no MLPs."""
    none = dict.fromkeys(("attention.head_count", "attention.head_count_kv", "feed_forward_length"), 0)
    return none | {
        "attention.key_length": None,
        "attention.value_length": None,
        "ssm.inner_size": cfg.inner,
        "ssm.state_size": cfg.size,
        "ssm.time_step_rank": cfg.rank,
        "ssm.conv_kernel": cfg.taps,
        "ssm.dt_b_c_rms": cfg.mixer_eps is not None,
    }


DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "hidden_act": "silu",
    "time_step_rank": "auto",
}
NAMES = TensorNames(
    {"embed": "embeddings", "norm": "norm_f"},
    {
        "mixer_norm": "norm",
        "mixer.into": "mixer.in_proj",
        "mixer.conv": "mixer.conv1d",
        "mixer.x": "mixer.x_proj",
        "mixer.dt": "mixer.dt_proj",
        "mixer.a": "mixer.A_log",
        "mixer.d": "mixer.D",
        "mixer.out": "mixer.out_proj",
    },
    prefixes=("backbone.", ""),
    gguf={
        "mixer.into": ("ssm_in",),
        "mixer.conv": ("ssm_conv1d",),
        "mixer.x": ("ssm_x",),
        "mixer.dt": ("ssm_dt",),
        "mixer.a": ("ssm_a",),
        "mixer.d": ("ssm_d",),
        "mixer.out": ("ssm_out",),
    },
    whole=("mixer.a", "mixer.d"),
)
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    names=NAMES,
    gguf_entries=gguf_entries,
    gguf_values={"mixer.a": lambda log: -np.exp(log)},
)
