"""Runs a case on Vulkan and WebGPU with the same plan: results must be equal bit for bit, and right by the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions

from harness import GUARD, Case, device, run_plan, wrong_outputs, wrong_states


def disagreement(case: Case, *, oracle: bool = True, **options: Any) -> str:
    """What is wrong with Vulkan's results for a case, or nothing."""
    options = {"arena": False, "guard": GUARD, **options}
    maxima = options.pop("max", None)
    caps = device("vulkan").caps
    plan = build_plan(case.graph, caps, PlanOptions(**options), max=maxima)
    states: dict[str, Any] = {}
    found, broken = run_plan(device("vulkan"), plan, case, guarded=options["guard"] > 0, states=states)
    if broken:
        return f"wrote beyond {broken}"
    if oracle and (problem := wrong_outputs(case, found) or wrong_states(case, states)):
        return problem
    wanted_states: dict[str, Any] = {}
    wanted, _ = run_plan(device("webgpu"), plan, case, states=wanted_states)
    pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(found, wanted, strict=True))]
    pairs += [(name, states[name], wanted_states[name]) for name in wanted_states]
    for name, a, b in pairs:
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if not same and not same_but_for_nan(a, b):
            return f"{name} differs from WebGPU's bits"
    return ""


def same_but_for_nan(a: Any, b: Any) -> bool:
    """Whether two arrays have the same bits where they are numbers: which NaN an operation gives is up to the hardware."""
    if a.shape != b.shape or a.dtype != b.dtype or not np.issubdtype(a.dtype, np.inexact):
        return False
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.where(nan, 0, a).tobytes() == np.where(nan, 0, b).tobytes())
