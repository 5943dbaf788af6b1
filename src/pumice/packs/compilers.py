"""Compiles sources of WASM kernels, WAT with wasmtime and C with the package `ziglang`: the same source gives the same bytes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pumice.packs.errors import BuildFailed
from pumice.packs.extra import MissingExtra, missing_extra

# Freestanding: no libc, no imports. The names of functions are no part of the module, as they would depend on the compiler alone.
_C_FLAGS = (
    "--target=wasm32-freestanding", "-std=c17", "-O3", "-msimd128", "-mbulk-memory", "-nostdlib", "-Wall", "-Wextra",
    "-Wl,--no-entry", "-Wl,--strip-all", "-z", "stack-size=16384",
)  # fmt: skip
_SECONDS = 300
_SHOWN = 4000


def compile_source(source: Path) -> bytes:
    """The WASM module of a source file; BuildFailed has what the compiler says.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "empty.wat")
    ...     _ = file.write_text("(module)")
    ...     compile_source(file)
    b'\\x00asm\\x01\\x00\\x00\\x00'
    """
    return COMPILERS[source.suffix](source)


def can_compile(source: Path) -> bool:
    """Whether the compiler for a source file is installed."""
    return source.suffix != ".c" or importlib.util.find_spec("ziglang") is not None


def _compile_wat(source: Path) -> bytes:
    try:
        import wasmtime
    except ImportError:
        raise missing_extra("wasmtime") from None
    try:
        return bytes(wasmtime.wat2wasm(source.read_text(encoding="utf-8")))
    except (wasmtime.WasmtimeError, UnicodeDecodeError) as problem:
        raise _failed(source, str(problem)) from None


def _compile_c(source: Path) -> bytes:
    if not can_compile(source):
        raise MissingExtra(
            f"compiling {source.name} needs the package ziglang, a C compiler",
            hint="pip install 'pumice[packs-build]', or write the kernel in WAT, which needs no compiler",
            package="ziglang",
        )
    with tempfile.TemporaryDirectory(prefix="pumice-build-") as scratch:
        target = Path(scratch, "kernel.wasm")
        # A relative name in its own folder: the compiler never sees where that is. No cache but this build's own.
        command = [sys.executable, "-m", "ziglang", "cc", *_C_FLAGS, "-o", str(target), source.name]
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        try:
            done = subprocess.run(
                command, cwd=source.parent, env=environment, capture_output=True, text=True, errors="replace", timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise _failed(source, f"the compiler took more than {_SECONDS} s") from None
        if done.returncode or not target.is_file():
            raise _failed(source, done.stderr or done.stdout)
        return target.read_bytes()


COMPILERS: Mapping[str, Callable[[Path], bytes]] = {".wat": _compile_wat, ".c": _compile_c}


def _failed(source: Path, said: str) -> BuildFailed:
    return BuildFailed(f"{source.name} does not compile:\n{said.strip()[:_SHOWN]}", hint="mend the source", source=source.name)
