"""The gradients of layer_norm and rms_norm: by compiled kernels, or as NumPy does what the ops mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.native import kernel_tasks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.registry import Array

_VECTOR = 32


def _bind(call: NodeCall) -> HostRoutine:
    source = call.ins[1]
    assert source is not None
    columns = numel(source.static_shape[len(source.static_shape) - call.attrs["axes"] :])
    settings = (kernel_tasks.bits(call.attrs["eps"]), int(call.attrs["centred"]))
    whole = call.spec.name == "norm_gradient"

    def run(operands: list[Any], out: Array) -> None:
        np.copyto(out, call.reference(operands))

    def tasks(operands: Sequence[Any], out: Array) -> list[kernel_tasks.Task] | None:
        dy, x = operands[:2]
        weight = operands[2] if whole else None
        if not all(a is None or kernel_tasks.is_dense(a) for a in (dy, x, weight, out)) or columns == 0:
            return None
        rows = x.size // columns
        places = [kernel_tasks.address(a) for a in (dy, x, weight, out)]
        if whole:
            words = (*places, 0, rows, columns, *settings, 0)
            return [kernel_tasks.Task("norm_gradient_f32", words, rows, 4 * x.size, (dy, x, weight, out))]
        bias = places[3] + 4 * columns if call.attrs["bias"] else 0
        words, keep = (*places, bias, rows, columns, *settings, 0), (dy, x, out)
        factors = kernel_tasks.Task("norm_factors_f32", words, rows, 2 * x.size, keep, scratch=8 * rows)
        return [
            factors,
            kernel_tasks.Task("norm_parameters_f32", words, -(-columns // _VECTOR), 2 * x.size, keep, scratch=8 * rows),
        ]

    return HostRoutine(run, call.out.dtype.compute_np, native=tasks)


NORM_GRADIENTS: dict[str, Binder] = {"norm_gradient": _bind, "norm_parameter_gradient": _bind}
