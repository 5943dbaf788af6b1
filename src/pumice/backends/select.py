"""Device selection: which device a spec such as `auto`, `host` or `webgpu:0` means, and why."""

from __future__ import annotations

from pumice import config
from pumice.backends.base import Device
from pumice.core.caps import Caps
from pumice.core.records import dataclass
from pumice.errors import DeviceError, InputError

# Those for users; `null`, which computes nothing, is for tests of plans.
SPECS = "auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME]"
_GPU_APIS = ("webgpu", "vulkan")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a spec came to: a definite spec, and the reason in a sentence."""

    spec: str
    reason: str


def choose(spec: str = "auto") -> Choice:
    """The definite device that a spec means on this machine; only `auto` leaves anything to decide.

    >>> choose("host").spec
    'host'
    """
    kind, colon, which = spec.partition(":")
    if spec in ("host", "null", *_GPU_APIS) or (kind in _GPU_APIS and colon and which):
        return Choice(spec, f"asked for {spec}")
    if spec != "auto":
        near = {"cpu": "host", "gpu": "webgpu", "cuda": "webgpu", "metal": "webgpu", "mps": "webgpu"}
        meant = near.get(spec.lower().partition(":")[0])
        hint = f"use {SPECS}" if meant is None else f"it is called {meant!r} here; all are: {SPECS}"
        raise InputError(f"there is no device {spec!r}", hint=hint, got=spec)
    wanted = config.get("device")
    if wanted != "auto":
        return Choice(choose(wanted).spec, f"PUMICE_DEVICE asks for {wanted}")
    return _automatic()


def _automatic() -> Choice:
    """A hardware GPU, else the host: a software adapter is right but many times slower than the host on the same cores."""
    from pumice.backends.webgpu.adapters import INSTALL_HINT, list_adapters

    try:
        adapters = list_adapters()
    except DeviceError as e:
        return Choice("host", f"no GPU: {e.message}")
    hardware = next((a for a in adapters if a.hardware), None)
    if hardware is not None:
        from pumice.backends.vulkan.selfcheck import verdict

        vulkan = verdict()
        if vulkan.spec is not None:
            return Choice(vulkan.spec, vulkan.reason)
        return Choice(f"webgpu:{hardware.index}", f"{hardware.title} is the best GPU found; not Vulkan: {vulkan.reason}")
    software = [a for a in adapters if not a.is_opengl]
    if not software:
        what = "OpenGL adapters only" if adapters else "no adapter"
        return Choice("host", f"no GPU: WebGPU finds {what}. If there is a GPU, {INSTALL_HINT}")
    return Choice("host", f"no GPU: {software[0].title} is a software adapter, the host backend is faster on the same cores")


def as_device(device: str | Device) -> Device:
    """A device as it is, or the one that a text names.

    >>> as_device("host").name
    'host'
    >>> as_device(3)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] a device is a name or an open device, not int
      hint: use auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME]
    """
    if isinstance(device, str):
        return open_device(device)
    if not hasattr(device, "caps") or not hasattr(device, "joins"):
        raise InputError(f"a device is a name or an open device, not {type(device).__name__}", hint=f"use {SPECS}")
    return device


def open_device(spec: str = "auto", caps: Caps | None = None) -> Device:
    """The device that `spec` names. `caps` narrows what a GPU or null device promises, to run plans for smaller targets.

    `auto` is PUMICE_DEVICE where set, else a hardware GPU, else the host; a software adapter must be asked for by name.

    >>> open_device("host").name
    'host'
    """
    choice = choose(spec)
    kind, _, which = choice.spec.partition(":")
    if kind == "webgpu":
        from pumice.backends.webgpu.device import WebGpuDevice

        return WebGpuDevice(which, caps)
    if kind == "vulkan":
        from pumice.backends.vulkan.device import VulkanDevice

        return VulkanDevice(which, caps)
    if kind == "null":
        from pumice.backends.null import NullDevice

        return NullDevice(caps)
    if caps is not None and caps.target != "host":
        raise InputError(f"the host device cannot stand in for {caps.name}", hint="use webgpu or null with these caps")
    from pumice.backends.host.device import HostDevice

    return HostDevice()
