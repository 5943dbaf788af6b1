"""channel_norm and its gradient: by compiled kernels, or as NumPy does what the ops mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.native import jit, kernel_tasks
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall

# Multiplications in the time that an element takes: it is read twice and written once.
_WORK = 8


def _bind(call: NodeCall) -> HostRoutine:
    images, channels, *plane = call.shape("x")
    sizes = (images, channels, numel(tuple(plane)), kernel_tasks.bits(call.attrs["eps"]))
    work = _WORK * images * channels * sizes[2]

    def tasks(operands: Sequence[Any], outs: Any) -> list[kernel_tasks.Task] | None:
        of = {**call.named(operands), **dict(zip(call.spec.results, outs, strict=True))}
        names = ("dy", "x", "mean", "variance", "weight", "bias", "y" if "y" in of else "dx", "dweight", "dbias")
        arrays = tuple(of.get(name) for name in names)
        if not all(a is None or kernel_tasks.is_dense(a) for a in arrays):
            return None
        words = (*map(kernel_tasks.address, arrays), *sizes)
        return [kernel_tasks.Task(f"{call.spec.name}_f32", words, channels, work, arrays)]

    def run(operands: list[Any], outs: Any) -> None:
        kernels = jit.loaded()
        made = None if kernels is None else tasks(operands, outs)
        if kernels is not None and made is not None:
            kernels.run(made)
            return
        for found, to in zip(call.references(operands), outs, strict=True):
            if to is not None:
                np.copyto(to, found)

    return HostRoutine(run, call.out.dtype.compute_np, native=tasks, work=work)


CHANNEL_NORMS: dict[str, Binder] = {"channel_norm": _bind, "channel_norm_gradient": _bind}
