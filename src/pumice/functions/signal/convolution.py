"""Convolution by Fourier transforms, or directly where the taps are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, shape_text
from pumice.core.lengths import next_fast_length
from pumice.errors import InputError, ShapeError
from pumice.functions import fft
from pumice.functions.build import Axes, TensorLike, as_tensor, axes_of, axis_of, convert, fail
from pumice.functions.matmul import matmul
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import expand_dims, flip, moveaxis, narrow
from pumice.functions.signal.framing import unfold, with_margins
from pumice.tensor import Tensor

Mode = Literal["full", "same", "valid"]
_MODES = ("full", "same", "valid")
# From so many taps on transforms are faster.
_MANY_TAPS = 64


def _operands(x: TensorLike, h: TensorLike) -> tuple[Tensor, Tensor]:
    near = next((v for v in (x, h) if isinstance(v, Tensor)), None)
    a, b = (convert(as_tensor(v, near=near), dtypes.f32) for v in (x, h))
    return a, b


def _kept(mode: Mode, n: Dim, m: Dim) -> tuple[Dim, Dim]:
    """Which elements of the full convolution of n by m elements a mode keeps: the first one and the end."""
    if mode == "full":
        return 0, n + m - 1
    if mode == "same":
        start = (m - 1) // 2
        return start, start + n
    if isinstance(n, int) and isinstance(m, int) and m > n:
        n, m = m, n
    return m - 1, n


def _checked(mode: str) -> None:
    if mode not in _MODES:
        raise fail(InputError, f"there is no mode {mode!r}", hint="full, same or valid", mode=mode)


def fftconvolve(x: TensorLike, h: TensorLike, mode: Mode = "full", axes: Axes = None) -> Tensor:
    """The convolution of x and h over axes, all unless given, by Fourier transforms, as scipy.signal.fftconvolve.

    Other axes broadcast. mode: "full", "same" (x's size, in the middle), or "valid" (where the shorter lies within the longer).
    Sizes along the axes must be static.

    >>> import pumice as pm
    >>> pm.interpret(pm.signal.fftconvolve, [1.0, 2.0, 3.0], [1.0, 1.0]).round(5)
    array([1., 3., 5., 3.], dtype=float32)
    """
    _checked(mode)
    a, b = _operands(x, h)
    if a.ndim != b.ndim:
        raise fail(
            ShapeError,
            f"{shape_text(a.shape)} and {shape_text(b.shape)} have different numbers of axes",
            hint="insert axes of size 1 with pm.expand_dims",
        )
    where = axes_of(axes, a.ndim)
    sizes = [_static(a.shape, b.shape, axis) for axis in where]
    lengths = [next_fast_length(n + m - 1) for n, m in sizes]
    product = fft.rfftn(a, lengths, where).times(fft.rfftn(b, lengths, where))
    y = fft.irfftn(product, lengths, where)
    for axis, (n, m) in zip(where, sizes, strict=True):
        y = narrow(y, axis, *_kept(mode, n, m))
    return y


def _static(a: Sequence[Dim], b: Sequence[Dim], axis: int) -> tuple[int, int]:
    n, m = a[axis], b[axis]
    if isinstance(n, Expr) or isinstance(m, Expr):
        raise fail(
            ShapeError,
            f"axis {axis} of sizes {n} and {m} is symbolic, a transform needs static ones",
            hint='use pm.signal.convolve(..., method="direct")',
            axis=axis,
        )
    if n == 0 or m == 0:
        raise fail(ShapeError, f"axis {axis} of sizes {n} and {m} is empty: there is nothing to convolve", axis=axis)
    return n, m


def convolve(
    x: TensorLike, h: TensorLike, mode: Mode = "full", method: Literal["auto", "direct", "fft"] = "auto", axis: int = -1
) -> Tensor:
    """The convolution of an axis of x with taps h, 1-D or with the axes of x, of which others broadcast.

    "auto" takes Fourier transforms from 64 taps on where the sizes are static, else a matmul with frames of x.

    >>> import pumice as pm
    >>> import numpy as np
    >>> pm.interpret(lambda x: pm.signal.convolve(x, np.array([1.0, -1.0]), "same"), [1.0, 4.0, 9.0])
    array([1., 3., 5.], dtype=float32)
    """
    _checked(mode)
    if method not in ("auto", "direct", "fft"):
        raise fail(InputError, f"there is no method {method!r}", hint="auto, direct or fft", method=method)
    a, b = _operands(x, h)
    where = axis_of(axis, a.ndim)
    a = moveaxis(a, where, -1)
    b = b if b.ndim == 1 else moveaxis(b, where, -1)
    n, m = a.shape[-1], b.shape[-1]
    if isinstance(m, Expr) or m == 0 or n == 0:
        raise fail(
            ShapeError, f"a signal of {n} samples and {m} taps do not convolve", hint="taps are a static number, none is empty"
        )
    static = not isinstance(n, Expr)
    if method == "fft" or (method == "auto" and static and min(m, n) >= _MANY_TAPS):
        y = fftconvolve(a, expand_dims(b, tuple(range(a.ndim - b.ndim))) if b.ndim < a.ndim else b, mode, -1)
        return moveaxis(y, -1, where)
    frames = unfold(with_margins(a, m - 1, m - 1), m, 1)
    turned = flip(b, -1)
    y = matmul(frames, turned) if b.ndim == 1 else reduce_sum(frames * expand_dims(turned, -2), axis=-1)
    return moveaxis(narrow(y, -1, *_kept(mode, n, m)), -1, where)
