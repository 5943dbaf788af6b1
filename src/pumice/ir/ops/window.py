"""Shared by convolution and pooling: how windows cover an axis, output sizes with symbols, NumPy views of the windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combinations
from typing import Any

import numpy as np

from pumice.core.dims import Dim, Expr, Shape, shape_text
from pumice.errors import ShapeError
from pumice.ir.ops.shape import span
from pumice.ir.registry import Array, Attrs
from pumice.ir.types import TensorType

Padding = tuple[tuple[int, int], ...]
MAX_SPATIAL = 3


def floor_div(a: Dim, b: int) -> Dim:
    """a // b with every whole multiple of b taken out, so that sizes computed there and back again compare equal.

    >>> from pumice.core.dims import sym
    >>> str(floor_div(sym("T") * 2 - 1, 2)), str((sym("T") * 2 - 1) // 2)
    ('T-1', 'floordiv(2*T-1,2)')
    """
    if not isinstance(a, Expr):
        return a // b
    whole: Dim = 0
    rest: Dim = 0
    for mono, coef in a.terms:
        term: Dim = Expr(((mono, 1),)) if mono else 1
        quotient = coef // b if not mono or coef % b == 0 else 0
        whole = whole + term * quotient
        rest = rest + term * (coef - quotient * b)
    return whole + rest // b


def window_count(size: Dim, kernel: int, stride: int, dilation: int, padding: tuple[int, int]) -> Dim:
    """How many windows fit on an axis; a symbolic size that turns out too small for one has none.

    >>> from pumice.core.dims import sym
    >>> window_count(8, 3, 2, 1, (1, 1)), str(window_count(sym("H"), 3, 1, 1, (1, 1)))
    (4, 'H')
    """
    reach = dilation * (kernel - 1) + 1
    room = size + sum(padding) - reach
    if isinstance(room, int) and room < 0:
        raise ShapeError(
            f"a window of {reach} does not fit an axis of {size} with padding {padding}",
            hint="pad more, or use a smaller kernel or dilation",
        )
    return span(0, floor_div(room, stride) + 1)


def check_window(attrs: Attrs, spatial: int, *names: str) -> None:
    """Refuses window attributes that are not one positive int, or one padding pair, per spatial axis."""
    for name in names:
        values = attrs[name]
        if len(values) != spatial or not all(_is_int(v) and v > 0 for v in values):
            raise ShapeError(f"{name} must be {spatial} positive integers, one per spatial axis, not {values}", **{name: values})
    pads = attrs["padding"]
    fits = len(pads) == spatial and all(len(pair) == 2 and all(_is_int(v) and v >= 0 for v in pair) for pair in pads)
    if not fits:
        raise ShapeError(f"padding must be a (low, high) pair of integers from 0 on per spatial axis, not {pads}", padding=pads)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def spatial_rank(x: TensorType) -> int:
    """The number of spatial axes of x [N, C, …], 1 to 3."""
    if not 1 <= x.rank - 2 <= MAX_SPATIAL:
        raise ShapeError(f"takes x [N, C, spatial…] with 1 to {MAX_SPATIAL} spatial axes, the shape is {shape_text(x.shape)}")
    return x.rank - 2


def static_kernel(kernel: Shape) -> tuple[int, ...]:
    """A kernel's spatial shape, which must be known: kernels are unrolled over it, and outputs are sized by it."""
    found = tuple(d for d in kernel if isinstance(d, int) and d > 0)
    if len(found) != len(kernel):
        raise ShapeError(f"the kernel's spatial dims must be static and positive, they are {shape_text(kernel)}")
    return found


def windows(x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...], counts: Shape) -> Array:
    """A read-only view [N, C, windows…, kernel…] of a padded x [N, C, …]."""
    axes = tuple(range(2, x.ndim))
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    steps = tuple(slice(None, c * s, s) for c, s in zip(counts, strides, strict=True))
    return view[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilation))]


def padded(x: Array, padding: Padding, value: float = 0.0) -> Array:
    """x with its spatial axes padded."""
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def index(*parts: Any) -> Any:
    """An index of slices, ints and ellipses put together, for which NumPy's types have no name.

    >>> index(..., *(slice(2), 0))
    (Ellipsis, slice(None, 2, None), 0)
    """
    return parts


def taps(kernel: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every position in a kernel, in row-major order.

    >>> list(taps((1, 2)))
    [(0, 0), (0, 1)]
    """
    return combinations(*(range(k) for k in kernel))
