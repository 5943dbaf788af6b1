"""Caps: the limits and features of a target as data, so that planning needs no device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pumice.core.tuning import Tuning, shipped
from pumice.errors import UnknownName

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do. Presets: `Caps.preset("browser-baseline" | "lavapipe" | "h200" | "host")`.

    >>> Caps.preset("browser-baseline").max_storage_buffers
    8
    >>> Caps.preset("lavapipe").with_(subgroups=False).subgroups
    False
    """

    name: str
    target: Literal["webgpu", "host"]
    max_storage_buffers: int = 8
    max_binding_bytes: int = 128 * MIB
    max_buffer_bytes: int = 256 * MIB
    max_uniform_bytes: int = 64 << 10
    storage_alignment: int = 256
    uniform_alignment: int = 256
    max_groups: int = 65535
    max_invocations: int = 256
    max_workgroup_x: int = 256
    workgroup_memory: int = 16 << 10
    f16: bool = False
    subgroups: bool = False
    subgroup_size: int = 0
    # Whether every kernel runs in subgroups of that size, threads in the order of their numbers.
    subgroup_fixed: bool = False
    timestamps: bool = False
    # Software rasterisers and CPUs: enough work in flight is a few threads, not thousands.
    software: bool = False
    # What was measured on such a device; the device layer finds it.
    tuning: Tuning | None = None

    @staticmethod
    def preset(name: str) -> Caps:
        """The preset of that name."""
        if name not in PRESETS:
            raise UnknownName(f"there is no caps preset {name!r}", hint="one of " + " ".join(PRESETS))
        return PRESETS[name]

    def with_(self, **changes: Any) -> Caps:
        """A copy with some fields changed."""
        return replace(self, **changes)


PRESETS = {
    "browser-baseline": Caps("browser-baseline", "webgpu"),
    "lavapipe": Caps(
        "lavapipe",
        "webgpu",
        max_storage_buffers=16,
        max_buffer_bytes=(2 << 30) - 4,
        storage_alignment=32,
        uniform_alignment=64,
        max_invocations=1024,
        max_workgroup_x=1024,
        workgroup_memory=32 << 10,
        f16=True,
        subgroups=True,
        subgroup_size=8,
        subgroup_fixed=True,
        timestamps=True,
        software=True,
    ),
    "h200": Caps(
        "h200",
        "webgpu",
        max_storage_buffers=16,
        max_binding_bytes=(2 << 30) - 4,
        max_buffer_bytes=(4 << 30) - 4,
        storage_alignment=32,
        uniform_alignment=64,
        max_invocations=1024,
        max_workgroup_x=1024,
        workgroup_memory=48 << 10,
        f16=True,
        subgroups=True,
        subgroup_size=32,
        subgroup_fixed=True,
        timestamps=True,
        tuning=shipped("nvidia-hopper"),
    ),
    "host": Caps(
        "host",
        "host",
        max_storage_buffers=1 << 16,
        max_binding_bytes=1 << 62,
        max_buffer_bytes=1 << 62,
        storage_alignment=64,
        max_groups=1 << 62,
        software=True,
    ),
}
