"""Compiled modules in the user's cache, by digest of the module, version of Wasmtime, processor and settings.

Compiled code runs without the checks that made it safe: only what `core.kept` vouches for (a private folder, a digest
of name and content) is loaded, and an entry that is damaged, or that Wasmtime does not take, is made again.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from typing import Any

from pumice.core.kept import keep, kept_folder, read_kept
from pumice.packs.wasm.engine import Library, WasmEngine
from pumice.packs.wasm.module import KernelModule

_FOLDER = "wasm"


def compiled(engine: WasmEngine, module: KernelModule) -> Any:
    """A wasmtime.Module, from the cache if it is there."""
    folder = kept_folder(_FOLDER)
    path = None if folder is None else folder / f"{_key(engine.library, module.digest)}.cwasm"
    kept = None if path is None else read_kept(path)
    found = None if kept is None else engine.load(kept)
    if found is None:
        found = engine.compile(module.code)
        if path is not None:
            keep(path, bytes(found.serialize()))
    return found


def _key(library: Library, digest: str) -> str:
    settings = " ".join(f"{name}={on}" for name, on in sorted(library.switches.items()))
    return hashlib.sha256("\0".join((library.version, digest, _processor(), settings)).encode()).hexdigest()


@cache
def _processor() -> str:
    """What code is made for: model and features of the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            first = file.read(1 << 16).split("\n\n", 1)[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return f"{platform.machine()} " + ";".join(line for line in first.splitlines() if line.startswith(wanted))
