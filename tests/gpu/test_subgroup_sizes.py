"""Plans for browsers hold for subgroups of any size that WebGPU has, 4 to 128, or say which one they count on.

This machine has subgroups of one size. So kernels run with subgroups of every size that are emulated in workgroup memory:
the same text but for the built-ins, which then see a part of the workgroup that is as large as wanted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import BROWSERS, Caps
from pumice.errors import LimitError
from pumice.plan.build import build_plan
from pumice.plan.file import plan_from_bytes
from pumice.plan.needs import check_device, needed_caps
from pumice.plan.plan import Kernel, Plan

SIZES = (4, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 16, 64)), 32, 128)
FOLDS = {
    "Add": "found + memory[i]",
    "ExclusiveAdd": "found + memory[i]",
    "Any": "found | memory[i]",
    "Mul": "found * memory[i]",
    "Max": "max(found, memory[i])",
    "Min": "min(found, memory[i])",
    "Or": "found | memory[i]",
    "And": "found & memory[i]",
}


def emulated(kernel: Kernel, size: int) -> Kernel:
    """The kernel with its workgroup cut into subgroups of a size, whatever the device's own are."""
    if "subgroups" not in kernel.features:
        return kernel
    text, helpers = kernel.wgsl, {}
    for operation, operand in set(re.findall(r"subgroup([A-Z]\w*)\((\w+)", text)):
        # What has no type in its declaration goes to workgroup memory of its type.
        declared = re.search(rf"var {operand}: (\w+)", text) or re.search(r"var<workgroup> \w+: array<(\w+)", text)
        assert declared is not None
        kind = "u32" if operation == "Any" else declared[1]
        name = f"emulated_{operation}_{kind}"
        if operation == "Any":
            # Its operand is a call, not a name.
            text = re.sub(r"subgroupAny\(((?:\w+\([^)]*\)))\)", rf"({name}(lid, u32(\1)) != 0u)", text)
        else:
            text = re.sub(rf"subgroup{operation}\({operand}\)", f"{name}(lid, {operand})", text)
        helpers[name] = helper(name, operation, kind, size, kernel.workgroup)
    assert "subgroupShuffle" not in text and not re.search(r"subgroup[A-Z]\w*\(", text), text
    head, body = text.split("fn main(", 1)
    head, last = head.rsplit("@compute", 1)
    body = body.replace("@builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32", "")
    body = body.replace("{\n", f"{{\n  let sg_size = {size}u;\n  let sg_lane = lid % {size}u;\n", 1)
    return replace(kernel, wgsl=f"{head}{''.join(helpers.values())}@compute{last}fn main({body}", features=())


def helper(name: str, operation: str, kind: str, size: int, workgroup: int) -> str:
    """A function that combines a value over a part of the workgroup by memory of its own."""
    first, start, end = "memory[first]", "first + 1u", f"min(first + {size}u, {workgroup}u)"
    if operation == "ExclusiveAdd":
        first, start, end = f"{kind}(0)", "first", "lid"
    text = (
        f"var<workgroup> memory: array<{kind}, {workgroup}>;\n"
        f"fn {name}(lid: u32, value: {kind}) -> {kind} {{\n"
        "  workgroupBarrier();\n  memory[lid] = value;\n  workgroupBarrier();\n"
        f"  let first = lid / {size}u * {size}u;\n  var found = {first};\n"
        f"  for (var i = {start}; i < {end}; i++) {{ found = {FOLDS[operation]}; }}\n"
        "  workgroupBarrier();\n  return found;\n}\n"
    )
    return text.replace("memory", f"memory_{name}")


def many(x: Any, n: Any, w: Any) -> Any:
    """All kinds of kernels that use subgroups of any size."""
    return {
        "sum": x.sum(axis=-1),
        "max": x.max(axis=-1),
        "prod": pm.prod(x * 0.01 + 1.0, axis=-1),
        "softmax": pm.softmax(x, axis=-1),
        "cumsum": pm.cumsum(x, axis=-1),
        "rms": pm.rms_norm(x),
        "argmax": pm.argmax(x, axis=-1),
        "any": pm.any(x > 2.9, axis=-1),
        "vector": x[:1] @ pm.transpose(w),
        "vectors": x[:2] @ pm.transpose(w),
        "whole": n.sum(axis=-1),
        "running": pm.cumsum(n, axis=-1),
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = pm.trace(many, x=pm.spec(3, 700), n=pm.spec(2, 300, dtype="i32"), w=pm.spec(40, 700))
    return build_plan(graph, Caps.preset("browser-subgroups"))


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_a_plan_for_subgroups_holds_for_every_size(size: int, plan: Plan) -> None:
    chance = np.random.default_rng(7)
    given = {
        "x": chance.standard_normal((3, 700), np.float32),
        "n": chance.integers(-9, 9, (2, 300), np.int32),
        "w": chance.standard_normal((40, 700), np.float32),
    }
    assert sum("subgroups" in k.features for k in plan.kernels) >= 9
    small = replace(plan, kernels=tuple(emulated(k, size) for k in plan.kernels))
    with pm.load_plan(small, device="webgpu") as exe:
        found = exe.run(given)
    with pm.compile(plan.graph, device="host") as exe:
        wanted = exe.run(given)
    for name, value in wanted.items():
        assert np.allclose(found[name], value, rtol=2e-5, atol=2e-4), name


def test_a_plan_for_one_size_says_so_and_runs_on_no_other() -> None:
    graph = pm.trace(lambda x, w: x @ pm.transpose(w), x=pm.spec(1, 256), w=pm.spec(512, 256))
    fixed, varying, none = (
        build_plan(graph, BROWSERS[name]) for name in ("browser-subgroups-32", "browser-subgroups", "browser-baseline")
    )
    again = plan_from_bytes(fixed.to_bytes())
    assert (again.caps.subgroup_size, again.caps.subgroup_fixed) == (32, True)
    assert [needed_caps(p).subgroup_fixed for p in (fixed, varying, none)] == [True, False, False]
    h200, lavapipe = Caps.preset("h200"), Caps.preset("lavapipe")
    for plan in (fixed, again):
        check_device(plan, needed_caps(plan), h200, "a GPU")
        for device in (lavapipe, h200.with_(subgroup_fixed=False), h200.with_(subgroup_size=64)):
            with pytest.raises(LimitError, match="needs subgroup_size 32"):
                check_device(plan, needed_caps(plan), device, "another")
    for device in (h200, lavapipe, h200.with_(subgroup_fixed=False)):
        check_device(varying, needed_caps(varying), device, "any")
        check_device(none, needed_caps(none), device.with_(subgroups=False), "any")
