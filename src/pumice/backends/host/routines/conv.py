"""Convolution and its gradients on the host: by compiled kernels, or unfolded and multiplied by BLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.memory.scratch import scratch
from pumice.backends.host.native import convolution, dense, jit
from pumice.backends.host.native.conv_shapes import ConvShape, Finish
from pumice.backends.host.native.conv_sizes import ConvSizes, conv_sizes
from pumice.backends.host.native.kernel_tasks import Task, is_dense
from pumice.backends.host.routines import blas
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.core.records import dataclass
from pumice.ir.ops.window import index
from pumice.ir.registry import Array

# Elements of unfolded windows at a time (1 MiB): they are written and read at once, in the second-level cache.
_UNFOLDED = 1 << 18


@dataclass(frozen=True)
class _Shape(ConvShape):
    """A convolution for NumPy."""

    @property
    def k(self) -> int:
        """Elements of a window in one group."""
        return self.c * numel(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether the windows are x itself."""
        return numel(self.kernel) == 1 and self.size == self.counts and set(self.strides) == {1} and not any(self.low)

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """Images and output rows (of the first spatial axis) that are unfolded together."""
        row = self.groups * self.k * numel(self.counts[1:])
        rows = max(1, min(self.counts[0], _UNFOLDED // row))
        images = max(1, _UNFOLDED // (row * rows)) if rows == self.counts[0] else 1
        for i in range(0, self.n, images):
            for o in range(0, self.counts[0], rows):
                yield slice(i, min(self.n, i + images)), slice(o, min(self.counts[0], o + rows))


def _unfold(s: _Shape, x: Array, rows: slice, out: Array) -> None:
    """Windows of x [a, b, size…] for some output rows, as out [a, b, kernel…, rows, …]."""
    full = (rows.stop - rows.start, *s.counts[1:])
    for tap, windows, places in s.each_tap(rows):
        target = out[index(slice(None), slice(None), *tap)]
        if any(w.stop - w.start < size for w, size in zip(windows, full)):
            target.fill(0)
        target[index(..., *windows)] = x[index(..., *places)]


def _fold(s: _Shape, columns: Array, rows: slice, out: Array) -> None:
    """Adds columns [a, b, kernel…, rows, …] to the elements of out [a, b, size…] that they were unfolded from."""
    for tap, windows, places in s.each_tap(rows):
        target = out[index(..., *places)]
        np.add(target, columns[index(slice(None), slice(None), *tap, ..., *windows)], out=target)


def _forward(s: _Shape, x: Array, w: Array, bias: Array | None, out: Array) -> None:
    weights = np.ascontiguousarray(w).reshape(s.groups, s.m, s.k)
    result = out.reshape(s.n, s.groups, s.m, -1)
    if s.is_pointwise:
        blas.matmul(weights, np.ascontiguousarray(x).reshape(s.n, s.groups, s.c, -1), out=result)
        if bias is not None:
            np.add(result, bias.reshape(s.groups, s.m, 1), out=result)
        return
    inner = numel(s.counts[1:])
    for images, rows in s.parts():
        n, t = images.stop - images.start, (rows.stop - rows.start) * inner
        columns = scratch("unfolded", n * s.groups * s.k * t)
        _unfold(s, x[images], rows, columns.reshape(n, s.groups * s.c, *s.kernel, -1, *s.counts[1:]))
        target = result[images, ..., rows.start * inner : rows.stop * inner]
        blas.matmul(weights, columns.reshape(n, s.groups, s.k, t), out=target)
        if bias is not None:
            np.add(target, bias.reshape(s.groups, s.m, 1), out=target)


def _by_input(s: _Shape, grad: Array, w: Array, out: Array) -> None:
    weights = np.ascontiguousarray(w).reshape(s.groups, s.m, s.k).transpose(0, 2, 1)
    grads = np.ascontiguousarray(grad).reshape(s.n, s.groups, s.m, -1)
    if s.is_pointwise:
        blas.matmul(weights, grads, out=out.reshape(s.n, s.groups, s.c, -1))
        return
    out.fill(0)
    inner = numel(s.counts[1:])
    # Of one output channel per group there is nothing to sum: BLAS has no fast way for such matmuls.
    multiply = blas.matmul if s.m > 1 else np.multiply
    for images, rows in s.parts():
        n, t = images.stop - images.start, (rows.stop - rows.start) * inner
        columns = scratch("unfolded", n * s.groups * s.k * t)
        multiply(weights, grads[images, ..., rows.start * inner : rows.stop * inner], out=columns.reshape(n, s.groups, s.k, t))
        _fold(s, columns.reshape(n, s.groups * s.c, *s.kernel, -1, *s.counts[1:]), rows, out[images])


def _by_weight(s: _Shape, x: Array, grad: Array, out: Array) -> None:
    total = out.reshape(s.groups, s.m, s.k)
    total.fill(0)
    inner = numel(s.counts[1:])
    grads = grad.reshape(s.n, s.groups * s.m, -1)
    for images, rows in s.parts():
        n, t = images.stop - images.start, (rows.stop - rows.start) * inner
        columns = scratch("unfolded", n * s.groups * s.k * t)
        # Images side by side: one matmul with a long sum instead of one for each image.
        _unfold(
            s,
            x[images].swapaxes(0, 1),
            rows,
            np.moveaxis(columns.reshape(-1, *s.kernel, n, t // inner, *s.counts[1:]), -len(s.counts) - 1, 1),
        )
        part = grads[images, :, rows.start * inner : rows.stop * inner].swapaxes(0, 1)
        left = np.ascontiguousarray(part).reshape(s.groups, s.m, n * t)
        total += blas.matmul(left, columns.reshape(s.groups, s.k, n * t).transpose(0, 2, 1))


def _shape_of(call: NodeCall, x: tuple[int, ...], w: tuple[int, ...], counts: tuple[int, ...]) -> _Shape:
    groups, attrs = call.attrs["groups"], call.attrs
    low = tuple(lo for lo, _ in attrs["padding"])
    return _Shape(x[2:], w[2:], counts, attrs["strides"], attrs["dilation"], low, x[0], groups, w[1], w[0] // groups)


def _is_fast(call: NodeCall) -> bool:
    return bool(call.attrs["precision"] == "fast")


def _bind_conv(call: NodeCall) -> HostRoutine:
    s = _shape_of(call, call.shape("x"), call.shape("w"), call.out.static_shape[2:])

    def tasks(
        sizes: ConvSizes, x: Array, w: Array, bias: Array | None, out: Array, copies: dense.Copies | None = None
    ) -> list[Task]:
        return convolution.forward(s, sizes, x, w, Finish(shift=bias), out, copies, fast=_is_fast(call))

    return replace(_routine(call, s, tasks, partial(_forward, s), kept=1), ending=partial(_ended, call, s))


def _ended(call: NodeCall, s: _Shape, scales: bool, low: float, high: float) -> HostRoutine | None:
    """A convolution whose results are scaled, moved, added to others and limited; a bias moves them already."""
    if scales and call.has("bias"):
        return None

    def tasks(
        sizes: ConvSizes,
        x: Array,
        w: Array,
        bias: Array | None,
        scale: Array | None,
        shift: Array | None,
        other: Array | None,
        out: Array,
        copies: dense.Copies | None = None,
    ) -> list[Task]:
        finish = Finish(scale, shift if bias is None else bias, other, low, high)
        return convolution.forward(s, sizes, x, w, finish, out, copies, fast=_is_fast(call))

    def unfolded(
        x: Array, w: Array, bias: Array | None, scale: Array | None, shift: Array | None, other: Array | None, out: Array
    ) -> None:
        _forward(s, x, w, bias, out)
        for function, operand in ((np.multiply, scale), (np.add, shift), (np.add, other)):
            if operand is not None:
                function(out, operand, out=out)
        np.clip(out, low, high, out=out)

    return _routine(call, s, tasks, unfolded, kept=1)


def _bind_grad_input(call: NodeCall) -> HostRoutine:
    grad, w = call.shape("grad"), call.shape("w")
    s = _shape_of(call, call.out.static_shape, w, grad[2:])
    return _routine(call, s, partial(convolution.by_input, s), partial(_by_input, s))


def _bind_grad_weight(call: NodeCall) -> HostRoutine:
    x, grad = call.shape("x"), call.shape("grad")
    s = _shape_of(call, x, call.out.static_shape, grad[2:])
    return _routine(call, s, partial(convolution.by_weight, s), partial(_by_weight, s))


def _routine(
    call: NodeCall, s: _Shape, tasks: Callable[..., list[Task]], unfolded: Callable[..., None], kept: int | None = None
) -> HostRoutine:
    """By compiled kernels, or unfolded where there are none; the operand number `kept` may stay packed."""
    heavy = dense.is_worth_loading(s.work)

    def make(operands: Sequence[Any], out: Array, copies: dense.Copies | None = None) -> list[Task] | None:
        kernels = jit.kernels()
        if kernels is None or not s.fits or not all(a is None or is_dense(a) for a in (*operands, out)):
            return None
        further = () if copies is None else (copies,)
        return tasks(conv_sizes(kernels.is_wide), *operands, out, *further)

    def run(operands: list[Any], out: Array) -> None:
        kernels = jit.kernels() if heavy else jit.loaded()
        made = None if kernels is None else make([None if a is None else np.ascontiguousarray(a) for a in operands], out)
        if kernels is None or made is None:
            unfolded(*operands, out)
        else:
            kernels.run(made)

    result = call.out.dtype.compute_np
    if kept is None:
        return HostRoutine(run, result, native=make, heavy=heavy, work=s.work)
    return HostRoutine(run, result, native=make, heavy=heavy, work=s.work, keeping=make, kept=kept)


CONV: dict[str, Binder] = {
    "conv": _bind_conv,
    "conv_grad_input": _bind_grad_input,
    "conv_grad_weight": _bind_grad_weight,
}
