"""Adapters: what WebGPU finds on this machine, in order of preference, and the Caps that each one gives."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pumice.backends.gpu.adapter import RANK, Adapter, Kind, find_adapter
from pumice.backends.libraries import load_failure
from pumice.errors import DeviceError, NoDevice

_KINDS: Mapping[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}


@contextlib.contextmanager
def _runtime_dir() -> Iterator[None]:
    """Window-system libraries that drivers load complain on stderr when this variable is unset; nothing here uses it."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


_import_lock = threading.Lock()


def import_wgpu() -> Any:
    """The wgpu module, quiet: what it logs is also raised, or found by the liveness word of a run.

    >>> import_wgpu().__name__
    'wgpu'
    """
    with _import_lock, _runtime_dir():
        try:
            import wgpu
            import wgpu.backends.wgpu_native
        except (ImportError, OSError, RuntimeError, MemoryError) as e:
            why, hint = load_failure(e, "pip install 'wgpu==0.32.*'")
            raise NoDevice(f"the WebGPU library does not load: {why}", hint=f"{hint}; or use the device 'host'") from e
        logger = logging.getLogger("wgpu")
        # A level that the application chose itself stays; WARNING is the one that wgpu sets on import.
        if logger.level == logging.WARNING:
            logger.setLevel(logging.CRITICAL)
        return wgpu


@functools.cache
def _enumerate() -> tuple[Adapter, ...]:
    wgpu = import_wgpu()
    with _runtime_dir():
        try:
            found = wgpu.gpu.enumerate_adapters_sync()
        except Exception as e:  # a broken driver may fail in any way; the host backend still works
            raise DeviceError(f"the WebGPU library cannot list adapters: {e}", hint="reinstall the GPU driver") from e
    rows = [_read(raw) for raw in found]
    rows.sort(key=lambda a: (a.is_opengl, RANK[a.kind]))
    return tuple(replace(row, index=i) for i, row in enumerate(rows))


_enumerate_lock = threading.Lock()


def list_adapters() -> tuple[Adapter, ...]:
    """Every adapter, best first: hardware before software, OpenGL last. Looked up once per process.

    >>> [a.index for a in list_adapters()] == list(range(len(list_adapters())))
    True
    """
    with _enumerate_lock:
        return _enumerate()


def _read(raw: Any) -> Adapter:
    info = raw.info
    return Adapter(
        index=-1,
        name=info["device"] or info["vendor"] or "unnamed",
        kind=_KINDS.get(info["adapter_type"], "unknown"),
        api=str(info["backend_type"]).lower(),
        vendor=info["vendor"],
        driver=info["description"],
        features=frozenset(raw.features),
        limits=dict(raw.limits),
        vendor_id=info["vendor_id"],
        raw=raw,
    )


def pick_adapter(which: str = "") -> Adapter:
    """The adapter that `webgpu[:which]` means."""
    return find_adapter(list_adapters(), which, "WebGPU", f"use the device 'host'; if there is a GPU, {INSTALL_HINT}")


INSTALL_HINT = (
    "install its Vulkan driver (Debian, Ubuntu: libvulkan1, and nvidia-driver or mesa-vulkan-drivers; "
    "the latter brings a software driver too)"
)
