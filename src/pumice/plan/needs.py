"""What a plan asks of a device: the limits and features that its own buffers, steps and kernels reach, as Caps."""

from __future__ import annotations

from math import gcd

from pumice.core.caps import Caps
from pumice.errors import LimitError, PlanError
from pumice.plan.plan import KERNEL_FEATURES, Plan, fold_grid

# Bindings and buffers come in whole 16-byte elements, as arrays of vec4 need them.
GRAIN = 16
# WebGPU's own default limits: a plan that stays within them runs on every device.
_WIDEST_ALIGNMENT = 256
_GROUPS = 65535

# Limits of which a device must have at least what the plan needs.
AT_LEAST = (
    "max_storage_buffers",
    "max_binding_bytes",
    "max_buffer_bytes",
    "max_uniform_bytes",
    "max_invocations",
    "max_workgroup_x",
    "workgroup_memory",
)


def whole(nbytes: int) -> int:
    """Bytes that a range of this size takes on a device: whole 16-byte elements, and at least one.

    >>> whole(0), whole(17)
    (16, 32)
    """
    return max(GRAIN, -(-nbytes // GRAIN) * GRAIN)


def needed_caps(plan: Plan) -> Caps:
    """The smallest Caps that the plan fits, independent of the device it was planned for.

    >>> import pumice as pm
    >>> from pumice.plan.build import build_plan
    >>> plan = build_plan(pm.trace(lambda x: x + 1.0, x=pm.spec(100)), Caps.preset("h200"))
    >>> need = needed_caps(plan)
    >>> need.max_storage_buffers, need.max_buffer_bytes, need.subgroups
    (2, 400, False)
    """
    if not plan.caps.dispatches:
        return Caps.preset("host")
    steps = [s for r in plan.regimes for s in r.steps]
    bound = {r.values[b.value].parts[b.part] for r in plan.regimes for s in r.steps for b in s.bindings}
    workgroup = max((k.workgroup for k in plan.kernels), default=0)
    features = {feature for k in plan.kernels for feature in k.features}
    # Where all subgroups have the same size, kernels count on it.
    fixed = "subgroups" in features and plan.caps.subgroup_fixed
    return Caps(
        "webgpu",
        "webgpu",
        max_storage_buffers=max((len(s.bindings) for s in steps), default=0),
        max_binding_bytes=max((whole(p.nbytes) for p in bound), default=0),
        max_buffer_bytes=max((whole(b.nbytes) for b in plan.buffers), default=0),
        max_uniform_bytes=max((whole(4 * len(s.uniforms)) for s in steps if s.uniforms), default=0),
        storage_alignment=gcd(_WIDEST_ALIGNMENT, *(p.offset for p in bound)),
        max_groups=_GROUPS,
        max_invocations=workgroup,
        max_workgroup_x=workgroup,
        workgroup_memory=max((k.shared_bytes for k in plan.kernels), default=0),
        f16="f16" in features,
        subgroups="subgroups" in features,
        matrix_f16="matrix_f16" in features,
        matrix_bf16="matrix_bf16" in features,
        subgroup_size=plan.caps.subgroup_size if fixed else 0,
        subgroup_fixed=fixed,
    )


def most_groups(plan: Plan) -> int:
    """Workgroups of the largest dispatch at any sizes."""
    domains = [(r.steps, plan.domain(r)) for r in plan.regimes]
    return max((domain.upper(s.most_groups) for steps, domain in domains for s in steps), default=0)


def check_device(plan: Plan, need: Caps, device: Caps, name: str) -> None:
    """Refuses a device that the plan was not made for or that has less than it needs, naming the limit and both numbers.

    `need` is `needed_caps` of the plan, or what its file says.
    """
    if need.target != device.target:
        raise PlanError(
            f"the plan was made for the target {need.target}, {name} is of the target {device.target}",
            hint=f'open it with device="{need.target}", or compile the graph for {name}',
            cli_hint=f"open it with --device {need.target}",
            target=need.target,
            device=name,
        )
    if not need.dispatches:
        return
    for limit in AT_LEAST:
        _refuse(name, limit, getattr(need, limit), getattr(device, limit), getattr(need, limit) <= getattr(device, limit))
    for feature in KERNEL_FEATURES:
        wanted, there = getattr(need, feature), getattr(device, feature)
        _refuse(name, feature, wanted, there, there or not wanted)
    if need.subgroup_fixed:
        there = device.subgroup_size if device.subgroup_fixed else "subgroups of several sizes"
        _refuse(name, "subgroup_size", need.subgroup_size, there, there == need.subgroup_size)
    aligned = need.storage_alignment % device.storage_alignment == 0
    _refuse(name, "storage_alignment", need.storage_alignment, device.storage_alignment, aligned)
    groups = most_groups(plan)
    _refuse(name, "max_groups", groups, device.max_groups, max(fold_grid(groups, device.max_groups)) <= device.max_groups)


def _refuse(name: str, limit: str, needed: object, available: object, enough: bool) -> None:
    if not enough:
        raise LimitError(
            f"the plan needs {limit} {needed}, {name} has {available}",
            hint=f"compile the graph again for {name}, or use another device",
            limit=limit,
            needed=needed,
            available=available,
            device=name,
        )
