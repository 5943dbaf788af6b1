"""Pipelines: the compiled kernels of a device, each compiled once, and the bind groups that feed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumice.backends.gpu.memory import DeviceBuffer
from pumice.backends.gpu.pipelines import KeptPipelines, compile_error, naga_text
from pumice.plan.plan import Access, Kernel

if TYPE_CHECKING:
    from pumice.backends.webgpu.device import WebGpu


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled kernel; `handle` is for the encoding loop and lives as long as `raw`."""

    raw: Any
    handle: Any
    layout: Any


@dataclass(frozen=True, slots=True)
class BoundBuffers:
    """A bind group; `handle` is for the encoding loop and lives as long as `raw`."""

    raw: Any
    handle: Any


class Pipelines(KeptPipelines):
    """The pipelines of a WebGPU device."""

    backend = "webgpu"

    def __init__(self, gpu: WebGpu) -> None:
        super().__init__(gpu)
        self._layouts: dict[tuple[tuple[Access, ...], bool], Any] = {}

    def _compile(self, kernel: Kernel, layout: Any) -> Pipeline:
        if self._gpu.lost:
            raise self._gpu.lost_error(f"compiling {kernel.name}")
        code = naga_text(kernel)
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
            raise compile_error(kernel, str(e)) from e
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

    def bind(self, pipeline: Pipeline, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> BoundBuffers:
        """A bind group over (buffer, offset, size) ranges in binding order."""
        entries = [
            {"binding": i, "resource": {"buffer": b.raw, "offset": offset, "size": size}}
            for i, (b, offset, size) in enumerate(ranges)
        ]
        with self._gpu.guard(f"the bind group of {label}"):
            raw = self._gpu.raw.create_bind_group(label=label, layout=pipeline.layout, entries=entries)
            return BoundBuffers(raw, raw._internal)
