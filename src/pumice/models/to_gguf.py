"""Hugging Face models as GGUF files hold them: the metadata of a config, and where rows go that GGUF keeps in another order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice import nn
from pumice.core.dtypes import DType, dtype, f32
from pumice.errors import InputError, UnknownName
from pumice.formats.weights import TensorInfo, WeightFile
from pumice.models.config import ModelArchConfig, RopeConfig, RopeScaling
from pumice.models.gguf_limits import OUTPUT_NEEDED
from pumice.models.load import load_model_params
from pumice.models.params import ParamDef
from pumice.models.registry import get_architecture
from pumice.models.rope import inverse_frequencies

_NAMES = {
    "bloom": "bloom", "cohere": "command-r", "cohere2": "cohere2", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "falcon": "falcon", "falcon_mamba": "mamba", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "glm4": "glm4",
    "gpt2": "gpt2", "gpt_neox": "gptneox", "granite": "granite", "jamba": "jamba", "lfm2": "lfm2", "llama": "llama",
    "mamba": "mamba", "mamba2": "mamba2", "mistral": "llama", "mixtral": "llama", "mpt": "mpt", "olmo": "olmo", "olmo2": "olmo2",
    "olmoe": "olmoe", "phi": "phi2", "phi3": "phi3", "qwen2": "qwen2", "qwen2_moe": "qwen2moe", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
}  # fmt: skip
# What files of these are read as.
_READ_AS = {"deepseek_v3": "deepseek_v2", "falcon_mamba": "mamba", "mistral": "llama"}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as it goes into the file; `rows(start, stop)` gives some of its rows (elements, of a vector) as float32."""

    name: str
    shape: tuple[int, ...]
    source: DType
    rows: Callable[[int, int], NDArray[np.float32]]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def source_nbytes(self) -> int:
        return self.source.nbytes(self.elements)


def to_gguf(cfg: ModelArchConfig, weights: WeightFile) -> tuple[dict[str, Any], list[GgufTensor]]:
    """Metadata and tensors for a GGUF file of a Hugging Face model; what the format cannot say is refused by name.

    The check is that reading the metadata back gives the same config.
    """
    if cfg.model_type not in _NAMES:
        raise UnknownName(
            f"a model of the architecture {cfg.model_type!r} cannot be converted to GGUF",
            hint="those that can: " + " ".join(sorted(_NAMES)),
            name=cfg.model_type,
        )
    if cfg.quantization is not None:
        raise InputError(
            f"a checkpoint that {cfg.quantization.method} has quantised cannot be converted to GGUF",
            hint="start from the checkpoint before it was quantised",
        )
    metadata, tensors = _metadata(cfg), [*_tensors(cfg, weights), *_rope_tensors(cfg.rope)]
    name = _NAMES[cfg.model_type]
    if cfg.tie_embeddings and name in OUTPUT_NEEDED:
        table = next(t for t in tensors if t.name == "token_embd.weight")
        tensors.append(dataclasses.replace(table, name="output.weight"))
    infos = {t.name: TensorInfo(t.name, f32, t.shape) for t in tensors}
    try:
        lost = sorted(_differences(_expected(cfg), ModelArchConfig.from_gguf(metadata, infos)))
    except InputError as error:
        lost = [error.message]
    if lost:
        raise InputError(
            f"a GGUF file of the architecture {name!r} cannot say all of this model's config: {', '.join(lost)}",
            hint="run the model from its own files",
            lost=lost,
        )
    return metadata, tensors


def _metadata(cfg: ModelArchConfig) -> dict[str, Any]:
    name, architecture = _NAMES[cfg.model_type], get_architecture(cfg.model_type)
    less_mean = any(isinstance(m, nn.LayerNorm) for m in architecture.model(cfg).named_modules().values())
    epsilon = "attention.layer_norm_epsilon" if less_mean else "attention.layer_norm_rms_epsilon"
    entries: dict[str, Any] = {
        "context_length": cfg.max_positions,
        "embedding_length": cfg.hidden,
        "block_count": cfg.layers,
        "feed_forward_length": cfg.intermediate,
        "attention.head_count": cfg.heads,
        "attention.head_count_kv": cfg.kv_heads,
        "attention.key_length": cfg.head_dim,
        "attention.value_length": cfg.head_dim,
        epsilon: float(cfg.norm_eps),
        "vocab_size": cfg.vocab,
        **_window_entries(cfg),
    }
    if cfg.rope is not None:
        entries |= _rope_entries(cfg.rope)
    if cfg.local_rope is not None:
        entries["rope.freq_base_swa"] = float(cfg.local_rope.theta)
    entries |= architecture.gguf_entries(cfg)
    said = {f"{name}.{k}": v for k, v in entries.items() if v is not None}
    return {"general.architecture": name, "general.type": "model", **said}


def _window_entries(cfg: ModelArchConfig) -> dict[str, Any]:
    sizes = {w for w in cfg.windows if w is not None}
    return {"attention.sliding_window": max(sizes)} if sizes else {}


def _rope_entries(rope: RopeConfig) -> dict[str, Any]:
    s = rope.scaling
    entries: dict[str, Any] = {"rope.dimension_count": rope.rotary_dim, "rope.freq_base": float(rope.theta)}
    if s.kind in ("linear", "yarn"):
        entries |= {"rope.scaling.type": s.kind, "rope.scaling.factor": float(s.factor)}
    if s.kind in ("yarn", "longrope"):
        entries["rope.scaling.original_context_length"] = s.original_positions
    if s.kind == "yarn":
        grown = 0.1 * math.log(s.factor) + 1.0 if s.factor > 1 else 1.0
        entries["rope.scaling.attn_factor"] = float(s.attention_factor / grown)
        entries["rope.scaling.yarn_beta_fast"] = float(s.beta_fast)
        entries["rope.scaling.yarn_beta_slow"] = float(s.beta_slow)
    if s.kind == "longrope":
        entries |= {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": float(s.attention_factor)}
    return entries


def _rope_tensors(rope: RopeConfig | None) -> Iterator[GgufTensor]:
    """What files keep as tensors: by how much each frequency is divided."""
    if rope is None:
        return
    s = rope.scaling
    if s.kind == "llama3":
        plain = inverse_frequencies(dataclasses.replace(rope, scaling=RopeScaling()))
        yield _constant("rope_freqs.weight", plain / inverse_frequencies(rope))
    elif s.kind == "longrope":
        yield _constant("rope_factors_long.weight", np.array(s.long, np.float32))
        yield _constant("rope_factors_short.weight", np.array(s.short, np.float32))


def _constant(name: str, values: NDArray[np.float32]) -> GgufTensor:
    return GgufTensor(name, values.shape, f32, lambda start, stop: values[start:stop])


def _tensors(cfg: ModelArchConfig, weights: WeightFile) -> Iterator[GgufTensor]:
    arrays, architecture = load_model_params(cfg, weights).arrays, get_architecture(cfg.model_type)
    modules = architecture.model(cfg).named_modules()
    # Of some params files leave out an axis, or have one more.
    shapes = {p.path: p.shape for p in architecture.params(dataclasses.replace(cfg, source="gguf"))}
    for p in architecture.params(cfg):
        path, _, kind = p.path.rpartition(".")
        module, rows = modules[path], architecture.gguf_rows.get(p.role)
        turned = isinstance(module, nn.Linear) and module.transposed and kind == "weight"
        offset = module.offset if isinstance(module, nn.RMSNorm) else 0.0
        if len(p.shape) == 3 and isinstance(module, nn.GroupedLinear):
            yield _stacked(p, arrays)
            continue
        values = architecture.gguf_values.get(f"{p.role}.{kind}")
        shape = p.shape[::-1] if turned else shapes.get(p.path, p.shape)
        yield _tensor(p, arrays, shape, turned, None if rows is None else rows(cfg), offset, values)


def _stacked(p: ParamDef, arrays: Mapping[str, NDArray[Any]]) -> GgufTensor:
    """Matrices of several experts, whose rows are counted through."""

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(arrays[p.path].reshape(-1, p.shape[-1])[start:stop]).astype(np.float32)

    return GgufTensor(p.gguf[0], p.shape, dtype(arrays[p.path].dtype), rows)


def _tensor(
    p: ParamDef,
    arrays: Mapping[str, NDArray[Any]],
    shape: tuple[int, ...],
    turned: bool,
    order: NDArray[np.intp] | None,
    offset: float,
    values: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
) -> GgufTensor:
    def rows(start: int, stop: int) -> NDArray[np.float32]:
        array = arrays[p.path].T if turned else arrays[p.path].reshape(shape)
        part = array[start:stop] if order is None else array[order[start:stop]]
        found = np.ascontiguousarray(part).astype(np.float32)
        if offset:
            found += np.float32(offset)
        return found if values is None else values(found)

    return GgufTensor(p.gguf[0], shape, dtype(arrays[p.path].dtype), rows)


def _expected(cfg: ModelArchConfig) -> ModelArchConfig:
    """The config that the file should give: what was changed in the weights is gone from it."""
    rope = cfg.rope
    if rope is not None:
        s = rope.scaling
        if s.kind == "llama3":
            s = RopeScaling(kind="factors", attention_factor=s.attention_factor)
        elif s.kind == "longrope":
            s = RopeScaling(kind="longrope", original_positions=s.original_positions, attention_factor=s.attention_factor)
        rope = dataclasses.replace(
            rope, scaling=s, interleaved=rope.interleaved or "mixer.q" in get_architecture(cfg.model_type).gguf_rows
        )
    return dataclasses.replace(
        cfg,
        source="gguf",
        tie_embeddings=cfg.tie_embeddings and _NAMES[cfg.model_type] not in OUTPUT_NEEDED,
        model_type=_READ_AS.get(cfg.model_type, cfg.model_type),
        rope=rope,
    )


def _differences(wanted: ModelArchConfig, got: ModelArchConfig) -> Iterator[str]:
    """The fields that differ by more than what float32 rounds away."""
    a, b = (_flat(dataclasses.asdict(cfg)) for cfg in (wanted, got))
    for field in sorted(a.keys() | b.keys()):
        x, y = a.get(field), b.get(field)
        numbers = isinstance(x, float) or isinstance(y, float)
        if not (math.isclose(x, y, rel_tol=1e-6) if numbers and x is not None and y is not None else x == y):
            yield f"{field} = {x!r:.60}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
