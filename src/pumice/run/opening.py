"""A plan, made or loaded, becomes an Executable on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pumice import config
from pumice.backends.base import Device
from pumice.plan.plan import Plan, PlanOptions
from pumice.run.executable import Executable


def plan_options(fuse: bool | None = None, arena: bool | None = None) -> PlanOptions:
    """Plan options as given, else from the switches; planning itself reads no switches.

    >>> with config.override(nofuse=True):
    ...     plan_options().fuse, plan_options(fuse=True).fuse
    (False, True)
    """
    return PlanOptions(
        fuse=not config.nofuse if fuse is None else fuse,
        arena=not config.noarena if arena is None else arena,
        default_max=config.default_max,
        check=config.validate,
    )


def open_plan(
    plan: Plan,
    device: Device,
    *,
    params_from: Executable | None,
    state_from: Executable | Sequence[Executable],
    check_indices: bool,
    skip_unchanged: bool | None,
    took: Mapping[str, float] | None = None,
) -> Executable:
    """The plan on the device; PUMICE_DEBUG prints it, and how long this and what came before (`took`) took."""
    began = time.perf_counter()
    exe = Executable(
        plan,
        device,
        params_from=params_from,
        state_from=[state_from] if isinstance(state_from, Executable) else state_from,
        check_indices=check_indices,
        skip_unchanged=skip_unchanged,
        validate=config.validate,
    )
    if config.debug:
        from pumice.run.debug import explain_compile

        explain_compile(config.debug, plan.graph, plan, device, {**(took or {}), "opened in": time.perf_counter() - began})
    return exe
