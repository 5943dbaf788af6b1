"""Resizing by matrices known while tracing: bicubic interpolation, and pools into parts that need not be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import ShapeError
from pumice.functions.build import convert, emit, fail
from pumice.functions.reduce import max as reduce_max
from pumice.functions.shape import moveaxis, reshape
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]
# The cubic's parameter, as PyTorch and OpenCV have it.
_SHARPNESS = -0.75


def static_sizes(x: Tensor, name: str) -> tuple[int, ...]:
    """The spatial sizes of x, refused where one is symbolic."""
    sizes = x.shape[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise fail(ShapeError, f"{name} takes static spatial sizes, not {x.type.describe()}")
    return tuple(int(d) for d in sizes if isinstance(d, int))


def _apply(x: Tensor, sizes: Sequence[int], wanted: Sequence[int], weights: Callable[[int, int], Array]) -> Tensor:
    """Each spatial axis multiplied with the matrix [wanted, size] of its weights."""
    t = convert(x, dtypes.f32)
    for axis, (size, new) in enumerate(zip(sizes, wanted, strict=True), start=2):
        matrix = weights(size, new)
        if size == new and np.array_equal(matrix, np.eye(size)):
            continue
        columns = Tensor(t.tracer, t.tracer.builder.constant(matrix.T.astype(np.float32), dtypes.f32))
        t = moveaxis(emit("matmul", [moveaxis(t, axis, -1), columns]), -1, axis)
    return convert(t, x.dtype)


def bicubic(x: Tensor, wanted: Sequence[int], align_corners: bool) -> Tensor:
    """x [N, C, spatial…] resized by cubics through four elements along each axis; beyond the edge the edge counts."""
    return _apply(x, static_sizes(x, "bicubic upsample"), wanted, lambda size, new: _cubic(size, new, align_corners))


def _cubic(size: int, new: int, align_corners: bool) -> Array:
    """The weights of a cubic convolution.

    >>> _cubic(4, 4, False).tolist() == np.eye(4).tolist()
    True
    """
    step = (size - 1) / (new - 1) if align_corners and new > 1 else 0.0 if align_corners else size / new
    places = np.arange(new) * step if align_corners else (np.arange(new) + 0.5) * step - 0.5
    first = np.floor(places).astype(int)
    matrix = np.zeros((new, size))
    for tap in range(-1, 3):
        weight = _cubic_weight(np.abs(places - (first + tap)))
        np.add.at(matrix, (np.arange(new), np.clip(first + tap, 0, size - 1)), weight)
    return matrix


def _cubic_weight(d: Array) -> Array:
    near = ((_SHARPNESS + 2) * d - (_SHARPNESS + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * _SHARPNESS - 4 * _SHARPNESS
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _parts(size: int, parts: int) -> list[range]:
    """The elements of each part, as PyTorch's adaptive pools take them: neighbours may share one."""
    return [range(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _mean_weights(size: int, parts: int) -> Array:
    """The weights of means over parts.

    >>> _mean_weights(3, 2).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    matrix = np.zeros((parts, size))
    for row, part in zip(matrix, _parts(size, parts), strict=True):
        row[part] = 1 / len(part)
    return matrix


def mean_of_parts(x: Tensor, wanted: Sequence[int]) -> Tensor:
    """The means of x [N, C, spatial…] over parts of its spatial axes."""
    return _apply(x, static_sizes(x, "adaptive_mean_pool"), wanted, _mean_weights)


def max_of_parts(x: Tensor, wanted: Sequence[int]) -> Tensor:
    """The greatest elements of x [N, C, spatial…] in parts of its spatial axes."""
    t = x
    for axis, (size, new) in enumerate(zip(static_sizes(x, "adaptive_max_pool"), wanted, strict=True), start=2):
        parts = _parts(size, new)
        longest = max(len(p) for p in parts)
        # A shorter part repeats its last element, which changes no maximum.
        places = np.array([[min(p.start + k, p.stop - 1) for k in range(longest)] for p in parts], np.int32)
        indices = Tensor(t.tracer, t.tracer.builder.constant(places.ravel(), dtypes.i32))
        taken = emit("gather", [t, indices], axis=axis)
        t = reduce_max(reshape(taken, (*t.shape[:axis], new, longest, *t.shape[axis + 1 :])), axis + 1)
    return t
