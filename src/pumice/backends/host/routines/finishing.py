"""Regions that only scale, move, add to and limit a routine's result, so that the routine can do it as it stores.

Inference of batch norm is such a region, with an activation and a residual connection behind it: the result times one number of
each channel plus another, plus a tensor of the same shape, between two limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from pumice.backends.host.memory.arrays import NpDType
from pumice.backends.host.routines.calls import NodeCall
from pumice.backends.host.routines.region import Instruction, Name, Region, RegionLeaf
from pumice.backends.host.routines.scalars import bind_scalar
from pumice.core import dtypes
from pumice.core.records import dataclass
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

_F32: NpDType = np.dtype(np.float32)


@dataclass(frozen=True)
class Factor:
    """A number of each channel: a leaf, or an op over such numbers."""

    op: str
    operands: tuple[Factor, ...] = ()
    leaf: Name = -1


def _combine(op: str, a: Factor | None, b: Factor | None) -> Factor | None:
    """None stands for the neutral number, 1 or 0."""
    if a is None or b is None:
        return a if b is None else b
    return Factor(op, (a, b))


@dataclass(frozen=True)
class ScaledSum:
    """The sum of full tensors, each times a factor, plus a factor, between limits; no factor is 1 or 0."""

    terms: Mapping[Name, Factor | None]
    shift: Factor | None = None
    low: float = -inf
    high: float = inf

    @property
    def is_limited(self) -> bool:
        return self.low != -inf or self.high != inf


def _add(a: ScaledSum, b: ScaledSum) -> ScaledSum | None:
    if a.is_limited or b.is_limited or a.terms.keys() & b.terms.keys():
        return None
    return ScaledSum({**a.terms, **b.terms}, _combine("add", a.shift, b.shift))


def _subtract(a: ScaledSum, b: ScaledSum) -> ScaledSum | None:
    if a.is_limited or b.is_limited or b.terms or b.shift is None:
        return None
    return replace(a, shift=Factor("neg", (b.shift,)) if a.shift is None else Factor("sub", (a.shift, b.shift)))


def _multiply(a: ScaledSum, b: ScaledSum) -> ScaledSum | None:
    if a.terms and b.terms:
        return None
    a, b = (a, b) if a.terms else (b, a)
    if a.is_limited or b.shift is None:
        return None
    shift = None if a.shift is None else Factor("mul", (a.shift, b.shift))
    return ScaledSum({name: _combine("mul", scale, b.shift) for name, scale in a.terms.items()}, shift)


def _limit(a: ScaledSum, low: float | None, high: float | None) -> ScaledSum | None:
    """Limits inside limits; a lower one above an upper one would depend on the order."""
    below, above = -inf if low is None else low, inf if high is None else high
    if below > a.high or above < a.low or below > above:
        return None
    return replace(a, low=max(a.low, below), high=min(a.high, above))


_TWO: dict[str, Callable[[ScaledSum, ScaledSum], ScaledSum | None]] = {"add": _add, "sub": _subtract, "mul": _multiply}


@dataclass(frozen=True)
class Ending:
    """What a routine does to its result: times `scale`, plus `shift`, plus the leaf `other`, between two limits."""

    scale: Factor | None
    shift: Factor | None
    other: RegionLeaf | None
    low: float
    high: float


def ending_of(region: Region, result: Name) -> Ending | None:
    """What a region does to the leaf `result`, if it is no more than that; channels are the second axis of its shape."""
    leaves = {leaf.name: leaf for leaf in region.leaves}
    if any(leaf.dtype != _F32 for leaf in region.leaves):
        return None
    values: dict[Name, ScaledSum] = {}
    for leaf in region.leaves:
        if leaf.shape == region.shape:
            values[leaf.name] = ScaledSum({leaf.name: None})
        elif _is_of_channels(leaf.shape, region.shape):
            values[leaf.name] = ScaledSum({}, Factor("leaf", leaf=leaf.name))
        else:
            return None
    for i in region.instructions:
        operands = [values[name] for name in i.operands]
        found = None
        if i.result == _F32 and i.op in _TWO:
            found = _TWO[i.op](operands[0], operands[1])
        elif i.result == _F32 and i.op == "relu":
            found = _limit(operands[0], 0.0, None)
        elif i.result == _F32 and i.op == "clamp":
            found = _limit(operands[0], *i.limits)
        if found is None:
            return None
        values[i.name] = found
    last = values[region.instructions[-1].name]
    others = [name for name in last.terms if name != result]
    if result not in last.terms or len(others) > 1 or any(last.terms[name] is not None for name in others):
        return None
    return Ending(last.terms[result], last.shift, leaves[others[0]] if others else None, last.low, last.high)


def _is_of_channels(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    padded = (1,) * (len(full) - len(shape)) + shape
    return len(full) > 1 and all(size == 1 or axis == 1 for axis, size in enumerate(padded))


def factor_region(factor: Factor, leaves: Mapping[Name, RegionLeaf], shape: tuple[int, ...]) -> Region:
    """The region that computes a factor of all channels, in the shape [1, channels, 1…]."""
    region = Region(shape)
    type = TensorType(dtypes.f32, shape)

    def place(f: Factor) -> Name:
        if f.op == "leaf":
            if f.leaf not in region:
                region.add_leaf(leaves[f.leaf])
            return f.leaf
        names = tuple(place(o) for o in f.operands)
        call = NodeCall(get_op(f.op), {}, (type,) * len(names), type, (_F32,) * len(names))
        kernel = bind_scalar(call)
        name: Name = ("factor", len(region.instructions))
        region.add(Instruction(kernel.run, names, name, kernel.result, kernel.in_place, kernel.native, f.op))
        return name

    place(factor)
    return region
