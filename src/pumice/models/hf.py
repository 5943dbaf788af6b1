"""config.json entries common to the architectures: sizes, activations, windows, rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pumice.core.fields import MOST_LAYERS, Fields
from pumice.models.config import Config, ModelArchConfig, RopeConfig, RopeScaling, ScalingKind

_ACTIVATIONS: dict[str, Literal["silu", "gelu", "gelu_tanh", "relu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_SCALINGS: dict[str, ScalingKind] = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
}


# The defaults of transformers' config classes for llama and many after it.
LLAMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}


def decoder_config(c: Fields, model_type: str, made: type[Config] = ModelArchConfig, **changes: Any) -> Config:  # type: ignore[assignment]
    """The config of a llama-like decoder; `changes` are the fields in which an architecture differs."""
    heads = c.whole("num_attention_heads")
    hidden = c.whole("hidden_size")
    head_dim = head_size(c)
    layers = layer_count(c)
    rope = rope_config(c, head_dim) if "rope" not in changes else changes["rope"]
    given: dict[str, Any] = {
        "model_type": model_type,
        "source": "hf",
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", heads),
        "head_dim": head_dim,
        "intermediate": c.whole("intermediate_size"),
        "vocab": c.whole("vocab_size"),
        "max_positions": _max_positions(c, rope),
        "norm_eps": c.positive("rms_norm_eps", 1e-6),
        "activation": activation(c, "hidden_act", "silu"),
        "rope": rope,
        "windows": (None,) * layers,
        "tie_embeddings": c.flag("tie_word_embeddings"),
    }
    return made(**{**given, **changes})


def head_size(c: Fields) -> int:
    """The size of a head, which need not be its part of the vectors between layers."""
    return c.whole("head_dim", max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1))


def layer_count(c: Fields) -> int:
    """How many layers the model has."""
    return c.whole("num_hidden_layers", most=MOST_LAYERS)


def _max_positions(c: Fields, rope: RopeConfig | None) -> int:
    """How far the rope reaches: where it scales by a factor, that is the factor times the length it scales."""
    if rope is not None and rope.scaling.kind in ("dynamic", "yarn"):
        return int(rope.scaling.original_positions * rope.scaling.factor)
    return c.whole("max_position_embeddings")


def activation(c: Fields, name: str, default: str) -> Literal["silu", "gelu", "gelu_tanh", "relu"]:
    """The activation that an entry names."""
    found = c.text(name, default)
    if found not in _ACTIVATIONS:
        raise c.refuse(f"{name} = {found!r:.60}", "supported: " + " ".join(_ACTIVATIONS))
    return _ACTIVATIONS[found]


def windows(c: Fields, size: int | None, default: list[bool]) -> tuple[int | None, ...]:
    """Each layer's window: `size` where `layer_types`, or in its absence `default`, says that it slides."""
    kinds = c.texts("layer_types")
    known = {"sliding_attention": True, "full_attention": False}
    for kind in kinds:
        if kind not in known:
            raise c.refuse(f"a layer of type {kind!r:.60}", "supported: " + " ".join(known))
    return tuple(size if slides else None for slides in ([known[k] for k in kinds] or default))


def window_size(c: Fields) -> int | None:
    """The entry `sliding_window`, which may be absent."""
    return c.whole("sliding_window") if c.has("sliding_window") else None


def rope_config(
    c: Fields,
    head_dim: int,
    *,
    layers: str = "full_attention",
    theta_name: str = "rope_theta",
    theta: float = 10000.0,
    part_name: str = "partial_rotary_factor",
    part: float | None = None,
    scaled: bool = True,
    longrope_names: tuple[str, ...] = (),
) -> RopeConfig:
    """The rotary embedding of the layers of a type.

    Files of transformers 5 have `rope_parameters`, by layer type where types differ; older ones have `theta_name` and
    `rope_scaling`, which does not apply to these layers unless `scaled`. `longrope_names` are other names of that kind.
    `part` is the rotated share of a head where the file does not say; None for models that always rotate all of it.
    """
    section = c.section("rope_scaling" if c.get("rope_scaling") else "rope_parameters")
    nested = isinstance(section.get(layers), Mapping)
    r = section.section(layers) if nested else section if scaled else Fields({}, section.origin)
    base = r.positive("rope_theta", c.positive(theta_name, theta))
    turning = r.positive("partial_rotary_factor", c.positive(part_name, part or 1.0))
    kind = r.text("rope_type", r.text("type", "default"))
    if kind in longrope_names:
        kind = "longrope"
    if kind not in _SCALINGS:
        raise c.refuse(f"rope scaling of type {kind!r:.60}", "supported: " + " ".join(_SCALINGS))
    scaling = _scaling(c, r, _SCALINGS[kind])
    if part is None and turning != 1.0:
        # transformers does not look at it here, except in scalings, which then do not fit the heads.
        if scaling.kind != "none":
            raise c.refuse(f"a partial_rotary_factor of {turning} with rope scaling of type {kind!r:.60}")
        turning = 1.0
    rotary_dim = int(head_dim * turning)
    for name, factors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
        if scaling.kind == "longrope" and len(factors) != rotary_dim // 2:
            raise c.refuse(f"a rope {name} of {len(factors)} numbers, where {rotary_dim // 2} pairs turn")
    return RopeConfig(theta=base, rotary_dim=rotary_dim, scaling=scaling)


def _scaling(c: Fields, r: Fields, kind: ScalingKind) -> RopeScaling:
    if kind == "none":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind=kind, factor=r.positive("factor"))
    most = c.whole("max_position_embeddings")
    if kind == "dynamic":
        return RopeScaling(kind=kind, factor=r.positive("factor"), original_positions=most)
    original = c.whole("original_max_position_embeddings", r.whole("original_max_position_embeddings", most), least=2)
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=r.positive("factor"),
            original_positions=original,
            low_freq_factor=r.positive("low_freq_factor"),
            high_freq_factor=r.positive("high_freq_factor"),
        )
    factor = r.positive("factor", most / original)
    if kind == "longrope":
        grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_positions=original,
            attention_factor=r.positive("attention_factor", grown),
            short=r.numbers("short_factor"),
            long=r.numbers("long_factor"),
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_positions=original,
        attention_factor=r.positive("attention_factor", _yarn_attention_factor(r, factor)),
        # Zeros mean the defaults.
        beta_fast=r.positive("beta_fast") if r.get("beta_fast") else 32.0,
        beta_slow=r.positive("beta_slow") if r.get("beta_slow") else 1.0,
        truncate=r.flag("truncate", True),
    )


def _yarn_attention_factor(r: Fields, factor: float) -> float:
    def grown(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    over, under = r.number("mscale", 0.0), r.number("mscale_all_dim", 0.0)
    return grown(over) / grown(under) if over and under else grown(1.0)
