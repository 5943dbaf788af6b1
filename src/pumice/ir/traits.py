"""Traits: what planning, checks and reports use of an op beyond its meaning, as data of its OpSpec.

Operands are named as in the OpSpec. The defaults hold for most ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from pumice.core.dims import Dim, Expr, Shape, bounds, symbols
from pumice.core.precisions import Precision
from pumice.core.records import dataclass
from pumice.ir.types import TensorType
from pumice.ir.views import View

Attrs = Mapping[str, Any]
# The operands that are there by name: their shapes, in dims or in numbers.
Shapes = Mapping[str, Shape]
Sizes = Mapping[str, tuple[int, ...]]
# Functions of the operands' sizes, the attributes and the sizes of the result.
Flops = Callable[[Sizes, Attrs, tuple[int, ...]], int]
SizesText = Callable[[Sizes, Attrs, tuple[int, ...]], str]

OUT_OF_RANGE = "pass inputs of another size, or clamp the bound in the traced function"


@dataclass(frozen=True, slots=True)
class Selects:
    """It picks from an axis of `operand` what `indices` holds; `axis` None: the one that its attribute `axis` names."""

    operand: str
    indices: str
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class InPlace:
    """Its result is `operand` with `updates` written to some places; `reads`: what was there counts too."""

    operand: str
    updates: str
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Requirement:
    """`small` ≤ `large` must hold unless `unless_empty` is 0; `text` says what for, `where` the user's line."""

    small: Dim
    large: Dim
    unless_empty: Dim
    text: str
    where: str = ""
    hint: str = OUT_OF_RANGE
    cli_hint: str = ""
    problem: str = "out of range ({small} > {large})"


def dim_bounds(d: Dim, maxima: Mapping[str, int]) -> tuple[int, int]:
    """The least and greatest value of a dim; symbols without a maximum go as far as an i32."""
    return bounds(d, {s: maxima.get(s, 2**31 - 1) for s in symbols(d)})


def not_negative(text: str, sizes: Shape, maxima: Mapping[str, int]) -> list[Requirement]:
    """Sizes that a difference of dims makes: kernels and buffers would take a negative one for something else each."""
    doubtful = [(k, d) for k, d in enumerate(sizes) if isinstance(d, Expr) and dim_bounds(d, maxima)[0] < 0]
    return [Requirement(0, d, 1, f"{text} {k} of size {d}", problem="negative ({large})") for k, d in doubtful]


def always(attrs: Attrs) -> bool:
    """True, of ops that change nothing but the type."""
    return True


@dataclass(frozen=True, slots=True)
class Traits:
    """The special properties of an op.

    Fusion:
    `view(base, attrs, shape)`: the strided view that it makes of its operand `base`, None where that takes a copy.
    `cheap`: computing it for every reader costs about as much as loading it would.
    `reads`: elements of the first operand that one element of the result is computed from.
    `reads_again(attrs)`: whether elements of the first operand belong to several elements of the result.
    `places`: each element of its operands goes to one place of a larger result, so that none is computed twice.
    `pulls`: operands of which a routine reads each element about once, so that its kernel may compute them as it reads them;
    `pulls_again`: every workgroup does so for itself.
    `in_place`: how it may work in the memory of an operand.

    Passes and checks:
    `neutral`: the value of an operand with which the result is the other operand.
    `divisor`: the operand that it divides by. `condition`: the operand by which it chooses between the others.
    `converts`: the result has the operand's values in another dtype. `leaves_out`: it shows some of its operand's elements.
    `dim_value(attrs, out)`: the dim whose value it holds as a number.
    `selects`: which operand holds indices, and into what.
    `requires(shapes, attrs, out, maxima)`: what must hold of the symbols in a run.
    `unchanged(attrs)`: whether a result of the first operand's type is that operand. None: it never is.
    `merged(first, second)`: the attributes of one such op that does what two in a row do.
    `precisions`: the values that its attribute `precision` may have.

    Reports, by the sizes of a run:
    `flops(sizes, attrs, out)`: multiplications and additions, for ops that mostly do these.
    `demand(operand, sizes, attrs, out)`: elements of an operand that a routine reads, if not all.
    `sizes(sizes, attrs, out)`: the problem in words, as the choice of a kernel depends on it.
    """

    view: Callable[[View, Attrs, Shape], View | None] | None = None
    cheap: bool = False
    reads: int = 1
    reads_again: Callable[[Attrs], bool] | None = None
    places: bool = False
    pulls: tuple[str, ...] = ()
    pulls_again: bool = False
    in_place: InPlace | None = None
    neutral: Mapping[str, float] = field(default_factory=dict)
    divisor: str = ""
    condition: str = ""
    converts: bool = False
    leaves_out: bool = False
    dim_value: Callable[[Attrs, TensorType], Dim | None] | None = None
    selects: Selects | None = None
    requires: Callable[[Shapes, Attrs, TensorType, Mapping[str, int]], list[Requirement]] | None = None
    unchanged: Callable[[Attrs], bool] | None = None
    merged: Callable[[Attrs, Attrs], Attrs] | None = None
    precisions: tuple[Precision, ...] = ()
    flops: Flops | None = None
    demand: Callable[[str, Sizes, Attrs, tuple[int, ...]], int] | None = None
    sizes: SizesText | None = None


USUAL = Traits()
