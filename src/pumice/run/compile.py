"""pm.compile: function or graph → Executable on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pumice.backends.base import Device
from pumice.core.precisions import Precision
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.passes.precision import with_precision
from pumice.plan.build import build_plan
from pumice.run.convert import flatten
from pumice.run.executable import Executable
from pumice.run.feeds import feed_states
from pumice.run.opening import open_plan, plan_options, store_for
from pumice.run.packs import GivenPacks
from pumice.run.store import Store, check_largest_step
from pumice.tracing import Spec, trace

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative


def compile(
    target: Graph | Callable[..., Any],
    /,
    *,
    device: str | Device = "auto",
    max: Mapping[str, int] | None = None,
    params: Any = None,
    store: Store | None = None,
    packs: GivenPacks = None,
    fuse: bool | None = None,
    arena: bool | None = None,
    largest_step: float | None = None,
    precision: Precision | None = None,
    check_indices: bool = True,
    feeds: Mapping[str, int | str] | None = None,
    skip_unchanged: bool | None = None,
    cooperative: Cooperative | None = None,
    **specs: Any,
) -> Executable:
    """Compile a graph, or trace and compile a function, for a device.

    `max` sets maxima of symbolic dims. `params` of a function may be arrays (uploaded at once) or specs (set later);
    `store` is the `Store` whose params and states it uses, on whose device it then is; executables of one store share those of
    equal name. `fuse` and `arena` switch fusion and memory sharing off. Integer inputs that select rows are range-checked
    unless `check_indices` is False. `precision` is that of all matmuls, "exact", "fast", "f16" or "bf16" (docs/precision.md);
    without it each has its own. `packs` names kernel packs and `largest_step` is the most work of one dispatch (see `Store`).

    `feeds` maps states to outputs: after each run the state has the output's value, without leaving the device. An input
    named there becomes a state. Inputs of up to 4 KiB that have not changed since the last run are not uploaded again;
    `skip_unchanged` True asks for that at any size, False switches it off. `cooperative` is set on the store (see `Cooperative`).

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
    if precision is not None:
        graph = with_precision(graph, precision)
    if feeds:
        graph = feed_states(graph, feeds)
    store, opened = store_for(device, store, packs)
    began = time.perf_counter()
    largest = store.largest_step if largest_step is None else check_largest_step(largest_step)
    options = plan_options(fuse, arena, store.pack_kernels, largest)
    plan = build_plan(graph, opened.caps, options, max=max, packs=store.packs())
    exe = open_plan(
        plan,
        store,
        check_indices=check_indices,
        skip_unchanged=skip_unchanged,
        took={"planned in": time.perf_counter() - began},
    )
    exe.traced = graph
    try:
        if cooperative is not None:
            store.cooperate(cooperative)
        arrays = {k: v for k, v in flatten(params).items() if not isinstance(v, Spec)} if params else {}
        if arrays:
            exe.set_params(arrays, partial=True)
    except BaseException:
        exe.close()
        raise
    return exe
