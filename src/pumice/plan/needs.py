"""What a plan asks of a device: the limits and features that its own buffers, steps and kernels reach, as Caps."""

from __future__ import annotations

import re
from math import gcd

from pumice.core.caps import Caps
from pumice.core.dims import upper
from pumice.errors import LimitError, PlanError
from pumice.plan.plan import Plan, fold_grid

# Bindings and buffers come in whole 16-byte elements, as arrays of vec4 need them.
GRAIN = 16
# WebGPU's own default limits: a plan that stays within them runs on every device.
_WIDEST_ALIGNMENT = 256
_GROUPS = 65535
_WORKGROUP = re.compile(r"@workgroup_size\(\s*(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?\s*,?\s*\)")
_SHARED = re.compile(r"var<workgroup>\s+\w+\s*:\s*([^;]+);")
_ARRAY = re.compile(r"array<\s*(.+?)\s*,\s*(\d+)u?\s*,?\s*>")
_SIZES = {"f32": 4, "u32": 4, "i32": 4, "bool": 4, "atomic<u32>": 4, "atomic<i32>": 4, "f16": 2}
_VECTOR = re.compile(r"vec([234])<\s*(\w+)\s*>")
_FEATURE = re.compile(r"\bsubgroup(?:[A-Z]|_)\w*|^\s*enable\s+subgroups\s*;", re.MULTILINE)
_HALF = re.compile(r"^\s*enable\s+f16\s*;", re.MULTILINE)

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
    """The least Caps that the plan fits, under the name of the target that it was made for.

    >>> import pumice as pm
    >>> from pumice.plan.build import build_plan
    >>> plan = build_plan(pm.trace(lambda x: x + 1.0, x=pm.spec(100)), Caps.preset("h200"))
    >>> need = needed_caps(plan)
    >>> need.max_storage_buffers, need.max_buffer_bytes, need.subgroups
    (2, 400, False)
    """
    if plan.caps.target == "host":
        return Caps.preset("host").with_(name=plan.caps.name)
    bound = [(s, plan.values[b.value].parts[b.part]) for s in plan.steps for b in s.bindings]
    texts = [k.wgsl for k in plan.kernels]
    subgroups = any(_FEATURE.search(t) for t in texts)
    shapes = [_workgroup(t, plan.caps) for t in texts]
    return Caps(
        plan.caps.name,
        "webgpu",
        max_storage_buffers=max((len(s.bindings) for s in plan.steps), default=0),
        max_binding_bytes=max((whole(p.nbytes) for _, p in bound), default=0),
        max_buffer_bytes=max((whole(b.nbytes) for b in plan.buffers), default=0),
        max_uniform_bytes=max((whole(4 * len(s.uniforms)) for s in plan.steps if s.uniforms), default=0),
        storage_alignment=gcd(_WIDEST_ALIGNMENT, *(p.offset for _, p in bound)),
        max_groups=_GROUPS,
        max_invocations=max((x * y * z for x, y, z in shapes), default=0),
        max_workgroup_x=max((x for x, _, _ in shapes), default=0),
        workgroup_memory=max((_shared_bytes(t, plan.caps) for t in texts), default=0),
        f16=any(_HALF.search(t) for t in texts),
        subgroups=subgroups,
        dialect=plan.caps.dialect if subgroups else "naga",
    )


def most_groups(plan: Plan) -> int:
    """Workgroups of the largest dispatch at the symbols' maxima."""
    return max((upper(s.groups, plan.maxima) for s in plan.steps), default=0)


def _workgroup(wgsl: str, caps: Caps) -> tuple[int, int, int]:
    found = _WORKGROUP.search(wgsl)
    if found is None:
        return caps.max_workgroup_x, 1, 1
    x, y, z = (int(n or 1) for n in found.groups())
    return x, y, z


def _shared_bytes(wgsl: str, caps: Caps) -> int:
    """Workgroup memory as WebGPU counts it: each variable rounded up to 16 bytes. What cannot be read counts as all."""
    sizes = [_size_of(" ".join(t.split())) for t in _SHARED.findall(wgsl)]
    return caps.workgroup_memory if None in sizes else sum(whole(n) for n in sizes if n is not None)


def _size_of(type: str) -> int | None:
    if type in _SIZES:
        return _SIZES[type]
    if found := _VECTOR.fullmatch(type):
        item = _SIZES.get(found[2])
        return None if item is None else int(found[1]) * item
    if found := _ARRAY.fullmatch(type):
        item = _size_of(found[1])
        # In an array a vector of three takes the room of four.
        return None if item is None else (16 if item == 12 else item) * int(found[2])
    return None


def check_device(plan: Plan, need: Caps, device: Caps, name: str) -> None:
    """Refuses a device that the plan was not made for or that has less than it needs, naming the limit and both numbers.

    `need` is `needed_caps` of the plan, or what its file says.
    """
    if need.target != device.target:
        raise PlanError(
            f"the plan was made for the target {need.target} ({need.name}), {name} is of the target {device.target}",
            hint=f'open it with device="{need.target}", or compile the graph for {name}',
            cli_hint=f"open it with --device {need.target}",
            target=need.target,
            device=name,
        )
    if need.target == "host":
        return
    for limit in AT_LEAST:
        _refuse(name, limit, getattr(need, limit), getattr(device, limit), getattr(need, limit) <= getattr(device, limit))
    for feature in ("f16", "subgroups"):
        wanted, there = getattr(need, feature), getattr(device, feature)
        _refuse(name, feature, wanted, there, there or not wanted)
    aligned = need.storage_alignment % device.storage_alignment == 0
    _refuse(name, "storage_alignment", need.storage_alignment, device.storage_alignment, aligned)
    if need.subgroups:
        _refuse(name, "dialect", need.dialect, device.dialect, need.dialect == device.dialect)
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
