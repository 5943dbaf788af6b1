"""pm.load_plan: a plan file → Executable on a device."""

from __future__ import annotations

import os
from pathlib import Path

from pumice.backends.base import Device
from pumice.backends.select import choose, open_device
from pumice.errors import PlanError
from pumice.plan.file import plan_from_bytes, read_plan
from pumice.plan.needs import check_device, needed_caps
from pumice.plan.plan import Plan
from pumice.run.executable import Executable
from pumice.run.opening import open_plan, store_for
from pumice.run.store import Store


def load_plan(
    source: str | os.PathLike[str] | bytes | Plan,
    device: str | Device = "auto",
    *,
    store: Store | None = None,
    check_indices: bool = True,
    skip_unchanged: bool | None = None,
) -> Executable:
    """Open a saved plan (a path, the bytes of a file, or a loaded `Plan`) on a device.

    Weights are not in the file: `set_params` them afterwards, or use those of a `store`. Refused: files that are
    damaged or of a later version (FormatError), plans that need more than the device has (LimitError) or were made for
    another target (PlanError). `auto` takes the host for a host plan and the best GPU for a WebGPU plan. `check_indices` and
    `skip_unchanged` are those of `pm.compile`.

    >>> import pumice as pm
    >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
    ...     saved = exe.plan.to_bytes()
    >>> with load_plan(saved) as exe:
    ...     exe.run(x=[1.0, 2.0])
    array([2., 4.], dtype=float32)
    """
    if isinstance(source, Plan):
        plan = source
    elif isinstance(source, bytes | bytearray | memoryview):
        plan = plan_from_bytes(bytes(source))
    else:
        plan = read_plan(Path(source))
    if store is None and isinstance(device, str):
        device = _device(plan, device)
    store, opened = store_for(device, store)
    # The caps of a plan from a file are its needs; those of a planner are all that it could have used.
    need = needed_caps(plan) if isinstance(source, Plan) else plan.caps
    check_device(plan, need, opened.caps, opened.name)
    return open_plan(plan, store, check_indices=check_indices, skip_unchanged=skip_unchanged)


def _device(plan: Plan, spec: str) -> Device:
    if spec != "auto":
        return open_device(spec)
    if not plan.caps.dispatches:
        return open_device("host")
    choice = choose("auto")
    if choice.spec == "host":
        raise PlanError(
            f"the plan was made for WebGPU, and auto comes to the host: {choice.reason}",
            hint='pass device="webgpu" to run it on any adapter there is, or compile the graph for the host',
            cli_hint="--device webgpu runs it on any adapter there is",
            target=plan.caps.target,
            device=choice.spec,
        )
    return open_device(choice.spec)
