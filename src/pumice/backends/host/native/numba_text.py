"""Functions as LLVM text by way of numba, which makes no machine code of them: that is done once, from the text.

Left to itself numba would compile every helper of a kernel for the processor that it finds, and the kernel as well. Here it only
optimises, for the level of this process, which may be that of another machine.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba import types
from numba.core import codegen, compiler, compiler_machinery, cpu, registry
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing import npydecl
from numba.core.typing.context import Context

from pumice.backends.host.native import levels

_SIGNATURE = types.void(types.intp, types.intp, types.intp)
# Passes of numba for what kernels do not have: closures, loops over tuples of several types, functions to put in place of calls
# before types are known, expressions of arrays, objects of Python. After most of them numba analyses the function anew.
_NEEDLESS = {
    "WithLifting", "InlineClosureLikes", "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll",
    "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites", "RewriteDynamicRaises", "DumpParforDiagnostics",
}  # fmt: skip
_target: Any = registry.cpu_target


class _TextLibrary(codegen.JITCodeLibrary):
    """Code that stays text, which is optimised when all that it calls is in it: once, and not each helper before."""

    def add_linking_library(self, library: Any) -> None:
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        self._linking_libraries = [lib for lib in self._called() if lib is not self]
        super().finalize()  # type: ignore[no-untyped-call]

    def _called(self) -> list[Any]:
        """This library, and what is linked to it by way of others."""
        found: dict[Any, None] = {}
        left: list[Any] = [self]
        while left:
            library = left.pop()
            if library not in found:
                found[library] = None
                left += library._linking_libraries
        return list(found)

    def _ensure_finalized(self) -> None:
        pass

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_specific(self) -> None:
        pass

    def get_pointer_to_function(self, name: str) -> int:
        return 0


class _TextCodegen(codegen.JITCPUCodegen):
    """Optimises for the level of this process."""

    _library_class = _TextLibrary

    def _get_host_cpu_name(self) -> str:
        return self._level().cpu

    def _get_host_cpu_features(self) -> str:
        return self._level().flags

    def _level(self) -> levels.Level:
        """That of other machines counts as plain here: numba's LLVM knows this machine's instructions only."""
        found, plain = levels.current(), levels.by_name("plain")
        return found if found.machine == plain.machine else plain

    def _add_module(self, module: Any) -> None:
        pass


class _TextContext(cpu.CPUContext):
    def init(self) -> None:
        super().init()
        self._internal_codegen = _TextCodegen("pumice")  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        # numba does this for each use of an intrinsic. The registries are the same each time: to import all that fill them,
        # and to ask the typing context's as well, which the compiler does once a function, takes longer than the rest.
        if not self._registries:
            super().refresh()  # type: ignore[no-untyped-call]
            return
        for known in tuple(self._registries):
            self.install_registry(known)  # type: ignore[no-untyped-call]

    def create_cpython_wrapper(self, *args: Any, **kwargs: Any) -> None:
        """Nothing calls it from Python."""

    def create_cfunc_wrapper(self, library: Any, fndesc: Any, env: Any, call_helper: Any) -> None:
        # C calls kernels, and never what they call.
        if (fndesc.restype, fndesc.argtypes) == (_SIGNATURE.return_type, _SIGNATURE.args):
            super().create_cfunc_wrapper(library, fndesc, env, call_helper)  # type: ignore[no-untyped-call]

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        # numba tells functions apart by this, and takes nothing but functions of C. Called, this one always raises an error.
        return {}.__getitem__


class _Types(Context):
    """Types of what kernels compute with: without the functions of NumPy, which numba asks for the type of each operator."""

    def install_registry(self, registry: Any) -> None:
        if registry is not npydecl.registry:
            super().install_registry(registry)  # type: ignore[no-untyped-call]


class _Pipeline(compiler.CompilerBase):
    """numba's passes, without those that do nothing for kernels."""

    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state).passes  # type: ignore[no-untyped-call]
        kept = compiler_machinery.PassManager("kernels")  # type: ignore[no-untyped-call]
        kept.passes = [(each, about) for each, about in passes if each.__name__ not in _NEEDLESS]
        kept.finalize()  # type: ignore[no-untyped-call]
        return [kept]


# What the helpers of kernels are declared with: each becomes part of the kernel that calls it.
inlined = numba.njit(forceinline=True, error_model="numpy", pipeline_class=_Pipeline)


@functools.cache
def _contexts() -> dict[str, Any]:
    """What numba compiles functions and all that they call in, by the names under which its target has them."""
    typing = _Types()  # type: ignore[no-untyped-call]
    text = _TextContext(typing, _target._target_name)  # type: ignore[no-untyped-call]
    return {"_toplevel_typing_context": typing, "_toplevel_target_context": text}


@contextlib.contextmanager
def _no_machine_code() -> Iterator[None]:
    """Has numba make text only; functions of other code are compiled as ever before and after."""
    kept = _target.__dict__
    with global_compiler_lock:
        others = {name: kept[name] for name in _contexts() if name in kept}
        kept.update(_contexts())
        try:
            yield
        finally:
            for name in _contexts():
                del kept[name]
            kept.update(others)


def text_of(function: Callable[[int, int, int], None], symbol: str) -> str:
    """The optimised module of a function that calls nothing of numba's, exported as `symbol`.

    >>> def nothing(job, first, last):
    ...     pass
    >>> "@example" in text_of(nothing, "example")
    True
    """
    # Nothing in a kernel raises, and with all of it in one function LLVM sees that: what would handle errors goes away,
    # and with it all that the code would need of numba.
    compile_ = numba.cfunc(
        _SIGNATURE, error_model="numpy", forceinline=True, fastmath={"reassoc", "contract"}, pipeline_class=_Pipeline
    )
    with _no_machine_code():
        made: Any = compile_(function)
        made._library.finalize()
    text: str = made.inspect_llvm()
    return text.replace(made.native_name, symbol)
