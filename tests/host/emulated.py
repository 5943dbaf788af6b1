"""A plug-in of pytest: kernels of the level that PUMICE_EMULATE names, one of aarch64, run under qemu-user.

Each kernel becomes a program of its own, which finds the arrays of a task in a file, at other addresses than here.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from pumice.backends.host.memory.scratch import ScratchPool
from pumice.backends.host.native import jit, kernel_tasks, levels

Array = np.ndarray[Any, Any]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# A processor that has what the level has, and no more where qemu knows one.
PROCESSORS = {"neon": "cortex-a72", "neon-dotprod": "neoverse-n1", "neon-i8mm": "max"}
BASE, ALIGNED = 0x2000000000, 4096
PROGRAM = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
void pumice_kernel(long, long, long);
int main(int count, char **given) {
    void *at = (void *)BASE;
    if (mmap(at, strtoll(given[2], 0, 0), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, open(given[1], O_RDWR), 0) != at)
        return 99;
    pumice_kernel(strtoll(given[3], 0, 0), 0, strtoll(given[4], 0, 0));
    return 0;
}
"""
# All arrays whose addresses tasks have asked for, and memory that was borrowed.
seen: list[Array] = []


class SeenPool(ScratchPool):
    def take(self, size: int) -> Array:
        found = super().take(size)
        seen.append(found)
        return found


class EmulatedCode:
    """Kernels as programs, by name."""

    def __init__(self, level: levels.Level, folder: Path) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._target = llvm.Target.from_triple(f"{level.machine}-linux-gnu")
        self._machine = self._target.create_target_machine(level.cpu, level.flags, opt=3, reloc="pic", codemodel="small")
        self.folder, self._made = folder, set[str]()
        (folder / "main.c").write_text(PROGRAM.replace("BASE", hex(BASE)))

    def address(self, name: str, code: Any = None) -> int:
        """Nothing is loaded here; the program is in the folder."""
        if name not in self._made:
            self._make(name, code)
            self._made.add(name)
        return 0

    def _make(self, name: str, code: Any) -> None:
        from pumice.backends.host.native import compiled

        text = compiled.llvm_text(name, "pumice_kernel") if code is None else code("pumice_kernel")
        module = llvm.parse_assembly(re.sub(r"^target (triple|datalayout) = .*$", "", text, flags=re.M))
        module.triple, module.data_layout = self._target.triple, str(self._machine.target_data)
        path = self.folder / f"{name}.o"
        path.write_bytes(self._machine.emit_object(module))
        sources = [str(self.folder / "main.c"), str(path)]
        subprocess.run([COMPILER, "-O1", "-static", "-o", str(self.folder / name), *sources, "-lm"], check=True)


class EmulatedKernels(jit.Kernels):
    def __init__(self, level: levels.Level) -> None:
        self._room = tempfile.TemporaryDirectory()
        self._code: Any = EmulatedCode(level, Path(self._room.name))
        self._pool: Any = SimpleNamespace(workers=0)
        self._scratch, self.is_wide, self._processor = SeenPool(), level.is_wide, PROCESSORS[level.name]

    def _run(self, table: int, count: int, shared: bool, wanted: bool, keep: Any) -> None:
        tasks, jobs, _ = keep
        first = 1
        for task in tasks:
            self._run_one(task, jobs[first - 1 : first + len(task.words)])
            first += 1 + len(task.words)

    def _run_one(self, task: kernel_tasks.Task, words: Array) -> None:
        regions = _regions([int(w) for w in words])
        image, moved, at = bytearray(), words.copy(), ALIGNED * -(-words.nbytes // ALIGNED)
        places = []
        for begin, end in regions:
            # At the same place in a cache line, and with room behind, as memory from an allocator has.
            at = -(-at // 64) * 64 + begin % 64
            inside = (words >= begin) & (words < end)
            moved[inside] = words[inside] - begin + BASE + at
            places.append((at, begin, end - begin))
            at += end - begin + 256
        image = bytearray(ALIGNED * -(-at // ALIGNED))
        image[: moved.nbytes] = moved.tobytes()
        for place, begin, size in places:
            image[place : place + size] = _memory(begin, size).tobytes()
        path = self._code.folder / "image"
        path.write_bytes(image)
        # The word before the first one is the address of work memory.
        job = (str(path), str(len(image)), str(BASE + 8), str(task.parts))
        subprocess.run([EMULATOR, "-cpu", self._processor, str(self._code.folder / task.kernel), *job], check=True)
        made = np.frombuffer(path.read_bytes(), np.uint8)
        for place, begin, size in places:
            _memory(begin, size)[:] = made[place : place + size]


def _memory(begin: int, size: int) -> Array:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(begin))


def _regions(words: list[int]) -> list[tuple[int, int]]:
    """The arrays that words point into, as bounds; those that overlap are one."""
    bounds = sorted(np.lib.array_utils.byte_bounds(a) for a in seen if a.size)
    joined: list[tuple[int, int]] = []
    for begin, end in bounds:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return [(begin, end) for begin, end in joined if any(begin <= w < end for w in words)]


def pytest_configure(config: pytest.Config) -> None:
    level = levels.by_name(os.environ["PUMICE_EMULATE"])
    levels.compile_for(level)
    original = kernel_tasks.address

    def address(array: Array | None) -> int:
        if array is not None:
            seen.append(array)
        return original(array)

    import pumice.backends.host  # noqa: F401  all that makes tasks

    for module in [m for name, m in sys.modules.items() if name.startswith("pumice.backends.host.")]:
        if getattr(module, "address", None) is original:
            module.address = address  # type: ignore[attr-defined]
    jit.kernels = functools.cache(lambda: EmulatedKernels(level))  # type: ignore[assignment]


def pytest_runtest_teardown() -> None:
    seen.clear()
