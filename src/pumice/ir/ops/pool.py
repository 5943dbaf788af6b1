"""Pooling over windows and resizing, over one to three spatial axes, with their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Shape, ceildiv, dim_min, shape_text
from pumice.core.dtypes import DType
from pumice.errors import InputError, ShapeError
from pumice.ir.gradients import conv as gradients
from pumice.ir.ops.shape import sample, sample_array, span
from pumice.ir.ops.window import Padding, check_window, floor_div, index, padded, spatial_rank, taps, window_count, windows
from pumice.ir.precision import DIVISION_ULPS, ULP, Evaluation, summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Row, Sample, Types, register
from pumice.ir.rules import given, require_kind, same_dtype, same_shape
from pumice.ir.traits import Requirement, Shapes, Traits
from pumice.ir.types import TensorType

# --- windows ---


def pool_counts(size: Shape, attrs: Attrs) -> Shape:
    """The spatial shape of a pooling's result.

    >>> attrs = {"kernel": (3,), "strides": (2,), "padding": ((0, 0),), "ceil_mode": False}
    >>> pool_counts((8,), attrs), pool_counts((8,), {**attrs, "ceil_mode": True})
    ((3,), (4,))
    """
    rows = zip(size, attrs["kernel"], attrs["strides"], attrs["padding"], strict=True)
    return tuple(_count(s, kernel, stride, pad, attrs["ceil_mode"]) for s, kernel, stride, pad in rows)


def _count(size: Dim, kernel: int, stride: int, padding: tuple[int, int], ceil_mode: bool) -> Dim:
    if not ceil_mode:
        return window_count(size, kernel, stride, 1, padding)
    lo, hi = padding
    window_count(size, kernel, 1, 1, padding)  # refuses what not one window fits on
    # Rounded up, but the last window must start inside x or the padding before it.
    whole = floor_div(size + lo + hi - kernel + stride - 1, stride) + 1
    return span(0, dim_min(whole, ceildiv(size + lo, stride)))


def _infer_pool(types: Types, attrs: Attrs) -> TensorType:
    (x,) = given(types)
    require_kind(x, "float")
    spatial = spatial_rank(x)
    _check_pool(attrs, spatial, x.shape[2:])
    return TensorType(x.dtype, (*x.shape[:2], *pool_counts(x.shape[2:], attrs)))


def _check_pool(attrs: Attrs, spatial: int, size: Shape) -> None:
    check_window(attrs, spatial, "kernel", "strides")
    for kernel, pair in zip(attrs["kernel"], attrs["padding"], strict=True):
        if max(pair) >= kernel:
            raise ShapeError(
                f"padding {pair} is not less than the window, {kernel}: some windows would hold nothing",
                hint="pad with pm.pad if that is what you want",
                padding=attrs["padding"],
            )
    if any(s == 0 for s in size):
        raise ShapeError(f"there is nothing to pool in a spatial shape of {shape_text(size)}")


def _infer_mean_grad(types: Types, attrs: Attrs) -> TensorType:
    (grad,) = given(types)
    require_kind(grad, "float")
    size = attrs["size"]
    _check_pool(attrs, spatial_rank(grad), size)
    _check_pooled(grad, size, attrs, "grad")
    return TensorType(grad.dtype, (*grad.shape[:2], *size))


def _check_pooled(grad: TensorType, size: Shape, attrs: Attrs, name: str) -> None:
    if len(size) != grad.rank - 2:
        raise ShapeError(f"size must have one dim per spatial axis, it is {shape_text(size)}", size=size)
    same_shape(grad.shape[2:], pool_counts(size, attrs), f"the spatial dims of {name} and the windows of {shape_text(size)}")


def _infer_max_grad(types: Types, attrs: Attrs) -> TensorType:
    x, y, grad = given(types)
    require_kind(x, "float")
    same_dtype(types)
    _check_pool(attrs, spatial_rank(x), x.shape[2:])
    for name, t in (("y", y), ("grad", grad)):
        if t.rank != x.rank:
            raise ShapeError(f"{name} must have the rank of x, {x.rank}, not {t.rank}")
        same_shape(t.shape[:2], x.shape[:2], f"batch and channels of {name} and x")
        _check_pooled(t, x.shape[2:], attrs, name)
    return x


def _covered(size: tuple[int, ...], counts: tuple[int, ...], attrs: Attrs) -> Padding:
    """Padding with which exactly the windows fit, those included that reach beyond because sizes round up."""
    rows = zip(size, counts, attrs["kernel"], attrs["strides"], attrs["padding"], strict=True)
    return tuple((lo, max(0, (n - 1) * stride + k - s - lo)) for s, n, k, stride, (lo, _) in rows)


def _pool_windows(x: Array, counts: tuple[int, ...], attrs: Attrs, value: float) -> Array:
    """The windows of x as a view [N, C, windows…, kernel…]."""
    wide = padded(x, _covered(x.shape[2:], counts, attrs), value)
    return windows(wide, attrs["kernel"], attrs["strides"], (1,) * len(counts), counts)


def divisors(size: tuple[int, ...], counts: tuple[int, ...], attrs: Attrs, dtype: Any) -> Array:
    """What each window's sum is divided by, as an array of the spatial shape."""
    total = np.ones((), dtype)
    rows = zip(size, counts, attrs["kernel"], attrs["strides"], attrs["padding"], strict=True)
    for s, n, k, stride, (lo, hi) in rows:
        start = np.arange(n) * stride - lo
        low, high = (0, s) if not attrs["count_include_pad"] else (-lo, s + hi)
        total = np.multiply.outer(total, np.maximum(np.minimum(start + k, high) - np.maximum(start, low), 1).astype(dtype))
    return total


def _max_pool(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    counts = out.static_shape[2:]
    if 0 in out.static_shape:
        return np.zeros(out.static_shape, x.dtype)
    view = _pool_windows(x, counts, attrs, -np.inf)
    return np.asarray(view.max(axis=tuple(range(-len(counts), 0)), initial=-np.inf))


def _mean_pool(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    counts = out.static_shape[2:]
    if 0 in out.static_shape:
        return np.zeros(out.static_shape, x.dtype)
    total = _pool_windows(x, counts, attrs, 0.0).sum(axis=tuple(range(-len(counts), 0)))
    return np.asarray(total / divisors(x.shape[2:], counts, attrs, x.dtype))


def _tap_slices(tap: tuple[int, ...], counts: tuple[int, ...], attrs: Attrs) -> Any:
    """The position of the element at `tap` of each window in a padded x."""
    rows = zip(tap, counts, attrs["strides"], strict=True)
    return index(..., *(slice(k, k + s * (n - 1) + 1, s) for k, n, s in rows))


def _spread(counts: tuple[int, ...], attrs: Attrs, out: TensorType, dtype: Any, share: Any) -> Array:
    """The array of x's shape that gets `share(tap)`, one value per window, at each tap of the windows."""
    size = out.static_shape[2:]
    pads = _covered(size, counts, attrs)
    wide = np.zeros((*out.static_shape[:2], *(s + lo + hi for s, (lo, hi) in zip(size, pads, strict=True))), dtype)
    for tap in taps(attrs["kernel"]) if 0 not in counts else ():
        wide[_tap_slices(tap, counts, attrs)] += share(tap)
    return np.ascontiguousarray(wide[index(..., *(slice(lo, lo + s) for s, (lo, _) in zip(size, pads, strict=True)))])


def _mean_grad(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (grad,) = arrays
    counts = grad.shape[2:]
    share = grad / divisors(out.static_shape[2:], counts, attrs, grad.dtype)
    return _spread(counts, attrs, out, grad.dtype, lambda tap: share)


def _max_grad(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, y, grad = arrays
    counts = grad.shape[2:]
    # The padding differs from every maximum that a window of x can have.
    wide = padded(x, _covered(x.shape[2:], counts, attrs), np.nan)
    inside = padded(np.ones((1, 1, *x.shape[2:]), np.bool_), _covered(x.shape[2:], counts, attrs), 0)
    pending = np.ones(grad.shape, np.bool_)

    def share(tap: tuple[int, ...]) -> Array:
        at = _tap_slices(tap, counts, attrs)
        value = wide[at]
        hit = pending & inside[at] & ((value == y) | (np.isnan(value) & np.isnan(y)))
        np.logical_and(pending, ~hit, out=pending)
        return np.where(hit, grad, 0)

    return _spread(counts, attrs, out, grad.dtype, share)


# --- resizing ---


def _infer_upsample(types: Types, attrs: Attrs) -> TensorType:
    (x,) = given(types)
    _check_resize(x, attrs)
    return TensorType(x.dtype, (*x.shape[:2], *attrs["size"]))


def _check_resize(x: TensorType, attrs: Attrs) -> None:
    require_kind(x, "float")
    if len(attrs["size"]) != spatial_rank(x):
        raise ShapeError(f"size must have one dim per spatial axis, it is {shape_text(attrs['size'])}", size=attrs["size"])
    for old, new in zip(x.shape[2:], attrs["size"], strict=True):
        # An empty axis may resize to an empty one, as in an empty batch of crops; everything else needs an element to read.
        if isinstance(old, int) and isinstance(new, int) and (new < 0 or (old == 0) != (new == 0)):
            raise ShapeError(
                f"a spatial shape of {shape_text(x.shape[2:])} does not resize to {shape_text(attrs['size'])}",
                hint="sizes are positive; an axis of size 0 keeps it",
                size=attrs["size"],
            )
    if attrs["mode"] not in ("nearest", "linear"):
        raise InputError(f"there is no resize mode {attrs['mode']!r}", hint="one of nearest, linear")
    if attrs["align_corners"] and attrs["mode"] == "nearest":
        raise InputError("align_corners is for the linear mode")


def resize_weights(size: int, out: int, attrs: Attrs, dtype: Any) -> Array:
    """The matrix [out, size] that resizes an axis.

    >>> resize_weights(2, 3, {"mode": "linear", "align_corners": True}, np.float32)
    array([[1. , 0. ],
           [0.5, 0.5],
           [0. , 1. ]], dtype=float32)
    """
    at = np.arange(out, dtype=np.int64)
    weights = np.zeros((out, size), dtype)
    low, high, exact = resize_places(size, out, attrs)
    share = exact.astype(dtype)
    np.add.at(weights, (at, low), 1 - share)
    np.add.at(weights, (at, high), share)
    return weights


def resize_places(size: int, out: int, attrs: Attrs) -> tuple[Array, Array, Array]:
    """The two elements that each position of a resized axis is between, and the share of the second.

    >>> [a.tolist() for a in resize_places(2, 3, {"mode": "linear", "align_corners": True})]
    [[0, 0, 1], [1, 1, 1], [0.0, 0.5, 0.0]]
    """
    at = np.arange(out, dtype=np.int64)
    if attrs["mode"] == "nearest":
        nearest = at * size // max(out, 1)
        return nearest, nearest, np.zeros(out)
    # Places are whole numbers over a common divisor: exact, and the same on every device.
    if attrs["align_corners"]:
        place, unit = at * (size - 1), max(out - 1, 1)
    else:
        place, unit = np.maximum((2 * at + 1) * size - out, 0), 2 * out
    low = place // unit
    return low, np.minimum(low + 1, size - 1), place % unit / unit


def _resized(x: Array, matrices: Sequence[Array]) -> Array:
    """x with each spatial axis multiplied by its matrix [new, old]."""
    for axis, m in enumerate(matrices, start=2):
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ m.T, -1, axis)
    return np.ascontiguousarray(x)


def _upsample(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    if attrs["mode"] == "nearest":
        for axis, (size, new) in enumerate(zip(x.shape[2:], out.static_shape[2:], strict=True), start=2):
            x = np.take(x, np.arange(new, dtype=np.int64) * size // new, axis=axis)
        return np.asarray(x)
    rows = zip(x.shape[2:], out.static_shape[2:], strict=True)
    return _resized(x, [resize_weights(size, new, attrs, x.dtype) for size, new in rows])


def _infer_upsample_grad(types: Types, attrs: Attrs) -> TensorType:
    (grad,) = given(types)
    _check_resize(grad, attrs)
    return TensorType(grad.dtype, (*grad.shape[:2], *attrs["size"]))


def _upsample_grad(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (grad,) = arrays
    rows = zip(out.static_shape[2:], grad.shape[2:], strict=True)
    return _resized(grad, [resize_weights(size, new, attrs, grad.dtype).T for size, new in rows])


def _window(e: Evaluation) -> int:
    return int(np.prod(e.attrs["kernel"]))


def _resize_error(e: Evaluation) -> Any:
    """Between the nearest, a weight per axis and element; the nearest of all is a copy, and its gradient a sum of copies."""
    if e.attrs["mode"] == "nearest" and e.result.size >= e.arrays[0].size:
        return 0.0
    spatial = [(old, max(new, 1)) for old, new in zip(e.arrays[0].shape[2:], e.result.shape[2:], strict=True)]
    sums = summed(lambda _: int(np.prod([2 * -(-old // new) + 1 for old, new in spatial])))(e)
    # A share is a quotient, and what is left of 1 is as far off: that of an element may be small, and its value large.
    axes = sum(old != new for old, new in spatial) * (e.attrs["mode"] == "linear")
    largest = np.abs(e.arrays[0]).max(axis=tuple(range(2, 2 + len(spatial))), keepdims=True, initial=0.0)
    return sums + DIVISION_ULPS * ULP * axes * np.prod([-(-old // new) + 1 for old, new in spatial]) * largest


# --- samples ---


def _pool_cases() -> Iterator[tuple[str, tuple[int, ...], dict[str, Any], DType]]:
    def case(
        label: str,
        x: tuple[int, ...],
        kernel: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        padding: Padding | None = None,
        ceil_mode: bool = False,
        dtype: DType = dtypes.f32,
    ) -> tuple[str, tuple[int, ...], dict[str, Any], DType]:
        pads = padding or ((0, 0),) * len(kernel)
        return label, x, {"kernel": kernel, "strides": strides or kernel, "padding": pads, "ceil_mode": ceil_mode}, dtype

    yield case("2x2", (2, 5, 8, 6), (2, 2))
    yield case("3x3 of stride 2, padded", (2, 3, 11, 9), (3, 3), (2, 2), ((1, 1), (1, 1)))
    yield case("overlapping", (1, 3, 9, 13), (3, 4), (1, 2), ((1, 1), (0, 2)))
    yield case("gaps between windows", (1, 2, 11, 12), (2, 2), (3, 4))
    yield case("rounded up", (2, 3, 10, 7), (3, 2), (2, 3), ((0, 0), (1, 0)), True)
    yield case("rounded up, a window outside dropped", (1, 2, 5, 5), (2, 2), (3, 2), ((0, 1), (1, 1)), True)
    yield case("1D", (3, 4, 29), (3,), (2,), ((1, 1),))
    yield case("3D", (1, 3, 6, 5, 7), (2, 3, 2), (2, 1, 2), ((1, 0), (1, 1), (0, 0)))
    yield case("whole axes", (3, 5, 4, 6), (4, 6))
    yield case("1x1", (2, 3, 5, 5), (1, 1), (2, 2))
    yield case("no batch", (0, 3, 6, 6), (2, 2))
    yield case("f16", (2, 3, 9, 7), (3, 3), (2, 2), ((1, 1), (1, 1)), dtype=dtypes.f16)
    yield case("bf16", (1, 5, 15), (2,), dtype=dtypes.bf16)


def _ties(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    """Few distinct values, so that windows have several maxima."""
    return np.round(sample_array(shape, dtypes.f32, seed)).astype(dtype.np)


def _max_pool_samples() -> Iterator[Sample]:
    for label, x, attrs, dtype in _pool_cases():
        yield sample(label, [sample_array(x, dtype)], **attrs)
    special = sample_array((1, 2, 6, 6))
    special[0, 0, 1, 2], special[0, 1, 4, 4], special[0, 1, 0, 0] = np.nan, np.inf, -np.inf
    attrs = {"kernel": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0)), "ceil_mode": False}
    yield sample("NaN and infinities", [special], **attrs)


def _max_grad_samples() -> Iterator[Sample]:
    for label, shape, attrs, dtype in _pool_cases():
        counts = pool_counts(shape[2:], attrs)
        x = _ties(shape, dtype, 0)
        wide = x.astype(np.float32)
        y = _max_pool([wide], attrs, TensorType(dtype, (*shape[:2], *counts))).astype(dtype.np)
        yield sample(label, [x, y, sample_array(y.shape, dtype, 1)], **attrs)


def _mean_pool_samples() -> Iterator[Sample]:
    for label, x, attrs, dtype in _pool_cases():
        yield sample(label, [sample_array(x, dtype)], **attrs)
        if any(map(any, attrs["padding"])):
            yield sample(label + ", without padding in the count", [sample_array(x, dtype)], count_include_pad=False, **attrs)


def _mean_grad_samples() -> Iterator[Sample]:
    for label, x, attrs, dtype in _pool_cases():
        grad = sample_array(TensorType(dtype, (*x[:2], *pool_counts(x[2:], attrs))).static_shape, dtype)
        yield sample(label, [grad], size=x[2:], **attrs)
        if any(map(any, attrs["padding"])):
            text = label + ", without padding in the count"
            yield sample(text, [grad], size=x[2:], count_include_pad=False, **attrs)


_SIZES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], DType], ...] = (
    ("twice", (2, 3, 5, 4), (10, 8), dtypes.f32),
    ("thrice, 1D", (2, 5, 7), (21,), dtypes.f32),
    ("odd ratio", (1, 3, 5, 7), (8, 9), dtypes.f32),
    ("smaller", (2, 2, 11, 9), (4, 7), dtypes.f32),
    ("from one", (2, 3, 1, 4), (5, 4), dtypes.f32),
    ("to one", (2, 33, 5, 4), (1, 1), dtypes.f32),
    ("3D", (1, 2, 3, 4, 2), (6, 5, 4), dtypes.f32),
    ("no batch", (0, 3, 2, 2), (4, 4), dtypes.f32),
    ("f16", (1, 3, 5, 3), (10, 9), dtypes.f16),
    ("bf16", (1, 3, 9), (5,), dtypes.bf16),
    ("an empty axis", (1, 2, 0, 3), (0, 6), dtypes.f32),
)


def _resize_modes() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "nearest", {"mode": "nearest"}
    yield "linear", {"mode": "linear"}
    yield "linear, corners aligned", {"mode": "linear", "align_corners": True}


def _upsample_samples() -> Iterator[Sample]:
    for mode, attrs in _resize_modes():
        for label, shape, size, dtype in _SIZES:
            yield sample(f"{mode}: {label}", [sample_array(shape, dtype)], size=size, **attrs)


def _upsample_grad_samples() -> Iterator[Sample]:
    for mode, attrs in _resize_modes():
        for label, shape, size, dtype in _SIZES:
            yield sample(f"{mode}: {label}", [sample_array((*shape[:2], *size), dtype)], size=shape[2:], **attrs)


_POOL = {"kernel": REQUIRED, "strides": REQUIRED, "padding": REQUIRED, "ceil_mode": False}
_MEAN = {**_POOL, "count_include_pad": True}
_RESIZE = {"size": REQUIRED, "mode": "nearest", "align_corners": False}
_WINDOW_RULES = (
    "1 to 3 spatial axes, whose sizes may be symbolic; padding is a (low, high) pair per axis, less than the window. Sizes "
    "round down, with ceil_mode up, but no window starts beyond x and the padding before it."
)
_RESIZE_RULES = (
    "1 to 3 spatial axes of any sizes. nearest reads the element o * size // new. linear reads the place o * (size - 1) / "
    "(new - 1) where corners are aligned, else (o + 1/2) * size / new - 1/2, not below 0, and beyond the last element that "
    "one; smaller sizes are not smoothed. Places are computed in integers. An axis of size 0 keeps it."
)


def _windows_overlap(attrs: Attrs) -> bool:
    return any(size > stride for size, stride in zip(attrs["kernel"], attrs["strides"], strict=True))


def _upsample_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    sizes = zip(of["x"][2:], out.shape[2:], strict=True)
    return [Requirement(1, old, new, f"upsample takes from axis {k}") for k, (old, new) in enumerate(sizes, 2)]


register(
    OpSpec(
        name="max_pool",
        family="pool",
        summary="the greatest element of each window",
        operands=("x",),
        infer=_infer_pool,
        reference=_max_pool,
        lowering=Row("max_pool"),
        samples=_max_pool_samples,
        traits=Traits(reads_again=_windows_overlap),
        attrs=_POOL,
        gradient=gradients.max_pool,
        rules=_WINDOW_RULES + " Padding never wins; a NaN in a window is its result.",
    )
)
register(
    OpSpec(
        name="max_pool_grad",
        family="pool",
        summary="the gradient of max_pool by x, given y = max_pool(x): each window's goes to the first element equal to y",
        operands=("x", "y", "grad"),
        infer=_infer_max_grad,
        reference=_max_grad,
        lowering=Row("max_pool_grad"),
        samples=_max_grad_samples,
        error=summed(_window, keep=(0, 1)),
        attrs=_POOL,
        rules=_WINDOW_RULES + " First is in row-major order; where y is NaN, the first NaN.",
        no_gradient="second derivatives of max pooling: take a smooth pooling, such as the mean, where they are needed",
    )
)
register(
    OpSpec(
        name="mean_pool",
        family="pool",
        summary="the mean of each window",
        operands=("x",),
        infer=_infer_pool,
        reference=_mean_pool,
        lowering=Row("mean_pool"),
        samples=_mean_pool_samples,
        error=summed(_window),
        traits=Traits(reads_again=_windows_overlap),
        attrs=_MEAN,
        gradient=gradients.mean_pool,
        rules=_WINDOW_RULES + " Padding counts as zeros, or is left out without count_include_pad; what is beyond the "
        "padding of a size rounded up never counts.",
    )
)
register(
    OpSpec(
        name="mean_pool_grad",
        family="pool",
        summary="the gradient of mean_pool by x, of spatial shape `size`",
        operands=("grad",),
        infer=_infer_mean_grad,
        reference=_mean_grad,
        lowering=Row("mean_pool_grad"),
        samples=_mean_grad_samples,
        error=summed(_window),
        attrs={"size": REQUIRED, **_MEAN},
        gradient=gradients.mean_pool_grad,
        rules=_WINDOW_RULES + " Attributes are those of the pooling.",
    )
)
register(
    OpSpec(
        name="upsample",
        family="pool",
        summary="x with its spatial axes resized to `size`, by the nearest element or linearly between the nearest",
        operands=("x",),
        infer=_infer_upsample,
        reference=_upsample,
        lowering=Pull("upsample"),
        samples=_upsample_samples,
        error=_resize_error,
        attrs=_RESIZE,
        gradient=gradients.upsample,
        rules=_RESIZE_RULES,
        traits=Traits(requires=_upsample_requires),
    )
)
register(
    OpSpec(
        name="upsample_grad",
        family="pool",
        summary="the gradient of upsample by x, of spatial shape `size`",
        operands=("grad",),
        infer=_infer_upsample_grad,
        reference=_upsample_grad,
        lowering=Row("upsample_grad"),
        samples=_upsample_grad_samples,
        error=_resize_error,
        attrs=_RESIZE,
        gradient=gradients.upsample_grad,
        rules=_RESIZE_RULES,
    )
)
