"""Params from weight files: every tensor finds its place, or the error names it; nothing is read before it is used."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pumice.core.records import dataclass
from pumice.core.streamed import StreamedArray
from pumice.errors import DTypeError, InputError, MissingName, ShapeError, UnknownName
from pumice.formats.bundle import BundleWeights
from pumice.formats.quantized import QuantizedWeights
from pumice.formats.weights import TensorInfo, WeightFile, shown
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.joined import with_parted_experts
from pumice.models.params import ParamDef
from pumice.models.registry import get_architecture
from pumice.tracing import Spec

# Buffers that older files carry along: what they hold follows from the config.
_BUFFERS = (r".*rotary_emb\.inv_freq", r".*\.masked_bias", r".*embeddings\.position_ids")
_GGUF_BUFFERS = (r"rope_freqs\.weight", r"blk\.\d+\.attn_rot_embd(\.weight)?")
_SHOWN = 5
# Where a name has the number of one of several tensors that are one param here: experts.
_EACH = "{}"
_COMPARED_ROWS = 4096
T = TypeVar("T")


class LazyMapping(Mapping[str, T]):
    """Arrays by the dotted paths of their params, each a view on the file that is created on access."""

    def __init__(self, read: Callable[[str], T], names: Mapping[str, str]) -> None:
        self._read, self._names = read, names

    def __getitem__(self, path: str) -> T:
        return self._read(self._names[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class LoadedParams:
    """`specs` are the params to trace with, by path; `arrays` what to set them to, for `Executable.set_params`.

    `streams` are the same where a device should read them piece by piece: those of a bundle, which are no views on files.
    """

    specs: Mapping[str, Spec]
    arrays: Mapping[str, NDArray[Any]]
    nbytes: int
    streams: Mapping[str, StreamedArray] | None = None

    def stored(self, path: str) -> NDArray[Any] | StreamedArray:
        """What to upload for a param."""
        return self.streams[path] if self.streams is not None and path in self.streams else self.arrays[path]


def load_model_params(cfg: ModelArchConfig, weights: WeightFile, head: ClassifierHead | None = None) -> LoadedParams:
    """The params that a config and a head ask for, from a checkpoint that must hold them all and nothing else.

    Left alone are only buffers that follow from the config, heads for other tasks, and the copy of tied embeddings.
    """
    if weights.kind != "bundle" and (weights.kind == "gguf") != (cfg.source == "gguf"):
        raise InputError(
            f"the config comes from {cfg.source} and the weights from a {weights.kind} file",
            hint="they belong together: names and layouts differ",
        )
    if cfg.quantization is not None:
        weights = QuantizedWeights(weights, cfg.quantization)
    definitions = get_architecture(cfg.model_type).params(cfg) + (() if head is None else head.params(cfg))
    if weights.kind == "safetensors" and cfg.quantization is None:
        weights = with_parted_experts(definitions, weights)
    found = {p.path: name for p in definitions if (name := _find(p, weights)) is not None}
    _refuse_missing([p for p in definitions if p.path not in found], weights)
    orders = _orders(found, weights)
    counts = {found[p.path]: p.shape[0] for p in definitions if _EACH in found[p.path]}
    parts = {name: [name.format(i) for i in range(count)] for name, count in counts.items()}
    _refuse_unexpected(cfg, weights, {*found.values(), *orders.values(), *(part for of in parts.values() for part in of)})
    names = {**found, **orders}
    infos = {name: _info(name, parts.get(name), weights) for name in names.values()}
    for p in definitions:
        _check(p, infos[found[p.path]], weights)
    specs = {path: Spec(infos[name].type) for path, name in names.items()}
    nbytes = sum(infos[name].nbytes for name in names.values())
    streams = LazyMapping(weights.stream, names) if isinstance(weights, BundleWeights) else None

    def read(name: str) -> NDArray[Any]:
        return np.stack([weights.array(part) for part in parts[name]]) if name in parts else weights.array(name)

    return LoadedParams(specs, LazyMapping(read, names), nbytes, streams)


def _info(name: str, parts: Sequence[str] | None, weights: WeightFile) -> TensorInfo:
    """A tensor of the file, or one for several that the file has one by one, which must be alike."""
    if parts is None:
        return weights.tensors[name]
    first, *others = (weights.tensors[part] for part in parts)
    for other in others:
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise ShapeError(
                f"{weights.path.name}: the tensors {shown(first.name)} and {shown(other.name)} belong together, but they are "
                f"{first.type.describe()} and {other.type.describe()}",
                hint="experts of a layer have the same shape and dtype; convert the checkpoint so",
                names=[first.name, other.name],
            )
    return TensorInfo(name, first.dtype, (len(parts), *first.shape))


def with_own_head(cfg: ModelArchConfig, weights: WeightFile) -> ModelArchConfig:
    """The config, untied where the checkpoint holds a head other than the embeddings that it is said to be tied to.

    As transformers does it: the head counts, and a warning says so. A head that is a copy is left alone.
    """
    if cfg.source != "hf" or cfg.kind != "causal" or not cfg.tie_embeddings:
        return cfg
    if cfg.quantization is not None:
        weights = QuantizedWeights(weights, cfg.quantization)
    untied = replace(cfg, tie_embeddings=False)
    found = {p.path: _find(p, weights) for p in get_architecture(cfg.model_type).params(untied)}
    table, head = found["embed.weight"], found["head.weight"]
    if table is None or head is None or _same(weights, table, head):
        return cfg
    warnings.warn(
        f"config.json ties {shown(head)} to {shown(table)}, but {weights.path.name} holds both and they differ: "
        "the head is used; tie_word_embeddings: false would say so",
        UserWarning,
        stacklevel=2,
    )
    return untied


def _same(weights: WeightFile, a: str, b: str) -> bool:
    """Whether two tensors hold the same numbers; compared by some rows at a time, the first that differ end it."""
    x, y = (weights.tensors[name] for name in (a, b))
    if x.shape != y.shape or ((x.dtype.is_quant or y.dtype.is_quant) and x.dtype != y.dtype):
        return False
    left, right = weights.array(a), weights.array(b)
    rows = range(0, len(left), _COMPARED_ROWS)
    return all(np.array_equal(left[i : i + _COMPARED_ROWS], right[i : i + _COMPARED_ROWS]) for i in rows)


def _orders(found: Mapping[str, str], weights: WeightFile) -> dict[str, str]:
    """The params with the column order of quantised weights, for those that have one."""
    if not isinstance(weights, (QuantizedWeights, BundleWeights)):
        return {}
    # Not for embedding tables: a lookup has no activations to sort.
    matrices = ("layers", "head", "classifier")
    linear = {path: name for path, name in found.items() if path.endswith(".weight") and path.split(".")[0] in matrices}
    beside = {path.removesuffix("weight") + "order": name.removesuffix("weight") + "order" for path, name in linear.items()}
    return {path: name for path, name in beside.items() if name in weights.tensors}


def _names(p: ParamDef, weights: WeightFile) -> tuple[str, ...]:
    return (p.path,) if weights.kind == "bundle" else p.gguf if weights.kind == "gguf" else p.hf


def _find(p: ParamDef, weights: WeightFile) -> str | None:
    """The name under which a file has a param; one with {} where it has each of its parts as a tensor of its own."""

    def has(name: str) -> bool:
        return name in weights.tensors or (_EACH in name and all(name.format(i) in weights.tensors for i in range(p.shape[0])))

    return next((name for name in _names(p, weights) if has(name)), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shown(n) for n in names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _first_missing(p: ParamDef, weights: WeightFile) -> str:
    name = _names(p, weights)[0]
    return next((part for i in range(p.shape[0]) if (part := name.format(i)) not in weights.tensors), name)


def _refuse_missing(missing: Sequence[ParamDef], weights: WeightFile) -> None:
    if not missing:
        return
    names = [_first_missing(p, weights) for p in missing]
    only_head = [p.path for p in missing] == ["head.weight"]
    raise MissingName(
        f"{weights.path.name} lacks {len(names)} of the model's tensors: {_listed(names)}",
        hint="its config should say tie_word_embeddings: true"
        if only_head
        else "the config and the weights belong to different models, or shards are missing",
        names=names,
        path=str(weights.path),
    )


def _refuse_unexpected(cfg: ModelArchConfig, weights: WeightFile, used: set[str]) -> None:
    architecture = get_architecture(cfg.model_type)
    patterns: tuple[str, ...] = ()
    if weights.kind == "gguf":
        patterns = _GGUF_BUFFERS + architecture.ignored_in(cfg, weights.tensors)
    elif weights.kind == "safetensors":
        patterns = _BUFFERS + architecture.ignored_in(cfg, weights.tensors)
        if cfg.tie_embeddings:
            patterns += tuple(re.escape(name) + r"\.weight" for name in architecture.names_of(cfg).head)
    ignorable = re.compile("|".join(f"(?:{p})" for p in patterns))
    names = [name for name in weights.tensors if name not in used and not ignorable.fullmatch(name)]
    if isinstance(weights, QuantizedWeights):
        names = [name for name in names if not weights.is_spare(name)]
        sorted_columns = [name.removesuffix(".order") for name in names if weights.is_order(name)]
        if sorted_columns:
            raise InputError(
                f"{weights.path.name}: the columns of {len(sorted_columns)} quantised layers are sorted by group, which is not "
                f"supported where they are experts or tables: {_listed(sorted_columns)}",
                hint="take a checkpoint that was quantised without act-order (desc_act: false)",
                names=sorted_columns,
            )
    if names:
        raise UnknownName(
            f"{weights.path.name} holds {len(names)} tensors that the model {cfg.model_type!r} does not have: {_listed(names)}",
            hint="the config and the weights belong to different models, or the model has parts that are not supported",
            names=names,
            path=str(weights.path),
        )


def _check(p: ParamDef, info: TensorInfo, weights: WeightFile) -> None:
    if info.shape != p.shape:
        raise ShapeError(
            f"{weights.path.name}: the tensor {shown(info.name)} has shape {info.shape}, the config asks for {p.shape}",
            hint="the config and the weights belong to different models",
            name=info.name,
            got=info.shape,
            expected=p.shape,
        )
    if not (info.dtype.is_float or (info.dtype.is_quant and not p.is_vector)):
        raise DTypeError(
            f"{weights.path.name}: the tensor {shown(info.name)} is {info.dtype}, which is no dtype for it",
            hint="weights are f32, f16 or bf16; matrices and tables may be quantised",
            name=info.name,
            got=info.dtype.name,
        )
