"""Wasmtime through its C functions: engines for kernels, with all that they do not need switched off.

Python's wrappers of Wasmtime take 18 µs a call. Calls here use the same library with prepared addresses; only compiling and
reading errors go through the wrappers.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from functools import cache
from typing import Any, NoReturn

from pumice.packs.errors import (
    EpochDeadline,
    IndirectCallTypeMismatch,
    IntegerOverflow,
    InvalidModule,
    KernelTrap,
    MemoryAccessViolation,
    PackKernelError,
    StackOverflow,
    Unreachable,
)
from pumice.packs.extra import missing_extra
from pumice.packs.wasm.ticker import Clock, Ticker

# Proposals that are on; every other one that Wasmtime has a switch for is off, those of later versions too.
PROPOSALS = ("simd", "bulk_memory", "multi_value")
_ON = ("epoch_interruption", "memory_init_cow")
_OFF = (
    "shared_memory",
    "gc_support",
    "concurrency_support",
    "debug_info",
    "consume_fuel",
    "memory_may_move",
    "parallel_compilation",
)
_SWITCH = re.compile(r"wasmtime_config_(wasm_\w+)_set")

_TRAPS: dict[str, type[PackKernelError]] = {
    "STACK_OVERFLOW": StackOverflow,
    "MEMORY_OUT_OF_BOUNDS": MemoryAccessViolation,
    "INDIRECT_CALL_TO_NULL": IndirectCallTypeMismatch,
    "BAD_SIGNATURE": IndirectCallTypeMismatch,
    "INTEGER_OVERFLOW": IntegerOverflow,
    "INTEGER_DIVISION_BY_ZERO": IntegerOverflow,
    "UNREACHABLE": Unreachable,
    "INTERRUPT": EpochDeadline,
}
_MAX_MESSAGE = 400
_NUMBERED = re.compile(r"^\d+: |^wasm trap: ")
_FAULT = re.compile(r"wasm address (0x[0-9a-f]+)")


class Library:
    """Wasmtime's C functions with their types. Those that return at once keep the GIL; a kernel's call releases it."""

    def __init__(self) -> None:
        try:
            import wasmtime
            from wasmtime import _bindings, _ffi
        except ImportError:
            raise missing_extra("wasmtime") from None
        from importlib.metadata import version

        self.version = version("wasmtime")
        self.wasmtime: Any = wasmtime
        self.bindings: Any = _bindings
        proposals = {found[1]: found[1][5:] in PROPOSALS for name in dir(_bindings) if (found := _SWITCH.fullmatch(name))}
        wanted = proposals | dict.fromkeys(_ON, True) | dict.fromkeys(_OFF, False)
        # Older versions do not have them all.
        self.switches = {name: on for name, on in wanted.items() if hasattr(_bindings, f"wasmtime_config_{name}_set")}
        path = str(_ffi.filename)
        short, long = ctypes.PyDLL(path), ctypes.CDLL(path)
        # Without `argtypes`: arguments are prepared objects of ctypes, which are passed on faster than numbers.
        self.set_deadline = _returning(short["wasmtime_context_set_epoch_deadline"], None)
        self.call = _returning(long["wasmtime_func_call_unchecked"], ctypes.c_void_p)
        self.increment = _returning(short["wasmtime_engine_increment_epoch"], None)
        self.memory_data = _returning(short["wasmtime_memory_data"], ctypes.c_void_p)
        # Comparing a few pages takes less time than giving the GIL back.
        libc = ctypes.PyDLL("msvcrt" if os.name == "nt" else None)
        self.compare = _returning(libc["memcmp"], ctypes.c_int)


def _returning(function: Any, result: Any) -> Any:
    function.restype = result
    return function


@cache
def library() -> Library:
    """The library, loaded on first need; MissingExtra if wasmtime is not installed."""
    return Library()


ticker = Ticker()


class WasmEngine:
    """Compiles and runs kernels that may use so much stack, with ticks of one length."""

    def __init__(self, max_stack: int, tick_seconds: float, clockwork: Ticker = ticker) -> None:
        self.library = lib = library()
        config = lib.wasmtime.Config()
        for name, on in lib.switches.items():
            getattr(lib.bindings, f"wasmtime_config_{name}_set")(config.ptr(), on)
        lib.bindings.wasmtime_config_max_wasm_stack_set(config.ptr(), max_stack)
        self.engine = lib.wasmtime.Engine(config)
        address = ctypes.cast(self.engine.ptr(), ctypes.c_void_p)
        increment, owner = lib.increment, self.engine
        self.ticker = clockwork
        # The clock holds the engine, not this object: an engine in use is never freed while it is ticked.
        self.clock = Clock(tick_seconds, lambda: increment(address) if owner else None)

    def validate(self, module: bytes) -> None:
        """Refuses a module that is not valid WASM of the proposals that are on."""
        try:
            self.library.wasmtime.Module.validate(self.engine, module)
        except self.library.wasmtime.WasmtimeError as e:
            raise InvalidModule(f"the module is not valid here: {_message(e)}", hint="docs/packs.md lists what is on") from None

    def compile(self, module: bytes) -> Any:
        """A wasmtime.Module of valid bytes."""
        try:
            return self.library.wasmtime.Module(self.engine, module)
        except self.library.wasmtime.WasmtimeError as e:
            raise InvalidModule(f"the module cannot be compiled: {_message(e)}") from None

    def load(self, compiled: bytes) -> Any:
        """A module from what `serialize` gave; None if it is of another version or processor. The bytes must be trusted."""
        try:
            return self.library.wasmtime.Module.deserialize(self.engine, compiled)
        except self.library.wasmtime.WasmtimeError:
            return None

    def raise_trap(self, error: int | None, trap: int, what: str) -> NoReturn:
        """The typed error of a call that gave back an error or a trap; both are freed."""
        lib = self.library
        if error:
            pointer = ctypes.cast(error, ctypes.POINTER(lib.bindings.wasmtime_error_t))
            raise KernelTrap(f"{what} could not be called: {_message(lib.wasmtime.WasmtimeError._from_ptr(pointer))}", trap="")
        found = lib.wasmtime.Trap._from_ptr(ctypes.cast(trap, ctypes.POINTER(lib.bindings.wasm_trap_t)))
        raise trap_error(found, what) from None


def trap_error(trap: Any, what: str) -> PackKernelError:
    """The typed error of a wasmtime.Trap."""
    try:
        code = trap.trap_code
    except ValueError:  # a trap that this version of the wrapper does not know
        code = None
    name = "" if code is None else code.name
    message = _message(trap)
    kind = _TRAPS.get(name, KernelTrap)
    hint = "raise max_epoch_ticks, or give it less to do" if kind is EpochDeadline else ""
    fields: dict[str, Any] = {"trap": name.lower().replace("_", "-")}
    if fault := _FAULT.search(message):
        fields["offset"] = int(fault[1], 16)
    found = kind(f"{what} trapped: {message}", hint=hint, **fields)
    trap.close()
    return found


def _message(error: Any) -> str:
    """The causes in one line, without the backtrace: its addresses are those of the rewritten module."""
    head, _, causes = str(error).partition("Caused by:")
    lines = [_NUMBERED.sub("", line.strip()) for line in (causes or head).splitlines()]
    return ": ".join(line for line in lines if line)[:_MAX_MESSAGE] or "no reason given"


_engines: weakref.WeakValueDictionary[tuple[int, float], WasmEngine] = weakref.WeakValueDictionary()
_making = threading.Lock()


def engine_for(max_stack: int, tick_seconds: float) -> WasmEngine:
    """The engine of these settings: kernels share it while one of them is alive."""
    with _making:
        found = _engines.get((max_stack, tick_seconds))
        if found is None:
            found = _engines[max_stack, tick_seconds] = WasmEngine(max_stack, tick_seconds)
        return found
