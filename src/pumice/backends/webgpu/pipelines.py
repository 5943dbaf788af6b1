"""Pipelines: the compiled kernels of a device, each compiled once, and the bind groups that feed them."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumice.backends.webgpu.faults import broken
from pumice.backends.webgpu.memory import DeviceBuffer
from pumice.backends.webgpu.trial import try_kernels
from pumice.core.interrupts import map_in_threads
from pumice.errors import ShaderError
from pumice.plan.plan import Access, Kernel

if TYPE_CHECKING:
    from pumice.backends.webgpu.device import Gpu

# Sessions keep their own pipelines alive; this many more stay for the next session that wants them.
_KEPT = 1024
# What naga wants at the head of a kernel that needs a feature; it refuses the line that browsers want for subgroups.
_ENABLE = {"f16": "enable f16;"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled kernel; `handle` is for the encoding loop and lives as long as `raw`."""

    raw: Any
    handle: Any
    layout: Any


class Pipelines:
    """What has been compiled for a device, the latest last."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._layouts: dict[tuple[tuple[Access, ...], bool], Any] = {}
        self._kept: OrderedDict[tuple[str, tuple[Access, ...], bool, bool], Pipeline] = OrderedDict()
        # Digests of texts that a compiler has come through alive.
        self._safe: set[str] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def compile(self, kernels: Sequence[Kernel], *, trial: bool = False) -> list[Pipeline]:
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
            try_kernels(foreign, self._gpu.adapter)
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

    def _compile(self, kernel: Kernel, layout: Any) -> Pipeline:
        if self._gpu.lost:
            raise self._gpu.lost_error(f"compiling {kernel.name}")
        code = "".join(_ENABLE.get(feature, "") for feature in kernel.features) + kernel.wgsl
        try:
            if kernel.origin == "generated":
                # Vulkan devices are made with robust buffer access, which bounds what a kernel can reach.
                checks = self._gpu.adapter.api != "vulkan"
                module = self._gpu.encode.own_shader_module(self._gpu.raw, kernel.name, code, bounds_checks=checks)
            else:
                module = self._gpu.raw.create_shader_module(label=kernel.name, code=code)
            raw = self._gpu.raw.create_compute_pipeline(
                label=kernel.name,
                layout=self._gpu.raw.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        except self._gpu.wgpu.GPUError as e:
            if "device is lost" in str(e).lower():
                raise self._gpu.mark_lost(f"compiling {kernel.name}") from e
            raise _compile_error(kernel, str(e)) from e
        return Pipeline(raw, raw._internal, layout)

    def _layout(self, access: tuple[Access, ...], uniform: bool) -> Any:
        # Explicit layouts: an automatic one drops bindings that a kernel happens not to read.
        with self._gpu.lock:
            layout = self._layouts.get((access, uniform))
            if layout is None:
                types = ["read-only-storage" if a == "read" else "storage" for a in access] + ["uniform"] * uniform
                stage = self._gpu.wgpu.ShaderStage.COMPUTE
                entries = [{"binding": i, "visibility": stage, "buffer": {"type": t}} for i, t in enumerate(types)]
                with self._gpu.guard("a bind group layout"):
                    layout = self._gpu.raw.create_bind_group_layout(entries=entries)
                self._layouts[access, uniform] = layout
            return layout

    def bind(self, pipeline: Pipeline, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> Any:
        """A bind group over (buffer, offset, size) ranges in binding order."""
        entries = [
            {"binding": i, "resource": {"buffer": b.raw, "offset": offset, "size": size}}
            for i, (b, offset, size) in enumerate(ranges)
        ]
        with self._gpu.guard(f"the bind group of {label}"):
            return self._gpu.raw.create_bind_group(label=label, layout=pipeline.layout, entries=entries)


def _compile_error(kernel: Kernel, text: str) -> ShaderError:
    at = re.search(r"wgsl:(\d+):(\d+)", text)
    reason = re.search(r"(?:error|pipeline)[:\s]+(.+)", text)
    line, column = (int(at[1]), int(at[2])) if at else (0, 0)
    source = kernel.wgsl.splitlines()[line - 1].strip() if 0 < line <= len(kernel.wgsl.splitlines()) else ""
    message = f"the kernel {kernel.name} does not compile: {reason[1].strip() if reason else ' '.join(text.split())}"
    if source:
        message += f" (line {line}: {source})"
    return ShaderError(message, hint="a bug in a lowering: report it with the WGSL", kernel=kernel.name, line=line, column=column,
                     source=source, detail=text)  # fmt: skip
