"""pm.compile: function or graph → Executable on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pumice import config
from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.plan.build import build_plan
from pumice.run.convert import flatten
from pumice.run.executable import Executable
from pumice.tracing import Spec, trace


def compile(
    target: Graph | Callable[..., Any],
    /,
    *,
    device: str | Device = "auto",
    max: Mapping[str, int] | None = None,
    params: Any = None,
    params_from: Executable | None = None,
    state_from: Executable | Sequence[Executable] = (),
    fuse: bool | None = None,
    arena: bool | None = None,
    check_indices: bool = True,
    **specs: Any,
) -> Executable:
    """Compile a graph, or trace and compile a function, for a device.

    `max` sets maxima of symbolic dims. `params` of a function may be arrays (uploaded at once) or specs (set later);
    `params_from` and `state_from` share the weights and the states of other executables on the same device. `fuse` and
    `arena` switch fusion and memory sharing off. Integer inputs that select rows are range-checked unless
    `check_indices` is False.

    >>> import numpy as np, pumice as pm
    >>> exe = compile(lambda params, x: x @ params["w"], params={"w": np.eye(2, dtype="f4")}, x=pm.spec("B", 2), device="host")
    >>> exe.run(x=np.ones((1, 2), "f4"))
    array([[1., 1.]], dtype=float32)
    >>> exe.close()
    """
    if isinstance(target, Graph):
        if specs or params is not None:
            raise InputError("specs and params go with a function; a graph has its own", hint="use set_params on the executable")
        graph = target
    else:
        graph = trace(target, **({} if params is None else {"params": params}), **specs)
    opened = open_device(device) if isinstance(device, str) else device
    plan = build_plan(graph, opened.caps, max=max, fuse=fuse, arena=arena)
    _explain(graph, plan, opened)
    exe = Executable(
        plan,
        opened,
        params_from=params_from,
        state_from=[state_from] if isinstance(state_from, Executable) else state_from,
        check_indices=check_indices,
        validate=config.validate,
    )
    try:
        arrays = {k: v for k, v in flatten(params).items() if not isinstance(v, Spec)} if params else {}
        if arrays:
            exe.set_params(arrays, partial=True)
    except BaseException:
        exe.close()
        raise
    return exe


def _explain(graph: Graph, plan: Any, device: Device) -> None:
    """What PUMICE_DEBUG asks to see, on stderr."""
    level = config.debug
    if level >= 1:
        print(f"pumice: device {device.name}, {len(plan.steps)} steps", file=sys.stderr)
    if level >= 2:
        for k, s in enumerate(plan.steps):
            print(f"  {k:4d} {s.label}  [{s.variant or 'host'}]  groups {s.groups}", file=sys.stderr)
    if level >= 3:
        for k, b in enumerate(plan.buffers):
            print(f"  buffer {k}: {b.kind} {b.name} {b.nbytes} bytes", file=sys.stderr)
        for v in plan.values.values():
            places = ", ".join(f"{p.buffer}+{p.offset}" for p in v.parts)
            print(f"  value {v.id}: {v.type} at {places}", file=sys.stderr)
    if level >= 4:
        for kernel in plan.kernels:
            print(f"// {kernel.name}\n{kernel.wgsl}", file=sys.stderr)
    if level >= 5:
        print(graph, file=sys.stderr)
