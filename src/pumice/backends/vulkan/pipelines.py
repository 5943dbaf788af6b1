"""Pipelines and descriptor sets of a Vulkan device. Translated kernels and the driver's own cache are kept on disk."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.backends.gpu.memory import DeviceBuffer
from pumice.backends.gpu.pipelines import KeptPipelines, compile_error, naga_text
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan import naga, spirv
from pumice.backends.vulkan.commands import Span
from pumice.backends.vulkan.library import VulkanError, ffi, make
from pumice.core.kept import forget_oldest, keep, kept_folder, read_kept
from pumice.plan.plan import Access, Kernel

if TYPE_CHECKING:
    from pumice.backends.vulkan.device import Vulkan

# Raise it when the passes of `spirv` change: what was kept before is then translated again.
_PASSES = 3
_FOLDER = "vulkan"
# Translated kernels that stay in the user's cache; a model has a few dozen, of some kilobytes each.
_KEPT_FILES = 4096
# Descriptor sets of a pool, and storage buffers of a set on average.
_POOL_SETS, _SET_BUFFERS = 256, 6


@dataclass(frozen=True, slots=True, eq=False)
class BindingLayout:
    """The layout of a kernel's bindings: Vulkan's two objects for it, and which bindings are written."""

    raw: int
    sets: int
    access: tuple[Access, ...]
    uniform: bool


class VulkanPipeline:
    """A compiled kernel; it is its own handle."""

    __slots__ = ("__weakref__", "layout", "raw")

    def __init__(self, raw: int, layout: BindingLayout) -> None:
        self.raw, self.layout = raw, layout

    @property
    def handle(self) -> VulkanPipeline:
        return self


class DescriptorSet:
    """The buffers that a dispatch binds, and which of their bytes it reads and writes; it is its own handle."""

    __slots__ = ("__weakref__", "reads", "sets", "writes")

    def __init__(self, sets: Any, reads: tuple[Span, ...], writes: tuple[Span, ...]) -> None:
        self.sets, self.reads, self.writes = sets, reads, writes

    @property
    def handle(self) -> DescriptorSet:
        return self


class _Pool:
    """A pool of descriptor sets, and how many are free in it."""

    def __init__(self, raw: int) -> None:
        self.raw, self.free = raw, _POOL_SETS


class VulkanPipelines(KeptPipelines):
    """The pipelines of a Vulkan device."""

    backend = "vulkan"

    def __init__(self, gpu: Vulkan) -> None:
        super().__init__(gpu)
        self._layouts: dict[tuple[tuple[Access, ...], bool], BindingLayout] = {}
        self._pools: list[_Pool] = []
        # Kernels that were translated from WGSL here, and pipelines that were made: a second process translates none.
        self.translated = self.made = 0
        self._count_lock = threading.Lock()
        self._folder = kept_folder(_FOLDER)
        self._driver_cache = self._load_driver_cache()

    # -- compiling --------------------------------------------------------------------------------------------------
    def compile(self, kernels: Sequence[Kernel], *, trial: bool = False) -> list[Any]:
        """The kernels' pipelines; the driver's cache is written when there are new ones."""
        made, translated = self.made, self.translated
        found = super().compile(kernels, trial=trial)
        if self.made != made:
            self._save_driver_cache()
        if self.translated != translated and self._folder is not None:
            forget_oldest(self._folder, _KEPT_FILES)
        return found

    def _compile(self, kernel: Kernel, layout: BindingLayout) -> VulkanPipeline:
        gpu, f = self._gpu, ffi()
        if gpu.lost:
            raise gpu.lost_error(f"compiling {kernel.name}")
        code = self._spirv(kernel)
        words = f.from_buffer("uint32_t[]", code)
        out, pipeline = f.new("VkShaderModule *"), f.new("VkPipeline *")
        try:
            gpu.call.checked(
                "CreateShaderModule", gpu.device, make("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words), f.NULL, out
            )
            try:
                name = f.new("char[]", b"main")
                about = make("VkComputePipelineCreateInfo", layout=layout.raw)
                bounds = self._bounds(own=kernel.origin == "generated")
                if bounds is not None:
                    about.pNext = bounds
                stage = make("VkPipelineShaderStageCreateInfo", stage=vk.SHADER_STAGE_COMPUTE_BIT, module=out[0], pName=name)
                about.stage = stage[0]
                gpu.call.checked("CreateComputePipelines", gpu.device, self._driver_cache, 1, about, f.NULL, pipeline)
            finally:
                gpu.call.DestroyShaderModule(gpu.device, out[0], f.NULL)
        except VulkanError as e:
            if e.result in (vk.ERROR_DEVICE_LOST, vk.ERROR_OUT_OF_DEVICE_MEMORY, vk.ERROR_OUT_OF_HOST_MEMORY):
                with gpu.guard(f"compiling {kernel.name}"):
                    raise
            raise compile_error(kernel, f"error: {e}") from e
        with self._count_lock:
            self.made += 1
        made = VulkanPipeline(pipeline[0], layout)
        # Safe in a finaliser: it only queues the call.
        weakref.finalize(made, gpu.retire_later, "DestroyPipeline", pipeline[0]).atexit = False
        return made

    def _bounds(self, *, own: bool) -> Any:
        """Whether a pipeline's accesses to buffers are bounded, where that is chosen for each; own kernels need no bounds."""
        facts = self._gpu.facts
        if not facts.bounds_by_pipeline:
            return None
        chosen = vk.PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT
        if not own and "robustBufferAccess2" in facts.features:
            chosen = vk.PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_2_EXT
        elif not own:
            chosen = vk.PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT
        return make("VkPipelineRobustnessCreateInfoEXT", storageBuffers=chosen, uniformBuffers=chosen)

    def _spirv(self, kernel: Kernel) -> bytes:
        """The kernel in SPIR-V, from the cache or translated: by the text, who wrote it and what translates it."""
        text, own = naga_text(kernel), kernel.origin == "generated"
        about = repr((text, own, kernel.features, naga.SHA256, _PASSES))
        file = None if self._folder is None else self._folder / f"{hashlib.sha256(about.encode()).hexdigest()[:40]}.spv"
        found = None if file is None else read_kept(file)
        if found is None:
            try:
                found = spirv.finish(naga.translate(text), own=own, bf16="matrix_bf16" in kernel.features)
            except naga.NagaError as e:
                raise compile_error(kernel, str(e)) from e
            with self._count_lock:
                self.translated += 1
            if file is not None:
                keep(file, found)
        return found

    def _driver_file(self) -> Path | None:
        facts = self._gpu.facts
        about = repr((facts.name, facts.vendor_id, facts.device_id, facts.driver, facts.driver_version, facts.cache_id))
        return None if self._folder is None else self._folder / f"driver-{hashlib.sha256(about.encode()).hexdigest()[:24]}"

    def _load_driver_cache(self) -> int:
        gpu, f = self._gpu, ffi()
        file = self._driver_file()
        data = (None if file is None else read_kept(file)) or b""
        out = f.new("VkPipelineCache *")
        for content in (data, b""):
            kept = f.new("uint8_t[]", content or b"\0")
            about = make("VkPipelineCacheCreateInfo", initialDataSize=len(content), pInitialData=kept)
            if gpu.call.CreatePipelineCache(gpu.device, about, f.NULL, out) >= 0:
                return int(out[0])
        return 0

    def _save_driver_cache(self) -> None:
        gpu, f = self._gpu, ffi()
        file = self._driver_file()
        size = f.new("size_t *")
        if file is None or not self._driver_cache or gpu.lost:
            return
        if gpu.call.GetPipelineCacheData(gpu.device, self._driver_cache, size, f.NULL) < 0 or not size[0]:
            return
        data = f.new("uint8_t[]", size[0])
        if gpu.call.GetPipelineCacheData(gpu.device, self._driver_cache, size, data) >= 0:
            keep(file, bytes(f.buffer(data, size[0])))

    def _layout(self, access: tuple[Access, ...], uniform: bool) -> BindingLayout:
        gpu, f = self._gpu, ffi()
        with gpu.lock:
            found = self._layouts.get((access, uniform))
            if found is not None:
                return found
            count = len(access) + uniform
            bindings = f.new("VkDescriptorSetLayoutBinding[]", max(1, count))
            for i in range(count):
                bindings[i].binding, bindings[i].descriptorCount = i, 1
                bindings[i].descriptorType = _descriptor(i < len(access))
                bindings[i].stageFlags = vk.SHADER_STAGE_COMPUTE_BIT
            sets, raw = f.new("VkDescriptorSetLayout *"), f.new("VkPipelineLayout *")
            with gpu.guard("a layout of bindings"):
                about = make("VkDescriptorSetLayoutCreateInfo", bindingCount=count, pBindings=bindings)
                gpu.call.checked("CreateDescriptorSetLayout", gpu.device, about, f.NULL, sets)
                layout = make("VkPipelineLayoutCreateInfo", setLayoutCount=1, pSetLayouts=sets)
                gpu.call.checked("CreatePipelineLayout", gpu.device, layout, f.NULL, raw)
            self._layouts[access, uniform] = made = BindingLayout(raw[0], sets[0], access, uniform)
            return made

    # -- descriptor sets --------------------------------------------------------------------------------------------
    def bind(self, pipeline: VulkanPipeline, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> DescriptorSet:
        """A descriptor set over (buffer, offset, size) ranges in binding order; under the device's lock."""
        gpu, f = self._gpu, ffi()
        layout = pipeline.layout
        with gpu.guard(f"the descriptors of {label}"):
            pool, sets = self._take(layout)
            infos = f.new("VkDescriptorBufferInfo[]", max(1, len(ranges)))
            writes = f.new("VkWriteDescriptorSet[]", max(1, len(ranges)))
            for i, (buffer, offset, size) in enumerate(ranges):
                infos[i].buffer, infos[i].offset, infos[i].range = buffer.handle, offset, size
                writes[i] = make("VkWriteDescriptorSet", dstSet=sets[0], dstBinding=i, descriptorCount=1)[0]
                writes[i].descriptorType = _descriptor(i < len(layout.access))
                writes[i].pBufferInfo = infos + i
            gpu.call.UpdateDescriptorSets(gpu.device, len(ranges), writes, 0, f.NULL)
        spans = [(b.handle, at, at + size) for b, at, size in ranges]
        written = [i < len(layout.access) and layout.access[i] != "read" for i in range(len(ranges))]
        made = DescriptorSet(
            sets,
            # What is updated is read too, which the write implies.
            tuple(s for s, w in zip(spans, written, strict=True) if not w),
            tuple(s for s, w in zip(spans, written, strict=True) if w),
        )
        weakref.finalize(made, gpu.retire_later, "", (self, pool, sets)).atexit = False
        return made

    def _take(self, layout: BindingLayout) -> tuple[_Pool, Any]:
        gpu, f = self._gpu, ffi()
        gpu.settle()
        wanted = f.new("VkDescriptorSetLayout *", layout.sets)
        about = make("VkDescriptorSetAllocateInfo", descriptorSetCount=1, pSetLayouts=wanted)
        out = f.new("VkDescriptorSet *")
        for pool in reversed(self._pools):
            if pool.free:
                about.descriptorPool = pool.raw
                if gpu.call.AllocateDescriptorSets(gpu.device, about, out) >= 0:
                    pool.free -= 1
                    return pool, out
        pool = self._new_pool(max(_SET_BUFFERS, len(layout.access)))
        about.descriptorPool = pool.raw
        gpu.call.checked("AllocateDescriptorSets", gpu.device, about, out)
        pool.free -= 1
        return pool, out

    def _new_pool(self, buffers: int) -> _Pool:
        gpu, f = self._gpu, ffi()
        sizes = f.new("VkDescriptorPoolSize[]", 2)
        sizes[0].type, sizes[0].descriptorCount = vk.DESCRIPTOR_TYPE_STORAGE_BUFFER, _POOL_SETS * buffers
        sizes[1].type, sizes[1].descriptorCount = vk.DESCRIPTOR_TYPE_UNIFORM_BUFFER, _POOL_SETS
        flags = vk.DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT
        about = make("VkDescriptorPoolCreateInfo", flags=flags, maxSets=_POOL_SETS, poolSizeCount=2, pPoolSizes=sizes)
        out = f.new("VkDescriptorPool *")
        gpu.call.checked("CreateDescriptorPool", gpu.device, about, f.NULL, out)
        self._pools.append(_Pool(out[0]))
        return self._pools[-1]

    def give(self, pool: _Pool, sets: Any) -> None:
        """Free a descriptor set, once the device is done with it."""
        self._gpu.call.FreeDescriptorSets(self._gpu.device, pool.raw, 1, sets)
        pool.free += 1

    @property
    def sets_in_use(self) -> int:
        """Descriptor sets that exist."""
        return sum(_POOL_SETS - pool.free for pool in self._pools)


def _descriptor(storage: bool) -> int:
    return vk.DESCRIPTOR_TYPE_STORAGE_BUFFER if storage else vk.DESCRIPTOR_TYPE_UNIFORM_BUFFER
