"""Convolution, transposed convolution and resizing over [N, C, spatial…]."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

from pumice.core.dims import Dim, shape_text
from pumice.errors import InputError, ShapeError
from pumice.functions.build import TensorLike, as_float, as_shape, as_tensor, convert, emit, fail, promote
from pumice.functions.resize import bicubic
from pumice.functions.shape import reshape
from pumice.ir.ops.window import MAX_SPATIAL, Padding
from pumice.tensor import Tensor

Sizes = int | Sequence[int]
PaddingLike = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["same", "valid"]


def each_axis(value: Any, spatial: int, name: str) -> tuple[int, ...]:
    """One int per spatial axis, from one for all or one for each."""
    listed = list(value) if isinstance(value, tuple | list) else [value] * spatial
    try:
        found = tuple(operator.index(v) for v in listed)
    except TypeError:
        raise fail(InputError, f"{name} must be an int or one per spatial axis, not {value!r}") from None
    if len(found) != spatial:
        raise fail(ShapeError, f"{name} {value!r} does not fit {spatial} spatial axes")
    return found


def padding_pairs(padding: PaddingLike, spatial: int, reach: Sequence[int], strides: Sequence[int]) -> Padding:
    """Padding as a (low, high) pair per spatial axis; `reach` is how far a window stretches."""
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * spatial
        if padding != "same":
            raise fail(InputError, f"there is no padding {padding!r}", hint="an int, one per axis, pairs, 'same' or 'valid'")
        if any(s != 1 for s in strides):
            raise fail(InputError, "padding 'same' needs stride 1", hint="give the padding as ints")
        return tuple(((r - 1) // 2, r - 1 - (r - 1) // 2) for r in reach)
    if isinstance(padding, tuple | list) and padding and all(isinstance(p, tuple | list) for p in padding):
        lows = each_axis([p[0] for p in padding], spatial, "padding")
        highs = each_axis([p[-1] for p in padding], spatial, "padding")
    else:
        lows = highs = each_axis(padding, spatial, "padding")
    return tuple(zip(lows, highs, strict=True))


def image(x: TensorLike, spatial: int | None, name: str) -> Tensor:
    """x as a float tensor [N, C, spatial…]."""
    t = as_float(x)
    if not 1 <= t.ndim - 2 <= MAX_SPATIAL or (spatial is not None and t.ndim != spatial + 2):
        wanted = f"{spatial}" if spatial is not None else f"1 to {MAX_SPATIAL}"
        raise fail(
            ShapeError,
            f"{name} takes x [N, C, spatial…] with {wanted} spatial axes, not {t.type.describe()}",
            hint="add a batch axis with pm.expand_dims(x, 0)" if t.ndim == (spatial or 0) + 1 else "",
        )
    return t


def _operands(x: TensorLike, w: TensorLike, spatial: int, name: str) -> tuple[Tensor, Tensor]:
    left, right = promote(x, w)
    return image(left, spatial, name), image(right, spatial, f"{name}, whose weights are laid out likewise,")


def per_channel(value: TensorLike, x: Tensor) -> Tensor:
    """A vector of one entry per channel, so that it broadcasts over x [N, C, spatial…]."""
    v = convert(as_tensor(value, x.dtype, near=x), x.dtype)
    if v.shape != x.shape[1:2]:
        raise fail(ShapeError, f"one value per channel is needed, {x.shape[1]} in all; the shape is {shape_text(v.shape)}")
    return reshape(v, (x.shape[1], *(1,) * (x.ndim - 2)))


def _conv(
    spatial: int,
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None,
    stride: Sizes,
    padding: PaddingLike,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    t, weights = _operands(x, w, spatial, f"conv{spatial}d")
    strides, gaps = each_axis(stride, spatial, "stride"), each_axis(dilation, spatial, "dilation")
    reach = _reach(weights, gaps)
    added = None if bias is None else convert(as_tensor(bias, t.dtype, near=t), t.dtype)
    pads = padding_pairs(padding, spatial, reach, strides)
    return emit("conv", [t, weights, added], strides=strides, padding=pads, dilation=gaps, groups=groups)


def _reach(w: Tensor, dilation: Sequence[int]) -> list[int]:
    """How far a kernel stretches along each axis."""
    kernel = w.shape[2:]
    static = [k for k in kernel if isinstance(k, int)]
    if len(static) != len(kernel):
        raise fail(ShapeError, f"the kernel's spatial dims must be static, they are {shape_text(kernel)}")
    return [d * (k - 1) + 1 for k, d in zip(static, dilation, strict=True)]


def conv1d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, Cin, L] convolved with w [Cout, Cin / groups, K], which is not flipped; plus bias [Cout]. See `conv2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, w: pm.conv1d(x, w, padding=1), [[[1.0, 2.0, 3.0]]], [[[1.0, 0.0, -1.0]]])
    array([[[-2., -2.,  2.]]], dtype=float32)
    """
    return _conv(1, x, w, bias, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, Cin, H, W] convolved with w [Cout, Cin / groups, KH, KW], which is not flipped; plus bias [Cout].

    `stride` and `dilation` are one int or one per axis. `padding` is zeros on both sides of each axis: an int, one per axis,
    a (low, high) pair per axis, "valid" for none, or "same" for as much as keeps the size at stride 1.

    >>> import pumice as pm
    >>> x, w = pm.spec("N", 3, 32, 32), pm.spec(8, 3, 3, 3)
    >>> g = pm.trace(lambda x, w: pm.conv2d(x, w, stride=2, padding=1), x=x, w=w)
    >>> str(g.nodes[-1].type)
    'f32[N,8,16,16]'
    """
    return _conv(2, x, w, bias, stride, padding, dilation, groups)


def conv3d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, Cin, D, H, W] convolved with w [Cout, Cin / groups, KD, KH, KW]. See `conv2d`.

    >>> import pumice as pm
    >>> x, w = pm.spec("N", 2, 8, 8, 8), pm.spec(4, 2, 3, 3, 3)
    >>> str(pm.trace(lambda x, w: pm.conv3d(x, w, padding="same"), x=x, w=w).nodes[-1].type)
    'f32[N,4,8,8,8]'
    """
    return _conv(3, x, w, bias, stride, padding, dilation, groups)


def _conv_transpose(
    spatial: int,
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None,
    stride: Sizes,
    padding: PaddingLike,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Tensor:
    """The transposed convolution over that many spatial axes."""
    t, weights = _operands(x, w, spatial, f"conv_transpose{spatial}d")
    strides, gaps = each_axis(stride, spatial, "stride"), each_axis(dilation, spatial, "dilation")
    reach, extra = _reach(weights, gaps), each_axis(output_padding, spatial, "output_padding")
    pads = padding_pairs(padding, spatial, reach, strides)
    for e, s in zip(extra, strides, strict=True):
        if not 0 <= e < s:
            raise fail(InputError, f"output_padding must be in 0…stride - 1, not {output_padding!r}")
    rows = zip(t.shape[2:], strides, pads, reach, extra, strict=True)
    size = tuple((d - 1) * s - lo - hi + r + e for d, s, (lo, hi), r, e in rows)
    y = emit("conv_grad_input", [t, weights], size=size, strides=strides, padding=pads, dilation=gaps, groups=groups)
    return y if bias is None else y + per_channel(bias, y)


def conv_transpose1d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transposed convolution of x [N, Cin, L] with w [Cin, Cout / groups, K]. See `conv_transpose2d`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x, w: pm.conv_transpose1d(x, w, stride=2), [[[1.0, 2.0]]], [[[1.0, 1.0]]])
    array([[[1., 1., 2., 2.]]], dtype=float32)
    """
    return _conv_transpose(1, x, w, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transposed convolution of x [N, Cin, H, W] with w [Cin, Cout / groups, KH, KW]: the gradient of `conv2d` by its input.

    Each size is (size - 1) · stride - padding on both sides + dilation · (K - 1) + output_padding + 1.

    >>> import pumice as pm
    >>> x, w = pm.spec("N", 8, "H", "W"), pm.spec(8, 3, 4, 4)
    >>> str(pm.trace(lambda x, w: pm.conv_transpose2d(x, w, stride=2, padding=1), x=x, w=w).nodes[-1].type)
    'f32[N,3,2*H,2*W]'
    """
    return _conv_transpose(2, x, w, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: PaddingLike = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transposed convolution of x [N, C, D, H, W] with w [C, O/groups, k, k, k]. See `conv_transpose2d`.

    >>> import pumice as pm
    >>> x, w = pm.spec("N", 8, 4, 4, 4), pm.spec(8, 3, 2, 2, 2)
    >>> str(pm.trace(lambda x, w: pm.conv_transpose3d(x, w, stride=2), x=x, w=w).nodes[-1].type)
    'f32[N,3,8,8,8]'
    """
    return _conv_transpose(3, x, w, bias, stride, padding, output_padding, groups, dilation)


def upsample(
    x: TensorLike,
    size: Dim | Sequence[Dim] | None = None,
    scale_factor: Sizes | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """x [N, C, spatial…] resized to `size`, or `scale_factor` whole times as large.

    `mode` is "nearest", "linear" (also "bilinear", "trilinear") for the weighted mean of the nearest elements along each axis,
    or "bicubic" for a cubic through four of them, of static sizes. With `align_corners` the first and last elements of both
    grids coincide, else their outer edges do.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.upsample(x, scale_factor=2), [[[1.0, 2.0]]])
    array([[[1., 1., 2., 2.]]], dtype=float32)
    >>> pm.interpret(lambda x: pm.upsample(x, size=3, mode="linear", align_corners=True), [[[1.0, 2.0]]])
    array([[[1. , 1.5, 2. ]]], dtype=float32)
    """
    t = image(x, None, "upsample")
    spatial = t.ndim - 2
    if (size is None) == (scale_factor is None):
        raise fail(InputError, "upsample takes either size or scale_factor")
    if size is not None:
        wanted = as_shape(size)
        wanted = wanted * spatial if len(wanted) == 1 else wanted
    else:
        wanted = tuple(d * f for d, f in zip(t.shape[2:], each_axis(scale_factor, spatial, "scale_factor"), strict=True))
    if mode == "bicubic":
        return bicubic(t, [d if isinstance(d, int) else _not_static(d) for d in wanted], bool(align_corners))
    known = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}
    return emit("upsample", [t], size=wanted, mode=known.get(mode, mode), align_corners=bool(align_corners))


def _not_static(d: Dim) -> int:
    raise fail(ShapeError, f"bicubic upsample takes static sizes, not {d}")
