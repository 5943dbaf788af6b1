"""Shared by architectures with experts: fields of configs, feed-forward networks, and the names of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes

# More would be a damaged file.
_MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig(ModelArchConfig):
    experts: int
    experts_per_token: int
    expert_hidden: int  # size inside an expert
    normalised: bool = False  # whether the weights of a token's experts are divided by their sum
    shared_hidden: int = 0  # size inside the MLP that all tokens run through; 0 without
    shared_gate: bool = False  # whether that MLP has a gate of its own
    dense_layers: tuple[int, ...] = ()  # layers with an MLP instead of experts


def router(cfg: ExpertsConfig, **options: Any) -> nn.Router:
    """The router of a config."""
    return nn.Router(cfg.hidden, cfg.experts, cfg.experts_per_token, normalised=cfg.normalised, **options)


def mixture(cfg: ExpertsConfig, chosen: nn.Router | None = None) -> nn.MixtureOfExperts:
    """The experts of a layer, with the MLP that they share."""
    experts = nn.Experts(cfg.experts, cfg.hidden, cfg.expert_hidden, act=cfg.activation)
    shared = nn.GatedMLP(cfg.hidden, cfg.shared_hidden, act=cfg.activation) if cfg.shared_hidden else None
    gate = nn.Linear(cfg.hidden, 1, bias=False) if cfg.shared_gate else None
    return nn.MixtureOfExperts(router(cfg) if chosen is None else chosen, experts, shared, gate)


def expert_blocks(cfg: ExpertsConfig, attention: Callable[[int, Rope | None], Attention]) -> list[Block]:
    """Attention and experts, or a gated MLP in layers without them, each behind a norm."""

    def block(layer: int, rope: Rope | None) -> Block:
        ffn = gated_mlp(cfg) if layer in cfg.dense_layers else mixture(cfg)
        return Block(attention(layer, rope), ffn, mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def hf_sizes(c: Fields, experts: str, hidden: str = "moe_intermediate_size") -> dict[str, Any]:
    """How many experts there are, how many a token has, and their size, under the names of a model."""
    count = c.whole(experts, most=_MOST_EXPERTS)
    return {
        "experts": count,
        "experts_per_token": c.whole("num_experts_per_tok", most=count),
        "expert_hidden": c.whole(hidden),
    }


def sparse_layers(c: Fields) -> tuple[int, ...]:
    """The layers that have an MLP instead of experts: those listed, and all but every n-th one."""
    only, step = c.items("mlp_only_layers"), c.whole("decoder_sparse_step", 1)
    return tuple(i for i in range(hf.layer_count(c)) if i in only or (i + 1) % step != 0)


def gguf_sizes(g: GgufFields, hidden: str = "expert_feed_forward_length") -> dict[str, Any]:
    """The same from GGUF metadata."""
    count = g.whole("expert_count", most=_MOST_EXPERTS)
    return {
        "experts": count,
        "experts_per_token": g.whole("expert_used_count", most=count),
        "expert_hidden": g.uniform(hidden) if g.has(hidden) else g.uniform("feed_forward_length"),
        "handled": ("expert_count",),
    }


def gguf_entries(cfg: ExpertsConfig) -> dict[str, Any]:
    """What GGUF metadata say of experts."""
    return {
        "expert_count": cfg.experts,
        "expert_used_count": cfg.experts_per_token,
        "expert_feed_forward_length": cfg.expert_hidden,
    }


# In Hugging Face files each expert has tensors of its own, {} is its number.
EXPERT_NAMES = replace(
    LLAMA_NAMES,
    inner={
        **LLAMA_NAMES.inner,
        "ffn.router": "mlp.gate",
        "ffn.experts.gate": "mlp.experts.{}.gate_proj",
        "ffn.experts.up": "mlp.experts.{}.up_proj",
        "ffn.experts.down": "mlp.experts.{}.down_proj",
        "ffn.shared.gate": "mlp.shared_experts.gate_proj",
        "ffn.shared.up": "mlp.shared_experts.up_proj",
        "ffn.shared.down": "mlp.shared_experts.down_proj",
    },
)
