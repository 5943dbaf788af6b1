"""Adapters in PEFT's files: adapter_config.json and adapter_model.safetensors in one folder."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.json_file import read_json
from pumice.core.records import dataclass
from pumice.core.whole_file import replacing, write_whole
from pumice.errors import DTypeError, FormatError, InputError, MissingName, ShapeError, UnknownName
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors
from pumice.formats.weights import TensorInfo, WeightFile, shown
from pumice.models.config import ModelArchConfig
from pumice.models.lora import EMBED, HEAD, Adapter, LinearLayer, LowRank, check_adapter, check_sizes, linear_layers

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")
_TABLE = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<part>[AB])(?:\.default)?")
# PEFT saves the weights of tables and heads along with their adapters, as they were.
_COPY = re.compile(r"(?P<module>.+)\.base_layer\.weight")
# Keys that say how an adapter was made or where it belongs, not what it computes; those with a meaning here are read below.
_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
    "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules",
    "task_type",
}  # fmt: skip
_READ = {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "fan_in_fan_out"}
# PEFT matches patterns as regular expressions at the end of a module's name; names with dots are all that are used.
_PATTERN = re.compile(r"\^?[\w.\\-]+\$?")
# Models whose linear layers Hugging Face keeps as [in, out]; adapters look the same for them.
_FAN_IN_FAN_OUT = ("gpt2",)


@dataclass(frozen=True)
class _AdapterConfig:
    """The entries of an adapter_config.json that affect the result."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    by_root: bool

    def rank_of(self, module: str) -> int:
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        alpha = float(_matching(self.alphas, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that is the module's name, or its end after a dot; with a ^ only the whole name."""
    for pattern, value in patterns.items():
        name = pattern.replace("\\", "").removesuffix("$")
        whole = name.startswith("^")
        name = name.removeprefix("^")
        if module == name or (not whole and module.endswith("." + name)):
            return value
    return default


def read_adapter(cfg: ModelArchConfig, folder: Path) -> dict[str, LowRank]:
    """The adapter in a folder, for a model; what cannot be applied to it, or not without error, is refused by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FormatError(f"{folder} is no folder", hint=f"an adapter is a folder with {CONFIG} and {WEIGHTS}", path=str(folder))
    settings = _read_config(cfg, folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        other = "; adapter_model.bin is a pickle, save it as safetensors" if (folder / "adapter_model.bin").exists() else ""
        raise FormatError(f"{folder} has no {WEIGHTS}{other}", hint="save it with PEFT 0.6 or newer", path=str(folder))
    layers = {name: layer for layer in linear_layers(cfg).values() for name in layer.names}
    with open_weights(folder / WEIGHTS) as weights:
        pairs = _pairs(cfg, weights, layers)
        found: dict[str, LowRank] = {}
        for module, parts in pairs.items():
            layer = layers[module]
            if layer.path in found:
                raise FormatError(f"{folder} has two adapters for {layer.path}", path=str(folder))
            a, b = (_f32(weights, weights.tensors[parts[part]]) for part in ("A", "B"))
            check_sizes(layer, a.shape, b.shape, shown(module))
            if len(a) != settings.rank_of(module):
                raise FormatError(
                    f"the adapter of {shown(module)} has rank {len(a)}, {CONFIG} says {settings.rank_of(module)}",
                    hint="the two files belong to different adapters",
                    name=module,
                )
            low = LowRank(a, b if layer.order is None else b[layer.order], settings.scale_of(module, len(a)))
            found[layer.path] = low
    return found


def _pairs(cfg: ModelArchConfig, weights: WeightFile, layers: Mapping[str, LinearLayer]) -> dict[str, dict[str, str]]:
    """Tensor names by module and part; both parts are there for each."""
    pairs: dict[str, dict[str, str]] = {}
    for name in weights.tensors:
        match = _TENSOR.fullmatch(name) or _TABLE.fullmatch(name) or _COPY.fullmatch(name)
        module = "" if match is None else match["module"].removeprefix(_PREFIX)
        known = layers.get(module)
        if match is not None and match.re is _COPY and known is not None:
            _check_copy(weights.tensors[name], known)
            continue
        fits = match is not None and (known is None or known.is_table == (match.re is _TABLE))
        if match is None or not fits or match.re is _COPY:
            raise UnknownName(
                f"the adapter has the tensor {shown(name)}, which is no part of LoRA on linear layers or the table of tokens",
                hint="adapters of other methods and with whole modules saved are not supported",
                name=name,
            )
        if known is None:
            raise UnknownName(
                f"the adapter changes {shown(module)}, which the model {cfg.model_type!r} with {cfg.layers} layers does not have",
                hint="the adapter is of another model, or adapts more than the linear layers of its blocks",
                name=module,
            )
        pairs.setdefault(module, {})[match["part"]] = name
    for module, parts in pairs.items():
        if len(parts) != 2:
            lacks = "lora_B" if "A" in parts else "lora_A"
            raise MissingName(f"the adapter of {shown(module)} has no {lacks}", name=f"{module}.{lacks}.weight")
    if not pairs:
        raise FormatError(f"{weights.path} holds no adapter", path=str(weights.path))
    return pairs


def _check_copy(info: TensorInfo, layer: LinearLayer) -> None:
    """Refuses a saved table or head of other sizes than the model's: the adapter was made for another vocabulary."""
    sizes = (layer.inputs, layer.outputs) if layer.is_table else (layer.outputs, layer.inputs)
    if layer.path not in (EMBED, HEAD) or info.shape != sizes:
        raise ShapeError(
            f"the adapter brings the weight {shown(info.name)} of the shape {info.shape}, the model has {sizes}",
            hint="the adapter is of another model, or of one whose vocabulary was changed",
            name=info.name,
        )


def _f32(weights: WeightFile, info: TensorInfo) -> NDArray[np.float32]:
    if not info.dtype.is_float:
        raise DTypeError(f"the adapter's tensor {shown(info.name)} is {info.dtype}", hint="f32, f16 or bf16", name=info.name)
    values = np.array(weights.array(info.name), np.float32)  # a copy, as the file is closed
    if not np.isfinite(values).all():
        raise FormatError(f"the adapter's tensor {shown(info.name)} holds NaN or infinity", name=info.name)
    return values


def _read_config(cfg: ModelArchConfig, path: Path) -> _AdapterConfig:
    config: dict[str, Any] = read_json(path, hint="an adapter folder has one")
    if config.get("peft_type") != "LORA":
        raise _unsupported(path, "peft_type", config.get("peft_type"), "only LORA is supported")
    if config.get("bias", "none") != "none":
        raise _unsupported(path, "bias", config["bias"], "train with bias='none'")
    if config.get("fan_in_fan_out") and cfg.model_type not in _FAN_IN_FAN_OUT:
        raise _unsupported(path, "fan_in_fan_out", True, "the model's weights are stored [out, in]")
    for key, value in config.items():
        # Any other option, also of newer versions, may change what the adapter computes.
        if key not in _HARMLESS | _READ and value not in (None, False, [], {}):
            raise _unsupported(path, key, value, "plain LoRA is supported, with rsLoRA's scale, rank and alpha patterns")
    patterns: dict[str, Mapping[str, Any]] = {}
    for key, of in (("rank_pattern", _rank), ("alpha_pattern", _alpha)):
        given = config.get(key) or {}
        if not isinstance(given, dict) or not all(_PATTERN.fullmatch(k) for k in given):
            raise _unsupported(path, key, given, "patterns are names of modules, or their last parts")
        patterns[key] = {k: of(path, f"{key}.{k}", v) for k, v in given.items()}
    rank, alpha = _rank(path, "r", config.get("r")), _alpha(path, "lora_alpha", config.get("lora_alpha"))
    return _AdapterConfig(rank, alpha, patterns["rank_pattern"], patterns["alpha_pattern"], config.get("use_rslora") is True)


def _rank(path: Path, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FormatError(f"{path}: {name} is {value!r:.60}, not an integer of at least 1", path=str(path), name=name)
    return value


def _alpha(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FormatError(f"{path}: {name} is {value!r:.60}, not a number", path=str(path), name=name)
    return float(value)


def _unsupported(path: Path, key: str, value: Any, hint: str) -> InputError:
    return InputError(f"{path.name}: the adapter has {key} = {value!r:.80}, which is not supported", hint=hint, name=key)


def write_adapter(cfg: ModelArchConfig, adapter: Adapter, folder: Path, *, dropout: float = 0.0, base: str = "") -> None:
    """Write an adapter so that PEFT, and `read_adapter`, find it; layers that differ in rank or scale become patterns."""
    if not adapter:
        raise InputError("there is no adapter to write", hint="it changes at least one layer")
    check_adapter(cfg, adapter)
    layers = linear_layers(cfg)
    ranks = {layers[path].names[0]: low.rank for path, low in adapter.items()}
    alphas = {layers[path].names[0]: _tidy(low.scale * low.rank) for path, low in adapter.items()}
    rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
    tensors: dict[str, NDArray[Any]] = {}
    for path, low in adapter.items():
        layer = layers[path]
        b = low.b
        if layer.order is not None:
            b = np.empty_like(low.b)
            b[layer.order] = low.b
        part = "lora_embedding_{}" if layer.is_table else "lora_{}.weight"
        tensors |= {f"{_PREFIX}{layer.names[0]}.{part.format(k)}": array for k, array in (("A", low.a), ("B", b))}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": _targets(layers, adapter),
        "bias": "none",
        "fan_in_fan_out": cfg.model_type in _FAN_IN_FAN_OUT,
        "inference_mode": True,
        "init_lora_weights": True,
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }
    text = json.dumps(config, indent=1).encode() + b"\n"
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS, durable=True) as file:
        write_safetensors(file, tensors, {"format": "pt"})
    write_whole(folder / CONFIG, text, durable=True)


def _tidy(alpha: float) -> float:
    """A number without what rounding has added; whole ones as integers, as people write them."""
    near = round(alpha, 6)
    return int(near) if near == int(near) else near


def _targets(layers: Mapping[str, LinearLayer], adapter: Adapter) -> list[str]:
    """The ends of the adapted modules' names, as short as they may be without meaning other modules too."""

    def end(name: str, parts: int) -> str:
        return ".".join(name.split(".")[-parts:])

    others = {end(layer.names[0], 1) for layer in layers.values() if layer.path not in adapter}
    names = [layers[path].names[0] for path in adapter]
    return sorted({end(name, 2 if end(name, 1) in others else 1) for name in names})
