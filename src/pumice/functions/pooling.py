"""Pools over windows and over parts of [N, C, spatial…]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.core.dims import Dim, divide_exactly
from pumice.errors import ShapeError
from pumice.functions.build import TensorLike, emit, fail
from pumice.functions.conv import PaddingLike, Sizes, each_axis, image, padding_pairs
from pumice.functions.reduce import max as reduce_max
from pumice.functions.reduce import mean
from pumice.functions.resize import max_of_parts, mean_of_parts
from pumice.functions.shape import reshape
from pumice.tensor import Tensor


def _pool(
    op: str, spatial: int, x: TensorLike, kernel_size: Sizes, stride: Sizes | None, padding: PaddingLike, **attrs: Any
) -> Tensor:
    """A pooling op over windows of that many spatial axes."""
    t = image(x, spatial, f"{op}{spatial}d")
    kernel = each_axis(kernel_size, spatial, "kernel_size")
    strides = kernel if stride is None else each_axis(stride, spatial, "stride")
    return emit(op, [t], kernel=kernel, strides=strides, padding=padding_pairs(padding, spatial, kernel, strides), **attrs)


def max_pool1d(
    x: TensorLike, kernel_size: Sizes, stride: Sizes | None = None, padding: PaddingLike = 0, ceil_mode: bool = False
) -> Tensor:
    """The greatest element of each window of x [N, C, L]. See `max_pool2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.max_pool1d(x, 2), [[[1.0, 3.0, 2.0, 0.0]]])
    array([[[3., 2.]]], dtype=float32)
    """
    return _pool("max_pool", 1, x, kernel_size, stride, padding, ceil_mode=bool(ceil_mode))


def max_pool2d(
    x: TensorLike, kernel_size: Sizes, stride: Sizes | None = None, padding: PaddingLike = 0, ceil_mode: bool = False
) -> Tensor:
    """The greatest element of each window of x [N, C, H, W]; windows are adjacent unless `stride` is given.

    Padding never wins. `ceil_mode` rounds the number of windows up rather than down. The gradient goes to the first greatest.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: pm.max_pool2d(x, 3, stride=2, padding=1), x=pm.spec("N", 64, 112, 112))
    >>> str(g.nodes[-1].type)
    'f32[N,64,56,56]'
    """
    return _pool("max_pool", 2, x, kernel_size, stride, padding, ceil_mode=bool(ceil_mode))


def max_pool3d(
    x: TensorLike, kernel_size: Sizes, stride: Sizes | None = None, padding: PaddingLike = 0, ceil_mode: bool = False
) -> Tensor:
    """The greatest element of each window of x [N, C, D, H, W]. See `max_pool2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.max_pool3d(x, 2), [[[[[1.0, 3.0], [2.0, 0.0]], [[5.0, 1.0], [0.0, 0.0]]]]]).ravel()
    array([5.], dtype=float32)
    """
    return _pool("max_pool", 3, x, kernel_size, stride, padding, ceil_mode=bool(ceil_mode))


def mean_pool1d(
    x: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: PaddingLike = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of x [N, C, L]. See `mean_pool2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.mean_pool1d(x, 2), [[[1.0, 3.0, 2.0, 0.0]]])
    array([[[2., 1.]]], dtype=float32)
    """
    attrs = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
    return _pool("mean_pool", 1, x, kernel_size, stride, padding, **attrs)


def mean_pool2d(
    x: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: PaddingLike = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of x [N, C, H, W]; windows are adjacent unless `stride` is given.

    Padding counts as zeros, or not at all without `count_include_pad`.

    >>> import pumice as pm
    >>> x = [[[[1.0, 2.0], [3.0, 6.0]]]]
    >>> pm.interpret(lambda x: pm.mean_pool2d(x, 2), x)
    array([[[[3.]]]], dtype=float32)
    """
    attrs = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
    return _pool("mean_pool", 2, x, kernel_size, stride, padding, **attrs)


def mean_pool3d(
    x: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: PaddingLike = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of x [N, C, D, H, W]. See `mean_pool2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.mean_pool3d(x, 2), [[[[[1.0, 3.0], [2.0, 0.0]], [[5.0, 1.0], [4.0, 0.0]]]]]).ravel()
    array([2.], dtype=float32)
    """
    attrs = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
    return _pool("mean_pool", 3, x, kernel_size, stride, padding, **attrs)


def adaptive_mean_pool(x: TensorLike, size: Sizes = 1) -> Tensor:
    """The means of x [N, C, spatial…] over `size` parts of the spatial axes; 1 is the global mean.

    Where a size does not divide its axis, which is static then, neighbouring parts share an element, as in PyTorch.

    >>> import pumice as pm
    >>> pm.interpret(pm.adaptive_mean_pool, [[[1.0, 2.0, 6.0]]])
    array([[[3.]]], dtype=float32)
    >>> pm.interpret(lambda x: pm.adaptive_mean_pool(x, 2), [[[1.0, 2.0, 6.0]]])
    array([[[1.5, 4. ]]], dtype=float32)
    """
    t = image(x, None, "adaptive_mean_pool")
    split = _equal_parts(t, each_axis(size, t.ndim - 2, "size"))
    if split is None:
        return mean_of_parts(t, each_axis(size, t.ndim - 2, "size"))
    return mean(reshape(t, (*t.shape[:2], *split)), tuple(range(3, 2 + len(split), 2)))


def adaptive_max_pool(x: TensorLike, size: Sizes = 1) -> Tensor:
    """The greatest elements of x [N, C, spatial…] in each of `size` parts of the spatial axes; 1 is the global maximum.

    Where a size does not divide its axis, which is static then, neighbouring parts share an element, as in PyTorch.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.adaptive_max_pool(x, 2), [[[1.0, 2.0, 6.0, 4.0]]])
    array([[[2., 6.]]], dtype=float32)
    """
    t = image(x, None, "adaptive_max_pool")
    parts = each_axis(size, t.ndim - 2, "size")
    split = _equal_parts(t, parts)
    if split is None:
        return max_of_parts(t, parts)
    return reduce_max(reshape(t, (*t.shape[:2], *split)), tuple(range(3, 2 + len(split), 2)))


def _equal_parts(t: Tensor, parts: Sequence[int]) -> list[Dim] | None:
    """For each spatial axis the number of parts and the size of each, None where one does not divide its axis."""
    split: list[Dim] = []
    for d, count in zip(t.shape[2:], parts, strict=True):
        if count < 1:
            raise fail(ShapeError, f"{d} elements do not make {count} parts")
        each = divide_exactly(d, count)
        if each is None:
            return None
        split += [count, each]
    return split
