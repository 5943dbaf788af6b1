"""gpt-oss: attention with sinks, windows in every other layer, and experts with biases and a clamped gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, rms_norm
from pumice.models.config import RopeConfig
from pumice.models.experts import EXPERT_NAMES, ExpertsConfig, gguf_sizes, hf_sizes, router
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.models.rope import Rope, layer_ropes
from pumice.nn.experts import SortedRows
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(ExpertsConfig):
    gate_slope: float = 1.702
    gate_limit: float = 7.0


class SinkAttention(Attention):
    """Attention in which each head has a score that takes its share of the softmax and gives nothing."""

    sinks: Any

    def __init__(self, cfg: GptOssConfig, layer: int, rope: Rope | None) -> None:
        super().__init__(cfg, layer, rope)
        self.sinks = nn.Parameter(cfg.heads, decay=False)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "sinks": self.sinks}


class ClampedExperts(nn.Experts):
    """Experts whose result is down((up + 1) · gate · sigmoid(slope · gate)), gate and up clamped.

    Hugging Face files have gate and up in one matrix, their rows taking turns, [in, out] unless they are quantised.
    """

    def __init__(self, cfg: GptOssConfig) -> None:
        count, hidden, turned = cfg.experts, cfg.expert_hidden, cfg.quantization is None
        self.count, self.slope, self.limit, self.fused = count, cfg.gate_slope, cfg.gate_limit, cfg.source == "hf"
        if self.fused:
            self.gate_up = nn.GroupedLinear(count, cfg.hidden, 2 * hidden, transposed=turned)
        else:
            self.gate, self.up = nn.GroupedLinear(count, cfg.hidden, hidden), nn.GroupedLinear(count, cfg.hidden, hidden)
        self.down = nn.GroupedLinear(count, hidden, cfg.hidden, transposed=turned and self.fused)

    def hidden(self, x: Tensor, rows: SortedRows) -> Tensor:
        if self.fused:
            both = self.gate_up(x, rows)
            gate, up = both[:, ::2], both[:, 1::2]
        else:
            gate, up = self.gate(x, rows), self.up(x, rows)
        gate, up = F.clip(gate, None, self.limit), F.clip(up, -self.limit, self.limit)
        y: Tensor = self.down((up + 1.0) * (gate * F.sigmoid(gate * self.slope)), rows)
        return y


def layers(cfg: GptOssConfig) -> list[Block]:
    """Attention and experts, each behind a norm."""

    def block(layer: int, rope: Rope | None) -> Block:
        ffn = nn.MixtureOfExperts(router(cfg, score="chosen", bias=True), ClampedExperts(cfg))
        return Block(SinkAttention(cfg, layer, rope), ffn, mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    # One rope for all layers, with windows or without.
    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> GptOssConfig:
    bias, count = c.flag("attention_bias", True), hf.layer_count(c)
    windows = hf.windows(c, hf.window_size(c), [i % 2 == 0 for i in range(count)])
    return hf.decoder_config(
        c,
        "gpt_oss",
        GptOssConfig,
        qkv_bias=bias,
        out_bias=bias,
        windows=windows,
        rope=hf.rope_config(c, c.whole("head_dim"), theta=150_000.0),
        gate_slope=c.positive("swiglu_alpha", 1.702),
        gate_limit=c.positive("swiglu_limit", 7.0),
        **hf_sizes(c, "num_local_experts", "intermediate_size"),
    )


def read_gguf(g: GgufFields) -> GptOssConfig:
    rope = gguf.rope_config(g, gguf.head_size(g))
    windows = gguf.windows(g, gguf.window_size(g), every=2)
    return gguf.decoder_config(g, "gpt_oss", GptOssConfig, rope=_untruncated(rope), windows=windows, **gguf_sizes(g))


def _untruncated(rope: RopeConfig) -> RopeConfig:
    """The ramp of YaRN as the model was trained: its ends are no whole pairs. The files do not say it."""
    return replace(rope, scaling=replace(rope.scaling, truncate=rope.scaling.kind != "yarn"))


def _names(cfg: GptOssConfig) -> TensorNames:
    """Hugging Face files have the experts' tensors, if they are not quantised, without saying that they are weights."""
    kind = "" if cfg.quantization is None else ".weight"
    own = {
        "ffn.experts.gate_up.weight": f"mlp.experts.gate_up_proj{kind}",
        "ffn.experts.gate_up.bias": "mlp.experts.gate_up_proj_bias",
        "ffn.experts.down.weight": f"mlp.experts.down_proj{kind}",
        "ffn.experts.down.bias": "mlp.experts.down_proj_bias",
    }
    inner = {**EXPERT_NAMES.inner, **own, "mixer": "self_attn", "ffn.router": "mlp.router"}
    gguf_names = {"ffn_norm": ("post_attention_norm",)}
    # GGUF files have gate and up apart, and all tensors under the usual names.
    return replace(EXPERT_NAMES, inner=inner, whole=tuple(own) if cfg.source == "hf" else (), gguf=gguf_names)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    read_gguf=read_gguf,
    layers=layers,
    names=_names,
)
