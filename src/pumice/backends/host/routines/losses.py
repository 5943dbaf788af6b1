"""Host routines of the losses over many classes: a few rows at a time, so that intermediate results stay in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import as_f32, row_blocks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.registry import Array


def _bind_cross_entropy(call: NodeCall) -> HostRoutine:
    def run(operands: list[Any], out: Array) -> None:
        logits, targets = operands
        x, targets, losses = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), out.reshape(-1)
        for part in row_blocks(*x.shape):
            losses[part] = call.spec.reference([as_f32(x[part]), targets[part]], call.attrs, call.out)

    return HostRoutine(run, np.dtype(np.float32), raw=True)


def _bind_gradient(call: NodeCall) -> HostRoutine:
    def run(operands: list[Any], out: Array) -> None:
        logits, *of_rows = operands
        x = logits.reshape(-1, logits.shape[-1])
        targets, picked, loss, dy = (o.reshape(-1) for o in of_rows)
        target = out.reshape(x.shape)
        for part in row_blocks(*x.shape):
            rows, places = target[part], targets[part].astype(np.int64)
            np.subtract(as_f32(x[part]), as_f32(picked[part])[:, None], out=rows)
            np.subtract(rows, as_f32(loss[part])[:, None], out=rows)
            np.exp(rows, out=rows)
            valid = np.flatnonzero((places >= 0) & (places < x.shape[1]))
            rows[valid, places[valid]] -= 1
            scale = np.zeros(len(rows), np.float32)
            scale[valid] = dy[part][valid]
            np.multiply(rows, scale[:, None], out=rows)
            if len(valid) < len(rows):
                rows[scale == 0] = 0  # exponentials of a row without a target may be infinite

    return HostRoutine(run, call.out.dtype.compute_np, raw=True)


LOSSES: dict[str, Binder] = {"cross_entropy": _bind_cross_entropy, "cross_entropy_gradient": _bind_gradient}
