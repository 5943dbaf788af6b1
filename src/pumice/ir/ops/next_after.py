"""next_after: the neighbouring float, which only the bits of a value give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import DTypeError
from pumice.ir.ops._elementwise import INF, NAN, STEPS, draw
from pumice.ir.registry import Array, Attrs, OpSpec, Sample, Scalar, Types, register
from pumice.ir.rules import broadcast, given, same_dtype
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x, y = given(types)
    if same_dtype(types) != dtypes.f32:
        raise DTypeError(f"takes f32, not {x.dtype}", hint="cast with .astype('f32')", dtype=x.dtype.name)
    return TensorType(dtypes.f32, broadcast(x.shape, y.shape))


def _next_after(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    # The neighbour is that of the stored number, whatever precision it is handed over in.
    a, b = (np.asarray(x, out.dtype.np) for x in arrays)
    with np.errstate(over="ignore", under="ignore"):  # infinity comes after the largest number, and denormal ones after 0
        return np.asarray(np.nextafter(a, b))


def _samples() -> Iterator[Sample]:
    def pair(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Array, Array]:
        return draw(dtypes.f32, left), draw(dtypes.f32, right, seed=1)

    yield Sample("odd", pair((7,), (7,)), {})
    yield Sample("scalar", pair((), ()), {})
    yield Sample("matrix", pair((4, 3), (4, 3)), {})
    yield Sample("empty", pair((0, 3), (0, 3)), {})
    yield Sample("large", pair((3, 1031), (3, 1031)), {})
    yield Sample("broadcast", pair((3, 1, 5), (4, 1)), {})
    odd = np.array([NAN, INF, -INF, 1.0, -1.0, np.finfo(np.float32).max, 2.0], np.float32)
    yield Sample("special", (odd[:, None], odd), {})


register(
    OpSpec(
        "next_after",
        "binary",
        "the next f32 after a towards b",
        ("a", "b"),
        _infer,
        _next_after,
        Scalar({"f": "pm_next_after({0}, {1})"}),
        _samples,
        no_gradient=STEPS,
        differentiable=False,
        rules="b where both are equal, NaN if either is. f32 only. The neighbours of 0 are denormal, which a GPU may take for 0.",
    )
)
