"""Low-rank adapters: which linear layers of a model take them, and how they are added to frozen weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice import nn
from pumice.core.dtypes import f32
from pumice.core.records import dataclass
from pumice.errors import InputError, ShapeError, UnknownName
from pumice.ir.types import TensorType
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.params import role_of
from pumice.models.registry import get_architecture
from pumice.nn.layers import LORA_A, LORA_B, ROWS_A, ROWS_B
from pumice.tracing import Spec

F32 = NDArray[np.float32]

# The default targets of adapters: attention's projections, however a model groups them.
ATTENTION = ("q", "k", "v", "qkv", "o")
# The token table and the head, which are outside of the layers and get adapters only where they are named.
EMBED, HEAD = "embed", "head"
_TIED_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer that can have an adapter: its path in the params, its sizes, and the modules' names in Hugging Face models.

    The table of tokens counts as one whose inputs are the tokens. `order` says for each of its rows which row of the Hugging
    Face model's it is, None where they are the same.
    """

    path: str
    outputs: int
    inputs: int
    names: tuple[str, ...]
    order: NDArray[np.intp] | None = None

    @property
    def role(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def is_table(self) -> bool:
        return self.path == EMBED


@dataclass(frozen=True, slots=True)
class LowRank:
    """The adapter of one layer: scale · b·a, with a [rank, in] and b [out, rank], rows ordered as the model's weights are."""

    a: F32
    b: F32
    scale: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


Adapter = Mapping[str, LowRank]


def linear_layers(cfg: ModelArchConfig) -> dict[str, LinearLayer]:
    """The layers of a model that can have adapters, by path.

    >>> llama = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    ...          "intermediate_size": 16, "vocab_size": 10, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}
    >>> found = linear_layers(ModelArchConfig.from_hf(llama))
    >>> list(found)[-2], found["layers.0.ffn.down"].outputs, found["layers.0.ffn.down"].names[0]
    ('layers.0.ffn.down', 8, 'model.layers.0.mlp.down_proj')
    """
    found: dict[str, LinearLayer] = {}
    architecture = get_architecture(cfg.model_type)
    names = {p.path: tuple(name.removesuffix(".weight") for name in p.hf) for p in architecture.params(cfg)}
    for path, module in architecture.model(cfg).named_modules().items():
        if path == EMBED:
            # A tied matrix may be stored under the head's name, but the two are modules of their own.
            own = tuple(name for name in names["embed.weight"] if name not in architecture.names_of(cfg).head)
            found[path] = LinearLayer(path, module.width, module.count, own)
        elif isinstance(module, nn.Linear):
            rows = architecture.gguf_rows.get(role_of(path)) if cfg.source == "gguf" else None
            order = None if rows is None else rows(cfg)
            found[path] = LinearLayer(path, module.outputs, module.inputs, names[f"{path}.weight"], order)
    if cfg.tie_embeddings and EMBED in found:
        # The head has no weight of its own, but a module.
        found[HEAD] = LinearLayer(HEAD, found[EMBED].inputs, found[EMBED].outputs, (_TIED_HEAD,))
    return found


def choose_layers(cfg: ModelArchConfig, targets: Sequence[str]) -> list[LinearLayer]:
    """The layers that targets name: "attention", "all-linear" (of the blocks), or roles such as "q", "q_proj", "embed", "head".

    >>> llama = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    ...          "intermediate_size": 16, "vocab_size": 10, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}
    >>> cfg = ModelArchConfig.from_hf(llama)
    >>> [layer.role for layer in choose_layers(cfg, ["attention"])], [layer.role for layer in choose_layers(cfg, ["up_proj"])]
    (['q', 'k', 'v', 'o'], ['up'])
    """
    layers = linear_layers(cfg)
    known = {layer.role: {layer.role, layer.names[0].rpartition(".")[2]} for layer in layers.values()}
    chosen: set[str] = set()
    for target in targets:
        if target == "all-linear":
            matched = set(known) - {EMBED, HEAD}
        elif target == "attention":
            matched = {role for role in known if role in ATTENTION}
        else:
            matched = {role for role, names in known.items() if target in names}
        if not matched:
            raise UnknownName(
                f"the model {cfg.model_type!r} has no linear layers {target!r}",
                hint="choose attention, all-linear, or some of " + " ".join(known),
                name=target,
            )
        chosen |= matched
    if not chosen:
        raise InputError("no layers are chosen for adapters", hint="choose attention or all-linear")
    return [layer for layer in layers.values() if layer.role in chosen]


def check_adapter(cfg: ModelArchConfig, adapter: Adapter) -> None:
    """Refuses an adapter whose layers or sizes are not the model's."""
    layers = linear_layers(cfg)
    for path, low in adapter.items():
        if path not in layers:
            raise UnknownName(f"the adapter changes {path!r}, which the model does not have", name=path)
        check_sizes(layers[path], low.a.shape, low.b.shape, path)


def check_sizes(layer: LinearLayer, a: tuple[int, ...], b: tuple[int, ...], name: str) -> None:
    """Refuses matrices that do not fit a layer or each other."""
    rank = a[0] if a else 0
    if len(a) != 2 or not rank or a != (rank, layer.inputs) or b != (layer.outputs, rank):
        raise ShapeError(
            f"the adapter of {name} has the shapes {a} and {b}, "
            f"the model's layer has {layer.inputs} inputs and {layer.outputs} outputs",
            hint="the adapter is of another model",
            name=name,
            got=(a, b),
            expected=(("rank", layer.inputs), (layer.outputs, "rank")),
        )


class _Arrays(Mapping[str, NDArray[Any]]):
    """Arrays of two mappings as one."""

    def __init__(self, first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, path: str) -> NDArray[Any]:
        return self._second[path] if path in self._second else self._first[path]

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from self._second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)


def attach(cfg: ModelArchConfig, params: LoadedParams, adapter: Adapter) -> LoadedParams:
    """Params with an adapter for their weights."""
    extra: dict[str, F32] = {}
    for path, low in adapter.items():
        where = table_of(cfg, path)
        if f"{where}.weight" not in params.specs:
            raise UnknownName(f"the adapter changes {path!r}, which the model does not have", name=path)
        matrices = (low.a, low.b * np.float32(low.scale))
        extra |= {f"{where}.{key}": matrix for key, matrix in zip(adapter_keys(path), matrices, strict=True)}
    nbytes = params.nbytes + sum(array.nbytes for array in extra.values())
    specs = {**params.specs, **{path: Spec(TensorType(f32, array.shape)) for path, array in extra.items()}}
    return LoadedParams(specs, _Arrays(params.arrays, extra), nbytes, params.streams)


def table_of(cfg: ModelArchConfig, path: str) -> str:
    """Where the adapter of a layer is: that of a head without a weight of its own is at the table."""
    return EMBED if path == HEAD and cfg.tie_embeddings else path


def adapter_keys(path: str) -> tuple[str, str]:
    """The names of an adapter's two matrices for the weight of a layer."""
    return (ROWS_A, ROWS_B) if path == EMBED else (LORA_A, LORA_B)
