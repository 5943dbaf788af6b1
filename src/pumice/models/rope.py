"""Rotary embeddings in a graph: cos and sin from positions, once for all layers, with every kind of scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice import functions as F
from pumice import nn
from pumice.core.records import dataclass
from pumice.functions.build import emit
from pumice.models.config import ModelArchConfig, RopeConfig, RopeScaling
from pumice.tensor import Tensor

F32 = NDArray[np.float32]


def inverse_frequencies(rope: RopeConfig) -> F32:
    """The angle of each pair per position, f32 [rotary_dim/2], with the scalings that depend on the config alone.

    >>> inverse_frequencies(RopeConfig(theta=100.0, rotary_dim=4))
    array([1. , 0.1], dtype=float32)
    """
    # Rounded where transformers rounds, as it computes in f32: a unit in the last place rotates position 10,000 by 0.001.
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    wavelengths: F32 = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    if rope.scaling.kind == "yarn":
        return _yarn(rope, wavelengths)
    inverse: F32 = np.float32(1) / wavelengths
    if rope.scaling.kind == "linear":
        inverse = inverse / np.float32(rope.scaling.factor)
    elif rope.scaling.kind == "llama3":
        inverse = _llama3(rope, inverse)
    return inverse


def _yarn(rope: RopeConfig, wavelengths: F32) -> F32:
    s, dim = rope.scaling, rope.rotary_dim

    def pair_of(rotations: float) -> float:
        """The pair, as a fractional index, that makes that many rotations within the original positions."""
        return dim * math.log(s.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(s.beta_fast), pair_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    fast = np.float32(1) / wavelengths
    slow = np.float32(1) / (np.float32(s.factor) * wavelengths)
    blended: F32 = slow * ramp + fast * (1 - ramp)
    return blended


def _llama3(rope: RopeConfig, inverse: F32) -> F32:
    s = rope.scaling
    wavelengths = np.float32(2 * math.pi) / inverse
    blend = (s.original_positions / wavelengths - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    slow, fast = wavelengths > s.original_positions / s.low_freq_factor, wavelengths < s.original_positions / s.high_freq_factor
    between = (1 - blend) * inverse / s.factor + blend * inverse
    return np.where(fast, inverse, np.where(slow, inverse / s.factor, between)).astype(np.float32)


class Rope(nn.Module):
    """A rotary embedding; cos and sin are computed from positions once for all layers that share it.

    GGUF files keep the factors of some scalings as tensors; `like` is another rope of the model, which has the same ones.
    """

    factors: Any
    short: Any
    long: Any

    def __init__(self, config: RopeConfig, *, stored: bool = False, like: Rope | None = None) -> None:
        self.config = config
        for name in _STORED.get(config.scaling.kind, ()) if stored else ():
            shared = None if like is None else like.__dict__.get("_parameters", {}).get(name)
            setattr(self, name, shared or nn.Buffer(config.rotary_dim // 2))

    def forward(self, positions: Tensor, length: Tensor | None = None) -> Rotation:
        """The rotation at positions [B, T].

        `length` [B] is how long the sequences are, for the scalings that depend on it: by default what their last position
        says. When a long prompt runs in chunks, each chunk gets the whole prompt's length, so that all keys rotate alike.
        """
        batch, time = positions.shape
        angles = F.reshape(F.astype(positions, "f32"), (batch, time, 1, 1)) * self._inverse(positions, length)
        cos, sin = F.cos(angles), F.sin(angles)
        factor = self.config.scaling.attention_factor
        return Rotation(self.config, cos, sin) if factor == 1.0 else Rotation(self.config, cos * factor, sin * factor)

    def _inverse(self, positions: Tensor, length: Tensor | None) -> Tensor | F32:
        """Inverse frequencies [rotary_dim/2], or [B, 1, 1, rotary_dim/2] where they depend on the sequence."""
        inverse, s = inverse_frequencies(self.config), self.config.scaling
        if s.kind == "factors":
            return F.divide(inverse, F.astype(self.factors, "f32"))
        if s.kind not in ("dynamic", "longrope"):
            return inverse
        tokens = F.max(positions, axis=1) + 1 if length is None else length
        tokens = F.reshape(tokens, (positions.shape[0], 1, 1, 1))
        if s.kind == "dynamic":
            # θ grows with the length L as (factor · L / original - (factor - 1))^(d/(d-2)); pair i rotates by θ^(-2i/d).
            growth = F.clip(F.astype(tokens, "f32") * (s.factor / s.original_positions) - (s.factor - 1), 1.0, None)
            pairs = np.arange(0, self.config.rotary_dim, 2, dtype=np.float32)
            return F.power(growth, -pairs / np.float32(self.config.rotary_dim - 2)) * inverse
        if s.short:
            short, long = (np.float32(1) / (np.array(f, np.float32) / inverse) for f in (s.short, s.long))
            return F.where(tokens > s.original_positions, long, short)
        chosen = F.where(tokens > s.original_positions, F.astype(self.long, "f32"), F.astype(self.short, "f32"))
        return F.divide(inverse, chosen)


# The tensors that GGUF files have for kinds of scaling.
_STORED: Mapping[str, tuple[str, ...]] = {"factors": ("factors",), "longrope": ("short", "long")}


@dataclass(frozen=True, eq=False)
class Rotation:
    """cos and sin [B, T, 1, rotary_dim/2]; calling it rotates x [B, T, heads, head_dim]."""

    config: RopeConfig
    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        turned = {"rotary_dim": self.config.rotary_dim, "interleaved": self.config.interleaved}
        return emit("rope", [x, self.cos, self.sin], **turned)


def layer_ropes(cfg: ModelArchConfig) -> list[Rope | None]:
    """Each layer's rope: one for all, or another one for those with a window."""
    if cfg.rope is None:
        return [None] * cfg.layers
    stored = cfg.source == "gguf"
    rope = Rope(cfg.rope, stored=stored)
    local = rope if cfg.local_rope is None else Rope(cfg.local_rope, stored=stored, like=rope)
    return [rope if window is None else local for window in cfg.windows]


def rotary_regime(cfg: ModelArchConfig, length: int) -> tuple[int, ...]:
    """What the angles of a sequence's keys depend on besides their positions: its length, bucketed, or nothing.

    Cached keys can be reused by sequences with the same value and no other. It never falls as the
    length grows.

    >>> long = RopeConfig(theta=1e4, rotary_dim=4, scaling=RopeScaling(kind="longrope", original_positions=8))
    >>> cfg = ModelArchConfig(model_type="phi3", source="hf", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4, rope=long,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,))
    >>> rotary_regime(cfg, 8), rotary_regime(cfg, 9), rotary_regime(cfg, 30)
    ((0,), (1,), (1,))
    """

    def regime(s: RopeScaling) -> int:
        if s.kind == "dynamic":
            return max(length, s.original_positions)
        return int(s.kind == "longrope" and length > s.original_positions)

    return tuple(regime(rope.scaling) for rope in (cfg.rope, cfg.local_rope) if rope is not None)
