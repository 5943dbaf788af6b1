"""A causal model as a module: all weights are trained, or adapters on frozen weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice import functions as F
from pumice import nn
from pumice.core.blocks import dequantize_rows
from pumice.errors import InputError
from pumice.ir.types import TensorType
from pumice.llm.finetune.packing import IGNORED
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.lora import (
    EMBED,
    Adapter,
    LinearLayer,
    LowRank,
    adapter_keys,
    check_adapter,
    choose_layers,
    linear_layers,
    table_of,
)
from pumice.models.memory import WholeSequences
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.nn import init
from pumice.nn.layers import LORA_DROPOUT
from pumice.tensor import Tensor

Array = NDArray[Any]


@dataclass(frozen=True)
class LoraSettings:
    """Adapters of a rank, scaled by alpha / rank, with dropout before them, on the layers that `targets` name.

    >>> LoraSettings(rank=8).scale
    2.0
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention",)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"a rank of {self.rank}", hint="it is at least 1", rank=self.rank)
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha is {self.alpha}", hint="it is above 0", alpha=self.alpha)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class CausalModel(nn.Module):
    """The model of a config with the weights of a file.

    With `lora` the weights stay as the file has them, packed ones too, take no gradient and are in no checkpoint. Without it
    all float weights are f32 parameters; packed ones are unpacked for it. An `adapter` to start from brings its own layers,
    ranks and scales.
    """

    base: Any
    lora: Any

    def __init__(
        self, cfg: ModelArchConfig, loaded: LoadedParams, lora: LoraSettings | None = None, adapter: Adapter | None = None
    ) -> None:
        arch = get_architecture(cfg.model_type)
        if not isinstance(arch, CausalArchitecture):
            raise InputError(f"a model of the architecture {cfg.model_type!r} says no next token", hint="choose a causal model")
        if adapter is not None:
            check_adapter(cfg, adapter)
            lora = lora or LoraSettings()
        elif lora is None and cfg.quantization is not None:
            raise InputError(
                f"a checkpoint that {cfg.quantization.method} has quantised cannot be trained as a whole",
                hint="use LoRA, or start from the checkpoint before it was quantised",
            )
        self.cfg, self.arch, self.settings = cfg, arch, lora
        self.scales: dict[str, float] = {}
        self.base = {
            path: self._parameter(path, spec.type, loaded.arrays, lora is not None) for path, spec in loaded.specs.items()
        }
        if lora is None:
            return
        matrices: dict[str, dict[str, nn.Parameter]] = {}
        for layer in choose_layers(cfg, lora.targets) if adapter is None else [linear_layers(cfg)[path] for path in adapter]:
            low = None if adapter is None else adapter[layer.path]
            matrices[layer.path] = _matrices(layer, lora.rank) if low is None else _given(low)
            self.scales[layer.path] = lora.scale if low is None else low.scale
        self.lora = matrices
        self.dropout = nn.Dropout(lora.dropout)

    def _parameter(self, path: str, kind: TensorType, arrays: Mapping[str, Array], frozen: bool) -> nn.Parameter:
        """A parameter that starts from the file's array, which is not kept."""
        like = self.arch.model(self.cfg).named_parameters().get(path)
        if frozen or like is None or not like.trainable:
            kept = nn.Buffer(kind.static_shape, init=lambda shape, rng: arrays[path], dtype=kind.dtype)
            kept.saved = False
            return kept
        start = lambda shape, rng: _unpacked(arrays[path], kind)  # noqa: E731
        return nn.Parameter(kind.static_shape, init=start, decay=len(kind.shape) > 1, lookup=like.lookup)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocab]; tokens see those before them in their own segment."""
        mask = None
        if segments is not None:
            batch, time = segments.shape
            mask = F.reshape(segments, (batch, 1, time, 1)) == F.reshape(segments, (batch, 1, 1, time))

        params = self._adapted() if self.settings is not None else self.base
        hidden = self.arch.hidden(self.cfg, params, tokens, positions, WholeSequences(mask))
        return self.arch.logits(self.cfg, params, hidden)

    def _adapted(self) -> dict[str, Any]:
        params, lora = dict(self.base), self.lora
        for path, scale in self.scales.items():
            where, matrices = table_of(self.cfg, path), lora[path]
            first, second = adapter_keys(path)
            params |= {f"{where}.{first}": matrices["A"], f"{where}.{second}": matrices["B"] * scale}
            if path != EMBED:  # a table lookup has no elements to drop
                params[f"{where}.{LORA_DROPOUT}"] = self.dropout
        return params

    def adapter_names(self) -> list[str]:
        """The names of the adapters' parameters."""
        return [f"lora.{path}.{part}" for path in self.scales for part in ("A", "B")]

    def adapter(self, values: Mapping[str, Array]) -> dict[str, LowRank]:
        """The adapter that parameters with these values make."""
        found: dict[str, LowRank] = {}
        for path, scale in self.scales.items():
            a, b = (np.asarray(values[f"lora.{path}.{part}"], np.float32) for part in ("A", "B"))
            found[path] = LowRank(a, b, scale)
        return found


def _matrices(layer: LinearLayer, rank: int) -> dict[str, nn.Parameter]:
    # As in PEFT: A is even between ±1/√in; B starts at 0, so that at first nothing changes. For tables it is the other way.
    if layer.is_table:
        a = nn.Parameter((rank, layer.inputs), init=init.zeros())
        return {"A": a, "B": nn.Parameter((layer.outputs, rank), init=init.normal())}
    bound = 1 / math.sqrt(layer.inputs)
    a = nn.Parameter((rank, layer.inputs), init=init.uniform(-bound, bound))
    return {"A": a, "B": nn.Parameter((layer.outputs, rank), init=init.zeros())}


def _given(low: LowRank) -> dict[str, nn.Parameter]:
    return {"A": nn.Parameter(init=low.a), "B": nn.Parameter(init=low.b)}


def _unpacked(array: Array, kind: TensorType) -> Array:
    if kind.dtype.is_quant:
        return dequantize_rows(kind.dtype, array, kind.static_shape[-1])
    return array.astype(np.float32)


def next_token_loss(
    model: nn.Module, tokens: Tensor, labels: Tensor, positions: Tensor, segments: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean cross-entropy of the labels that are learned."""
    return nn.cross_entropy(model(tokens, positions, segments), labels, ignore_index=IGNORED), {}
