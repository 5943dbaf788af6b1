"""Traits: what planning, checks and reports know of an op beyond its meaning, as data of its OpSpec.

Operands are named as the OpSpec names them. What is not said holds for most ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.core.dims import Shape
from pumice.ir.views import View

Attrs = Mapping[str, Any]


def always(attrs: Attrs) -> bool:
    """True, of ops that change nothing but the type."""
    return True


@dataclass(frozen=True, slots=True)
class Traits:
    """What is particular about an op.

    Fusion:
    `view(base, attrs, shape)`: the strided view that it makes of its operand `base`, None where that takes a copy.
    `cheap`: computing it for every reader costs about as much as loading it would.
    `reads`: elements of the first operand that one element of the result is computed from.
    `places`: each element of its operands goes to one place of a larger result, so that none is computed twice.

    Passes and checks:
    `neutral`: the value of an operand with which the result is the other operand.
    `divisor`: the operand that it divides by.
    `unchanged(attrs)`: whether a result of the first operand's type is that operand. None: it never is.
    `merged(first, second)`: the attributes of one such op that does what two in a row do.
    """

    view: Callable[[View, Attrs, Shape], View | None] | None = None
    cheap: bool = False
    reads: int = 1
    places: bool = False
    neutral: Mapping[str, float] = field(default_factory=dict)
    divisor: str = ""
    unchanged: Callable[[Attrs], bool] | None = None
    merged: Callable[[Attrs, Attrs], Attrs] | None = None


USUAL = Traits()
