"""The buffers of a WebGPU device."""

from __future__ import annotations

from typing import Any

from pumice.backends.gpu.memory import DeviceBuffer, Ledger


class WebGpuBuffer(DeviceBuffer):
    """A buffer of wgpu; `raw` is the wrapper's object, `handle` the library's."""

    __slots__ = ()

    def __init__(self, raw: Any, nbytes: int, label: str, ledger: Ledger) -> None:
        super().__init__(raw, raw._internal, nbytes, label, ledger)

    def _destroy(self) -> None:
        self.raw.destroy()
