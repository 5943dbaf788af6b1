"""Matmuls over groups of rows: one BLAS call for each group that has rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.backends.host.routines.linear import float_matmul
from pumice.ir.ops.grouped import group_bounds
from pumice.ir.registry import Array


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


GROUPED: dict[str, Binder] = {"grouped_matmul": _bind_matmul, "grouped_matmul_grad_weight": _bind_grad_weight}
