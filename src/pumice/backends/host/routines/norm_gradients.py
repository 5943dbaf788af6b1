"""The gradients of layer_norm and rms_norm: by compiled kernels, or as NumPy does what the ops mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.native import kernel_tasks
from pumice.backends.host.native.sizes import LANES
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall


def _bind(call: NodeCall) -> HostRoutine:
    shape = call.shape("x")
    columns = numel(shape[len(shape) - call.attrs["axes"] :])
    settings = (kernel_tasks.bits(call.attrs["eps"]), int(call.attrs["centred"]))
    whole = call.spec.name == "norm_gradient"

    def run(operands: list[Any], out: Any) -> None:
        outs = (out,) if whole else out
        for found, to in zip(call.references(operands), outs, strict=True):
            if to is not None:
                np.copyto(to, found)

    def tasks(operands: Sequence[Any], out: Any) -> list[kernel_tasks.Task] | None:
        of = call.named(operands)
        dy, x, weight = of["dy"], of["x"], of.get("weight")
        first, bias = (out, None) if whole else out
        arrays = (dy, x, weight, first, bias)
        if not all(a is None or kernel_tasks.is_dense(a) for a in arrays) or columns == 0:
            return None
        rows = x.size // columns
        words = (*map(kernel_tasks.address, arrays), rows, columns, *settings, 0)
        if whole:
            return [kernel_tasks.Task("norm_gradient_f32", words, rows, 4 * x.size, arrays)]
        factors = kernel_tasks.Task("norm_factors_f32", words, rows, 2 * x.size, arrays, scratch=8 * rows)
        return [
            factors,
            kernel_tasks.Task("norm_parameters_f32", words, -(-columns // LANES), 2 * x.size, arrays, scratch=8 * rows),
        ]

    # The kernel leaves out the second result, but not the first.
    return HostRoutine(run, call.out.dtype.compute_np, native=tasks, needs_all=not call.wanted[0])


NORM_GRADIENTS: dict[str, Binder] = {"norm_gradient": _bind, "norm_parameter_gradient": _bind}
