"""A verified pack as planning sees it: its kernels as PackKernels, its own ops registered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pumice.core.caps import Caps
from pumice.errors import PlanError, UnknownName
from pumice.ir.pack_kernels import PackKernel, PackParam
from pumice.ir.registry import OpSpec, get_op, offer_op
from pumice.packs.errors import InvalidManifest
from pumice.packs.ops import meaning_of, new_op, patterns
from pumice.packs.versions import needed_features
from pumice.plan.plan import Access, Kernel
from pumice.plan.wgsl_check import check_kernel

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry
    from pumice.packs.trust import VerifiedPack

# WGSL is held to the widest limits that WebGPU has; what a device has less is a matter of whether the kernel fits it.
_WIDEST = Caps("any", "webgpu", max_invocations=1024, max_workgroup_x=1024, workgroup_memory=1 << 16, f16=True, subgroups=True)


def pack_kernels(pack: VerifiedPack) -> tuple[PackKernel, ...]:
    """The kernels of a pack that compute ops, in its order; its own ops are registered on the way.

    InvalidManifest if a kernel names an op that does not exist, or operands and results that the op does not have.
    """
    _check_meanings(pack)
    return tuple(_pack_kernel(pack, entry) for entry in pack.manifest.kernels if entry.pumice.implements or entry.pumice.op)


def _check_meanings(pack: VerifiedPack) -> None:
    """Kernels of a pack that bring the same op must agree on what it is."""
    first: dict[str, KernelEntry] = {}
    for entry in pack.manifest.kernels:
        if (op := entry.pumice.op) is None:
            continue
        other = first.setdefault(op.name, entry)
        if meaning_of(other) != meaning_of(entry):
            raise InvalidManifest(
                f"the kernels {other.id} and {entry.id} bring the op {op.name} with different operands, attributes, references "
                "or shapes",
                hint="give both the same, and say under `when` which sizes a kernel is for",
                kernel=entry.id,
            )


def _pack_kernel(pack: VerifiedPack, entry: KernelEntry) -> PackKernel:
    extension, name = entry.pumice, pack.manifest.name
    spec = _op(name, entry)
    inputs, outputs = patterns(entry)
    strange = {p.name for p in inputs} - set(spec.operand_names)
    if strange or [p.name for p in outputs] != list(spec.results):
        takes, gives = (", ".join(p.name for p in some) for some in (inputs, outputs))
        raise InvalidManifest(
            f"the kernel {entry.id} takes {takes} and gives {gives}; "
            f"{spec.name} takes {', '.join(spec.operand_names)} and gives {', '.join(spec.results)}",
            hint="name inputs and outputs like the op's operands and results (docs/ops.md)",
            kernel=entry.id,
        )
    params = tuple(
        PackParam(key, p.type, extension.params.get(key, ""), p.default, _bound(p.min), _bound(p.max))
        for key, p in entry.params.items()
    )
    found = PackKernel(
        name,
        pack.manifest.version,
        pack.digest,
        entry.id,
        extension.target,
        spec.name,
        entry.hash.lower().removeprefix("sha256:"),
        inputs,
        outputs,
        params,
        tuple(extension.when),
    )
    return found if extension.wgsl is None else _with_wgsl(pack, entry, found)


def _with_wgsl(pack: VerifiedPack, entry: KernelEntry, found: PackKernel) -> PackKernel:
    launch = entry.pumice.wgsl
    assert launch is not None
    try:
        text = pack.files[entry.path].decode()
    except UnicodeDecodeError:
        raise InvalidManifest(f"{entry.path} is not UTF-8", kernel=entry.id) from None
    features = tuple(sorted(needed_features(entry)))
    reads: list[Access] = ["read" for _ in found.inputs]
    writes: list[Access] = ["write" for _ in found.outputs]
    kernel = Kernel(found.label, text, (*reads, *writes), len(found.params), launch.workgroup, launch.shared_bytes, features)
    try:
        check_kernel(kernel, _WIDEST)
    except PlanError as e:
        raise InvalidManifest(e.message, hint="docs/packs.md says what a WGSL file of a pack has", kernel=entry.id) from None
    return replace(
        found,
        wgsl=text,
        workgroup=launch.workgroup,
        shared_bytes=launch.shared_bytes,
        features=features,
        groups=launch.groups,
        time_limit_ms=launch.time_limit_ms,
    )


def _op(pack: str, entry: KernelEntry) -> OpSpec:
    if entry.pumice.op is not None:
        return offer_op(new_op(pack, entry, entry.pumice.op), meaning_of(entry))
    try:
        return get_op(entry.pumice.implements or "")
    except UnknownName as e:
        raise InvalidManifest(f"the kernel {entry.id} implements {entry.pumice.implements}: {e.message}", hint=e.hint) from None


def _bound(value: float | bool | None) -> float | None:
    return None if value is None else float(value)
