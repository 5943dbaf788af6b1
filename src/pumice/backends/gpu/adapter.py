"""Adapters: what a GPU API finds on this machine as data, the Caps that one gives, and which one a name means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pumice.backends.tuning import tuning_for
from pumice.core.caps import Caps
from pumice.errors import NoDevice

Kind = Literal["discrete", "integrated", "cpu", "unknown"]

# Features that kernels or the profiler can use; a device gets those of them that its adapter has.
FEATURES = ("shader-f16", "subgroup", "matrix-f16", "matrix-bf16", "timestamp-query", "timestamp-query-inside-passes")
# The order of preference.
RANK: Mapping[str, int] = {"discrete": 0, "integrated": 1, "unknown": 2, "cpu": 3}
# Metal reports argument slots that it also needs for itself, and no kernel of ours gains from more.
_STORAGE_BUFFERS = 16
# NVIDIA and Apple; other vendors' compilers choose a size for each kernel.
_ONE_SUBGROUP_SIZE = (0x10DE, 0x106B)
# Limits of which a smaller number promises less.
_AT_MOST = (
    "max_storage_buffers",
    "max_binding_bytes",
    "max_buffer_bytes",
    "max_uniform_bytes",
    "max_groups",
    "max_invocations",
    "max_workgroup_x",
    "workgroup_memory",
)


@dataclass(frozen=True)
class Adapter:
    """One adapter. `index` is what `webgpu:N` or `vulkan:N` means; `raw` is the API's object."""

    index: int
    name: str
    kind: Kind
    api: str
    vendor: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    vendor_id: int
    raw: Any = field(repr=False, compare=False)

    @property
    def software(self) -> bool:
        """Whether the adapter is a CPU that plays a GPU."""
        return self.kind == "cpu"

    @property
    def is_opengl(self) -> bool:
        return self.api.startswith("opengl")

    @property
    def hardware(self) -> bool:
        """Whether `auto` may take it: a GPU with an API that supports compute shaders well."""
        return not self.software and not self.is_opengl

    @property
    def title(self) -> str:
        return f"{self.name} via {self.api}"

    def describe(self) -> dict[str, Any]:
        """Plain data for `pumice doctor` and receipts."""
        return {
            "index": self.index,
            "name": self.name,
            "kind": self.kind,
            "api": self.api,
            "vendor": self.vendor,
            "driver": self.driver,
            "software": self.software,
            "features": [f for f in FEATURES if f in self.features],
            "limits": {
                "max_buffer_bytes": self.limits["max-buffer-size"],
                "max_binding_bytes": self.limits["max-storage-buffer-binding-size"],
                "max_storage_buffers": self.limits["max-storage-buffers-per-shader-stage"],
                "workgroup_memory": self.limits["max-compute-workgroup-storage-size"],
                "max_invocations": self.limits["max-compute-invocations-per-workgroup"],
                "max_groups": self.limits["max-compute-workgroups-per-dimension"],
                "max_workgroup_x": self.limits["max-compute-workgroup-size-x"],
                "max_workgroup_y": self.limits["max-compute-workgroup-size-y"],
            },
        }


def caps_of(adapter: Adapter, subgroup_size: int) -> Caps:
    """The adapter's limits and features as Caps; the subgroup size is probed by a shader, adapters do not report it."""
    lim = adapter.limits

    def words(name: str) -> int:
        return lim[name] // 4 * 4

    return Caps(
        name=adapter.name,
        target="webgpu",
        max_storage_buffers=min(lim["max-storage-buffers-per-shader-stage"], _STORAGE_BUFFERS),
        max_binding_bytes=words("max-storage-buffer-binding-size"),
        max_buffer_bytes=words("max-buffer-size"),
        max_uniform_bytes=words("max-uniform-buffer-binding-size"),
        storage_alignment=lim["min-storage-buffer-offset-alignment"],
        uniform_alignment=lim["min-uniform-buffer-offset-alignment"],
        max_groups=lim["max-compute-workgroups-per-dimension"],
        max_invocations=lim["max-compute-invocations-per-workgroup"],
        max_workgroup_x=lim["max-compute-workgroup-size-x"],
        workgroup_memory=lim["max-compute-workgroup-storage-size"],
        f16="shader-f16" in adapter.features,
        subgroups="subgroup" in adapter.features and subgroup_size > 0,
        subgroup_size=subgroup_size,
        subgroup_fixed=adapter.software or adapter.vendor_id in _ONE_SUBGROUP_SIZE,
        matrix_f16="matrix-f16" in adapter.features,
        matrix_bf16="matrix-bf16" in adapter.features,
        timestamps="timestamp-query" in adapter.features,
        software=adapter.software,
        tuning=None if adapter.software else tuning_for(adapter.name),
    )


def narrow(real: Caps, wanted: Caps) -> Caps:
    """`wanted`, where it asks for no more than the device has: a real device can stand in for a smaller one.

    >>> small = narrow(Caps.preset("lavapipe"), Caps.preset("browser-baseline").with_(storage_alignment=16, f16=True))
    >>> small.max_storage_buffers, small.storage_alignment, small.f16, small.subgroups
    (8, 32, True, False)
    """
    subgroups = real.subgroups and wanted.subgroups
    changes: dict[str, Any] = {name: min(getattr(real, name), getattr(wanted, name)) for name in _AT_MOST}
    return wanted.with_(
        **changes,
        target="webgpu",
        storage_alignment=max(real.storage_alignment, wanted.storage_alignment),
        uniform_alignment=max(real.uniform_alignment, wanted.uniform_alignment),
        f16=real.f16 and wanted.f16,
        subgroups=subgroups,
        subgroup_size=real.subgroup_size if subgroups else 0,
        subgroup_fixed=subgroups and real.subgroup_fixed,
        matrix_f16=subgroups and real.matrix_f16 and wanted.matrix_f16,
        matrix_bf16=subgroups and real.matrix_bf16 and wanted.matrix_bf16,
        timestamps=real.timestamps and wanted.timestamps,
    )


def find_adapter(adapters: Sequence[Adapter], which: str, api: str, hint: str) -> Adapter:
    """The adapter that `API[:which]` means: the best one, the one of that index, or one whose name contains `which`."""
    listing = "; ".join(f"{a.index}: {a.title} ({a.kind})" for a in adapters) or "none"
    if not adapters:
        raise NoDevice(f"{api} finds no adapter on this machine", hint=hint, found=listing)
    if not which:
        return adapters[0]
    if which.isdecimal():
        matches = [a for a in adapters if a.index == int(which)]
    else:
        matches = [a for a in adapters if which.lower() in a.title.lower()]
    if not matches:
        raise NoDevice(f"no {api} adapter is {which!r}; found {listing}", hint="use one of these indices or names", found=listing)
    return matches[0]
