"""Matmuls over groups of rows: one BLAS call for each group that has rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit, kernel_tasks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.backends.host.routines.linear import float_matmul
from pumice.core.blocks import dequantize_rows
from pumice.ir.ops.eight_bits import round_to_eight_bits
from pumice.ir.ops.grouped import group_bounds
from pumice.ir.registry import Array

# Elements of weights that are unpacked to float32 at a time (4 MiB).
_TILE = 1 << 20


def _groups(sizes: Array, count: int) -> Iterator[tuple[int, slice]]:
    """The groups that have any of `count` rows, and which."""
    bounds = group_bounds(sizes, count).tolist()
    for g, (start, stop) in enumerate(pairwise(bounds)):
        if start < stop:
            yield g, slice(start, stop)


def _bind_matmul(call: NodeCall) -> HostRoutine:
    def run(operands: list[Any], out: Array) -> None:
        x, w, sizes = operands
        done = 0
        for g, rows in _groups(sizes, len(x)):
            float_matmul(x[rows], w[g], out[rows])
            done = rows.stop
        out[done:] = 0

    return HostRoutine(run, call.out.dtype.compute_np, raw=True)


def _bind_grad_weight(call: NodeCall) -> HostRoutine:
    def run(operands: list[Any], out: Array) -> None:
        x, dy, sizes = operands
        empty = np.ones(len(out), np.bool_)
        for g, rows in _groups(sizes, len(x)):
            float_matmul(x[rows].T, dy[rows], out[g])
            empty[g] = False
        out[empty] = 0

    return HostRoutine(run, call.out.dtype.compute_np, raw=True)


def _bind_qmatmul(call: NodeCall) -> HostRoutine:
    _, n, k = call.shape("w")
    fast = call.attrs["precision"] == "fast"

    def run(operands: list[Any], out: Array) -> None:
        x, w, sizes = operands
        x, kernels, done, tasks = np.ascontiguousarray(x), jit.kernels(), 0, []
        for g, rows in _groups(sizes, len(x)):
            part = w.part(g) if kernels is not None else None
            if kernels is not None and part is not None:
                # Kernels read the rows of a group where they are: all groups run in one call.
                tasks += kernel_tasks.packed_matmul(x[rows], part, out[rows], kernels.is_wide, fast)
            else:
                _unpacked_matmul(round_to_eight_bits(x[rows]) if fast else x[rows], w, range(g * n, (g + 1) * n), k, out[rows])
            done = rows.stop
        if kernels is not None and tasks:
            kernels.run(tasks)
        out[done:] = 0

    return HostRoutine(run, call.out.dtype.compute_np, heavy=True)


def _unpacked_matmul(x: Array, w: Tiles, rows: range, k: int, out: Array) -> None:
    """x times the transpose of some rows of packed weights, a bounded number of them at a time."""
    step = max(1, _TILE // max(1, k))
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        tile = dequantize_rows(w.dtype, w.take(np.arange(start, stop)), k)
        float_matmul(x, tile.T, out[:, start - rows.start : stop - rows.start])


GROUPED: dict[str, Binder] = {
    "grouped_matmul": _bind_matmul,
    "grouped_matmul_grad_weight": _bind_grad_weight,
    "grouped_qmatmul": _bind_qmatmul,
}
