"""Injected faults: a device is lost, out of memory, refuses a kernel or does not answer, where and when a test wants it.

A fault goes the way that a real one goes as far as it can be provoked: a WebGPU device is destroyed under our feet and wgpu
finds out, a kernel is broken and the compiler refuses it. Full memory, endless work and the loss of a Vulkan device are
simulated at the call that would report them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pumice.errors import InputError
from pumice.plan.plan import Kernel

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import Gpu

Kind = Literal["lost", "lost-in-flight", "oom", "shader", "timeout"]
# Where each fault shows: what is about to happen on the device there.
_POINTS = {"lost": "submit", "lost-in-flight": "readback", "oom": "memory", "shader": "compile", "timeout": "wait"}
_NONSENSE = "fn injected() -> u32 { return no_such_name; }"


@dataclass
class _Armed:
    kind: Kind
    left: int


class Faults:
    """The faults that wait on a device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._armed: list[_Armed] = []

    def arm(self, kind: Kind, after: int) -> None:
        self._armed.append(_Armed(kind, after))

    def at(self, point: str) -> bool:
        """Called where something could go wrong. True if it does and the caller is to see to it."""
        for fault in [f for f in self._armed if _POINTS[f.kind] == point]:
            if fault.left:
                fault.left -= 1
                continue
            self._armed.remove(fault)
            if point in ("submit", "readback"):
                self._gpu.lose()
            elif point == "memory":
                self._gpu.refuse_memory()
            return True
        return False


def inject(device: Any, kind: Kind, *, after: int = 0) -> None:
    """Inject a fault into a device, once, after `after` events of the same kind have succeeded.

    "lost": the device is gone before a submit; "lost-in-flight": while a submit is in flight. "oom": there is no memory for
    a buffer or an upload. "shader": a plan that is opened has a kernel that does not compile. "timeout": the device does not
    answer in time.

    >>> from pumice.backends.webgpu.device import WebGpuDevice
    >>> inject(WebGpuDevice(), "fire")
    Traceback (most recent call last):
        ...
    pumice.errors.InputError: [input] there is no fault 'fire'
      hint: one of lost lost-in-flight oom shader timeout
    """
    if kind not in _POINTS:
        raise InputError(f"there is no fault {kind!r}", hint="one of " + " ".join(_POINTS), got=kind)
    with device.gpu.lock:
        if device.gpu.faults is None:
            device.gpu.faults = Faults(device.gpu)
        device.gpu.faults.arm(kind, after)


def broken(kernel: Kernel) -> Kernel:
    """The kernel with a line that no compiler takes."""
    return replace(kernel, wgsl=f"{kernel.wgsl}\n{_NONSENSE}\n")
