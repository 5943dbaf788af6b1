"""One instance of a kernel's module in a store of its own, with limited memory and tables."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pumice.packs.errors import ResourceLimit
from pumice.packs.wasm.budget import PAGE_BYTES, KernelLimits
from pumice.packs.wasm.engine import WasmEngine, trap_error
from pumice.packs.wasm.module import CALL


class OwnData:
    """The bytes of a fresh instance's memory that are not zero, from the first to the last."""

    def __init__(self, offset: int, content: bytes) -> None:
        self.offset, self.size = offset, len(content)
        self.content = np.frombuffer(content, np.uint8)


class Instance:
    """A module's memory, globals and tables. `close` frees them; one whose call trapped is never used again.

    `address` is where its memory starts in this process, `pages` how large it is.
    """

    def __init__(self, engine: WasmEngine, module: Any, limits: KernelLimits) -> None:
        self.engine = engine
        lib = engine.library
        c = lib.bindings
        self._store = lib.wasmtime.Store(engine.engine)
        c.wasmtime_store_limiter(self._store.ptr(), limits.pages * PAGE_BYTES, limits.table_elements, 1, 1, 1)
        self._store.set_epoch_deadline(limits.ticks)
        try:
            # Initialisers of memory and tables run here, and there is no start function.
            exports = lib.wasmtime.Instance(self._store, module, []).exports(self._store)
        except lib.wasmtime.Trap as trap:
            raise trap_error(trap, "the module's initialisers") from None
        except lib.wasmtime.WasmtimeError as e:
            raise ResourceLimit(f"the module cannot be instantiated within its limits: {str(e)[:200]}") from None
        memory, call = exports["memory"]._memory, exports[CALL]._func
        self._memory, self._call = (type(x).from_buffer_copy(x) for x in (memory, call))
        context = ctypes.cast(self._store._context(), ctypes.c_void_p)
        # Argument and result of a call share a slot of 16 bytes; the trap is put into the last word.
        self._slots = (ctypes.c_uint64 * 4)()
        self.slot = ctypes.c_uint64.from_buffer(self._slots)
        self._trap = ctypes.c_void_p.from_buffer(self._slots, 16)
        slot, trap_slot = (ctypes.c_void_p(ctypes.addressof(self._slots) + at) for at in (0, 16))
        # The arguments of the C functions that make a call and set its deadline. The tick that is in progress when a call
        # starts does not count: it may be over at once.
        self.call_args = (context, ctypes.byref(self._call), slot, ctypes.c_size_t(1), trap_slot)
        self.deadline_args = (context, ctypes.c_uint64(limits.ticks + 1))
        self.pages = self._size()
        self.address = self._base()

    def grow(self, pages: int) -> None:
        """Gives the memory so many pages."""
        previous = ctypes.c_uint64()
        c = self.engine.library.bindings
        error = c.wasmtime_memory_grow(
            self._store._context(), ctypes.byref(self._memory), pages - self.pages, ctypes.byref(previous)
        )
        if error:
            message = str(self.engine.library.wasmtime.WasmtimeError._from_ptr(error))
            raise ResourceLimit(f"the kernel's memory cannot have {pages} pages: {message[:200]}", pages=pages)
        self.pages = pages
        self.address = self._base()

    def own_data(self) -> OwnData:
        """What a fresh instance's memory holds."""
        content = ctypes.string_at(self.address, self.pages * PAGE_BYTES)
        without = content.lstrip(b"\0")
        return OwnData(len(content) - len(without), without.rstrip(b"\0"))

    def memory(self, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Some bytes of the memory, which must not be used after `close`."""
        # Not by `np.ctypeslib`: it is imported on first use, and a fork during an import leaves the child a lock that is held.
        region: Any = (ctypes.c_uint8 * size).from_address(self.address + offset)  # NumPy's types know no ctypes arrays
        found: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(region, np.uint8)
        return found

    def take_trap(self) -> int:
        """The address of the last call's trap, which the caller must free; 0 if there was none."""
        found, self._trap.value = self._trap.value or 0, None
        return found

    def close(self) -> None:
        """Frees the memory."""
        self._store.close()

    def _size(self) -> int:
        found: int = self.engine.library.bindings.wasmtime_memory_size(self._store._context(), ctypes.byref(self._memory))
        return found

    def _base(self) -> int:
        return self.engine.library.memory_data(self.call_args[0], ctypes.byref(self._memory)) or 0
