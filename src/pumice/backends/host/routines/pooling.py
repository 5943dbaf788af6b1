"""Pooling, resizing and their gradients on the host: by compiled kernels, or pooled by taps and the rest as the ops mean it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Native, Task, address, bits, is_dense
from pumice.backends.host.native.windows import Windows, three_axes
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.ops.pool import divisors, resize_places
from pumice.ir.ops.window import index
from pumice.ir.registry import Array

# Multiplications in the time that an element takes.
_WORK = 4


def _bind_pool(call: NodeCall) -> HostRoutine:
    """max_pool and mean_pool."""
    s = _windows(call, call.shape("x")[2:], call.out.static_shape[2:])
    takes_max, result = call.spec.name == "max_pool", call.out.dtype.compute_np
    fold = np.maximum if takes_max else np.add
    share = None if takes_max else 1 / divisors(s.size, s.counts, call.attrs, result)

    def plain(operands: Sequence[Any], out: Array) -> None:
        out.fill(-np.inf if takes_max else 0)
        for _, windows, places in s.each_tap():
            target = out[index(..., *windows)]
            fold(target, operands[0][index(..., *places)], out=target)
        if share is not None:
            np.multiply(out, share, out=out)

    return _routine(call, _pool_tasks(call, s, share), plain)


def _bind_pool_grad(call: NodeCall) -> HostRoutine:
    s = _windows(call, call.out.static_shape[2:], call.shape("grad")[2:])
    shared = call.spec.name == "mean_pool_grad"
    share = 1 / divisors(s.size, s.counts, call.attrs, np.float32) if shared else None
    return _routine(call, _pool_tasks(call, s, share), lambda operands, out: np.copyto(out, call.reference(list(operands))))


def _windows(call: NodeCall, size: tuple[int, ...], counts: tuple[int, ...]) -> Windows:
    low = tuple(lo for lo, _ in call.attrs["padding"])
    return Windows(size, call.attrs["kernel"], counts, call.attrs["strides"], (1,) * len(size), low)


def _pool_tasks(call: NodeCall, s: Windows, share: Array | None) -> Native:
    """The task of one of the four ops; a plane is a part."""
    shares = None if share is None else np.ascontiguousarray(share, np.float32)

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        of = call.named(operands)
        arrays = (of.get("x"), of.get("y", None if "x" in of else of.get("grad")), of.get("grad"), out, shares)
        if not all(a is None or is_dense(a) for a in arrays):
            return None
        sizes = [three_axes(v, 1) for v in (s.size, s.counts, s.kernel, s.strides)]
        words = (*map(address, arrays), *(v for some in sizes for v in some), *three_axes(s.low, 0))
        planes = numel(out.shape[:2])
        work = _WORK * planes * numel(s.counts) * numel(s.kernel)
        return [Task(f"{call.spec.name}_f32", words, planes, work, arrays)]

    return make


def _bind_resize(call: NodeCall) -> HostRoutine:
    """upsample, and upsample_grad from what was resized back to what it came from."""
    backward = call.spec.name == "upsample_grad"
    before, after = call.shape("grad" if backward else "x")[2:], call.out.static_shape[2:]
    old, new = (three_axes(v, 1) for v in ((after, before) if backward else (before, after)))
    table = np.zeros((sum(new), 3), np.int64)
    start = 0
    for size, count in zip(old, new, strict=True):
        low, high, share = resize_places(size, count, call.attrs)
        table[start : start + count, 0], table[start : start + count, 1] = low, high
        table[start : start + count, 2] = [bits(s) for s in share]
        start += count
    name = "resize_grad_f32" if backward else "resize_f32"

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        given = operands[0]
        if not is_dense(given) or not is_dense(out):
            return None
        ends = (out, given) if backward else (given, out)
        words = (*map(address, (*ends, table)), *old, *new)
        planes = numel(out.shape[:2])
        return [Task(name, words, planes, 4 * _WORK * planes * numel(new), (*ends, table))]

    return _routine(call, make, lambda operands, out: np.copyto(out, call.reference(list(operands))))


def _routine(call: NodeCall, make: Native, plain: Any) -> HostRoutine:
    def run(operands: list[Any], out: Array) -> None:
        kernels = jit.loaded()
        tasks = None if kernels is None else make([np.ascontiguousarray(a) for a in operands], out)
        if kernels is None or tasks is None:
            plain(operands, out)
        else:
            kernels.run(tasks)

    work = _WORK * max(numel(t.static_shape) for t in (*call.ins, call.out) if t is not None)
    return HostRoutine(run, call.out.dtype.compute_np, native=make, work=work)


POOLING: dict[str, Binder] = {
    "max_pool": _bind_pool,
    "mean_pool": _bind_pool,
    "max_pool_grad": _bind_pool_grad,
    "mean_pool_grad": _bind_pool_grad,
    "upsample": _bind_resize,
    "upsample_grad": _bind_resize,
}
