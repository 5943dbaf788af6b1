"""Adapters: what WebGPU finds on this machine, in order of preference, and the Caps that each one gives."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pumice.backends.libraries import load_failure
from pumice.backends.tuning import tuning_for
from pumice.core.caps import Caps
from pumice.errors import DeviceError, NoDevice

Kind = Literal["discrete", "integrated", "cpu", "unknown"]

# Features that kernels or the profiler can use; a device gets those of them that its adapter has.
FEATURES = ("shader-f16", "subgroup", "timestamp-query", "timestamp-query-inside-passes")
_KINDS: Mapping[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
_RANK: Mapping[str, int] = {"discrete": 0, "integrated": 1, "unknown": 2, "cpu": 3}
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
    """One adapter. `index` is what `webgpu:N` means; `raw` is wgpu's object."""

    index: int
    name: str
    kind: Kind
    api: str
    vendor: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
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


@contextlib.contextmanager
def _runtime_dir() -> Iterator[None]:
    """Window-system libraries that drivers load complain on stderr when this variable is unset; nothing here uses it."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


_import_lock = threading.Lock()


def import_wgpu() -> Any:
    """The wgpu module, quiet: what it logs is also raised, or found by the liveness word of a run.

    >>> import_wgpu().__name__
    'wgpu'
    """
    with _import_lock, _runtime_dir():
        try:
            import wgpu
            import wgpu.backends.wgpu_native
        except (ImportError, OSError, RuntimeError, MemoryError) as e:
            why, hint = load_failure(e, "pip install 'wgpu==0.32.*'")
            raise NoDevice(f"the WebGPU library does not load: {why}", hint=f"{hint}; or use the device 'host'") from e
        logger = logging.getLogger("wgpu")
        # A level that the application chose itself stays; WARNING is the one that wgpu sets on import.
        if logger.level == logging.WARNING:
            logger.setLevel(logging.CRITICAL)
        return wgpu


@functools.cache
def _enumerate() -> tuple[Adapter, ...]:
    wgpu = import_wgpu()
    with _runtime_dir():
        try:
            found = wgpu.gpu.enumerate_adapters_sync()
        except Exception as e:  # a broken driver may fail in any way; the host backend still works
            raise DeviceError(f"the WebGPU library cannot list adapters: {e}", hint="reinstall the GPU driver") from e
    rows = [_read(raw) for raw in found]
    rows.sort(key=lambda a: (a.is_opengl, _RANK[a.kind]))
    return tuple(replace(row, index=i) for i, row in enumerate(rows))


_enumerate_lock = threading.Lock()


def list_adapters() -> tuple[Adapter, ...]:
    """Every adapter, best first: hardware before software, OpenGL last. Looked up once per process.

    >>> [a.index for a in list_adapters()] == list(range(len(list_adapters())))
    True
    """
    with _enumerate_lock:
        return _enumerate()


def _read(raw: Any) -> Adapter:
    info = raw.info
    return Adapter(
        index=-1,
        name=info["device"] or info["vendor"] or "unnamed",
        kind=_KINDS.get(info["adapter_type"], "unknown"),
        api=str(info["backend_type"]).lower(),
        vendor=info["vendor"],
        driver=info["description"],
        features=frozenset(raw.features),
        limits=dict(raw.limits),
        raw=raw,
    )


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
        subgroup_fixed=adapter.software or adapter.raw.info["vendor_id"] in _ONE_SUBGROUP_SIZE,
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
        timestamps=real.timestamps and wanted.timestamps,
    )


def find_adapter(which: str = "") -> Adapter:
    """The adapter that `webgpu[:which]` means: the best one, the one of that index, or one whose name contains `which`."""
    adapters = list_adapters()
    listing = "; ".join(f"{a.index}: {a.title} ({a.kind})" for a in adapters) or "none"
    if not adapters:
        hint = f"use the device 'host'; if there is a GPU, {INSTALL_HINT}"
        raise NoDevice("WebGPU finds no adapter on this machine", hint=hint, found=listing)
    if not which:
        return adapters[0]
    if which.isdecimal():
        matches = [a for a in adapters if a.index == int(which)]
    else:
        matches = [a for a in adapters if which.lower() in a.title.lower()]
    if not matches:
        raise NoDevice(
            f"no WebGPU adapter is {which!r}; found {listing}", hint="use one of these indices or names", found=listing
        )
    return matches[0]


INSTALL_HINT = (
    "install its Vulkan driver (Debian, Ubuntu: libvulkan1, and nvidia-driver or mesa-vulkan-drivers; "
    "the latter brings a software driver too)"
)
