"""Writes src/pumice/backends/vulkan/declarations.py: the part of the Vulkan registry (vk.xml) that the backend calls.

    python tools/make_vulkan_declarations.py [VK_XML]

The registry comes with Debian's libvulkan-dev. It is needed to write the file, not to use it.
"""

from __future__ import annotations

import re
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

REGISTRY = Path("/usr/share/vulkan/registry/vk.xml")
TARGET = Path(__file__).parent.parent / "src/pumice/backends/vulkan/declarations.py"
COMMANDS = [
    "CreateInstance",
    "DestroyInstance",
    "EnumerateInstanceVersion",
    "EnumeratePhysicalDevices",
    "GetPhysicalDeviceProperties2",
    "GetPhysicalDeviceFeatures2",
    "GetPhysicalDeviceMemoryProperties2",
    "GetPhysicalDeviceQueueFamilyProperties",
    "EnumerateDeviceExtensionProperties",
    "CreateDevice",
    "DestroyDevice",
    "GetDeviceProcAddr",
    "GetDeviceQueue",
    "DeviceWaitIdle",
    "CreateBuffer",
    "DestroyBuffer",
    "GetBufferMemoryRequirements",
    "AllocateMemory",
    "FreeMemory",
    "BindBufferMemory",
    "MapMemory",
    "CreateShaderModule",
    "DestroyShaderModule",
    "CreateDescriptorSetLayout",
    "DestroyDescriptorSetLayout",
    "CreatePipelineLayout",
    "DestroyPipelineLayout",
    "CreatePipelineCache",
    "DestroyPipelineCache",
    "GetPipelineCacheData",
    "CreateComputePipelines",
    "DestroyPipeline",
    "CreateDescriptorPool",
    "DestroyDescriptorPool",
    "AllocateDescriptorSets",
    "FreeDescriptorSets",
    "UpdateDescriptorSets",
    "CreateCommandPool",
    "DestroyCommandPool",
    "AllocateCommandBuffers",
    "FreeCommandBuffers",
    "BeginCommandBuffer",
    "EndCommandBuffer",
    "CmdBindPipeline",
    "CmdBindDescriptorSets",
    "CmdDispatch",
    "CmdDispatchIndirect",
    "CmdPipelineBarrier",
    "CmdCopyBuffer",
    "CmdFillBuffer",
    "CreateQueryPool",
    "DestroyQueryPool",
    "CmdResetQueryPool",
    "CmdWriteTimestamp",
    "CmdCopyQueryPoolResults",
    "CreateSemaphore",
    "DestroySemaphore",
    "WaitSemaphores",
    "GetSemaphoreCounterValue",
    "QueueSubmit",
]
# Structs that are only named in chains.
STRUCTS = [
    "VkPhysicalDeviceVulkan11Properties",
    "VkPhysicalDeviceVulkan12Properties",
    "VkPhysicalDeviceVulkan13Properties",
    "VkPhysicalDeviceVulkan11Features",
    "VkPhysicalDeviceVulkan12Features",
    "VkPhysicalDeviceVulkan13Features",
    "VkPhysicalDeviceMemoryBudgetPropertiesEXT",
    "VkPhysicalDeviceRobustness2FeaturesEXT",
    "VkPhysicalDevicePipelineRobustnessFeaturesEXT",
    "VkPipelineRobustnessCreateInfoEXT",
    "VkSemaphoreTypeCreateInfo",
    "VkTimelineSemaphoreSubmitInfo",
]
ENUMS = [
    "VK_SUCCESS",
    "VK_TIMEOUT",
    "VK_INCOMPLETE",
    "VK_ERROR_OUT_OF_HOST_MEMORY",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "VK_ERROR_DEVICE_LOST",
    "VK_ERROR_INITIALIZATION_FAILED",
    "VK_ERROR_INCOMPATIBLE_DRIVER",
    "VK_ERROR_EXTENSION_NOT_PRESENT",
    "VK_ERROR_FEATURE_NOT_PRESENT",
    "VK_ERROR_TOO_MANY_OBJECTS",
    "VK_ERROR_FRAGMENTED_POOL",
    "VK_ERROR_OUT_OF_POOL_MEMORY",
    "VK_ERROR_INVALID_SHADER_NV",
    "VK_ERROR_UNKNOWN",
    "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU",
    "VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU",
    "VK_PHYSICAL_DEVICE_TYPE_CPU",
    "VK_QUEUE_COMPUTE_BIT",
    "VK_QUEUE_GRAPHICS_BIT",
    "VK_MEMORY_HEAP_DEVICE_LOCAL_BIT",
    "VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT",
    "VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT",
    "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT",
    "VK_MEMORY_PROPERTY_HOST_CACHED_BIT",
    "VK_BUFFER_USAGE_TRANSFER_SRC_BIT",
    "VK_BUFFER_USAGE_TRANSFER_DST_BIT",
    "VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT",
    "VK_BUFFER_USAGE_STORAGE_BUFFER_BIT",
    "VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT",
    "VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER",
    "VK_DESCRIPTOR_TYPE_STORAGE_BUFFER",
    "VK_SHADER_STAGE_COMPUTE_BIT",
    "VK_PIPELINE_BIND_POINT_COMPUTE",
    "VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT",
    "VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT",
    "VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT",
    "VK_COMMAND_BUFFER_LEVEL_PRIMARY",
    "VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT",
    "VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT",
    "VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT",
    "VK_PIPELINE_STAGE_TRANSFER_BIT",
    "VK_PIPELINE_STAGE_HOST_BIT",
    "VK_PIPELINE_STAGE_ALL_COMMANDS_BIT",
    "VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT",
    "VK_ACCESS_INDIRECT_COMMAND_READ_BIT",
    "VK_ACCESS_UNIFORM_READ_BIT",
    "VK_ACCESS_SHADER_READ_BIT",
    "VK_ACCESS_SHADER_WRITE_BIT",
    "VK_ACCESS_TRANSFER_READ_BIT",
    "VK_ACCESS_TRANSFER_WRITE_BIT",
    "VK_ACCESS_HOST_READ_BIT",
    "VK_ACCESS_MEMORY_READ_BIT",
    "VK_ACCESS_MEMORY_WRITE_BIT",
    "VK_QUERY_TYPE_TIMESTAMP",
    "VK_QUERY_RESULT_64_BIT",
    "VK_QUERY_RESULT_WAIT_BIT",
    "VK_SEMAPHORE_TYPE_TIMELINE",
    "VK_SUBGROUP_FEATURE_BASIC_BIT",
    "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT",
    "VK_SUBGROUP_FEATURE_SHUFFLE_BIT",
    "VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT",
    "VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT",
    "VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_2_EXT",
]
# Matrix units are younger than the registry of Debian 12: VK_KHR_cooperative_matrix (506) and VK_KHR_shader_bfloat16 (141).
YOUNGER = [
    "typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR { VkStructureType sType; void *pNext; VkBool32 "
    "cooperativeMatrix; VkBool32 cooperativeMatrixRobustBufferAccess; } VkPhysicalDeviceCooperativeMatrixFeaturesKHR;",
    "typedef struct VkCooperativeMatrixPropertiesKHR { VkStructureType sType; void *pNext; uint32_t MSize; uint32_t NSize; "
    "uint32_t KSize; int32_t AType; int32_t BType; int32_t CType; int32_t ResultType; VkBool32 saturatingAccumulation; int32_t "
    "scope; } VkCooperativeMatrixPropertiesKHR;",
    "typedef struct VkPhysicalDeviceShaderBfloat16FeaturesKHR { VkStructureType sType; void *pNext; VkBool32 "
    "shaderBFloat16Type; VkBool32 shaderBFloat16DotProduct; VkBool32 shaderBFloat16CooperativeMatrix; } "
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR;",
    "typedef VkResult (*PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice physicalDevice, uint32_t "
    "*pPropertyCount, VkCooperativeMatrixPropertiesKHR *pProperties);",
]
YOUNGER_TYPES = {
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": 1000506000,
    "VkCooperativeMatrixPropertiesKHR": 1000506001,
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": 1000141000,
}
YOUNGER_VALUES = {
    "COMPONENT_TYPE_FLOAT16_KHR": 0,
    "COMPONENT_TYPE_FLOAT32_KHR": 1,
    "COMPONENT_TYPE_BFLOAT16_KHR": 1000141000,
    "SCOPE_SUBGROUP_KHR": 3,
}


class Registry:
    """The registry, and what of it is wanted so far, in the order in which C needs it."""

    def __init__(self, path: Path) -> None:
        root = ET.parse(path).getroot()
        self.types = {_name_of(t): t for t in root.findall("types/type") if _name_of(t)}
        self.commands = {c.find("proto/name").text: c for c in root.findall("commands/command") if c.find("proto") is not None}
        self.values = _enum_values(root)
        self.lines: list[str] = []
        self.structure_types: dict[str, int] = {}
        self._seen: set[str] = set()

    def want_command(self, name: str) -> None:
        command = self.commands[name]
        params = [self._declare(p) for p in command.findall("param")]
        kind = command.find("proto/type").text
        self.want_type(kind)
        self.lines.append(f"typedef {kind} (*PFN_{name})({', '.join(params)});")

    def want_type(self, name: str) -> None:
        entry = self.types.get(name)
        if entry is None or name in self._seen:
            return
        self._seen.add(name)
        category = entry.get("category")
        if entry.get("alias"):
            self.want_type(entry.get("alias"))
            self.lines.append(f"typedef {entry.get('alias')} {name};")
        elif category == "handle":
            # Handles that are no pointers to dispatch tables are numbers on all platforms of 64 bits.
            dispatchable = entry.find("type").text == "VK_DEFINE_HANDLE"
            self.lines.append(f"typedef {f'struct {name}_T *' if dispatchable else 'uint64_t '}{name};")
        elif category == "enum":
            self.lines.append(f"typedef int32_t {name};")
        elif category in ("basetype", "bitmask"):
            under = entry.find("type")
            self.want_type(under.text)
            self.lines.append(f"typedef {under.text} {name};")
        elif category in ("struct", "union"):
            members = [self._declare(m) for m in entry.findall("member") if m.get("api", "vulkan") != "vulkansc"]
            self.lines.append(f"typedef {category} {name} {{ {' '.join(m + ';' for m in members)} }} {name};")
            tag = next((m.get("values") for m in entry.findall("member") if m.get("values")), None)
            if tag is not None:
                self.structure_types[name] = self.values[tag]
        elif category == "funcpointer":
            self.lines.append(f"typedef void (*{name})(void);")

    def _declare(self, member: ET.Element) -> str:
        """A member or parameter; what it points to without need is void."""
        kind, name = member.find("type").text, member.find("name").text
        text = " ".join("".join(_texts(member)).split())
        size = re.search(r"\[(\w+)\]", text[text.index(name) :])
        pointers = text.split(name)[0].count("*")
        category = self.types[kind].get("category") if kind in self.types else None
        if pointers and category in ("struct", "union") and kind not in _POINTED:
            kind = "void"
        else:
            self.want_type(kind)
        const = "const " if text.startswith("const ") else ""
        length = "" if size is None else f"[{self.values.get(size[1], size[1])}]"
        return f"{const}{kind} {'*' * pointers}{name}{length}"


# Structs that are passed by pointer and filled or read by name.
_POINTED = {
    "VkPhysicalDeviceProperties2", "VkPhysicalDeviceFeatures2", "VkPhysicalDeviceMemoryProperties2", "VkQueueFamilyProperties",
    "VkExtensionProperties", "VkInstanceCreateInfo", "VkApplicationInfo", "VkDeviceCreateInfo", "VkDeviceQueueCreateInfo",
    "VkBufferCreateInfo", "VkMemoryRequirements", "VkMemoryAllocateInfo", "VkShaderModuleCreateInfo", "VkPhysicalDeviceFeatures",
    "VkDescriptorSetLayoutCreateInfo", "VkDescriptorSetLayoutBinding", "VkPipelineLayoutCreateInfo", "VkPipelineCacheCreateInfo",
    "VkComputePipelineCreateInfo", "VkDescriptorPoolCreateInfo", "VkDescriptorPoolSize", "VkDescriptorSetAllocateInfo",
    "VkWriteDescriptorSet", "VkDescriptorBufferInfo", "VkCommandPoolCreateInfo", "VkCommandBufferAllocateInfo",
    "VkCommandBufferBeginInfo", "VkMemoryBarrier", "VkBufferCopy", "VkQueryPoolCreateInfo", "VkSemaphoreCreateInfo",
    "VkSemaphoreWaitInfo", "VkSubmitInfo", "VkSpecializationInfo",
}  # fmt: skip


def _texts(member: ET.Element) -> list[str]:
    """The text of a member without its comment."""
    found = [member.text or ""]
    for part in member:
        if part.tag != "comment":
            found += [part.text or "", " " if part.tag == "type" else ""]
        found.append(part.tail or "")
    return found


def _name_of(entry: ET.Element) -> str:
    name = entry.find("name")
    return entry.get("name") or ("" if name is None else name.text or "")


def _enum_values(root: ET.Element) -> dict[str, int]:
    found: dict[str, int] = {}

    def read(entry: ET.Element, number: int) -> None:
        name = entry.get("name")
        if entry.get("bitpos"):
            found[name] = 1 << int(entry.get("bitpos"))
        elif entry.get("offset"):
            value = 1000000000 + (int(entry.get("extnumber", number)) - 1) * 1000 + int(entry.get("offset"))
            found[name] = -value if entry.get("dir") == "-" else value
        elif re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+", entry.get("value", "")):
            found[name] = int(entry.get("value"), 0)

    for group in root.findall("enums"):
        for entry in group.findall("enum"):
            read(entry, 0)
    for feature in [*root.findall("feature"), *root.findall("extensions/extension")]:
        for entry in feature.findall("require/enum"):
            read(entry, int(feature.get("number")) if feature.tag == "extension" else 0)
    return found


def render(path: Path) -> str:
    registry = Registry(path)
    for name in STRUCTS:
        registry.want_type(name)
    for name in COMMANDS:
        registry.want_command(f"vk{name}")
    wrap = textwrap.TextWrapper(width=126, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
    lines = [piece for line in [*registry.lines, *YOUNGER] for piece in wrap.wrap(line)]
    numbers = registry.structure_types | YOUNGER_TYPES
    types = "\n".join(f'    "{name}": {value},' for name, value in sorted(numbers.items()))
    known = {name.removeprefix("VK_"): registry.values[name] for name in ENUMS} | YOUNGER_VALUES
    values = "\n".join(f"{name} = {value}" for name, value in known.items())
    return (
        '"""Vulkan\'s C declarations that this backend uses; written by tools/make_vulkan_declarations.py."""\n\n'
        "from __future__ import annotations\n\n"
        'CDEF = """\n' + "\n".join(lines) + '\n"""\n\n'
        "# The number in the field `sType` of each struct that has one.\n"
        "STRUCTURE_TYPES = {\n" + types + "\n}\n\n" + values + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(render(Path(sys.argv[1]) if len(sys.argv) > 1 else REGISTRY), "utf-8")
