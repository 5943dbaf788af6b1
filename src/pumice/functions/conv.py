"""Convolution, pooling, resizing and the norms that go with them, over [N, C, spatial…]."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

from pumice.core import dtypes
from pumice.core.dims import Dim, divide_exactly, product, shape_text
from pumice.errors import InputError, ShapeError
from pumice.functions.build import TensorLike, as_float, as_shape, as_tensor, convert, emit, fail, promote
from pumice.functions.nn import layer_norm
from pumice.functions.reduce import mean
from pumice.functions.shape import reshape
from pumice.functions.unary import rsqrt, square
from pumice.ir.ops.window import MAX_SPATIAL, Padding
from pumice.tensor import Tensor

Sizes = int | Sequence[int]
PaddingLike = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["same", "valid"]


def _each(value: Any, spatial: int, name: str) -> tuple[int, ...]:
    """One int per spatial axis, from one for all or one for each."""
    listed = list(value) if isinstance(value, tuple | list) else [value] * spatial
    try:
        found = tuple(operator.index(v) for v in listed)
    except TypeError:
        raise fail(InputError, f"{name} must be an int or one per spatial axis, not {value!r}") from None
    if len(found) != spatial:
        raise fail(ShapeError, f"{name} {value!r} does not fit {spatial} spatial axes")
    return found


def _pairs(padding: PaddingLike, spatial: int, reach: Sequence[int], strides: Sequence[int]) -> Padding:
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
        lows = _each([p[0] for p in padding], spatial, "padding")
        highs = _each([p[-1] for p in padding], spatial, "padding")
    else:
        lows = highs = _each(padding, spatial, "padding")
    return tuple(zip(lows, highs, strict=True))


def _image(x: TensorLike, spatial: int | None, name: str) -> Tensor:
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
    return _image(left, spatial, name), _image(right, spatial, f"{name}, whose weights are laid out likewise,")


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
    strides, gaps = _each(stride, spatial, "stride"), _each(dilation, spatial, "dilation")
    reach = _reach(weights, gaps)
    added = None if bias is None else convert(as_tensor(bias, t.dtype, near=t), t.dtype)
    pads = _pairs(padding, spatial, reach, strides)
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
    t, weights = _operands(x, w, spatial, f"conv_transpose{spatial}d")
    strides, gaps = _each(stride, spatial, "stride"), _each(dilation, spatial, "dilation")
    reach, extra = _reach(weights, gaps), _each(output_padding, spatial, "output_padding")
    pads = _pairs(padding, spatial, reach, strides)
    for e, s in zip(extra, strides, strict=True):
        if not 0 <= e < s:
            raise fail(InputError, f"output_padding must be in 0…stride - 1, not {output_padding!r}")
    rows = zip(t.shape[2:], strides, pads, reach, extra, strict=True)
    size = tuple((d - 1) * s - lo - hi + r + e for d, s, (lo, hi), r, e in rows)
    y = emit("conv_grad_input", [t, weights], size=size, strides=strides, padding=pads, dilation=gaps, groups=groups)
    return y if bias is None else y + _per_channel(bias, y)


def _per_channel(value: TensorLike, x: Tensor) -> Tensor:
    """A vector of one entry per channel, so that it broadcasts over x [N, C, spatial…]."""
    v = convert(as_tensor(value, x.dtype, near=x), x.dtype)
    if v.shape != x.shape[1:2]:
        raise fail(ShapeError, f"one value per channel is needed, {x.shape[1]} in all; the shape is {shape_text(v.shape)}")
    return reshape(v, (x.shape[1], *(1,) * (x.ndim - 2)))


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


# --- pooling ---


def _pool(
    op: str, spatial: int, x: TensorLike, kernel_size: Sizes, stride: Sizes | None, padding: PaddingLike, **attrs: Any
) -> Tensor:
    t = _image(x, spatial, f"{op}{spatial}d")
    kernel = _each(kernel_size, spatial, "kernel_size")
    strides = kernel if stride is None else _each(stride, spatial, "stride")
    return emit(op, [t], kernel=kernel, strides=strides, padding=_pairs(padding, spatial, kernel, strides), **attrs)


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


def adaptive_mean_pool(x: TensorLike, size: Sizes = 1) -> Tensor:
    """The means of x [N, C, spatial…] over `size` equal parts of the spatial axes; 1 is the global mean.

    Sizes must divide the axes.

    >>> import pumice as pm
    >>> pm.interpret(pm.adaptive_mean_pool, [[[1.0, 2.0, 6.0]]])
    array([[[3.]]], dtype=float32)
    """
    t = _image(x, None, "adaptive_mean_pool")
    split: list[Dim] = []
    for d, parts in zip(t.shape[2:], _each(size, t.ndim - 2, "size"), strict=True):
        each = divide_exactly(d, parts) if parts > 0 else None
        if each is None:
            raise fail(ShapeError, f"{d} elements do not make {parts} equal parts", hint="use mean_pool with a stride")
        split += [parts, each]
    axes = tuple(range(3, 2 + len(split), 2))
    return mean(reshape(t, (*t.shape[:2], *split)), axes)


def upsample(
    x: TensorLike,
    size: Dim | Sequence[Dim] | None = None,
    scale_factor: Sizes | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """x [N, C, spatial…] resized to `size`, or `scale_factor` whole times as large.

    `mode` is "nearest", or "linear" (also "bilinear", "trilinear") for the weighted mean of the nearest elements along each
    axis. With `align_corners` the first and last elements of both grids coincide, else their outer edges do.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.upsample(x, scale_factor=2), [[[1.0, 2.0]]])
    array([[[1., 1., 2., 2.]]], dtype=float32)
    >>> pm.interpret(lambda x: pm.upsample(x, size=3, mode="linear", align_corners=True), [[[1.0, 2.0]]])
    array([[[1. , 1.5, 2. ]]], dtype=float32)
    """
    t = _image(x, None, "upsample")
    spatial = t.ndim - 2
    if (size is None) == (scale_factor is None):
        raise fail(InputError, "upsample takes either size or scale_factor")
    if size is not None:
        wanted = as_shape(size)
        wanted = wanted * spatial if len(wanted) == 1 else wanted
    else:
        wanted = tuple(d * f for d, f in zip(t.shape[2:], _each(scale_factor, spatial, "scale_factor"), strict=True))
    known = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}
    return emit("upsample", [t], size=wanted, mode=known.get(mode, mode), align_corners=bool(align_corners))


# --- norms ---


def batch_norm(
    x: TensorLike,
    running_mean: TensorLike,
    running_var: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [N, C, …] less its mean, over its standard deviation, per channel; then times weight, plus bias.

    In training mean and variance are those of the batch, else the running ones. Also gives the new running mean and
    variance: in training the old ones moved by `momentum` towards the batch's, of which the variance is divided by one less
    than the number of elements; else the old ones as they are. Statistics are f32 whatever x is.

    >>> import pumice as pm
    >>> x = [[[1.0, 3.0]]]
    >>> y, m, v = pm.interpret(lambda x: pm.batch_norm(x, [0.0], [1.0], training=True, eps=0.0), x)
    >>> y, m, v
    (array([[[-1.,  1.]]], dtype=float32), array([0.2], dtype=float32), array([1.1], dtype=float32))
    """
    t = as_float(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"batch_norm takes x [N, C, …], not {t.type.describe()}")
    wide = convert(t, dtypes.f32)
    old_mean, old_var = (convert(as_tensor(v, dtypes.f32, near=t), dtypes.f32) for v in (running_mean, running_var))
    new_mean, new_var = old_mean, old_var
    centre, spread = _per_channel(old_mean, wide), _per_channel(old_var, wide)
    if training:
        axes = (0, *range(2, t.ndim))
        average = mean(wide, axes, keepdims=True)
        variance = mean(square(wide - average), axes, keepdims=True)
        count = product(t.shape[a] for a in axes)
        if count == 1:
            raise fail(
                ShapeError,
                f"batch_norm in training takes more than one value per channel, not {t.type.describe()}",
                hint="pass a larger batch; one value has no variance",
                shape=t.shape,
            )
        # Divided by a dim, not by a number computed from it: a graph that keeps the result refuses 0 before it runs.
        values, others = (as_tensor(n, dtypes.f32, near=t) for n in (count, count - 1))
        unbiased = reshape(variance, old_var.shape) * (values / others)
        new_mean = old_mean + (reshape(average, old_mean.shape) - old_mean) * momentum
        new_var = old_var + (unbiased - old_var) * momentum
        centre, spread = average, variance
    y = (wide - centre) * rsqrt(spread + eps)
    return convert(_scaled(y, weight, bias), t.dtype), new_mean, new_var


def _scaled(y: Tensor, weight: TensorLike | None, bias: TensorLike | None) -> Tensor:
    """y times a weight, plus a bias, both per channel."""
    if weight is not None:
        y = y * _per_channel(weight, y)
    return y if bias is None else y + _per_channel(bias, y)


def group_norm(
    x: TensorLike, groups: int, weight: TensorLike | None = None, bias: TensorLike | None = None, *, eps: float = 1e-5
) -> Tensor:
    """x [N, C, …] less its mean, over its standard deviation, in each of `groups` groups of channels; then scaled per channel.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.group_norm(x, 2, eps=0.0), [[[1.0, 3.0], [5.0, 4.0]]])
    array([[[-1.,  1.], [ 1., -1.]]], dtype=float32)
    """
    t = as_float(x)
    if t.ndim < 2:
        raise fail(ShapeError, f"group_norm takes x [N, C, …], not {t.type.describe()}")
    each = divide_exactly(t.shape[1], groups) if groups > 0 else None
    if each is None:
        raise fail(ShapeError, f"{t.shape[1]} channels do not make {groups} groups", groups=groups)
    rows = reshape(t, (t.shape[0], groups, each * product(t.shape[2:])))
    return _scaled(reshape(layer_norm(rows, eps=eps), t.shape), weight, bias)
