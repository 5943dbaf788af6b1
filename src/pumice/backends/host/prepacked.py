"""Dense params as matmuls read them: packed into tiles once, and again only after they were written."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pumice.backends.host.native import dense, jit
from pumice.backends.host.native.dense import Packing
from pumice.backends.host.native.kernel_tasks import Task
from pumice.ir.registry import Array

# Bytes of packed copies that a session makes: those of small models, whose matmuls have few rows to make up for packing.
MOST_BYTES = 1 << 28


class _Writes:
    """Counts how often a param was written; apart from the holder, so that the two do not keep each other alive."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Form:
    """A packed copy: its memory, the task that fills it, and which version of the param it holds."""

    __slots__ = ("_task", "_version", "_writes", "memory")

    def __init__(self, memory: Array, task: Task, writes: _Writes) -> None:
        self.memory = memory
        self._task, self._writes, self._version = task, writes, -1

    def refresh(self) -> None:
        """Packs the param again if it was written since."""
        version = self._writes.count  # before packing: what is written meanwhile is packed the next time
        kernels = jit.kernels() if version != self._version else None
        if kernels is not None:
            kernels.run([self._task])
            self._version = version


class Holder:
    """The packed copy of one param, which sessions that share the param share.

    There is one at most: a param that is read in two layouts is packed in every run for the second one.
    """

    def __init__(self) -> None:
        self._writes = _Writes()
        self._form: Form | None = None
        self._layout: tuple[object, ...] = ()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return 0 if self._form is None else self._form.memory.nbytes

    def spoil(self) -> None:
        """To be called after the param was written."""
        self._writes.count += 1

    def form(self, operand: Array, room: int, packing: Packing | None = None) -> Form | None:
        """The copy of an operand that is part of the param; None if it would take more bytes than `room`."""
        layout = (operand.ctypes.data, operand.shape, operand.strides, packing and packing.layout)
        with self._lock:
            size = dense.packed_bytes(operand) if packing is None else packing.nbytes
            if self._form is None and size <= room:
                memory, task = dense.packing(operand) if packing is None else packing.make()
                self._form, self._layout = Form(memory, task, self._writes), layout
            return self._form if layout == self._layout else None


def held(holders: Iterable[Holder]) -> int:
    """Bytes of all copies.

    >>> held([Holder(), Holder()])
    0
    """
    return sum(h.nbytes for h in holders)
