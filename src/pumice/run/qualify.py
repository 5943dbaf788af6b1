"""Kernels of packs are compared with the reference on a device before they are used there, and may be timed."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.base import Device
from pumice.errors import PumiceError
from pumice.ir.graph import Graph
from pumice.ir.pack_kernels import PackKernel
from pumice.ir.registry import get_op
from pumice.packs.cases import KernelCase, case_plan, cases_for, wrong_results
from pumice.packs.degraded import Degraded, degraded
from pumice.run.executable import Executable
from pumice.run.store import Store


def qualify(kernel: PackKernel, device: Device, seed: int = 0) -> str:
    """What is wrong with a kernel on a device, by the reference; "" if it agrees with it in every case.

    A kernel for which no case can be made counts as wrong: nobody could say that it is right.
    """
    cases = cases_for(kernel, device.caps, seed)
    if not cases:
        return f"no sample of {kernel.op} fits its patterns and conditions, so that it cannot be compared with the reference"
    for case in cases:
        before = _failures(kernel)
        try:
            found = _check(kernel, device, case)
        except PumiceError as e:
            found = str(e)
        # The built-in routine stood in for a kernel that failed, and was right.
        failed = [d for d in _failures(kernel) if d not in before]
        if failed:
            found = f"{failed[0].code}: {failed[0].message}"
        if found:
            return f"{case.label} ({case.signature}): {found}"
    return ""


def _failures(kernel: PackKernel) -> list[Degraded]:
    return [d for d in degraded() if (d.pack, d.kernel) == (kernel.pack, kernel.id)]


def _check(kernel: PackKernel, device: Device, case: KernelCase) -> str:
    plan = case_plan(kernel, device.caps, case)
    inputs = dict(case.operands)
    with Executable(plan, Store.temporary(device, packs=())) as exe:
        got = exe.run(inputs)
    results = list(got.values()) if isinstance(got, dict) else list(got) if isinstance(got, list | tuple) else [got]
    return wrong_results(plan.graph, inputs, [np.asarray(array) for array in results], get_op(kernel.op))


class CaseTimer:
    """The seconds that a case takes by a pack's kernel and by the built-in one, measured in turn; a context manager."""

    def __init__(self, kernel: PackKernel, case: KernelCase, device: Device) -> None:
        plans = [case_plan(kernel, device.caps, case), case_plan(None, device.caps, case, kernel.op)]
        self._inputs: dict[str, Any] = dict(case.operands)
        self._executables = [Executable(plan, Store.temporary(device, packs=())) for plan in plans]

    def __enter__(self) -> CaseTimer:
        return self

    def __exit__(self, *error: object) -> None:
        for exe in self._executables:
            exe.close()

    @property
    def built_in_graph(self) -> Graph:
        """What the built-in kernels compute; an op of a pack is composed of its reference's there."""
        return self._executables[1].graph

    def measure(self, kernel: PackKernel, case: KernelCase) -> tuple[float, float]:
        """One pair of times."""
        ours, built_in = (exe.profile(self._inputs, repeats=3) for exe in self._executables)
        return sum(s.seconds for s in ours.steps if s.step >= 0), sum(s.seconds for s in built_in.steps if s.step >= 0)
