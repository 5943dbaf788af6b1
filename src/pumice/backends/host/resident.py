"""The memory of params and states on the host, with the packed copies of dense params."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pumice.backends.base import ByteMove, Resident, ResidentSpec
from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.memory.tiles import TILE_ROWS, Tiles
from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Task, interleave
from pumice.backends.host.prepacked import Holder
from pumice.core.streamed import StreamedArray
from pumice.errors import ClosedError, DTypeError, PlanError, ShapeError
from pumice.ir.registry import Array
from pumice.ir.types import TensorType

# Bytes of packed weights that are worth a kernel: their matmuls will need the others anyway.
_LARGE = 1 << 16
# Bytes of packed weights that are put in order together while they are read.
_STREAMED_BYTES = 4 << 20


class HostMemory:
    """Bytes for one param or state, or for a pack of params, and the `holder` of their prepacked copy."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = aligned_bytes(nbytes)
        self.holder = Holder()


class HostResident:
    """Implements `pumice.backends.base.Resident`."""

    def __init__(self, memory: HostMemory, spec: ResidentSpec) -> None:
        self.spec = spec
        self._memory: HostMemory | None = memory

    @property
    def nbytes(self) -> int:
        if self._memory is None:
            return 0
        # A prepacked copy counts for the first of a pack.
        return self.spec.parts[0][2] + (self._memory.holder.nbytes if self.spec.name == self.spec.pack[0] else 0)

    @property
    def places(self) -> tuple[tuple[HostMemory, int], ...]:
        return ((self._open_memory(), self.spec.parts[0][1]),)

    def write(self, array: Array | StreamedArray) -> None:
        """Copy the array to where it stays."""
        write_all([(self, array)])

    def read(self) -> Array:
        """A copy of it."""
        view = stored_view(self._open_memory().bytes, self.spec.parts[0][1], self.spec.type)
        return view.original() if isinstance(view, Tiles) else view.copy()

    def release(self) -> None:
        """Let go of the memory, which goes when no other of its pack and no session has it any more."""
        self._memory = None

    def copy_within(self, moves: Sequence[ByteMove]) -> None:
        """Copy some of its bytes to other places in it."""
        memory = self._open_memory()
        memory.holder.spoil()
        _, offset, nbytes = self.spec.parts[0]
        held = memory.bytes[offset : offset + nbytes]
        for source, target, size in moves:
            held[target : target + size] = held[source : source + size]

    def begin_write(self, array: Array | StreamedArray) -> list[Task]:
        """Copy the array to where it stays, or give the tasks that do so."""
        spec = self.spec
        if array.dtype != spec.type.dtype.np:
            raise DTypeError(
                f"{spec.kind} {spec.name!r} is stored as {spec.type.dtype.np}, the array has {array.dtype}",
                name=spec.name,
                expected=str(spec.type.dtype.np),
                got=str(array.dtype),
            )
        if array.shape != spec.type.stored_shape:
            raise ShapeError(
                f"{spec.kind} {spec.name!r} is stored with shape {spec.type.stored_shape}, the array has {array.shape}",
                name=spec.name,
                expected=spec.type.stored_shape,
                got=array.shape,
            )
        memory = self._open_memory()
        memory.holder.spoil()
        target = stored_view(memory.bytes, spec.parts[0][1], spec.type)
        if isinstance(array, StreamedArray):
            _stream(target, array)
            return []
        return fill(target, array)

    def _open_memory(self) -> HostMemory:
        if self._memory is None:
            raise ClosedError(f"the memory of {self.spec.name!r} was released", hint="set it again, or compile again")
        return self._memory


def allocate(pack: Sequence[ResidentSpec]) -> list[HostResident]:
    """Zeroed memory for a param or a state, or for all params of a pack."""
    if len(pack[0].parts) != 1:
        raise PlanError(f"{pack[0].kind} {pack[0].name!r} has several parts; on the host it has one", name=pack[0].name)
    memory = HostMemory(pack[0].parts[0][0])
    return [HostResident(memory, spec) for spec in pack]


def write_all(values: Iterable[tuple[Resident, Array | StreamedArray]]) -> None:
    """Set params and states, packed ones in a single call that the interpreter takes no part in."""
    left: list[Task] = []
    for resident, array in values:
        left += on_host(resident).begin_write(array)
    _run(left)


def _run(tasks: list[Task]) -> None:
    kernels = jit.kernels() if tasks else None
    if kernels is not None:
        kernels.run(tasks)


def _stream(memory: Array | Tiles, array: StreamedArray) -> None:
    """Copies an array to its place as it is read; packed rows by so many tiles that threads can share them."""
    if not isinstance(memory, Tiles):
        target, at = memory.reshape(-1).view(np.uint8), 0
        for piece in array.pieces():
            target[at : at + piece.size] = piece
            at += piece.size
        return
    size = memory.row_bytes
    rows = max(1, _STREAMED_BYTES // (size * TILE_ROWS)) * TILE_ROWS
    for first in range(0, memory.rows, rows):
        last = min(first + rows, memory.rows)
        tiles = Tiles(memory.dtype, (last - first, memory.columns), memory.data[first * size : last * size])
        _run(fill(tiles, array.read(first * size, last * size).reshape(last - first, size)))


def on_host(resident: Resident) -> HostResident:
    """The resident, which must be one of the host's."""
    if not isinstance(resident, HostResident):
        raise PlanError(f"the memory of {resident.spec.name!r} is not on the host", name=resident.spec.name)
    return resident


def stored_view(buffer: Array, offset: int, type: TensorType) -> Array | Tiles:
    """A value of static type in the bytes of a buffer."""
    memory = buffer[offset : offset + type.dtype.nbytes(numel(type.static_shape))]
    if type.dtype.is_quant:
        return Tiles(type.dtype, type.static_shape, memory)
    found: Array = memory.view(type.dtype.np).reshape(type.static_shape)
    return found


def fill(memory: Array | Tiles, array: Array) -> list[Task]:
    """Copies an array to its place, or gives the tasks that do so."""
    if not isinstance(memory, Tiles):
        np.copyto(memory, array)
    elif array.nbytes >= _LARGE and array.flags.c_contiguous and jit.kernels() is not None:
        return interleave(memory, array)
    else:
        memory.fill(array)
    return []
