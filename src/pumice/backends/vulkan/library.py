"""Loads Vulkan: the system's loader, or a driver itself where there is no loader, and looks up its functions."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pumice.backends.libraries import load_failure
from pumice.errors import NoDevice

API_1_3 = (1 << 22) | (3 << 12)
_LOADERS = {"linux": ("libvulkan.so.1", "libvulkan.so"), "win32": ("vulkan-1.dll",)}
# Drivers that are no part of a loader's list, in containers for one: NVIDIA's library for EGL serves without a display.
_DRIVERS = {"linux": ("libEGL_nvidia.so.0", "libGLX_nvidia.so.0")}
# Where Linux distributions keep the loader's list of drivers.
_DRIVER_LISTS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
_ENTRY_POINTS = """
PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name);
PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char *name);
VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version);
"""
# The interface between loaders and drivers that has all functions behind one entry point.
_DRIVER_INTERFACE = 5
_INSTALL = "pip install 'pumice[vulkan]'"


class VulkanError(Exception):
    """A call that failed: its name, and Vulkan's number for the reason."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(f"{call} failed with {result_name(result)}")
        self.call, self.result = call, result


def result_name(result: int) -> str:
    """Vulkan's name of a result.

    >>> result_name(-4), result_name(-99)
    ('VK_ERROR_DEVICE_LOST', 'VkResult -99')
    """
    from pumice.backends.vulkan import declarations

    names = {v: k for k, v in vars(declarations).items() if k.startswith("ERROR_") or k in ("TIMEOUT", "INCOMPLETE")}
    return f"VK_{names[result]}" if result in names else f"VkResult {result}"


@functools.cache
def ffi() -> Any:
    """cffi with Vulkan's declarations; made when Vulkan is first asked for."""
    try:
        import cffi
    except ImportError as e:
        why, hint = load_failure(e, _INSTALL)
        raise NoDevice(f"Vulkan needs cffi: {why}", hint=f"{hint}; or use the device 'webgpu' or 'host'") from e
    from pumice.backends.vulkan.declarations import CDEF

    made = cffi.FFI()
    made.cdef("typedef void (*PFN_vkVoidFunction)(void);\n" + CDEF.replace("typedef void (*PFN_vkVoidFunction)(void);\n", ""))
    made.cdef(_ENTRY_POINTS)
    return made


def make(kind: str, **fields: Any) -> Any:
    """A new struct with its type number and some fields set. What fields point to must be kept alive by the caller."""
    from pumice.backends.vulkan.declarations import STRUCTURE_TYPES

    made = ffi().new(f"{kind} *")
    if kind in STRUCTURE_TYPES:
        made.sType = STRUCTURE_TYPES[kind]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Functions:
    """Vulkan's functions by their names without `vk`, each looked up when first used."""

    def __init__(self, look_up: Any) -> None:
        self._look_up = look_up

    def __getattr__(self, name: str) -> Any:
        found = self._look_up(f"vk{name}")
        if found is None:
            raise VulkanError(f"vk{name}", -7)
        setattr(self, name, found)
        return found

    def checked(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a result; raise what is an error."""
        result: int = getattr(self, name)(*arguments)
        if result < 0:
            raise VulkanError(f"vk{name}", result)
        return result


class VulkanInstance:
    """A Vulkan instance of the loader, or of one driver. It lives as long as the process."""

    def __init__(self, library: str, entry: Any) -> None:
        self.library, self._entry = library, entry
        f = ffi()
        self.handle = f.NULL
        self.functions = Functions(self._look_up)
        version = f.new("uint32_t *")
        try:
            self.functions.checked("EnumerateInstanceVersion", version)
        except VulkanError:
            version[0] = 1 << 22
        # A driver of 1.0 refuses to be asked for more than it has.
        wanted = min(version[0], API_1_3)
        name = f.new("char[]", b"pumice")
        about = make("VkApplicationInfo", pApplicationName=name, pEngineName=name, apiVersion=wanted)
        out = f.new("VkInstance *")
        self.functions.checked("CreateInstance", make("VkInstanceCreateInfo", pApplicationInfo=about), f.NULL, out)
        self.handle = out[0]
        self.functions = Functions(self._look_up)

    def _look_up(self, name: str) -> Any:
        found = self._entry(self.handle, name.encode())
        return None if found == ffi().NULL else ffi().cast(f"PFN_{name}", found)

    def device_functions(self, device: Any) -> Functions:
        """The functions of a device, without the loader's way through them."""
        get = self.functions.GetDeviceProcAddr

        def look_up(name: str) -> Any:
            found = get(device, name.encode())
            return None if found == ffi().NULL else ffi().cast(f"PFN_{name}", found)

        return Functions(look_up)

    def physical_devices(self) -> list[Any]:
        """The handles of all devices; none where there is a loader but no driver."""
        f, count = ffi(), ffi().new("uint32_t *")
        self.functions.checked("EnumeratePhysicalDevices", self.handle, count, f.NULL)
        found = f.new("VkPhysicalDevice[]", max(1, count[0]))
        self.functions.checked("EnumeratePhysicalDevices", self.handle, count, found)
        return list(found[0 : count[0]])


_lock = threading.Lock()


def load() -> VulkanInstance:
    """The process's instance: of the loader, or of the first driver that has a device where there is none."""
    with _lock:
        return _load()


@functools.cache
def _load() -> VulkanInstance:
    if sys.platform not in _LOADERS or sys.maxsize < 2**32:
        raise NoDevice(f"Vulkan is not used on {sys.platform}", hint="use the device 'webgpu'")
    problems: list[str] = []
    for name in _LOADERS[sys.platform]:
        try:
            return VulkanInstance(name, _open(name).vkGetInstanceProcAddr)
        except (OSError, AttributeError, VulkanError) as e:
            problems.append(f"{name}: {e}")
    for name in _drivers():
        try:
            library = _open(name)
            version = ffi().new("uint32_t *", _DRIVER_INTERFACE)
            with contextlib.suppress(AttributeError):
                library.vk_icdNegotiateLoaderICDInterfaceVersion(version)
            found = VulkanInstance(name, library.vk_icdGetInstanceProcAddr)
            if found.physical_devices():
                return found
            problems.append(f"{name}: no device")
        except (OSError, AttributeError, VulkanError) as e:
            problems.append(f"{name}: {e}")
    hint = "install the Vulkan loader (Debian, Ubuntu: libvulkan1) and the GPU's driver; or use the device 'webgpu' or 'host'"
    raise NoDevice("neither a Vulkan loader nor a driver can be loaded", hint=hint, tried=problems)


def _open(name: str) -> Any:
    # What is loaded once stays: drivers do not survive being unloaded.
    return ffi().dlopen(name)


def _drivers() -> Iterator[str]:
    """Libraries of drivers: those that the loader's variables and lists name, and NVIDIA's."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES") or ""
    files = [Path(p) for p in named.split(os.pathsep) if p]
    if not files:
        yield from _DRIVERS.get(sys.platform, ())
        files = sorted(p for folder in _DRIVER_LISTS for p in Path(folder).glob("*.json"))
    for file in files:
        try:
            path = json.loads(file.read_text("utf-8"))["ICD"]["library_path"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(path, str):
            yield str(file.parent / path) if path.startswith(".") else path
