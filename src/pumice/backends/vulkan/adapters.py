"""Adapters of Vulkan: what drivers report, whether this backend can use it, and the adapter that a name means."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pumice.backends.gpu.adapter import RANK, Adapter, Kind, find_adapter
from pumice.backends.vulkan import declarations as vk
from pumice.backends.vulkan.library import API_1_3, VulkanError, VulkanInstance, ffi, load, make
from pumice.errors import DeviceError, NoDevice

_KINDS: Mapping[int, Kind] = {
    vk.PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: "discrete",
    vk.PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: "integrated",
    vk.PHYSICAL_DEVICE_TYPE_CPU: "cpu",
}
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel", 0x13B5: "Arm", 0x5143: "Qualcomm", 0x10005: "Mesa"}
MEMORY_BUDGET = "VK_EXT_memory_budget"
# Features that a device is made with where the driver has them, by the struct that names them.
WANTED = {
    "VkPhysicalDeviceFeatures2": ("robustBufferAccess", "shaderInt16"),
    "VkPhysicalDeviceVulkan11Features": ("storageBuffer16BitAccess", "uniformAndStorageBuffer16BitAccess"),
    "VkPhysicalDeviceVulkan12Features": (
        *("timelineSemaphore", "shaderFloat16", "vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),
        *("scalarBlockLayout", "shaderSubgroupExtendedTypes"),
    ),
    "VkPhysicalDeviceVulkan13Features": ("subgroupSizeControl", "computeFullSubgroups", "maintenance4"),
    # Bounds accesses by what is bound; without it a stray access may reach the rest of the same buffer.
    "VkPhysicalDeviceRobustness2FeaturesEXT": ("robustBufferAccess2",),
    # Lets each pipeline choose: bounds on accesses cost own kernels, which need none, up to a third of their speed.
    "VkPhysicalDevicePipelineRobustnessFeaturesEXT": ("pipelineRobustness",),
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": ("cooperativeMatrix",),
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": ("shaderBFloat16Type", "shaderBFloat16CooperativeMatrix"),
}
ROBUSTNESS = "VK_EXT_robustness2"
MATRIX = "VK_KHR_cooperative_matrix"
# Structs that only drivers with an extension know.
_OF_EXTENSION = {
    "VkPhysicalDeviceRobustness2FeaturesEXT": ROBUSTNESS,
    "VkPhysicalDevicePipelineRobustnessFeaturesEXT": "VK_EXT_pipeline_robustness",
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": MATRIX,
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": "VK_KHR_shader_bfloat16",
}
# Extensions that a device is made with where the driver has them.
EXTENSIONS = (MEMORY_BUDGET, *_OF_EXTENSION.values())
# What bounds accesses for all pipelines of a device; not switched on where each pipeline can choose.
_BOUNDS = frozenset({"robustBufferAccess", "robustBufferAccess2"})
# Component types of matrices that kernels multiply, by what their features are called; sums are f32.
_MATRIX_TYPES = {vk.COMPONENT_TYPE_FLOAT16_KHR: "matrix-f16", vk.COMPONENT_TYPE_BFLOAT16_KHR: "matrix-bf16"}
# Kernels count on matrices of this size, shared by subgroups of this many threads.
_MATRIX_SIZE, _MATRIX_THREADS = 16, 32
# Those without which this backend does not run.
_NEEDED = ("robustBufferAccess", "timelineSemaphore")
# What WGSL's subgroup functions are made of: basic, vote, arithmetic, ballot, shuffle and relative shuffle.
_SUBGROUP_OPERATIONS = 0b111111
# WGSL indexes with 32 bits. Drivers other than NVIDIA's have computed offsets with a sign, so that wgpu promises them less too.
_NVIDIA = 0x10DE
_MOST_BYTES, _MOST_SIGNED = (4 << 30) - 4, (2 << 30) - 4
_MOST_UNIFORM = 64 << 10


@dataclass(frozen=True)
class DriverFacts:
    """What a driver says of one physical device; tests change it where it is read."""

    handle: Any
    name: str
    kind: Kind
    vendor_id: int
    device_id: int
    driver: str
    driver_version: int
    cache_id: bytes
    api_version: int
    extensions: frozenset[str]
    features: frozenset[str]
    limits: Mapping[str, int]
    timestamp_period: float
    timestamp_bits: int
    subgroup_size: int
    subgroup_range: tuple[int, int]
    subgroup_operations: int
    # Kinds of matrix products that kernels can use.
    matrices: frozenset[str]
    # The number of the queue family that computes, best one without graphics; None without one.
    family: int | None

    @property
    def enabled(self) -> frozenset[str]:
        """The features that a device is made with."""
        return self.features - _BOUNDS if self.bounds_by_pipeline else self.features

    @property
    def bounds_by_pipeline(self) -> bool:
        """Whether each pipeline chooses whether its accesses to buffers are bounded."""
        return "pipelineRobustness" in self.features

    @property
    def problem(self) -> str:
        """Why this backend cannot use the device, or nothing."""
        if self.api_version < API_1_3:
            return f"its driver has Vulkan {version_text(self.api_version)}, 1.3 is needed"
        missing = [f for f in _NEEDED if f not in self.features]
        if missing:
            return f"its driver lacks {' and '.join(missing)}"
        return "it has no queue that computes" if self.family is None else ""


def version_text(number: int) -> str:
    """A version as Vulkan packs it into a number.

    >>> version_text((1 << 22) | (3 << 12) | 230)
    '1.3.230'
    """
    return f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"


def read_facts(instance: VulkanInstance, handle: Any) -> DriverFacts:
    """Ask a driver for all that is known of a device."""
    f, call = ffi(), instance.functions
    parts = {n: make(f"VkPhysicalDeviceVulkan{n}Properties") for n in (11, 12, 13)}
    about = make("VkPhysicalDeviceProperties2")
    # Structs of a version that the driver does not have must not be in the chain.
    call.GetPhysicalDeviceProperties2(handle, about)
    version = about.properties.apiVersion
    if version >= API_1_3:
        parts[11].pNext, parts[12].pNext, about.pNext = parts[12], parts[13], parts[11]
        call.GetPhysicalDeviceProperties2(handle, about)
    p, lim = about.properties, about.properties.limits
    driver = f.string(parts[12].driverName).decode(errors="replace")
    info = f.string(parts[12].driverInfo).decode(errors="replace")
    family, bits = _queue_family(instance, handle)
    extensions = _extensions(instance, handle)
    most = _MOST_BYTES if p.vendorID == _NVIDIA else _MOST_SIGNED
    return DriverFacts(
        handle=handle,
        name=f.string(p.deviceName).decode(errors="replace"),
        kind=_KINDS.get(p.deviceType, "unknown"),
        vendor_id=p.vendorID,
        device_id=p.deviceID,
        driver=f"{driver} {info}".strip() or version_text(p.driverVersion),
        driver_version=p.driverVersion,
        cache_id=bytes(f.buffer(p.pipelineCacheUUID)),
        api_version=version,
        extensions=extensions,
        features=frozenset(_features(instance, handle, version, extensions)),
        limits={
            "max-buffer-size": min(parts[13].maxBufferSize or most, most) // 4 * 4,
            "max-storage-buffer-binding-size": min(lim.maxStorageBufferRange, _MOST_SIGNED),
            "max-uniform-buffer-binding-size": min(lim.maxUniformBufferRange, _MOST_UNIFORM),
            "max-storage-buffers-per-shader-stage": min(
                lim.maxPerStageDescriptorStorageBuffers, lim.maxDescriptorSetStorageBuffers, lim.maxPerStageResources - 1
            ),
            "min-storage-buffer-offset-alignment": max(32, lim.minStorageBufferOffsetAlignment),
            "min-uniform-buffer-offset-alignment": max(32, lim.minUniformBufferOffsetAlignment),
            "max-compute-workgroups-per-dimension": min(lim.maxComputeWorkGroupCount),
            "max-compute-invocations-per-workgroup": lim.maxComputeWorkGroupInvocations,
            "max-compute-workgroup-size-x": lim.maxComputeWorkGroupSize[0],
            "max-compute-workgroup-size-y": lim.maxComputeWorkGroupSize[1],
            "max-compute-workgroup-storage-size": lim.maxComputeSharedMemorySize,
        },
        timestamp_period=lim.timestampPeriod,
        timestamp_bits=bits,
        subgroup_size=parts[11].subgroupSize,
        subgroup_range=(parts[13].minSubgroupSize, parts[13].maxSubgroupSize),
        subgroup_operations=parts[11].subgroupSupportedOperations
        if parts[11].subgroupSupportedStages & vk.SHADER_STAGE_COMPUTE_BIT
        else 0,
        matrices=_matrices(instance, handle, version, extensions),
        family=family,
    )


def _matrices(instance: VulkanInstance, handle: Any, version: int, extensions: frozenset[str]) -> frozenset[str]:
    """The kinds of matrix products in f32 sums that the driver has in the size that kernels count on."""
    if version < API_1_3 or MATRIX not in extensions:
        return frozenset()
    f, count, ask = ffi(), ffi().new("uint32_t *"), instance.functions.checked
    ask("GetPhysicalDeviceCooperativeMatrixPropertiesKHR", handle, count, f.NULL)
    rows = f.new("VkCooperativeMatrixPropertiesKHR[]", max(1, count[0]))
    for i in range(count[0]):
        rows[i] = make("VkCooperativeMatrixPropertiesKHR")[0]
    ask("GetPhysicalDeviceCooperativeMatrixPropertiesKHR", handle, count, rows)
    return frozenset(
        _MATRIX_TYPES[row.AType]
        for row in (rows[i] for i in range(count[0]))
        if row.AType in _MATRIX_TYPES
        and row.BType == row.AType
        and row.CType == row.ResultType == vk.COMPONENT_TYPE_FLOAT32_KHR
        and row.MSize == row.NSize == row.KSize == _MATRIX_SIZE
        and row.scope == vk.SCOPE_SUBGROUP_KHR
    )


def _queue_family(instance: VulkanInstance, handle: Any) -> tuple[int | None, int]:
    f, count = ffi(), ffi().new("uint32_t *")
    instance.functions.GetPhysicalDeviceQueueFamilyProperties(handle, count, f.NULL)
    rows = f.new("VkQueueFamilyProperties[]", max(1, count[0]))
    instance.functions.GetPhysicalDeviceQueueFamilyProperties(handle, count, rows)
    computing = [i for i in range(count[0]) if rows[i].queueFlags & vk.QUEUE_COMPUTE_BIT]
    # A queue that draws too is the one that drivers schedule best.
    computing.sort(key=lambda i: not rows[i].queueFlags & vk.QUEUE_GRAPHICS_BIT)
    return (computing[0], rows[computing[0]].timestampValidBits) if computing else (None, 0)


def _extensions(instance: VulkanInstance, handle: Any) -> frozenset[str]:
    f, count = ffi(), ffi().new("uint32_t *")
    instance.functions.checked("EnumerateDeviceExtensionProperties", handle, f.NULL, count, f.NULL)
    rows = f.new("VkExtensionProperties[]", max(1, count[0]))
    instance.functions.checked("EnumerateDeviceExtensionProperties", handle, f.NULL, count, rows)
    return frozenset(f.string(rows[i].extensionName).decode() for i in range(count[0]))


def _features(instance: VulkanInstance, handle: Any, version: int, extensions: frozenset[str]) -> list[str]:
    chain = feature_chain(extensions) if version >= API_1_3 else {"VkPhysicalDeviceFeatures2": make("VkPhysicalDeviceFeatures2")}
    instance.functions.GetPhysicalDeviceFeatures2(handle, chain["VkPhysicalDeviceFeatures2"])
    return [name for kind, made in chain.items() for name in WANTED[kind] if getattr(_fields(made), name)]


def _fields(made: Any) -> Any:
    """Where a struct of features has them: the oldest has them in another."""
    return made.features if ffi().typeof(made).item.cname.endswith("Features2") else made


def feature_chain(extensions: frozenset[str], wanted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """All structs of features that a driver knows, in a chain that begins with the first; those wanted are switched on."""
    made = {kind: make(kind) for kind in WANTED if _OF_EXTENSION.get(kind) in (None, *extensions)}
    kinds = list(made)
    for one, following in itertools.pairwise(kinds):
        made[one].pNext = made[following]
    for kind in made:
        for name in wanted.intersection(WANTED[kind]):
            setattr(_fields(made[kind]), name, 1)
    return made


def _features_of(facts: DriverFacts) -> frozenset[str]:
    """The features as Pumice calls them."""
    found = set()
    if {"shaderFloat16", "storageBuffer16BitAccess"} <= facts.features:
        found.add("shader-f16")
    if facts.subgroup_operations & _SUBGROUP_OPERATIONS == _SUBGROUP_OPERATIONS:
        found.add("subgroup")
    if "cooperativeMatrix" in facts.features and "vulkanMemoryModel" in facts.features and facts.subgroup_size == _MATRIX_THREADS:
        found |= facts.matrices
        if "shaderBFloat16CooperativeMatrix" not in facts.features:
            found.discard("matrix-bf16")
    if facts.timestamp_bits and facts.timestamp_period:
        found |= {"timestamp-query", "timestamp-query-inside-passes"}
    return frozenset(found)


def as_adapter(facts: DriverFacts) -> Adapter:
    """A device of Vulkan as backends describe adapters."""
    return Adapter(
        index=-1,
        name=facts.name,
        kind=facts.kind,
        api="vulkan",
        vendor=_VENDORS.get(facts.vendor_id, f"0x{facts.vendor_id:04x}"),
        driver=facts.driver,
        features=_features_of(facts),
        limits=facts.limits,
        vendor_id=facts.vendor_id,
        raw=facts,
    )


@functools.cache
def _enumerate() -> tuple[Adapter, ...]:
    instance = load()
    try:
        rows = [as_adapter(read_facts(instance, handle)) for handle in instance.physical_devices()]
    except VulkanError as e:
        raise DeviceError(f"Vulkan cannot list devices: {e}", hint="reinstall the GPU driver, or use the device 'webgpu'") from e
    rows.sort(key=lambda a: (bool(a.raw.problem), RANK[a.kind]))
    return tuple(replace(row, index=i) for i, row in enumerate(rows))


_lock = threading.Lock()


def list_adapters() -> tuple[Adapter, ...]:
    """Every device of Vulkan, best first; those that cannot be used come last. Looked up once per process."""
    with _lock:
        return _enumerate()


def pick_adapter(which: str = "") -> Adapter:
    """The adapter that `vulkan[:which]` means; one that cannot be used is refused with the reason."""
    hint = "install the GPU's Vulkan driver, or use the device 'webgpu' or 'host'"
    found = find_adapter(list_adapters(), which, "Vulkan", hint)
    problem: str = found.raw.problem
    if problem:
        raise NoDevice(f"{found.name} cannot be used through Vulkan: {problem}", hint=hint.replace("install", "update"))
    return found
