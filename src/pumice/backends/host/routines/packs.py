"""Kernels of packs as host routines: the pack's kernel and its fallbacks first, the built-in routine if they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import is_half
from pumice.backends.host.routines.calls import HostRoutine, NodeCall
from pumice.backends.host.routines.table import bind_routine
from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.ir.registry import Array


def bind_pack(variant: str, call: NodeCall) -> HostRoutine:
    """The routine of a step that names a kernel of a pack; it reads and writes values as they are stored."""
    from pumice.packs.active import host_kernel
    from pumice.packs.errors import PackKernelFailed

    kernel, runner = host_kernel(variant)
    operands = {name: t for name, t in zip(call.spec.operand_names, call.ins, strict=False) if t is not None}
    results = list(zip(call.spec.results, call.outs, strict=True))
    found = kernel.match(call.spec.name, operands, results, call.attrs, Caps.preset("host"))
    if found is None:
        raise PlanError(f"the kernel {kernel.label} is not for {call.spec.name} of these types", variant=variant)
    order = [call.spec.operand_names.index(p.name) for p in kernel.inputs]
    params = {p.name: value for p, value in zip(kernel.params, found.params, strict=True)}
    types = [operands[p.name] for p in kernel.inputs]
    shapes = [[(t.static_shape, t.dtype.np) for t in some] for some in (types, call.outs)]
    prepared = runner.prepare(shapes[0], params, shapes[1])
    built_in = _built_in(call)

    def run(arrays: list[Any], out: Any) -> None:
        outs = out if isinstance(out, tuple) else (out,)
        try:
            prepared([_dense(arrays[k]) for k in order], outs)
        except PackKernelFailed:
            built_in(arrays, outs)

    return HostRoutine(run, call.out.dtype.np, raw=True, needs_all=True, stored=True)


def _dense(array: Array) -> Array:
    """The array without gaps; NumPy's function of that name would make one dim of none."""
    return array if array.flags.c_contiguous else array.copy()


def _built_in(call: NodeCall) -> Any:
    """The engine's own routine over values as they are stored."""
    half = any(d is not None and is_half(d) for d in call.dtypes)
    routine = None

    def run(arrays: list[Any], outs: Sequence[Array]) -> None:
        nonlocal routine
        if routine is None:
            routine = bind_routine(call)  # only when it is needed: it may be as costly as what it stands in for
        if call.further or (half and not routine.raw):
            wide = [o.astype(np.float32) if isinstance(o, np.ndarray) and is_half(o.dtype) else o for o in arrays]
            found: Sequence[Array] = call.references(wide)
        elif routine.writes:
            held = np.empty(call.out.static_shape, routine.result)
            routine.run(arrays, held)
            found = [held]
        else:
            found = [routine.run(arrays, None)]
        for out, value in zip(outs, found, strict=True):
            np.copyto(out, value, casting="unsafe")

    return run
