"""Checkpoints that hold the experts of a layer in joined tensors, as transformers has them in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pumice.errors import ShapeError
from pumice.formats.weights import TensorInfo, WeightFile, WrappedWeights, shown
from pumice.models.params import ParamDef

# The name of a matrix of each expert in most files, {} is its number; and Mixtral's.
_EACH = re.compile(r"(?P<experts>.+)\.\{\}\.(?P<role>gate_proj|up_proj|down_proj|w1|w3|w2)\.weight")
# What is called so in Mixtral's files has the usual name in those with joined tensors.
_MIXTRAL, _USUAL = ".block_sparse_moe.", ".mlp."
# Where a tensor is: the name of another one and the part of that.
_Part = tuple[str, tuple[int | slice, ...]]


def with_parted_experts(definitions: Sequence[ParamDef], weights: WeightFile) -> WeightFile:
    """The file with a tensor for each matrix of each expert, if it has those of a layer joined."""
    parts = dict(part for p in definitions for name in p.hf for part in _parts(name, p.shape[0], weights))
    return PartedExperts(weights, parts) if parts else weights


def _parts(name: str, count: int, weights: WeightFile) -> Iterator[tuple[str, _Part]]:
    """The tensors of that name, {} being a number below `count`, that the file has as another one or as parts of a joined one."""
    usual = name.replace(_MIXTRAL, _USUAL)
    if usual != name and usual in weights.tensors:
        yield name, (usual, ())
    found = _EACH.fullmatch(usual)
    if found is None:
        return
    experts, role = found["experts"], found["role"]
    joined = f"{experts}.down_proj" if role in ("down_proj", "w2") else f"{experts}.gate_up_proj"
    info = weights.tensors.get(joined)
    if info is None or len(info.shape) != 3:
        return
    if info.shape[0] != count:
        raise ShapeError(
            f"{weights.path.name}: the tensor {shown(joined)} has shape {info.shape}, the config asks for {count} experts",
            hint="the config and the weights belong to different models",
            name=joined,
            got=info.shape,
        )
    half = info.shape[1] // 2
    rows = {"gate_proj": slice(0, half), "w1": slice(0, half), "up_proj": slice(half, None), "w3": slice(half, None)}.get(role)
    for i in range(count):
        yield name.format(i), (joined, (i,) if rows is None else (i, rows))


class PartedExperts(WrappedWeights):
    """A weight file whose joined tensors are left out, and parts of them, by name, are there instead."""

    def __init__(self, weights: WeightFile, parts: Mapping[str, _Part]) -> None:
        self._parts = parts
        joined = {name for name, _ in parts.values()}
        plain = {name: info for name, info in weights.tensors.items() if name not in joined}
        super().__init__(
            weights, plain | {name: _part_info(name, weights.tensors[whole], part) for name, (whole, part) in parts.items()}
        )

    def array(self, name: str) -> NDArray[Any]:
        """The tensor, or a view on the part of one."""
        joined, part = self._parts.get(name, (name, ()))
        whole = self._weights.array(joined)
        return whole[part] if part else whole

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        joined, part = self._parts.get(name, (name, ()))
        return None if part else self._weights.eight_bit_floats(joined)


def _part_info(name: str, whole: TensorInfo, part: tuple[int | slice, ...]) -> TensorInfo:
    """What is known of a part of a tensor."""
    cut = [len(range(size)[at]) for size, at in zip(whole.shape, part, strict=False) if isinstance(at, slice)]
    return TensorInfo(name, whole.dtype, (*cut, *whole.shape[len(part) :]))
