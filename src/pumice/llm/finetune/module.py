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
from pumice.models.linear import LORA_DROPOUT
from pumice.models.load import LoadedParams
from pumice.models.lora import (
    EMBED,
    HEAD,
    Adapter,
    LinearLayer,
    LowRank,
    adapter_keys,
    check_adapter,
    choose_layers,
    linear_layers,
    table_of,
)
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.nn import init
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
        self.base = self._tree(loaded.specs, "", loaded.arrays, frozen=lora is not None)
        if lora is None:
            return
        layers: list[dict[str, Any]] = [{} for _ in range(cfg.layers)]
        tables: dict[str, Any] = {}
        for layer in choose_layers(cfg, lora.targets) if adapter is None else [linear_layers(cfg)[path] for path in adapter]:
            low = None if adapter is None else adapter[layer.path]
            matrices = _matrices(layer, lora.rank) if low is None else _given(low)
            if layer.path in (EMBED, HEAD):
                tables[layer.path] = matrices
            else:
                _, index, role = layer.path.split(".")
                layers[int(index)][role] = matrices
            self.scales[layer.path] = lora.scale if low is None else low.scale
        self.lora = {"layers": layers, **tables}
        self.dropout = nn.Dropout(lora.dropout)

    def _tree(self, specs: Any, path: str, arrays: Mapping[str, Array], *, frozen: bool) -> Any:
        """Parameters instead of specs; they start from the file's arrays, which are not kept."""
        if isinstance(specs, Mapping):
            return {k: self._tree(v, f"{path}.{k}" if path else k, arrays, frozen=frozen) for k, v in specs.items()}
        if isinstance(specs, list):
            return [self._tree(v, f"{path}.{k}", arrays, frozen=frozen) for k, v in enumerate(specs)]
        kind: TensorType = specs.type
        if frozen or path.startswith("rope."):
            kept = nn.Buffer(kind.static_shape, init=lambda shape, rng: arrays[path], dtype=kind.dtype)
            kept.saved = False
            return kept
        return nn.Parameter(
            kind.static_shape,
            init=lambda shape, rng: _unpacked(arrays[path], kind),
            decay=len(kind.shape) > 1,
            lookup=path in ("embed.weight", "positions.weight"),
        )

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocab]; tokens see those before them in their own segment."""
        mask = None
        if segments is not None:
            batch, time = segments.shape
            mask = F.reshape(segments, (batch, 1, time, 1)) == F.reshape(segments, (batch, 1, 1, time))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            return F.attention(q, k, v, mask=mask, layout="bshd", causal=True, **options)

        params = self._adapted() if self.settings is not None else self.base
        hidden = self.arch.hidden(self.cfg, params, tokens, positions, attend)
        return self.arch.logits(self.cfg, params, hidden)

    def _adapted(self) -> dict[str, Any]:
        base, lora = dict(self.base), self.lora
        layers = [dict(layer) for layer in base["layers"]]
        for path, scale in self.scales.items():
            if path in (EMBED, HEAD):
                tree, role, matrices = base, table_of(self.cfg, path), lora[path]
            else:
                _, index, role = path.split(".")
                tree, matrices = layers[int(index)], lora["layers"][int(index)][role]
            first, second = adapter_keys(path)
            added = {first: matrices["A"], second: matrices["B"] * scale}
            # A table lookup has no elements to drop.
            tree[role] = {**tree[role], **added, **({} if path == EMBED else {LORA_DROPOUT: self.dropout})}
        return {**base, "layers": layers}

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
