"""Windows of images as columns of a matrix, for convolutions that are written as matmuls."""

from __future__ import annotations

from itertools import product as every
from typing import Any

from pumice.core.dims import product
from pumice.errors import ShapeError
from pumice.functions.build import TensorLike, fail
from pumice.functions.conv import Sizes, each_axis, image
from pumice.functions.padding import pad
from pumice.functions.shape import reshape, stack
from pumice.tensor import Tensor


def im2col(x: TensorLike, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1) -> Tensor:
    """The windows of x [N, C, spatial…] as columns: [N, C · taps of a window, windows], over one to three spatial axes.

    Rows are ordered by channel, then by tap, as PyTorch's unfold; an axis has ⌊(size + 2 p - d (k - 1) - 1) / s⌋ + 1 windows.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.im2col(x, 2), [[[1.0, 2.0, 3.0]]])
    array([[[1., 2.],
            [2., 3.]]], dtype=float32)
    """
    t = image(x, None, "im2col")
    spatial = t.ndim - 2
    kernel, strides = each_axis(kernel_size, spatial, "kernel_size"), each_axis(stride, spatial, "stride")
    pads, gaps = each_axis(padding, spatial, "padding"), each_axis(dilation, spatial, "dilation")
    if min(*kernel, *strides, *gaps) < 1 or min(pads) < 0:
        raise fail(ShapeError, f"im2col of windows {kernel}, strides {strides}, dilation {gaps} and padding {pads}")
    t = pad(t, ((0, 0), (0, 0), *((p, p) for p in pads)))
    counts = [(d - g * (k - 1) - 1) // s + 1 for d, k, s, g in zip(t.shape[2:], kernel, strides, gaps, strict=True)]
    if any(isinstance(c, int) and c < 1 for c in counts):
        raise fail(ShapeError, f"not one window of {kernel} with dilation {gaps} fits {t.type.describe()}, which is padded")
    taps = []
    for at in every(*(range(k) for k in kernel)):
        cuts: list[Any] = [slice(None), slice(None)]
        for offset, gap, step, count in zip(at, gaps, strides, counts, strict=True):
            start = offset * gap
            cuts.append(slice(start, start + (count - 1) * step + 1, step))
        taps.append(t[tuple(cuts)])
    channels = t.shape[1] * product(kernel)
    return reshape(stack(taps, 2), (t.shape[0], channels, product(counts)))
