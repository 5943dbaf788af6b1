"""The memory of params and states on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial

from pumice.backends.base import Array, ByteMove, Resident, ResidentSpec
from pumice.backends.gpu.checks import check_array
from pumice.backends.gpu.interface import AnyCommands, Gpu
from pumice.backends.gpu.memory import BufferRange, DeviceBuffer, sub_ranges
from pumice.backends.gpu.results import nbytes_of, shaped
from pumice.core.streamed import StreamedArray
from pumice.errors import ClosedError, DeviceError, LimitError


class _Allocation:
    """One buffer for each row shard, freed with the last resident in it."""

    def __init__(self, gpu: Gpu, sizes: Sequence[int], label: str, residents: int) -> None:
        self.gpu, self._residents = gpu, residents
        # One list object for life: the finaliser holds it too.
        self.buffers: list[DeviceBuffer] = []
        weakref.finalize(self, gpu.release_later, self.buffers).atexit = False
        with gpu.lock:
            gpu.settle()
            try:
                for nbytes in sizes:
                    self.buffers.append(gpu.create_buffer(nbytes, label))
            except BaseException:
                self._free()
                raise

    def leave(self) -> None:
        with self.gpu.lock:
            self._residents -= 1
            if not self._residents:
                self._free()

    def _free(self) -> None:
        # A submit that names a destroyed buffer would end the process.
        self.gpu.wait_recorded()
        while self.buffers:
            self.buffers.pop().release()


class GpuResident:
    """Implements `pumice.backends.base.Resident`."""

    def __init__(self, memory: _Allocation, spec: ResidentSpec) -> None:
        self.spec, self.gpu = spec, memory.gpu
        self._memory: _Allocation | None = memory
        self._ranges = tuple(BufferRange(b, at, n) for b, (_, at, n) in zip(memory.buffers, spec.parts, strict=True))

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else sum(r.nbytes for r in self._ranges)

    @property
    def places(self) -> tuple[tuple[DeviceBuffer, int], ...]:
        return tuple((r.buffer, r.offset) for r in self._ranges)

    def write(self, array: Array | StreamedArray) -> None:
        """Set it, streaming from the array without a second full copy."""
        check_array(self.spec.name, self.spec.type, array)
        with self.gpu.lock:
            self._check_open()
            with self.gpu.guard(f"the upload of {self.spec.name!r}"):
                self.gpu.upload(self._ranges, array)

    def read(self) -> Array:
        """Its value on the host."""
        with self.gpu.lock:
            self._check_open()
            with self.gpu.guard(f"the read of {self.spec.name!r}"):
                return shaped(self.gpu.fetch(self._ranges, nbytes_of(self.spec.type)), self.spec.type)

    def release(self) -> None:
        """Free it, with the last of its pack; a second call does nothing."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.leave()

    def _check_open(self) -> None:
        if self._memory is None:
            raise ClosedError(f"the memory of {self.spec.name!r} was released", hint="set it again, or compile again")


def copy_within(gpu: Gpu, residents: Sequence[Resident], moves: Sequence[ByteMove]) -> None:
    """Copy bytes inside each of some residents, all by the same moves."""
    if any(number % 4 for move in moves for number in move):
        raise LimitError("GPUs copy whole words, and a move has other bytes", hint="use rows of a multiple of four bytes")
    ranges = []
    for resident in residents:
        if not isinstance(resident, GpuResident) or resident.gpu is not gpu:
            raise DeviceError(f"the memory of {resident.spec.name!r} is not on {gpu.adapter.name}")
        resident._check_open()
        ranges.append(resident._ranges)
    total = sum(nbytes for _, _, nbytes in moves)
    if not total or not ranges:
        return
    with gpu.lock, gpu.guard("a copy within states"):
        # A copy from a buffer to itself is not allowed.
        buffer = gpu.create_buffer(total * len(ranges), "copies")
        try:
            gpu.execute((), [partial(_record_moves, ranges=ranges, moves=moves, buffer=buffer)])
        finally:
            buffer.release()


def _record_moves(
    commands: AnyCommands, ranges: Sequence[Sequence[BufferRange]], moves: Sequence[ByteMove], buffer: DeviceBuffer
) -> None:
    """All bytes leave before any arrives, so that each buffer changes its use once."""
    for out in (True, False):
        at = 0
        for places in ranges:
            for source, target, nbytes in moves:
                for piece, before in sub_ranges(places, source if out else target, nbytes):
                    ends = (piece.buffer.handle, piece.offset), (buffer.handle, at + before)
                    (first, first_at), (second, second_at) = ends if out else ends[::-1]
                    commands.copy(first, first_at, second, second_at, piece.nbytes)
                at += nbytes


def allocate(gpu: Gpu, pack: Sequence[ResidentSpec]) -> list[GpuResident]:
    """Zeroed memory for a param or a state, or for all params of a pack."""
    sizes = [nbytes for nbytes, _, _ in pack[0].parts]
    memory = _Allocation(gpu, sizes, f"{pack[0].kind} {' + '.join(s.name for s in pack)}", len(pack))
    return [GpuResident(memory, spec) for spec in pack]
