"""What llama.cpp, the other reader of GGUF files, cannot take of a model that the format could describe.

Its loader refuses a file with a tensor that it does not know, or without one that it asks for, and passes over metadata that it
does not read; each architecture has a loader of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.models.config import ModelArchConfig, RopeScaling

# Parts of the names of tensors that have no place.
_UNKNOWN_TENSORS = {
    "cohere2": ("attn_output.bias", "output.weight"),
    "command-r": ("attn_output.bias", "output.weight"),
    "deepseek2": ("attn_q_a.bias", "attn_q.bias", "attn_kv_a_mqa.bias", "attn_output.bias"),
    "falcon": (".bias",),
    "gemma": ("attn_output.bias", "output.weight"),
    "gemma2": ("attn_output.bias",),
    "gemma3": ("attn_output.bias",),
    "jamba": ("ssm_in.bias", "ssm_out.bias"),
    "mamba": ("ssm_in.bias", "ssm_out.bias"),
    "mamba2": ("ssm_in.bias", "ssm_out.bias"),
    "olmo": ("attn_output.bias",),
    "olmo2": ("attn_output.bias",),
    "olmoe": ("attn_output.bias",),
    "qwen3": ("attn_output.bias",),
    "qwen3moe": ("attn_output.bias",),
    "qwen3next": ("attn_output.bias",),
    "smollm3": ("attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"),
}
_UNKNOWN_TENSORS_BUT = {"falcon": ("norm",)}
_NEEDED_BIASES = {
    "gptneox": ("attn_qkv.bias", "attn_output.bias"),
    "jamba": ("ssm_conv1d.bias",), "mamba": ("ssm_conv1d.bias",), "mamba2": ("ssm_conv1d.bias",),
    "starcoder2": ("attn_output.bias", "ffn_up.bias"),
}  # fmt: skip
# Where the factors of a rope's frequencies are read.
_ROPE_TENSORS = {"llama": "rope_", "granite": "rope_", "phi3": "rope_factors_"}
# The output matrix is asked for even where it is the token table.
OUTPUT_NEEDED = frozenset({"gptneox", "olmo2", "olmoe", "qwen2moe", "stablelm"})
# Heads share the width of the model among them.
_WHOLE_HEADS = frozenset({"cohere2", "command-r", "jamba", "lfm2", "olmo", "olmo2", "olmoe", "phi3", "qwen2"})
_WINDOW_PASSED_OVER = frozenset({"llama", "phi3"})
_HEAD_NORM_LAYERS = 64  # command-r models have norms of the heads from this many layers on
_LITE_LAYERS = (26, 27)  # deepseek2 models of these sizes are taken to have queries of one matrix


def limits(cfg: ModelArchConfig, metadata: Mapping[str, Any], tensors: Iterable[str]) -> list[str]:
    """What makes llama.cpp refuse the file or compute something else than the model does: a sentence each."""
    name = metadata["general.architecture"]
    lost = list(_unreadable(name, cfg, metadata, tuple(tensors)))
    found = [
        f"llama.cpp cannot open the file, or computes something else: in {name!r} files it does not expect {', '.join(lost)}"
    ]
    return [*(found if lost else []), *_passed_over(cfg, metadata)]


def _unreadable(name: str, cfg: ModelArchConfig, metadata: Mapping[str, Any], tensors: tuple[str, ...]) -> Iterator[str]:
    yield from _tensors(name, tensors)
    said = {key.removeprefix(f"{name}."): value for key, value in metadata.items()}
    if name in _WHOLE_HEADS and cfg.heads * cfg.head_dim != cfg.hidden:
        yield f"{cfg.heads} heads of {cfg.head_dim} in a width of {cfg.hidden}"
    if cfg.rope is not None:
        usual = RopeScaling()
        for field in ("beta_fast", "beta_slow"):
            if cfg.rope.scaling.kind == "yarn" and getattr(cfg.rope.scaling, field) != getattr(usual, field):
                yield f"rope.scaling.{field} = {getattr(cfg.rope.scaling, field)}"
    if name == "cohere2" and not any(cfg.windows):
        yield "layers without a window only"
    if name == "command-r" and any("attn_q_norm" in t for t in tensors) != (cfg.layers >= _HEAD_NORM_LAYERS):
        yield f"norms of the heads with fewer than {_HEAD_NORM_LAYERS} layers, or more layers without"
    if name == "olmoe" and cfg.kv_heads != cfg.heads:
        yield f"{cfg.kv_heads} key heads for {cfg.heads} heads"
    if name == "lfm2" and not all(any(t.endswith(part) for t in tensors) for part in ("attn_q.weight", "shortconv.conv.weight")):
        yield "layers of one kind only"
    if name == "mamba" and said["ssm.inner_size"] != 2 * cfg.hidden:
        yield f"an inner width of {said['ssm.inner_size']}, which is not twice {cfg.hidden}"
    if name == "qwen3next" and said["ssm.inner_size"] != said["ssm.time_step_rank"] * said["ssm.state_size"]:
        yield "values of another width than keys in its delta nets"
    if name == "deepseek2":
        yield from _deepseek(cfg, said)


def _passed_over(cfg: ModelArchConfig, metadata: Mapping[str, Any]) -> Iterator[str]:
    """What llama.cpp leaves out without a word, also of files that its own converter made."""
    name = metadata["general.architecture"]
    sizes = {w for w in cfg.windows if w is not None}
    if sizes and name in _WINDOW_PASSED_OVER:
        yield f"llama.cpp knows no windows in {name!r} files: beyond {min(sizes)} tokens it attends to more than it should"
    if name == "deepseek2" and metadata.get(f"{name}.expert_gating_func") == 1 and f"{name}.expert_group_count" in metadata:
        yield "llama.cpp rates a group of experts by its two best, where the model takes the best: it chooses other experts"


def _tensors(name: str, tensors: tuple[str, ...]) -> Iterator[str]:
    unknown, but = _UNKNOWN_TENSORS.get(name, ()), _UNKNOWN_TENSORS_BUT.get(name, ())
    known_rope = _ROPE_TENSORS.get(name)
    lost = set()
    for tensor in tensors:
        short = re.sub(r"^blk\.\d+\.", "", tensor)
        misplaced = short in unknown or (".bias" in unknown and short.endswith(".bias"))
        rope = short.startswith("rope_") and (known_rope is None or not short.startswith(known_rope))
        if rope or (misplaced and not any(part in short for part in but)):
            lost.add(short)
    yield from sorted(lost)
    found = {re.sub(r"^blk\.\d+\.", "", tensor) for tensor in tensors}
    for needed in _NEEDED_BIASES.get(name, ()):
        if needed not in found and any(t.removesuffix(".weight") == needed.removesuffix(".bias") for t in found):
            yield f"no {needed}"


def _deepseek(cfg: ModelArchConfig, said: Mapping[str, Any]) -> Iterator[str]:
    if ("attention.q_lora_rank" in said) == (cfg.layers in _LITE_LAYERS):
        kind = "narrow" if "attention.q_lora_rank" in said else "whole"
        yield f"{kind} queries in {cfg.layers} layers"
    if said.get("expert_group_count", 1) > 1 and said["expert_group_count"] == said["expert_group_used_count"]:
        yield "groups of experts of which none is left out"
    scaling = said.get("rope.scaling.type")
    # The scale of attention is taken to have grown with the factor, whatever the type.
    if scaling == "linear" or (scaling == "yarn" and not said.get("rope.scaling.yarn_log_multiplier")):
        yield f"rope scaling of type {scaling!r} without a scale of attention that grows by it"
