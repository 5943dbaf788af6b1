"""Machine code of the kernels: read from a folder in the user's cache, or compiled by numba and put there.

numba has a cache of its own, but must be imported to read it, which takes longer than everything else that a start does.
Here not even LLVM is needed: kernels are plain functions of three words that call nothing but the C library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pumice.backends.host.native import levels
from pumice.backends.host.native.compilers import compile_together
from pumice.backends.host.native.levels import Level
from pumice.backends.host.native.object_code import load_object
from pumice.core import block_formats, grids, special
from pumice.core.kept import keep, kept_folder, read_kept
from pumice.errors import DeviceError
from pumice.ir.ops import binary, ternary, unary

_HERE = Path(__file__).parent
# Files, and folders of them, whose text decides what the code is. numba's version is left out: what it made stays right.
_SOURCES = (
    *(_HERE / name for name in ("kernels", "codegen")),
    *(
        _HERE / f"{name}.py"
        for name in ("compiled", "conv_sizes", "levels", "machine_code", "numba_text", "object_code", "region_kernel", "sizes")
    ),
    *(_HERE.parent / name for name in ("threads/pool.py", "memory/scratch.py", "memory/tile_layout.py")),
)
# And those that kernels are generated from: the records of formats, and the functions of elementwise ops.
_GENERATED_FROM = tuple(Path(str(module.__file__)) for module in (block_formats, grids, special, unary, binary, ternary))

# Called with the number of kernels that are compiled, and of those that have to be.
Report = Callable[[int, int], None]
# The LLVM text of a kernel by the symbol that it is to have.
Code = Callable[[str], str]


class MachineCode:
    """The kernels' code in this process, by name."""

    def __init__(self, compiling: Callable[[], None] = lambda: None, level: Level | None = None) -> None:
        """`compiling` is called before each kernel that is compiled on first need; `level` is that of the process."""
        self._compiling, self.level = compiling, levels.current() if level is None else level
        folder = kept_folder("kernels")
        about = (_llvm_version(), sys.platform, self.level.machine, self.level.name, self.level.cpu, self.level.flags)
        self._folder = None if folder is None else folder / _digest(*about)
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}
        if self._folder is None or not self._folder.is_dir():
            _ = self._engine  # LLVM is needed in any case: the caller can still do without kernels

    @cached_property
    def _machine(self) -> Any:
        """LLVM's compiler for the level."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_triple(llvm.get_process_triple())
        return target.create_target_machine(self.level.cpu, self.level.flags, opt=3, codemodel="jitdefault", jit=True)

    @cached_property
    def _engine(self) -> Any:
        """LLVM's loader, for objects that object_code.py leaves to it."""
        import llvmlite.binding as llvm

        machine = self._machine
        empty = llvm.parse_assembly("")
        empty.triple = llvm.get_process_triple()
        return llvm.create_mcjit_compiler(empty, machine)

    def address(self, name: str, code: Code | None = None) -> int:
        """Where a kernel's code begins; it is loaded, and if need be compiled, on first need; `code` is its own LLVM text."""
        found = self._addresses.get(name)
        if found is None:
            with self._lock:
                if not self._load(name):
                    self._compiling()
                    self._compile(name, code)
                found = self._addresses[name]
        return found

    def prepare(self, names: Sequence[str], report: Report | None) -> None:
        """Loads kernels, and compiles those that are not in the cache; only these are reported."""
        with self._lock:
            missing = [n for n in names if not self._load(n)]

            def tell(done: int) -> None:
                if report is not None:
                    report(done, len(missing))

            if self._folder is None:
                for done, name in enumerate(missing):
                    tell(done)
                    self._compile(name)
            elif missing:
                compile_together(missing, self.level, self._compile, tell)
                for name in missing:  # what other processes have put into the cache
                    if not self._load(name):
                        self._compile(name)
        if missing:
            tell(len(missing))

    def make(self, name: str) -> bool:
        """Whether a kernel is in the cache now; compiles it if it was not."""
        with self._lock:
            if not self._load(name):
                self._compile(name)
        return self._folder is not None and (self._folder / f"{name}.o").exists()

    def _load(self, name: str) -> bool:
        """Whether a kernel is in this process, or was in the cache."""
        if name in self._addresses:
            return True
        code = None if self._folder is None else read_kept(self._folder / f"{name}.o")
        return code is not None and self._add(name, code)

    def _compile(self, name: str, code: Code | None = None) -> None:
        import llvmlite.binding as llvm

        machine = self._machine
        module = llvm.parse_assembly(_llvm_text(name) if code is None else code(_symbol(name)))
        module.verify()
        for f in module.functions:
            # LLVM would end the process when it meets a call to something that is nowhere.
            if not f.is_declaration or f.name.startswith("llvm."):
                continue
            # numba's own functions are there now, but not where the code comes from the cache.
            if f.name.startswith(("numba_", "NRT_", "Py")) or not llvm.address_of_symbol(f.name):
                raise RuntimeError(f"the kernel {name} calls {f.name}, which not every process has")
        made = machine.emit_object(module)
        if not self._add(name, made):
            raise DeviceError(
                f"the compiled kernel {name} has no address", hint="reinstall numba and llvmlite: pip install 'pumice[cpu]'"
            )
        if self._folder is not None:
            keep(self._folder / f"{name}.o", made)

    def _add(self, name: str, code: bytes) -> bool:
        """Whether the kernel is now in this process: code that does not define it has no address."""
        address = load_object(code, _symbol(name)) or self._add_by_llvm(name, code)
        if address:
            self._addresses[name] = address
        return bool(address)

    def _add_by_llvm(self, name: str, code: bytes) -> int:
        import llvmlite.binding as llvm

        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        return int(self._engine.get_function_address(_symbol(name)))


def _llvm_version() -> str:
    """The version of LLVM's package, without importing it."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        raise ImportError("No module named 'llvmlite'", name="llvmlite")
    path = Path(found.origin).with_name("_version.py")
    if path.is_file():
        return path.read_text("utf-8")
    import llvmlite

    return str(llvmlite.__version__)


def _llvm_text(name: str) -> str:
    from pumice.backends.host.native import compiled

    return compiled.llvm_text(name, _symbol(name))


def _symbol(name: str) -> str:
    return f"pumice_{name}"


def sources() -> list[Path]:
    """The files whose text decides what the code of the kernels is.

    >>> {"lanes.py", "rowops.py", "block_formats.py"} <= {path.name for path in sources()}
    True
    """
    return [*_GENERATED_FROM, *(p for s in _SOURCES for p in (sorted(s.glob("*.py")) if s.is_dir() else [s]))]


def _digest(*parts: str) -> str:
    """A name for everything that decides what the code is."""
    texts = [path.read_bytes() for path in sources()]
    return hashlib.sha256(b"\0".join([*texts, *(p.encode() for p in parts)])).hexdigest()[:16]
