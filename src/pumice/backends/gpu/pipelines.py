"""Pipelines of any GPU API: what has been compiled for a device is kept, and foreign kernels are tried elsewhere first."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pumice.backends.gpu.faults import broken
from pumice.backends.gpu.interface import Gpu
from pumice.backends.gpu.memory import DeviceBuffer
from pumice.backends.gpu.trial import try_kernels
from pumice.core.interrupts import map_in_threads
from pumice.errors import ShaderError
from pumice.plan.plan import Access, Kernel

# Sessions keep their own pipelines alive; this many more stay for the next session that wants them.
_KEPT = 1024
# What naga wants at the head of a kernel that needs a feature; it refuses the line that browsers want for subgroups.
_MATRICES = "enable wgpu_cooperative_matrix;"
_ENABLE = {"f16": "enable f16;", "matrix_f16": _MATRICES, "matrix_bf16": _MATRICES}


def naga_text(kernel: Kernel) -> str:
    """A kernel's text as naga takes it."""
    return "".join(_ENABLE.get(feature, "") for feature in kernel.features) + kernel.wgsl


class KeptPipelines(ABC):
    """What has been compiled for a device, the latest last; `backend` is how a device of the API is asked for."""

    backend = ""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu: Any = gpu
        self._kept: OrderedDict[tuple[str, tuple[Access, ...], bool, bool], Any] = OrderedDict()
        # Digests of texts that a compiler has come through alive.
        self._safe: set[str] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def compile(self, kernels: Sequence[Kernel], *, trial: bool = False) -> list[Any]:
        """The kernels' pipelines, from the cache or compiled side by side; drivers release the GIL while they compile.

        Kernels that were generated here need none of the guards that WebGPU puts around shaders from anywhere. With `trial`
        another process compiles the others first, unless this one has compiled the same text before.
        """
        if self._gpu.fault("compile") and kernels:
            kernels = [broken(kernels[0]), *kernels[1:]]
        keys = [(k.digest, k.access, k.uniform_words > 0, k.origin == "generated") for k in kernels]
        with self._gpu.lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
        # Layouts are looked up here, not in the pool: the caller may hold the lock.
        missing = {
            key: (k, self._layout(k.access, k.uniform_words > 0))
            for key, k in zip(keys, kernels, strict=True)
            if key not in found
        }
        if trial:
            foreign = [k for k, _ in missing.values() if k.origin != "generated" and k.digest not in self._safe]
            try_kernels(foreign, self._gpu.adapter, self.backend)
        made = map_in_threads(lambda job: self._compile(*job), missing.values(), min(8, os.cpu_count() or 1))
        found.update(zip(missing, made, strict=True))
        with self._gpu.lock:
            self._safe.update(k.digest for k in kernels)
            for key in keys:
                self._kept[key] = found[key]
                self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return [found[key] for key in keys]

    @abstractmethod
    def _layout(self, access: tuple[Access, ...], uniform: bool) -> Any:
        """The layout of bindings: storage buffers with their access, and a uniform block after them."""

    @abstractmethod
    def _compile(self, kernel: Kernel, layout: Any) -> Any:
        """The pipeline of a kernel; called without the lock, in any thread."""

    @abstractmethod
    def bind(self, pipeline: Any, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> Any:
        """A bind group over (buffer, offset, size) ranges in binding order."""


def compile_error(kernel: Kernel, text: str) -> ShaderError:
    """What a compiler said of a kernel, as an error that names the line."""
    at = re.search(r"wgsl:(\d+):(\d+)", text)
    reason = re.search(r"(?:error|pipeline)[:\s]+(.+)", text)
    line, column = (int(at[1]), int(at[2])) if at else (0, 0)
    source = kernel.wgsl.splitlines()[line - 1].strip() if 0 < line <= len(kernel.wgsl.splitlines()) else ""
    message = f"the kernel {kernel.name} does not compile: {reason[1].strip() if reason else ' '.join(text.split())}"
    if source:
        message += f" (line {line}: {source})"
    return ShaderError(message, hint="a bug in a lowering: report it with the WGSL", kernel=kernel.name, line=line, column=column,
                     source=source, detail=text)  # fmt: skip
