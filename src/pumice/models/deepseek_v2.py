"""DeepSeek V2: attention whose keys and values come from one small vector per token, and experts; in GGUF files V3 too."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import LayerContext
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import RopeConfig
from pumice.models.experts import EXPERT_NAMES, ExpertsConfig, gguf_entries, gguf_sizes, hf_sizes, mixture, router
from pumice.models.gguf import GgufFields
from pumice.models.memory import KeysValues, MemorySpec
from pumice.models.params import TensorNames
from pumice.models.rope import Rope, layer_ropes
from pumice.nn.experts import SortedRows
from pumice.tensor import Tensor

# Of the norms of the small vectors, whatever the config says of the others.
_SMALL_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(ExpertsConfig):
    q_rank: int = 0  # size of the vector that queries come from; 0 where they come from x
    kv_rank: int  # size of the vector that keys and values come from
    rope_dim: int  # entries of queries and keys that are rotated; the keys' are the same for all heads
    value_dim: int
    attention_scale: float
    routed_scale: float = 1.0
    score: Literal["softmax", "sigmoid"] = "softmax"
    corrected: bool = False
    groups: int = 1
    top_groups: int = 1
    latent: bool = False  # whether the file has the projections of keys and values apart, for attention over the small vectors

    @property
    def plain_dim(self) -> int:
        """Entries of queries and keys that are not rotated."""
        return self.head_dim - self.rope_dim


class LatentAttention(nn.Module):
    """Attention whose keys and values are projections of a small vector per token, and of a rotated part that all heads share.

    With `kv_b` each head's keys and values are computed and remembered. With `k_b` and `v_b`, as in newer GGUF files, queries are
    projected into the space of the small vectors instead, and these are all that is remembered.
    """

    window = None

    def __init__(self, cfg: DeepseekConfig, rope: Rope | None) -> None:
        self.heads, self.head_dim, self.rope_dim = cfg.heads, cfg.head_dim, cfg.rope_dim
        self.plain_dim, self.value_dim, self.rank = cfg.plain_dim, cfg.value_dim, cfg.kv_rank
        self.scale, self.rope, self.latent = cfg.attention_scale, rope, cfg.latent
        self.compressed, queries = bool(cfg.q_rank), cfg.heads * cfg.head_dim
        if cfg.q_rank:
            self.q_a = nn.Linear(cfg.hidden, cfg.q_rank, cfg.qkv_bias)
            self.q_a_norm = nn.RMSNorm(cfg.q_rank, _SMALL_EPS)
            self.q_b = nn.Linear(cfg.q_rank, queries, bias=False)
        else:
            self.q = nn.Linear(cfg.hidden, queries, bias=False)
        self.kv_a = nn.Linear(cfg.hidden, cfg.kv_rank + cfg.rope_dim, cfg.qkv_bias)
        self.kv_a_norm = nn.RMSNorm(cfg.kv_rank, _SMALL_EPS)
        if cfg.latent:
            self.k_b = nn.GroupedLinear(cfg.heads, cfg.plain_dim, cfg.kv_rank, bias=False)
            self.v_b = nn.GroupedLinear(cfg.heads, cfg.kv_rank, cfg.value_dim, bias=False)
        else:
            self.kv_b = nn.Linear(cfg.kv_rank, cfg.heads * (cfg.plain_dim + cfg.value_dim), bias=False)
        self.o = nn.Linear(cfg.heads * cfg.value_dim, cfg.hidden, cfg.out_bias)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        if self.latent:
            return (KeysValues(1, self.rank + self.rope_dim, self.rank),)
        return (KeysValues(self.heads, self.head_dim, self.value_dim),)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        at = x.shape[:2]
        q = F.reshape(self.q_b(self.q_a_norm(self.q_a(x))) if self.compressed else self.q(x), (*at, self.heads, self.head_dim))
        both = self.kv_a(x)
        small, shared = self.kv_a_norm(both[..., : self.rank]), F.reshape(both[..., self.rank :], (*at, 1, self.rope_dim))
        q_plain, q_turned = q[..., : self.plain_dim], q[..., self.plain_dim :]
        if self.rope is not None:
            rotate = context.rotations[self.rope]
            q_turned, shared = rotate(q_turned), rotate(shared)
        attend = self._attend_latent if self.latent else self._attend
        y = attend(context, q_plain, q_turned, small, shared)
        mixed: Tensor = self.o(F.reshape(y, (*at, self.heads * self.value_dim)))
        return mixed

    def _attend(self, context: LayerContext, q_plain: Tensor, q_turned: Tensor, small: Tensor, shared: Tensor) -> Tensor:
        """By the keys and values of each head."""
        at = small.shape[:2]
        each = F.reshape(self.kv_b(small), (*at, self.heads, self.plain_dim + self.value_dim))
        turned = F.broadcast_to(shared, (*at, self.heads, self.rope_dim))
        q = F.concatenate([q_plain, q_turned], axis=-1)
        k = F.concatenate([each[..., : self.plain_dim], turned], axis=-1)
        return context.attend(q, k, each[..., self.plain_dim :], scale=self.scale)

    def _attend_latent(self, context: LayerContext, q_plain: Tensor, q_turned: Tensor, small: Tensor, shared: Tensor) -> Tensor:
        """By the small vectors: all heads have the same keys and values, and other queries."""
        one = F.expand_dims(small, 2)
        q = F.concatenate([self._by_head(self.k_b, q_plain), q_turned], axis=-1)
        y = context.attend(q, F.concatenate([one, shared], axis=-1), one, scale=self.scale)
        return self._by_head(self.v_b, y)

    def _by_head(self, layer: nn.GroupedLinear, x: Tensor) -> Tensor:
        """x [B, T, heads, in] through each head's own matrix."""
        batch, time, heads, size = x.shape
        count = batch * time
        rows = F.reshape(F.permute_dims(x, (2, 0, 1, 3)), (heads * count, size))
        sizes = F.broadcast_to(F.arange(count, count + 1), (heads,))
        number = F.arange(heads * count)
        y = layer(rows, SortedRows(number, number, sizes, number))
        return F.permute_dims(F.reshape(y, (heads, batch, time, layer.outputs)), (1, 2, 0, 3))


def layers(cfg: DeepseekConfig) -> list[Block]:
    """Latent attention and experts, or a gated MLP in the first layers, each behind a norm."""

    def block(layer: int, rope: Rope | None) -> Block:
        if layer in cfg.dense_layers:
            ffn: nn.Module = gated_mlp(cfg)
        else:
            chosen = router(
                cfg,
                score=cfg.score,
                scale=cfg.routed_scale,
                corrected=cfg.corrected,
                groups=cfg.groups,
                top_groups=cfg.top_groups,
                group_score="top2" if cfg.score == "sigmoid" else "max",
            )
            ffn = mixture(cfg, chosen)
        return Block(LatentAttention(cfg, rope), ffn, mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def _grown(factor: float, multiplier: float) -> float:
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


def common_hf(c: Fields) -> dict[str, Any]:
    """What V2 and V3 share."""
    if c.whole("num_key_value_heads", c.whole("num_attention_heads")) != c.whole("num_attention_heads"):
        raise c.refuse("latent attention with fewer key heads than heads")
    rope_dim, value_dim = c.whole("qk_rope_head_dim"), c.whole("v_head_dim")
    head_dim = c.whole("qk_nope_head_dim") + rope_dim
    rope = hf.rope_config(c, rope_dim)
    section = c.section("rope_scaling" if c.get("rope_scaling") else "rope_parameters")
    scale, everywhere = head_dim**-0.5, section.number("mscale_all_dim", 0.0)
    if rope.scaling.kind != "none" and everywhere:
        scale *= _grown(rope.scaling.factor, everywhere) ** 2
    bias, sizes = c.flag("attention_bias"), hf_sizes(c, "n_routed_experts")
    return {
        "head_dim": head_dim,
        "kv_heads": c.whole("num_attention_heads"),
        "rope": replace(rope, interleaved=True),
        "qkv_bias": bias,
        "out_bias": bias,
        "attention_scale": scale,
        "q_rank": c.whole("q_lora_rank") if c.has("q_lora_rank") else 0,
        "kv_rank": c.whole("kv_lora_rank"),
        "rope_dim": rope_dim,
        "value_dim": value_dim,
        "routed_scale": c.positive("routed_scaling_factor", 1.0),
        "shared_hidden": c.whole("n_shared_experts") * sizes["expert_hidden"],
        "dense_layers": tuple(range(min(c.whole("first_k_dense_replace", 0, least=0), hf.layer_count(c)))),
        **sizes,
    }


def read_hf(c: Fields) -> DeepseekConfig:
    # transformers reads none of these: a token's weights are not normalised here.
    c.refuse_if("norm_topk_prob")
    c.refuse_if("mlp_bias")
    method = c.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise c.refuse(f"topk_method = {method!r:.60}", "supported: greedy group_limited_greedy")
    limited = method != "greedy"
    return hf.decoder_config(
        c,
        "deepseek_v2",
        DeepseekConfig,
        groups=c.whole("n_group") if limited else 1,
        top_groups=c.whole("topk_group") if limited else 1,
        **common_hf(c),
    )


def read_gguf(g: GgufFields) -> DeepseekConfig:
    rank, rope_dim = g.whole("attention.kv_lora_rank"), g.whole("rope.dimension_count")
    latent = "blk.0.attn_k_b.weight" in g.tensors
    if latent:
        head_dim, value_dim = g.whole("attention.key_length_mla"), g.whole("attention.value_length_mla")
    else:
        head_dim, value_dim = g.whole("attention.key_length"), g.whole("attention.value_length")
    rope = gguf.rope_config(g, head_dim, interleaved=True)
    scale, sizes = head_dim**-0.5, gguf_sizes(g)
    if rope.scaling.kind == "yarn":
        # By 1 + multiplier · ln factor, twice; the factor on cos and sin of other models is part of it.
        scale *= (1 + g.number("rope.scaling.yarn_log_multiplier", 0.0) * math.log(max(rope.scaling.factor, 1.0))) ** 2
        rope = _plain_yarn(rope)
    gating = g.whole("expert_gating_func", 1)
    if gating not in (1, 2):
        raise g.refuse(f"expert_gating_func = {gating}", "supported: 1 (softmax) and 2 (sigmoid)")
    same = GgufFields({**g.values, f"{g.prefix}attention.value_length": g.whole("attention.key_length")}, g.tensors, "deepseek2")
    return gguf.decoder_config(
        same,
        "deepseek_v2",
        DeepseekConfig,
        head_dim=head_dim,
        kv_heads=g.uniform("attention.head_count"),
        rope=rope,
        fused_qkv=False,
        qkv_bias="blk.0.attn_kv_a_mqa.bias" in g.tensors,
        attention_scale=scale,
        q_rank=g.whole("attention.q_lora_rank", 0, least=0),
        kv_rank=rank,
        rope_dim=rope_dim,
        value_dim=value_dim,
        routed_scale=gguf.multiplier(g, "expert_weights_scale"),
        normalised=g.flag("expert_weights_norm"),
        score="sigmoid" if gating == 2 else "softmax",
        corrected=any(name.endswith("exp_probs_b.bias") for name in g.tensors),
        groups=g.whole("expert_group_count", 1),
        top_groups=g.whole("expert_group_used_count", 1),
        shared_hidden=g.whole("expert_shared_count") * sizes["expert_hidden"],
        dense_layers=tuple(range(g.whole("leading_dense_block_count", 0, least=0))),
        latent=latent,
        **sizes,
    )


def _plain_yarn(rope: RopeConfig) -> RopeConfig:
    return replace(rope, scaling=replace(rope.scaling, attention_factor=1.0))


def deepseek_entries(cfg: DeepseekConfig) -> dict[str, Any]:
    """What GGUF metadata say of these models."""
    entries: dict[str, Any] = {
        **gguf_entries(cfg),
        "attention.kv_lora_rank": cfg.kv_rank,
        "attention.key_length": cfg.head_dim,
        "attention.value_length": cfg.value_dim,
        "expert_shared_count": cfg.shared_hidden // cfg.expert_hidden,
        "expert_weights_scale": cfg.routed_scale,
        "expert_weights_norm": cfg.normalised,
        "expert_gating_func": 2 if cfg.score == "sigmoid" else 1,
        "leading_dense_block_count": len(cfg.dense_layers),
    }
    if cfg.groups > 1:
        entries |= {"expert_group_count": cfg.groups, "expert_group_used_count": cfg.top_groups}
    if cfg.q_rank:
        entries["attention.q_lora_rank"] = cfg.q_rank
    if cfg.rope is not None and cfg.rope.scaling.kind == "yarn":
        grown = math.sqrt(cfg.attention_scale * math.sqrt(cfg.head_dim))
        entries["rope.scaling.yarn_log_multiplier"] = (grown - 1) / math.log(cfg.rope.scaling.factor)
        # Readers take the multiplier for all of the growth: a factor beside it would count twice.
        entries["rope.scaling.attn_factor"] = None
    return entries


DEEPSEEK_NAMES = TensorNames(
    EXPERT_NAMES.outer,
    {
        **EXPERT_NAMES.inner,
        "mixer.q_a": "self_attn.q_a_proj",
        "mixer.q_a_norm": "self_attn.q_a_layernorm",
        "mixer.q_b": "self_attn.q_b_proj",
        "mixer.kv_a": "self_attn.kv_a_proj_with_mqa",
        "mixer.kv_a_norm": "self_attn.kv_a_layernorm",
        "mixer.kv_b": "self_attn.kv_b_proj",
    },
    prefixes=EXPERT_NAMES.prefixes,
    gguf={
        "mixer.q_a": ("attn_q_a",),
        "mixer.q_a_norm": ("attn_q_a_norm",),
        "mixer.q_b": ("attn_q_b",),
        "mixer.kv_a": ("attn_kv_a_mqa",),
        "mixer.kv_a_norm": ("attn_kv_a_norm",),
        "mixer.kv_b": ("attn_kv_b",),
        "mixer.k_b": ("attn_k_b",),
        "mixer.v_b": ("attn_v_b",),
    },
)

ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 102_400,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=DEEPSEEK_NAMES,
    gguf_entries=deepseek_entries,
)
