"""Convolution over one to three spatial axes and its two gradients, which are each other's gradients too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Shape, divide_exactly, shape_text
from pumice.core.dtypes import DType
from pumice.core.precisions import FLOAT_PRECISIONS, PRECISIONS, check_precision
from pumice.errors import ShapeError
from pumice.ir.gradients import conv as gradients
from pumice.ir.ops.matmul import rounding_error
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.ops.window import Padding, check_window, index, padded, spatial_rank, static_kernel, taps, window_count, windows
from pumice.ir.precision import Evaluation, U, growth, summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_dtype, same_shape
from pumice.ir.traits import Traits
from pumice.ir.types import TensorType


def conv_counts(size: Shape, kernel: tuple[int, ...], attrs: Attrs) -> Shape:
    """The spatial shape of a convolution's result.

    >>> conv_counts((8,), (3,), {"strides": (2,), "dilation": (1,), "padding": ((1, 1),)})
    (4,)
    """
    rows = zip(size, kernel, attrs["strides"], attrs["dilation"], attrs["padding"], strict=True)
    return tuple(window_count(s, k, stride, d, pad) for s, k, stride, d, pad in rows)


def _checked(types: Types, attrs: Attrs, spatial: int) -> DType:
    """The dtype, once all that does not depend on the operands' roles is checked."""
    for t in given(types):
        require_kind(t, "float")
        if t.rank > 1 and t.rank != spatial + 2:
            raise ShapeError(f"an operand of shape {shape_text(t.shape)} among others with {spatial} spatial axes")
    check_window(attrs, spatial, "strides", "dilation")
    if attrs["groups"] < 1:
        raise ShapeError(f"groups must be at least 1, not {attrs['groups']}")
    return same_dtype(types)


def _check_channels(channels: Any, groups: int, what: str) -> int:
    if not isinstance(channels, int) or channels < 1 or divide_exactly(channels, groups) is None:
        raise ShapeError(f"{what}, {channels}, must be static, positive and a multiple of groups, {groups}", groups=groups)
    return channels


def _infer_conv(types: Types, attrs: Attrs) -> TensorType:
    check_precision(attrs["precision"])
    x, w, bias = types
    assert x is not None and w is not None
    spatial, groups = spatial_rank(x), attrs["groups"]
    dtype = _checked(types, attrs, spatial)
    cin = _check_channels(x.shape[1], groups, "the channels of x")
    cout = _check_channels(w.shape[0], groups, "the outputs of w")
    if w.shape[1] != cin // groups:
        raise ShapeError(
            f"w takes {w.shape[1]} channels per group, x has {cin} in {groups} groups",
            hint="w is [Cout, Cin / groups, kernel…]",
            x=x.shape,
            w=w.shape,
        )
    if bias is not None:
        same_shape(bias.shape, (cout,), "bias and the outputs of w")
    return TensorType(dtype, (x.shape[0], cout, *conv_counts(x.shape[2:], static_kernel(w.shape[2:]), attrs)))


def _infer_grad_input(types: Types, attrs: Attrs) -> TensorType:
    check_precision(attrs["precision"], FLOAT_PRECISIONS)
    grad, w = given(types)
    spatial, groups = spatial_rank(grad), attrs["groups"]
    dtype = _checked(types, attrs, spatial)
    cout = _check_channels(w.shape[0], groups, "the outputs of w")
    per_group = _check_channels(w.shape[1], 1, "the channels per group of w")
    if grad.shape[1] != cout:
        raise ShapeError(f"grad has {grad.shape[1]} channels, w has {cout} outputs", grad=grad.shape, w=w.shape)
    _check_grad(grad, attrs["size"], static_kernel(w.shape[2:]), attrs)
    return TensorType(dtype, (grad.shape[0], per_group * groups, *attrs["size"]))


def _check_grad(grad: TensorType, size: Shape, kernel: tuple[int, ...], attrs: Attrs) -> None:
    if len(size) != grad.rank - 2:
        raise ShapeError(f"size must have one dim per spatial axis, it is {shape_text(size)}", size=size)
    counts = conv_counts(size, kernel, attrs)
    same_shape(grad.shape[2:], counts, f"the spatial dims of grad and those that a convolution of {shape_text(size)} gives")


def _infer_grad_weight(types: Types, attrs: Attrs) -> TensorType:
    check_precision(attrs["precision"], FLOAT_PRECISIONS)
    x, grad = given(types)
    spatial, groups = spatial_rank(x), attrs["groups"]
    dtype = _checked(types, attrs, spatial)
    cin = _check_channels(x.shape[1], groups, "the channels of x")
    cout = _check_channels(grad.shape[1], groups, "the channels of grad")
    same_shape(x.shape[:1], grad.shape[:1], "the batches of x and grad")
    kernel = static_kernel(attrs["kernel"])
    _check_grad(grad, x.shape[2:], kernel, attrs)
    return TensorType(dtype, (cout, cin // groups, *kernel))


# --- references ---

# Letters of the spatial axes of windows and kernels in einsum.
_AT, _IN = "xyz", "hij"


def _grouped(x: Array, axis: int, groups: int) -> Array:
    """x with a channel axis split in [groups, channels per group]."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def _input_windows(x: Array, kernel: tuple[int, ...], counts: Shape, attrs: Attrs) -> Array:
    """The windows of x as [N, groups, C, windows…, kernel…]."""
    view = windows(padded(x, attrs["padding"]), kernel, attrs["strides"], attrs["dilation"], counts)
    return _grouped(view, 1, attrs["groups"])


def _conv(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, w, bias = arrays
    counts = out.static_shape[2:]
    if 0 in out.static_shape:
        return np.zeros(out.static_shape, x.dtype)
    at, inside = _AT[: len(counts)], _IN[: len(counts)]
    view = _input_windows(x, w.shape[2:], counts, attrs)
    y = np.einsum(f"ngc{at}{inside},gmc{inside}->ngm{at}", view, _grouped(w, 0, attrs["groups"]), optimize=True)
    y = np.asarray(y).reshape(out.static_shape)
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(counts))


def _grad_input(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    grad, w = arrays
    groups, pads = attrs["groups"], attrs["padding"]
    grad, w = _grouped(grad, 1, groups), _grouped(w, 0, groups)
    kernel = w.shape[3:]
    size = out.static_shape[2:]
    wide = np.zeros((len(grad), groups, w.shape[2], *(s + lo + hi for s, (lo, hi) in zip(size, pads, strict=True))), grad.dtype)
    at = _AT[: len(kernel)]
    for tap in taps(kernel) if grad.size else ():
        places = zip(tap, attrs["strides"], attrs["dilation"], grad.shape[3:], strict=True)
        where = index(..., *(slice(k * d, k * d + s * (o - 1) + 1, s) for k, s, d, o in places))
        wide[where] += np.einsum(f"ngm{at},gmc->ngc{at}", grad, w[index(..., *tap)], optimize=True)
    inner = index(..., *(slice(lo, lo + s) for s, (lo, _) in zip(size, pads, strict=True)))
    return np.ascontiguousarray(wide[inner]).reshape(out.static_shape)


def _grad_weight(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, grad = arrays
    kernel, counts = attrs["kernel"], grad.shape[2:]
    if not grad.size:
        return np.zeros(out.static_shape, x.dtype)
    at, inside = _AT[: len(counts)], _IN[: len(counts)]
    view = _input_windows(x, kernel, counts, attrs)
    dw = np.einsum(f"ngc{at}{inside},ngm{at}->gmc{inside}", view, _grouped(grad, 1, attrs["groups"]), optimize=True)
    return np.asarray(dw).reshape(out.static_shape)


def _reads_per_output(e: Evaluation) -> int:
    return int(np.prod(e.arrays[1].shape[1:])) + (e.arrays[2] is not None)


_sums_error = summed(_reads_per_output)


def _conv_error(e: Evaluation) -> Array:
    """As a sum of products; with fast, errors are relative to the numbers around a window and to all weights of a channel."""
    x, w, bias = e.arrays
    if e.attrs["precision"] != "fast":
        return np.asarray(_sums_error(e) + rounding_error(e, None))
    near = np.abs(x)
    for axis, count in enumerate(w.shape[2:], 2):
        around = np.moveaxis(np.pad(near, [(count, count) if a == axis else (0, 0) for a in range(x.ndim)]), axis, 0)
        reach = [around[k : k + x.shape[axis]] for k in range(2 * count + 1)]
        near = np.moveaxis(np.max(reach, axis=0), 0, axis) if near.size else near
    inside = tuple(range(2, w.ndim))
    weights = np.broadcast_to(np.abs(w).sum(axis=inside, keepdims=True), w.shape)
    return np.asarray(growth(_reads_per_output(e)) * U * e.again([near, weights, None if bias is None else np.abs(bias)]))


def _reads_per_input(e: Evaluation) -> int:
    w = e.arrays[1]
    return int(w.shape[0] // e.attrs["groups"] * np.prod(w.shape[2:]))


def _reads_per_weight(e: Evaluation) -> int:
    grad = e.arrays[1]
    return int(grad.shape[0] * np.prod(grad.shape[2:]))


_input_sums_error, _weight_sums_error = summed(_reads_per_input), summed(_reads_per_weight)


def _grad_input_error(e: Evaluation) -> Array:
    return np.asarray(_input_sums_error(e) + rounding_error(e))


def _grad_weight_error(e: Evaluation) -> Array:
    return np.asarray(_weight_sums_error(e) + rounding_error(e))


# --- samples ---


class _Case:
    """One convolution, from which the samples of all three ops come."""

    def __init__(
        self,
        label: str,
        x: tuple[int, ...],
        w: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        padding: Padding | None = None,
        dilation: tuple[int, ...] | None = None,
        groups: int = 1,
        dtype: DType = dtypes.f32,
        bias: bool = False,
    ) -> None:
        ones = (1,) * (len(x) - 2)
        self.label, self.dtype, self.bias = label, dtype, bias
        self.attrs: dict[str, Any] = {
            "strides": strides or ones,
            "padding": padding or ((0, 0),) * len(ones),
            "dilation": dilation or ones,
            "groups": groups,
        }
        self.x, self.w = x, w
        self.out = (x[0], w[0], *conv_counts(x[2:], w[2:], self.attrs))

    def array(self, shape: Any, seed: int) -> Array:
        return sample_array(shape, self.dtype, seed)


def _cases() -> Iterator[_Case]:
    same = ((1, 1), (1, 1))
    yield _Case("2D 3x3", (2, 3, 9, 8), (5, 3, 3, 3), padding=same, bias=True)
    yield _Case("stride 2", (2, 4, 11, 9), (6, 4, 3, 3), strides=(2, 2), padding=same)
    yield _Case("1D", (3, 4, 17), (6, 4, 5), padding=((2, 2),), bias=True)
    yield _Case("1D, stride, dilation, uneven padding", (2, 3, 23), (4, 3, 3), strides=(3,), dilation=(2,), padding=((3, 0),))
    yield _Case("3D", (2, 2, 5, 6, 4), (3, 2, 2, 3, 2), strides=(1, 2, 1), padding=((0, 1), (1, 1), (1, 0)))
    yield _Case("dilation", (1, 3, 13, 12), (4, 3, 3, 2), dilation=(3, 2), padding=((2, 3), (0, 1)))
    yield _Case("groups", (2, 6, 7, 6), (9, 2, 3, 3), groups=3, padding=same, bias=True)
    yield _Case("depthwise", (2, 19, 9, 7), (19, 1, 3, 3), groups=19, padding=same, bias=True)
    yield _Case("depthwise with two outputs, stride", (1, 5, 9, 9), (10, 1, 3, 3), groups=5, strides=(2, 2))
    yield _Case("1x1", (3, 17, 6, 5), (21, 17, 1, 1), bias=True)
    yield _Case("1x1 of stride 2", (2, 5, 7, 7), (8, 5, 1, 1), strides=(2, 2))
    yield _Case("patches", (2, 3, 12, 12), (33, 3, 4, 4), strides=(4, 4))
    yield _Case("stride beyond the kernel", (1, 2, 11, 11), (3, 2, 2, 2), strides=(4, 3))
    yield _Case("one channel", (2, 1, 28, 28), (8, 1, 5, 5), padding=((2, 2), (2, 2)))
    yield _Case("many channels", (1, 48, 10, 10), (40, 48, 3, 3), padding=same)
    yield _Case("a kernel as large as x", (3, 4, 5, 6), (7, 4, 5, 6))
    yield _Case("one of everything", (1, 1, 1), (1, 1, 1))
    yield _Case("long reduction", (9, 2, 40, 40), (3, 2, 3, 3), padding=same)
    yield _Case("no batch", (0, 3, 8, 8), (4, 3, 3, 3))
    yield _Case("f16", (2, 4, 9, 7), (5, 4, 3, 3), padding=same, dtype=dtypes.f16, bias=True)
    yield _Case("bf16", (1, 6, 12), (8, 3, 3), groups=2, dtype=dtypes.bf16)


def _conv_samples() -> Iterator[Sample]:
    for c in _cases():
        bias = [c.array(c.w[:1], 2)] if c.bias else [None]
        yield sample(c.label, [c.array(c.x, 0), c.array(c.w, 1), *bias], **c.attrs)
    for c in (_Case("fast", (1, 32, 14, 14), (32, 32, 3, 3), padding=((1, 1), (1, 1))), _Case("fast, 1D", (2, 3, 9), (4, 3, 3))):
        yield sample(c.label, [c.array(c.x, 0), c.array(c.w, 1), None], **c.attrs, precision="fast")


def _grad_input_samples() -> Iterator[Sample]:
    for c in _cases():
        yield sample(c.label, [c.array(c.out, 0), c.array(c.w, 1)], size=c.x[2:], **c.attrs)


def _grad_weight_samples() -> Iterator[Sample]:
    for c in _cases():
        yield sample(c.label, [c.array(c.x, 0), c.array(c.out, 1)], kernel=c.w[2:], **c.attrs)


_ATTRS = {"strides": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED, "groups": 1}
_RULES = (
    "1 to 3 spatial axes; padding is a (low, high) pair of zeros per axis. Channels and kernel are static, batch and spatial "
    "sizes may be symbolic. Output channel m reads the input channels of its group, m // (Cout / groups). All operands have "
    "one float dtype; f16 and bf16 sum in f32 and round once. The order of summation is not fixed. The precisions f16 and bf16 "
    "are those of matmul."
)

register(
    OpSpec(
        name="conv",
        family="conv",
        summary="x [N, Cin, spatial…] correlated with w [Cout, Cin / groups, kernel…], plus bias [Cout]",
        operands=("x", "w", "bias?"),
        infer=_infer_conv,
        reference=_conv,
        lowering=Routine("conv"),
        samples=_conv_samples,
        error=_conv_error,
        attrs={**_ATTRS, "precision": "exact"},
        implied=("precision",),
        cost="compute",
        gradient=gradients.conv,
        traits=Traits(flops=lambda of, attrs, out: 2 * prod(out) * prod(of["w"][1:]), precisions=PRECISIONS),
        rules=_RULES + " The kernel is not flipped. Sizes round down, (size + padding - reach) // stride + 1 with reach "
        "dilation * (kernel - 1) + 1; a static size below the reach is refused, a symbolic one gives no outputs. "
        "With the precision fast, a device may compute it with fewer multiplications (Winograd): errors are then relative to the "
        "numbers around a window, not to the products in it, and an infinity may give NaN.",
    )
)

register(
    OpSpec(
        name="conv_grad_input",
        family="conv",
        summary="the gradient of conv by x, of spatial shape `size`; also the transposed convolution",
        operands=("grad", "w"),
        infer=_infer_grad_input,
        reference=_grad_input,
        lowering=Routine("conv_grad_input"),
        samples=_grad_input_samples,
        error=_grad_input_error,
        attrs={"size": REQUIRED, **_ATTRS, "precision": "exact"},
        implied=("precision",),
        cost="compute",
        gradient=gradients.conv_grad_input,
        traits=Traits(flops=lambda of, attrs, out: 2 * prod(of["grad"]) * prod(of["w"][1:]), precisions=FLOAT_PRECISIONS),
        rules=_RULES + " Attributes are those of the convolution; grad has the shape of its result. Elements of x that no "
        "window covers get 0.",
    )
)

register(
    OpSpec(
        name="conv_grad_weight",
        family="conv",
        summary="the gradient of conv by w, of spatial shape `kernel`",
        operands=("x", "grad"),
        infer=_infer_grad_weight,
        reference=_grad_weight,
        lowering=Routine("conv_grad_weight"),
        samples=_grad_weight_samples,
        error=_grad_weight_error,
        attrs={"kernel": REQUIRED, **_ATTRS, "precision": "exact"},
        implied=("precision",),
        cost="compute",
        gradient=gradients.conv_grad_weight,
        traits=Traits(flops=lambda of, attrs, out: 2 * prod(of["grad"]) * prod(out[1:]), precisions=FLOAT_PRECISIONS),
        rules=_RULES + " Attributes are those of the convolution; grad has the shape of its result. No batch gives zeros.",
    )
)
