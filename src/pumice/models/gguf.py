"""GGUF metadata common to the architectures: sizes, rotary embeddings, and what the tensors' shapes show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pumice.core.fields import MOST_LAYERS, Fields
from pumice.errors import FormatError, MissingName
from pumice.formats.weights import TensorInfo
from pumice.models.config import Config, ModelArchConfig, RopeConfig, RopeScaling


class GgufFields(Fields):
    """The metadata of a GGUF file under its architecture's prefix, with its tensors."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], arch: str) -> None:
        super().__init__(metadata, "the GGUF metadata", f"{arch}.")
        self.tensors = tensors

    def uniform(self, name: str, default: int | None = None) -> int:
        """An integer that may be given once for each layer, if all are the same."""
        value = self.get(name)
        if not (isinstance(value, list | tuple) or hasattr(value, "tolist")):
            return self.whole(name) if default is None else self.whole(name, default)
        found = self.items(name)
        if not found or any(other != found[0] for other in found):
            raise self.refuse(f"{self.prefix + name} that differs between layers")
        return Fields({name: found[0]}, self.origin).whole(name)

    def rows(self, name: str) -> int:
        """The rows of a table that the model must have."""
        if name not in self.tensors:
            raise MissingName(f"the GGUF file has no tensor {name!r}", name=name)
        shape = self.tensors[name].shape
        if len(shape) != 2:
            raise FormatError(f"the tensor {name!r} has shape {shape}, not [rows, width]", name=name)
        return shape[0]


def decoder_config(
    g: GgufFields,
    model_type: str,
    made: type[Config] = ModelArchConfig,  # type: ignore[assignment]
    *,
    interleaved: bool = False,
    layer_norm: bool = False,
    handled: tuple[str, ...] = (),
    **changes: Any,
) -> Config:
    """The config of a llama-like decoder; `changes` are the fields in which an architecture differs.

    `handled` are entries that the architecture has read itself; they are refused otherwise.
    """
    for name in ("expert_count", "attention.clamp_kqv", "attention.max_alibi_bias"):
        if name not in handled:
            g.refuse_if(name)
    hidden = g.whole("embedding_length")
    heads = g.uniform("attention.head_count")
    head_dim = head_size(g)
    if g.whole("attention.value_length", head_dim) != head_dim:
        raise g.refuse("an attention.value_length other than attention.key_length")
    layers = layer_count(g)
    if "windows" not in changes:
        g.refuse_if("attention.sliding_window")
    given: dict[str, Any] = {
        "model_type": model_type,
        "source": "gguf",
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": g.uniform("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate": g.uniform("feed_forward_length"),
        "vocab": g.rows("token_embd.weight"),
        "max_positions": _max_positions(g),
        "norm_eps": g.positive("attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon"),
        "activation": "silu",
        "fused_qkv": "blk.0.attn_qkv.weight" in g.tensors,
        "qkv_bias": not g.tensors.keys().isdisjoint(("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")),
        "out_bias": "blk.0.attn_output.bias" in g.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in g.tensors,
        "windows": (None,) * layers,
        "tie_embeddings": "output.weight" not in g.tensors,
    }
    if "rope" not in changes:
        given["rope"] = rope_config(g, head_dim, interleaved=interleaved)
    return made(**{**given, **changes})


def _max_positions(g: GgufFields) -> int:
    """The context that the file states; with YaRN the factor times the original one, where that is stated too."""
    original = g.whole("rope.scaling.original_context_length", 0, least=0)
    if original and g.text("rope.scaling.type", "linear") == "yarn":
        return int(original * (g.positive("rope.scaling.factor", 1.0)))
    return g.whole("context_length")


def head_size(g: GgufFields) -> int:
    """Entries of a head's queries and keys."""
    return g.whole("attention.key_length", max(g.whole("embedding_length") // g.uniform("attention.head_count"), 1))


def layer_count(g: GgufFields) -> int:
    """How many layers the model has."""
    return g.whole("block_count", most=MOST_LAYERS)


def attending_layers(g: GgufFields) -> tuple[GgufFields, tuple[bool, ...]]:
    """Which layers have key heads, and the metadata with as many for all, where files say 0 of layers without attention."""
    count, name = layer_count(g), "attention.head_count_kv"
    listed = g.items(name) if isinstance(g.get(name), list | tuple) or hasattr(g.get(name), "tolist") else [g.whole(name)] * count
    heads = next((n for n in listed if n), g.uniform("attention.head_count"))
    if len(listed) != count or any(n not in (0, heads) for n in listed):
        raise g.refuse(f"{g.prefix}{name} that differs between layers with attention")
    same = GgufFields({**g.values, g.prefix + name: heads}, g.tensors, g.prefix.removesuffix("."))
    return same, tuple(n != 0 for n in listed)


def window_size(g: GgufFields, default: int = 0) -> int | None:
    """The window of sliding layers; 0 means that there is none."""
    return g.whole("attention.sliding_window", default, least=0) or None


def windows(g: GgufFields, size: int | None, every: int) -> tuple[int | None, ...]:
    """Each layer's window: all but every n-th layer slide, or those that the file lists; older files leave it to the reader."""
    name, layers = "attention.sliding_window_pattern", layer_count(g)
    if isinstance(g.get(name, every), int):
        every = g.whole(name, every)
        slides = [(i + 1) % every != 0 for i in range(layers)]
    else:
        slides = [bool(entry) for entry in g.items(name)]
    return tuple(size if slid else None for slid in slides)


def multiplier(g: GgufFields, name: str) -> float:
    """A factor; None for 0 and where it is absent."""
    return g.positive(name) if g.get(name) else 1.0


def rope_config(g: GgufFields, head_dim: int, *, interleaved: bool = False) -> RopeConfig:
    """The rotary embedding, by metadata and by the tensors of factors."""
    return RopeConfig(
        theta=g.positive("rope.freq_base", 10000.0),
        rotary_dim=g.whole("rope.dimension_count", head_dim),
        interleaved=interleaved,
        scaling=_scaling(g),
    )


def _scaling(g: GgufFields) -> RopeScaling:
    # Before there were types there was only the linear one.
    kind = g.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise g.refuse(f"rope scaling of type {kind!r:.60}", "supported: none linear yarn longrope")
    attention = g.positive("rope.scaling.attn_factor", 1.0)
    # Zeros mean unknown.
    original = g.whole("rope.scaling.original_context_length", 0, least=0) or g.whole("context_length")
    if "rope_factors_short.weight" in g.tensors:
        return RopeScaling(kind="longrope", original_positions=original, attention_factor=attention)
    if "rope_freqs.weight" in g.tensors:
        return RopeScaling(kind="factors", attention_factor=attention)
    if kind == "longrope":
        raise MissingName("the GGUF file has no tensor 'rope_factors_short.weight'", name="rope_factors_short.weight")
    factor = g.number("rope.scaling.factor", g.number("rope.scale_linear", 1.0)) or 1.0
    if kind == "yarn":
        g.refuse_if("rope.scaling.yarn_ext_factor", 1.0)
        stated = multiplier(g, "rope.scaling.yarn_attn_factor")
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_positions=original,
            attention_factor=attention * stated * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
            beta_fast=g.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=g.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
    return RopeScaling(kind="linear", factor=factor) if kind == "linear" and factor != 1.0 else RopeScaling()
