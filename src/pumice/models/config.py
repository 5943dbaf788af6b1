"""ModelArchConfig: the configuration of a model, read from config.json or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, TypeVar

from pumice.core.records import dataclass
from pumice.errors import FormatError
from pumice.formats.quantization import Quantization
from pumice.formats.weights import TensorInfo

ScalingKind = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope", "factors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the frequencies of a rotary embedding are changed for sequences beyond those of the first training.

    "linear" divides them by `factor`. "yarn" and "llama3" divide the slow ones and blend in between. "dynamic" lowers them
    once a sequence is longer than `original_positions`, the more the longer it is. "longrope" divides them by `short`, or
    by `long` in sequences beyond `original_positions`. "factors" divides them by a tensor of the checkpoint (GGUF); a
    "longrope" without lists takes both from tensors as well. cos and sin are multiplied by `attention_factor`.
    """

    kind: ScalingKind = "none"
    factor: float = 1.0
    original_positions: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary embedding of the first `rotary_dim` entries of a head, in pairs (i, i + half) or, interleaved, (2i, 2i + 1)."""

    theta: float
    rotary_dim: int
    interleaved: bool = False
    scaling: RopeScaling = field(default_factory=RopeScaling)


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    """Refuses what the formulas would divide by zero for."""
    s = rope.scaling
    rules = (
        ("rotary_dim", rope.rotary_dim, rope.rotary_dim % 2 == 0 and 2 <= rope.rotary_dim <= head_dim, f"even, up to {head_dim}"),
        ("theta", rope.theta, rope.theta > 1, "above 1"),
        ("rotary_dim", rope.rotary_dim, s.kind != "dynamic" or rope.rotary_dim > 2, "above 2 where it scales by length"),
        ("high_freq_factor", s.high_freq_factor, s.high_freq_factor > s.low_freq_factor, "above low_freq_factor"),
    )
    for name, value, holds, rule in rules:
        if not holds:
            raise FormatError(f"the rope's {name} is {value}, it must be {rule}", name=name, got=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchConfig:
    """What the configs of all architectures share; what only one of them has is in a subclass in that one's file.

    >>> llama = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...          "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    >>> cfg = ModelArchConfig.from_hf(llama)
    >>> cfg.kind, cfg.head_dim, cfg.kv_heads, cfg.rope.theta
    ('causal', 16, 4, 10000.0)
    """

    model_type: str  # the architecture's module, whatever alias the file uses
    source: Literal["hf", "gguf"]
    kind: Literal["causal", "encoder"] = "causal"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int  # the longest sequence that the model is made for
    norm_eps: float
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"]
    # What weight files have: biases, and one matrix for all of q, then k, then v.
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: bool = False
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None  # of layers with a window, where theirs is another
    # For each layer None, or how many keys a query sees counting its own; in encoders how far it sees to either side.
    windows: tuple[int | None, ...]
    tie_embeddings: bool = False
    quantization: Quantization | None = None  # of Hugging Face files; in GGUF files every tensor says for itself

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise FormatError(
                f"the {self.heads} attention heads are no multiple of the {self.kv_heads} key-value heads",
                heads=self.heads,
                kv_heads=self.kv_heads,
            )
        if len(self.windows) != self.layers:
            raise FormatError(f"the config describes {len(self.windows)} layers, the model has {self.layers}")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                _check_rope(rope, self.head_dim)

    @property
    def recompute_beyond(self) -> int | None:
        """Once a sequence grows beyond this length its cache is recomputed, because all its keys then rotate by other angles."""
        return None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelArchConfig:
        """The config of a Hugging Face folder, from the contents of its config.json."""
        from pumice.models.registry import read_hf

        return read_hf(config)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelArchConfig:
        """The config of a GGUF file, from its metadata and the names and shapes of its tensors."""
        from pumice.models.registry import read_gguf

        return read_gguf(metadata, tensors)


Config = TypeVar("Config", bound=ModelArchConfig)
