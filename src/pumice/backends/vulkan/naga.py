"""WGSL to SPIR-V by naga, the compiler of wgpu, as WebAssembly: the npm package naga-wasm in the runtime wasmtime.

The file is fetched once and pinned by its sha256. Its glue code is JavaScript, whose part for this use is written here: the
names of imports end in hashes of the build, so that they fit this version alone.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.metadata
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pumice.backends.libraries import load_failure
from pumice.core.kept import keep, kept_folder, read_kept
from pumice.errors import NoDevice
from pumice.sources.npm import npm_file
from pumice.sources.spec import parse_npm

SPEC = "npm:naga-wasm@30.1.0/dist/wasm/naga_bg.wasm"
SHA256 = "c7c5cd7322c14c5a0da57bf707fef71d1a51ee2c5094c0786d8216e04cfee4de"
_INSTALL = "pip install 'pumice[vulkan]'"
# A text that keeps the compiler busy for longer than this is given up; the unit is an operation of WebAssembly.
_FUEL = 20_000_000_000
_MEMORY = 1 << 30


class NagaError(Exception):
    """What naga says of a text that it does not translate."""


def cached_file(*, fetch: bool = True) -> Path:
    """The WebAssembly file, from the cache or, where that is allowed, from the registry."""
    return npm_file(parse_npm(SPEC), SHA256, offline=not fetch)


def import_wasmtime() -> Any:
    """The WebAssembly runtime, which is an extra."""
    try:
        import wasmtime
    except (ImportError, OSError) as e:
        why, hint = load_failure(e, _INSTALL)
        raise NoDevice(f"Vulkan needs wasmtime: {why}", hint=f"{hint}; or use the device 'webgpu' or 'host'") from e
    return wasmtime


class Naga:
    """An instance of the compiler. It has memory of its own and serves one thread at a time."""

    def __init__(self, engine: Any, module: Any) -> None:
        wasmtime = import_wasmtime()
        self._store = wasmtime.Store(engine)
        self._store.set_limits(memory_size=_MEMORY)
        self._store.set_fuel(_FUEL)
        imports = [wasmtime.Func(self._store, i.type, self._import(i.name)) for i in module.imports]
        self._exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = self._exports["memory"]
        self._call("__wbindgen_start")

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._exports[name](self._store, *arguments)

    def _text(self, start: int, size: int) -> str:
        return bytes(self._memory.read(self._store, start, start + size)).decode("utf-8", "replace")

    def _import(self, name: str) -> Callable[..., Any]:
        """The few functions of JavaScript that a translation without options calls; any other is an error."""

        def throw(start: int, size: int) -> None:
            raise NagaError(self._text(start, size))

        def grow_table() -> None:
            table = self._exports["__wbindgen_externrefs"]
            first = table.grow(self._store, 4, None)
            table.set(self._store, first + 2, True)
            table.set(self._store, first + 3, False)

        def refuse(*arguments: Any) -> None:
            raise NagaError(f"the compiler calls {name}, which a translation does not need")

        known: dict[str, Callable[..., Any]] = {
            "__wbg___wbindgen_throw": throw,
            "__wbg___wbindgen_is_undefined": lambda value: int(value is None),
            "__wbg___wbindgen_jsval_loose_eq": lambda a, b: int(a == b),
            "__wbg_Error": self._text,
            "__wbindgen_generic": self._text,
            "__wbindgen_init_externref_table": grow_table,
        }
        return next((call for start, call in known.items() if name.startswith(start)), refuse)

    def _answer(self, result: Any, error: int, flag: int) -> int:
        """The first number of an answer; raises the error in it."""
        if result[flag]:
            found = self._exports["__wbindgen_externrefs"].get(self._store, result[error])
            self._call("__externref_table_dealloc", result[error])
            raise NagaError(str(found))
        return int(result[0])

    def translate(self, wgsl: str) -> bytes:
        """The words of a module in SPIR-V."""
        self._store.set_fuel(_FUEL)
        data = wgsl.encode()
        at = self._call("__wbindgen_malloc", len(data), 1)
        self._memory.write(self._store, data, at)
        module = self._answer(self._call("parseWgsl", at, len(data)), 1, 2)
        try:
            info = self._answer(self._call("validate", module), 1, 2)
            try:
                words = self._call("writeSpirv", module, info, None)
                start = self._answer(words, 2, 3)
                found = bytes(self._memory.read(self._store, start, start + 4 * words[1]))
                self._call("__wbindgen_free", start, words[1] * 4, 4)
                return found
            finally:
                self._call("__wbg_moduleinfo_free", info, 0)
        finally:
            self._call("__wbg_module_free", module, 0)


@functools.cache
def _module() -> tuple[Any, Any]:
    """The engine and the compiled module; machine code of it is kept in the user's cache."""
    wasmtime = import_wasmtime()
    settings = wasmtime.Config()
    settings.wasm_reference_types = True
    settings.consume_fuel = True
    engine = wasmtime.Engine(settings)
    content = cached_file().read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise NoDevice("the cached compiler naga-wasm has changed", hint="delete it from the cache (pumice models)")
    folder = kept_folder("vulkan")
    file = None if folder is None else folder / f"naga-{SHA256[:16]}-{importlib.metadata.version('wasmtime')}"
    ready = None if file is None else read_kept(file)
    if ready is not None:
        try:
            return engine, wasmtime.Module.deserialize(engine, ready)
        except wasmtime.WasmtimeError:
            pass  # another processor, or another build of the runtime
    module = wasmtime.Module(engine, content)
    if file is not None:
        keep(file, bytes(module.serialize()))
    return engine, module


_lock = threading.Lock()
_idle: list[Naga] = []


def translate(wgsl: str) -> bytes:
    """SPIR-V of a WGSL text; threads translate side by side. Raises `NagaError` with the compiler's words."""
    with _lock:
        naga = _idle.pop() if _idle else None
        if naga is None:
            engine, module = _module()
    if naga is None:
        naga = Naga(engine, module)
    try:
        found = naga.translate(wgsl)
    except NagaError:
        raise
    except Exception as e:  # a trap, or out of fuel: this instance is not used again
        raise NagaError(f"the compiler gave up: {type(e).__name__} {str(e).splitlines()[0] if str(e) else ''}") from e
    with _lock:
        _idle.append(naga)
    return found


@atexit.register
def _forget() -> None:
    """wasmtime's objects cannot be freed once the interpreter has taken its module apart."""
    with _lock:
        _idle.clear()
    _module.cache_clear()
