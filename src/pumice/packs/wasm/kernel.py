"""A kernel in WASM that can be called with arrays: compiled once, run in pooled instances that keep nothing."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.packs.errors import PackKernelError
from pumice.packs.wasm.budget import SERVER, Budget
from pumice.packs.wasm.cache import compiled
from pumice.packs.wasm.call import BoundInstance, PreparedCall
from pumice.packs.wasm.engine import WasmEngine, engine_for
from pumice.packs.wasm.instance import Instance, OwnData
from pumice.packs.wasm.module import check_module
from pumice.packs.wasm.signature import ArrayType, Kinds, Params, array_type, match_types, pack_params, scratch_bytes

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry

# Prepared calls that are kept: a model calls a kernel with a handful of shapes, and prompts come in many lengths.
_MAX_PREPARED = 256


class WasmKernel:
    """One kernel of a pack. Making it checks and compiles the module; calls may come from several threads.

    `kernel(inputs, params, outputs)` fills the outputs; on any error, which is typed, they are untouched. `prepare` works out
    once what does not change between calls with arrays of the same types.
    """

    def __init__(self, entry: KernelEntry, module: bytes, *, budget: Budget = SERVER, engine: WasmEngine | None = None) -> None:
        self.entry, self.id, self.entry_point = entry, entry.id, entry.entry_point
        self.limits = budget.clamp(entry.resource_limits)
        self.module = check_module(module, entry.entry_point, self.limits, budget)
        self.engine = engine or engine_for(self.limits.stack, budget.tick_seconds)
        self.engine.validate(module)
        self._compiled = compiled(self.engine, self.module)
        self._calls: OrderedDict[Any, PreparedCall] = OrderedDict()
        self._instances = 0
        self._is_closed = False
        self._own_data: OwnData | None = None
        self.forget_threads()
        _all.add(self)

    def forget_threads(self) -> None:
        """After a fork: other threads are the parent's, and so are the locks that they held and the instances in their calls."""
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._waiting = 0
        self._instances = sum(len(call.idle) for call in self._calls.values())

    def __call__(self, inputs: Sequence[np.ndarray[Any, Any]], params: Params, outputs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Runs the kernel once."""
        self.prepare(inputs, params, outputs)(inputs, outputs)

    def prepare(self, inputs: Kinds, params: Params, outputs: Kinds) -> PreparedCall:
        """A call for arrays of these types (arrays do too) with these params, which are checked here.

        The same types and params give the same object while it is among the last that were used.
        """
        kinds = [array_type(x) for x in inputs], [array_type(x) for x in outputs]
        # By what is written: 0.0 equals -0.0, and 1 equals True, and neither is the other's param.
        key = (tuple(kinds[0]), tuple(kinds[1]), tuple(sorted((name, repr(value)) for name, value in params.items())))
        with self._lock:
            if (found := self._calls.get(key)) is not None:
                self._calls.move_to_end(key)
                return found
        made = self._prepare(*kinds, params)
        with self._lock:
            made = self._calls.setdefault(key, made)
            old = [self._calls.popitem(last=False)[1] for _ in range(len(self._calls) - _MAX_PREPARED)]
        for call in old:
            self._retire(call)
        return made

    def check_types(self, inputs: Kinds, outputs: Kinds) -> None:
        """ShapeMismatch or DTypeMismatch if these arrays do not fit the kernel's patterns."""
        match_types(self.entry, [array_type(x) for x in inputs], [array_type(x) for x in outputs])

    def close(self) -> None:
        """Frees all instances that are not in a call; those that are go when it ends."""
        with self._lock:
            self._is_closed = True
            calls = list(self._calls.values())
            self._calls.clear()
            self._freed.notify_all()
        for call in calls:
            self._retire(call)

    def take(self, call: PreparedCall) -> BoundInstance:
        """An instance for a call: an idle one, a new one, one in place of another call's, or the next that is free."""
        with self._lock:
            # Counted before looking: a thread that gives one back sees this, or is seen.
            self._waiting += 1
            try:
                while True:
                    if self._is_closed:
                        raise PackKernelError(f"the kernel {self.id} is closed", kernel=self.id)
                    if (found := _pop(call)) is not None:
                        return found
                    if self._instances < self.limits.instances:
                        self._instances += 1
                        break
                    if (other := next(filter(None, map(_pop, self._calls.values())), None)) is not None:
                        # Not laid out anew: its memory may be larger than a kernel of this call should see.
                        other.close()
                        break
                    self._freed.wait()
            finally:
                self._waiting -= 1
        try:
            return BoundInstance(call, Instance(self.engine, self._compiled, self.limits))
        except BaseException:
            self._count_down()
            raise

    def has_idle(self, call: PreparedCall) -> None:
        """A call put an instance back."""
        if not call.keeps:
            self._retire(call)  # it was retired at the same moment
        if self._waiting:
            with self._lock:
                self._freed.notify()

    def drop(self, bound: BoundInstance) -> None:
        """Frees an instance that must not be used again."""
        bound.close()
        self._count_down()

    def own_data(self, fresh: Instance) -> OwnData:
        """What the module's own memory holds in every fresh instance, for those that are used again."""
        with self._lock:
            if self._own_data is None:
                self._own_data = fresh.own_data() if self.module.reusable else OwnData(0, b"")
            return self._own_data

    def _prepare(self, inputs: list[ArrayType], outputs: list[ArrayType], params: Params) -> PreparedCall:
        dims = match_types(self.entry, inputs, outputs)
        packed = pack_params(self.entry, params, dims)
        return PreparedCall(self, inputs, outputs, packed, scratch_bytes(self.entry, dims))

    def _retire(self, call: PreparedCall) -> None:
        """Frees a call's idle instances; it may go on being used, and then makes new ones."""
        call.keeps = False
        while (bound := _pop(call)) is not None:
            self.drop(bound)

    def _count_down(self) -> None:
        with self._lock:
            self._instances -= 1
            self._freed.notify()


def _pop(call: PreparedCall) -> BoundInstance | None:
    try:
        return call.idle.pop()
    except IndexError:
        return None


_all: weakref.WeakSet[WasmKernel] = weakref.WeakSet()


def _after_fork() -> None:
    for kernel in list(_all):
        kernel.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
