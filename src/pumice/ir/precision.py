"""Error models: how far a backend's result may be from an op's exact meaning, element by element.

Every kernel computes in f32 and rounds its result to the op's dtype once. A model bounds the error before that last rounding, in
float64, from the same operands as the reference; an op without one is exact. `U` is the unit roundoff of f32. The figures
come from the accuracy that WGSL asks of its functions (exp: 3 + 2|x| ulp, log: 2^-21 near 1, division: 2.5 ulp, sqrt: 2 ulp)
and from the usual analysis of rounding errors: of a sum of n terms they grow as the square root of n, since their signs differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.core.records import dataclass

if TYPE_CHECKING:
    from pumice.ir.types import TensorType

Array = np.ndarray[Any, Any]
U = 2.0**-24
ULP = 2 * U
# What WGSL allows a quotient to be off.
DIVISION_ULPS = 2.5


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An op applied to arrays in float64: what an error model sees. `results` are not yet rounded to the op's dtypes."""

    arrays: Sequence[Any]
    attrs: Mapping[str, Any]
    outs: tuple[TensorType, ...]
    results: tuple[Array, ...]
    evaluate: Callable[[Sequence[Any], Mapping[str, Any], tuple[TensorType, ...]], tuple[Array, ...]]

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        return self.outs[0]

    @property
    def result(self) -> Array:
        """The first result."""
        return self.results[0]

    def again(self, arrays: Sequence[Any]) -> Array:
        """The op's first result for other arrays."""
        return self.evaluate(arrays, self.attrs, self.outs)[0]


ErrorModel = Callable[[Evaluation], Any]


def growth(terms: Any) -> Any:
    """How many roundings the error of a sum counts for, relative to the sum of its terms' sizes; `terms` may be an array.

    >>> float(growth(1)), float(growth(4096))
    (2.0, 65.0)
    """
    return 1.0 + np.sqrt(terms)


def is_float(array: Any) -> bool:
    """Whether an operand is an array of floats."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def rounded(ulps: float, operands: float = 0.0) -> ErrorModel:
    """A function of elements: off by `ulps` of the result, and by what the result moves where operands are off by `operands` ulp.

    The second part is the function's condition: it bounds exp by its argument, sin near its zeros and log near 1.
    """

    def model(e: Evaluation) -> Array:
        bound = ulps * ULP * np.abs(e.result)
        for k, a in enumerate(e.arrays) if operands else ():
            if is_float(a):
                moved = [e.again([*e.arrays[:k], a * (1 + s * operands * ULP), *e.arrays[k + 1 :]]) for s in (-1, 1)]
                bound = bound + np.maximum(*(np.nan_to_num(np.abs(m - e.result), nan=0.0, posinf=0.0) for m in moved))
        return np.asarray(bound)

    return model


def summed(terms: Callable[[Evaluation], Any], keep: tuple[int, ...] = ()) -> ErrorModel:
    """A sum, linear in each float operand: relative to the same op over absolute values, but for operands in `keep`."""

    def model(e: Evaluation) -> Array:
        sizes = e.again([np.abs(a) if is_float(a) and k not in keep else a for k, a in enumerate(e.arrays)])
        return np.asarray(growth(terms(e)) * U * sizes)

    return model


def row_length(e: Evaluation) -> int:
    """How many elements of the first operand one element of the result is computed from."""
    return int(e.arrays[0].size // max(e.result.size, 1))
