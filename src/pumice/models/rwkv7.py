"""RWKV-7: a delta rule with a decay by key in each layer, and MLPs that also see the token before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import LayerContext
from pumice.models.blocks import Block, Decoder, layer_norm, normed
from pumice.models.config import ModelArchConfig
from pumice.models.mamba import LONGEST
from pumice.models.memory import MemorySpec, Recurrent, State
from pumice.models.params import TensorNames
from pumice.models.recurrent import only_real, previous, real_tokens, recalled, starts
from pumice.tensor import Tensor

# The most that a decay's logarithm is below 0: exp(-1/2).
_FASTEST = 0.6065306597126334


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7Config(ModelArchConfig):
    # Ranks of the small MLPs that make the decay, the learning rate, the share of the first layer's values, and the gate.
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int


class Bottleneck(nn.Module):
    """up(act(down(x)))."""

    def __init__(self, width: int, rank: int, act: str | None = None, bias: bool = True) -> None:
        self.down, self.up, self.act = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias), act

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        y: Tensor = self.up(F.tanh(inner) if self.act == "tanh" else F.sigmoid(inner) if self.act == "sigmoid" else inner)
        return y


class TimeMix(nn.Module):
    """The recurrence of a layer; every projection sees its own mixture of a token and the one before.

    Layers after the first mix the first layer's values into theirs.
    """

    x_r: Any
    x_w: Any
    x_k: Any
    x_v: Any
    x_a: Any
    x_g: Any
    k_k: Any
    k_a: Any
    r_k: Any

    def __init__(self, cfg: Rwkv7Config, first: bool) -> None:
        self.heads, self.head_dim, self.hidden = cfg.heads, cfg.head_dim, cfg.hidden
        self.eps = cfg.head_dim * cfg.norm_eps
        self.shift, self.ffn_shift = State("shift", (1, cfg.hidden)), State("ffn_shift", (1, cfg.hidden))
        self.state = State("wkv", (cfg.heads, cfg.head_dim, cfg.head_dim))
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter((1, 1, cfg.hidden)))
        self.k_k, self.k_a = nn.Parameter(cfg.hidden), nn.Parameter(cfg.hidden)
        self.r_k = nn.Parameter((cfg.heads, cfg.head_dim))
        self.r, self.k, self.v, self.o = (nn.Linear(cfg.hidden, cfg.hidden, bias=False) for _ in range(4))
        self.decay = Bottleneck(cfg.hidden, cfg.decay_rank, "tanh")
        self.rate = Bottleneck(cfg.hidden, cfg.rate_rank)
        self.value = None if first else Bottleneck(cfg.hidden, cfg.value_rank)
        self.gate = Bottleneck(cfg.hidden, cfg.gate_rank, "sigmoid", bias=False)
        self.norm = nn.LayerNorm(cfg.hidden)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return Recurrent(self.shift), Recurrent(self.state), Recurrent(self.ffn_shift)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        change = previous(x, context, self.shift) - x
        r, w, k, v, a, g = (x + change * F.astype(getattr(self, f"x_{name}"), "f32") for name in "rwkvag")
        decay = F.exp(-_FASTEST * F.sigmoid(self.decay(w)))
        rate, gate = F.sigmoid(self.rate(a)), self.gate(g)
        keys, values = self.k(k), self.v(v)
        if self.value is None:
            context.shared["first_values"] = values
        else:
            values = values + (context.shared["first_values"] - values) * F.sigmoid(self.value(v))
        removed = self._by_head(keys * F.astype(self.k_k, "f32"))
        removed = removed / F.maximum(F.sqrt(F.sum(F.square(removed), axis=3, keepdims=True)), 1e-12)
        keys = keys * (1 + (rate - 1) * F.astype(self.k_a, "f32"))
        read, keys, values, rate, decay = (self._by_head(t) for t in (self.r(r), keys, values, rate, decay))
        y = self._recurred(read, keys, values, removed, rate, decay, context)
        y = F.reshape(F.layer_norm(y, eps=self.eps), x.shape) * F.astype(self.norm.weight, "f32") + F.astype(
            self.norm.bias, "f32"
        )
        bonus = F.sum(read * keys * F.astype(self.r_k, "f32"), axis=3, keepdims=True) * values
        mixed: Tensor = self.o((y + F.reshape(bonus, x.shape)) * gate)
        return mixed

    def _by_head(self, x: Tensor) -> Tensor:
        return F.reshape(x, (*x.shape[:2], self.heads, self.head_dim))

    def _recurred(
        self, read: Tensor, keys: Tensor, values: Tensor, removed: Tensor, rate: Tensor, decay: Tensor, context: LayerContext
    ) -> Tensor:
        real = real_tokens(context)
        if real is not None:
            decay = F.where(F.reshape(real, (*decay.shape[:2], 1, 1)), decay, 1.0)
        y, last = F.delta_rule(
            read,
            only_real(context, keys),
            values,
            only_real(context, removed * rate),
            -removed,
            decay,
            recalled(context, self.state, read.shape[0]),
            starts(context),
        )
        context.keep(self.state, last)
        return y


class ChannelMix(nn.Module):
    """value(relu(key(x))²), of a mixture of each token and the one before."""

    x_k: Any

    def __init__(self, cfg: Rwkv7Config) -> None:
        self.x_k = nn.Parameter(cfg.hidden)
        self.key = nn.Linear(cfg.hidden, cfg.intermediate, bias=False)
        self.value = nn.Linear(cfg.intermediate, cfg.hidden, bias=False)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        y: Tensor = self.value(F.square(F.relu(self.key(x + (before - x) * F.astype(self.x_k, "f32")))))
        return y


class Rwkv7Block(Block):
    """A block whose feed-forward network sees the token before."""

    mixer: TimeMix

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        x = x + self.mixer(normed(self.mixer_norm, x), context)
        inner = normed(self.ffn_norm, x)
        found: Tensor = x + self.ffn(inner, previous(inner, context, self.mixer.ffn_shift))
        return found


class Rwkv7Decoder(Decoder):
    """A decoder with a norm of what the table gives."""

    def __init__(self, cfg: Rwkv7Config, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        self.embed_norm = layer_norm(cfg)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return normed(self.embed_norm, super().embedded(tokens, positions))


def layers(cfg: Rwkv7Config) -> list[Block]:
    """A recurrence and an MLP, each behind a norm."""
    return [
        Rwkv7Block(TimeMix(cfg, i == 0), ChannelMix(cfg), mixer_norm=layer_norm(cfg), ffn_norm=layer_norm(cfg))
        for i in range(cfg.layers)
    ]


def read_hf(c: Fields) -> Rwkv7Config:
    hidden, count = c.whole("hidden_size"), hf.layer_count(c)
    head_dim = c.whole("head_dim") if c.get("head_dim") is not None else max(hidden // c.whole("num_heads"), 1)
    if hidden % head_dim:
        raise c.refuse(f"a hidden_size of {hidden} for heads of {head_dim}")
    c.refuse_if("attn")
    for name in ("norm_first", "norm_bias"):
        if not c.flag(name, True):
            raise c.refuse(f"{name} = false")
    if c.text("hidden_act") != "sqrelu":
        raise c.refuse(f"hidden_act = {c.text('hidden_act')!r:.60}", "supported: sqrelu")
    if c.get("value_dim") not in (None, hidden, [hidden] * count):
        raise c.refuse(f"a value_dim of {c.get('value_dim')!r:.60}, other than hidden_size")
    wide = int(hidden * c.positive("hidden_ratio")) if c.get("hidden_ratio") is not None else 4 * hidden
    return Rwkv7Config(
        model_type="rwkv7",
        source="hf",
        hidden=hidden,
        layers=count,
        heads=hidden // head_dim,
        kv_heads=hidden // head_dim,
        head_dim=head_dim,
        intermediate=c.whole("intermediate_size") if c.get("intermediate_size") is not None else -(-wide // 32) * 32,
        vocab=c.whole("vocab_size"),
        max_positions=LONGEST,
        norm_eps=c.positive("norm_eps"),
        activation="relu",
        windows=(None,) * count,
        tie_embeddings=c.flag("tie_word_embeddings"),
        decay_rank=c.whole("decay_low_rank_dim"),
        rate_rank=c.whole("a_low_rank_dim"),
        value_rank=c.whole("v_low_rank_dim"),
        gate_rank=c.whole("gate_low_rank_dim"),
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "hidden_ratio": 4,
    "num_hidden_layers": 24,
    "head_dim": 64,
    "decay_low_rank_dim": 64,
    "gate_low_rank_dim": 128,
    "a_low_rank_dim": 64,
    "v_low_rank_dim": 16,
    "hidden_act": "sqrelu",
    "norm_eps": 1e-5,
}
_MIXTURES = tuple(f"x_{name}" for name in "rwkvag")
_OWN = (*_MIXTURES, "k_k", "k_a", "r_k")
_RANKS = {"decay": "w_lora", "rate": "a_lora", "value": "v_lora", "gate": "g_lora"}
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    layers=layers,
    decoder=Rwkv7Decoder,
    names=TensorNames(
        {"embed": "embeddings", "embed_norm": "layers.0.pre_norm", "norm": "norm"},
        {
            "mixer_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            **{f"mixer.{name}": f"attn.{name}" for name in _OWN},
            **{f"mixer.{name}": f"attn.{name}_proj" for name in "rkvo"},
            **{f"mixer.{role}.down": f"attn.{name}.lora.0" for role, name in _RANKS.items()},
            **{f"mixer.{role}.up": f"attn.{name}.lora.2" for role, name in _RANKS.items()},
            "mixer.norm": "attn.g_norm",
            "ffn.key": "ffn.key",
            "ffn.value": "ffn.value",
            "ffn.x_k": "ffn.x_k",
        },
        prefixes=("model.", ""),
        whole=(*(f"mixer.{name}" for name in _OWN), "ffn.x_k"),
    ),
)
