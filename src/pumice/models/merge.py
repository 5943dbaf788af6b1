"""Projections of the same input merged into one matmul: q, k and v, and gate and up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.ir.types import TensorType
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.tracing import Spec

_QKV, _GATE_UP = ("q", "k", "v"), ("gate", "up")


class MergedArrays(Mapping[str, NDArray[Any]]):
    """Arrays by path as another mapping has them, some of them made of several that are put on top of each other."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], parts: Mapping[str, Sequence[str]]) -> None:
        self._arrays, self._parts = arrays, parts

    def __getitem__(self, path: str) -> NDArray[Any]:
        parts = [self._arrays[p] for p in self._parts[path]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def merge_projections(cfg: ModelArchConfig, params: LoadedParams, target: str = "webgpu") -> tuple[ModelArchConfig, LoadedParams]:
    """The same model with fewer, larger matmuls, where the weights of all its layers allow it.

    Fewer steps read the same weights, which is what small batches on a GPU spend their time on; on the host a step costs
    little, and parts of a merged result more. Weights of different dtypes stay apart, as do projections with a norm of
    their own.
    """
    if target == "host":
        return cfg, params
    layers: list[dict[str, Any]] = params.specs["layers"]
    groups: list[tuple[str, tuple[str, ...]]] = []
    if cfg.qkv == "split" and cfg.qk_norm != "projection" and not cfg.transposed_weights and _alike(layers, _QKV):
        groups.append(("qkv", _QKV))
        cfg = replace(cfg, qkv="fused")
    if cfg.gated and not cfg.fused_gate_up and not cfg.transposed_weights and _alike(layers, _GATE_UP):
        groups.append(("gate_up", _GATE_UP))
        cfg = replace(cfg, fused_gate_up=True)
    if not groups:
        return cfg, params
    parts: dict[str, tuple[str, ...]] = {}
    for path in params.arrays:
        head, _, rest = path.partition(".")
        index, _, tail = rest.partition(".")
        role, _, leaf = tail.partition(".")
        name, members = next(((n, m) for n, m in groups if head == "layers" and role in m), (role, (role,)))
        merged = path if name == role else f"layers.{index}.{name}.{leaf}"
        parts[merged] = (path,) if name == role else tuple(f"layers.{index}.{m}.{leaf}" for m in members)
    specs = {**params.specs, "layers": [_merged_layer(layer, groups) for layer in layers]}
    return cfg, LoadedParams(specs, MergedArrays(params.arrays, parts), params.nbytes)


def _alike(layers: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> bool:
    """Whether the projections of every layer have the same dtypes, and biases all or none."""
    for layer in layers:
        if not all(role in layer for role in roles):
            return False
        found = [{leaf: spec.type.dtype for leaf, spec in layer[role].items()} for role in roles]
        if any(f != found[0] for f in found):
            return False
    return True


def _merged_layer(layer: Mapping[str, Any], groups: Sequence[tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    out = dict(layer)
    for name, roles in groups:
        joined = [out.pop(role) for role in roles]
        out[name] = {leaf: Spec(_stacked([j[leaf].type for j in joined])) for leaf in joined[0]}
    return out


def _stacked(types: Sequence[TensorType]) -> TensorType:
    return TensorType(types[0].dtype, (sum(t.static_shape[0] for t in types), *types[0].shape[1:]))
