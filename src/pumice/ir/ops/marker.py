"""Markers: identity ops that give passes a hint, such as where gradients stop; no kernel computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core.dtypes import PLAIN
from pumice.ir.gradient import Rule
from pumice.ir.gradients.elementwise import identity
from pumice.ir.ops.shape import plain, sample, sample_array
from pumice.ir.registry import Array, Attrs, OpSpec, Pull, Sample, Types, register
from pumice.ir.traits import USUAL, Traits, always
from pumice.ir.types import TensorType

# By simplify, which a barrier withstands.
_DROPPED = Traits(unchanged=always)


def _infer(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    return x


def _reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.asarray(arrays[0])


def _samples() -> Iterator[Sample]:
    for d in PLAIN:
        yield sample(d.name, [sample_array((7, 13), d)])
    yield sample("scalar", [sample_array(())])
    yield sample("empty", [sample_array((0, 3))])


def _marker(
    name: str,
    summary: str,
    rules: str,
    *,
    attrs: dict[str, Any] | None = None,
    gradient: Rule | None = identity,
    why: str = "",
    traits: Traits = _DROPPED,
) -> None:
    register(
        OpSpec(
            name,
            "marker",
            summary,
            ("x",),
            _infer,
            _reference,
            Pull("identity"),
            _samples,
            attrs or {},
            cost="free",
            rules=rules,
            gradient=gradient,
            no_gradient=why,
            differentiable=gradient is not None,
            traits=traits,
        )
    )


_marker(
    "stop_gradient",
    "x, through which no gradient flows back",
    "Dropped by simplify.",
    gradient=None,
    why="stopping gradients is what it is for",
)
_marker(
    "barrier",
    "x, as a value of its own that no pass merges with another",
    "What is computed from it is computed again, even where the same was computed from x. Dropped just before planning.",
    attrs={"region": 0},
    traits=USUAL,
)
_marker(
    "mark",
    "x, noted as an argument or a border of a region for the gradient pass",
    "role is argument, begin, end or custom; region numbers what belongs together; save says what a checkpointed region keeps:"
    " nothing, or the results of compute-bound ops. Dropped by simplify.",
    attrs={"role": "argument", "region": 0, "save": ""},
)
