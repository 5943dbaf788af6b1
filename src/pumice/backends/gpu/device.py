"""What devices of all GPU APIs have in common: errors, losses, memory that is let go, and the device that users hold."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from pumice import config
from pumice.backends.base import Array, ByteMove, Device, Resident, ResidentSpec
from pumice.backends.gpu.adapter import Adapter, narrow
from pumice.backends.gpu.faults import Faults
from pumice.backends.gpu.interface import Read, Record
from pumice.backends.gpu.memory import GRAIN, BufferRange, DeviceBuffer, Ledger, rounded, spans
from pumice.core.caps import Caps
from pumice.core.streamed import StreamedArray
from pumice.errors import DeviceLost, DeviceTimeout, LimitError, OutOfMemory
from pumice.plan.plan import Plan

# What is fetched travels in chunks that fit any device's buffer limit.
FETCH_CHUNK = 64 << 20


def no_mark(name: str) -> None:
    """Used while no profiler listens."""


class GpuBase(ABC):
    """A device and everything that sessions on it share; `pumice.backends.gpu.interface.Gpu` without what the API does."""

    caps: Caps
    # The devices of the process by the adapter's index; a lost one leaves.
    registry: ClassVar[dict[int, Any]]
    registry_lock: ClassVar[threading.RLock]

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.lock = threading.RLock()
        self.lost = False
        self.ledger = Ledger()
        self._to_release: deque[tuple[list[DeviceBuffer], int]] = deque()
        self.faults: Faults | None = None
        self.submits = 0
        # For the profiler: called at the end of each phase of a run, and the overhead of measuring on this device.
        self.mark: Callable[[str], None] = no_mark
        self.overheads: dict[str, float] = {}
        # Seconds that runs of sessions with kernels of packs may take, by session: those of strangers get less than our own.
        self.pack_limits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        """The process-wide device of an adapter; wgpu has leaked devices, so there is never a second one while it lives."""
        with cls.registry_lock:
            gpu: Self | None = cls.registry.get(adapter.index)
            if gpu is None:
                gpu = cls.registry[adapter.index] = cls(adapter)
            return gpu

    # -- errors -----------------------------------------------------------------------------------------------------
    def out_of_memory(self, what: str) -> OutOfMemory:
        """The error of an allocation that failed."""
        return OutOfMemory(
            f"{self.adapter.name} has no memory left for {what}",
            hint="close executables, use a smaller maximum for symbolic dims, or quantised weights",
            alive=self.ledger.snapshot(),
        )

    def mark_lost(self, what: str) -> DeviceLost:
        """Retire this device; the next `open_device` makes a new one.

        It is not destroyed: other threads may be about to look at results that have arrived, which would abort the process.
        """
        self.retire_device()
        return self.lost_error(what)

    def retire_device(self) -> None:
        """No new session gets this device."""
        self.lost = True
        with self.registry_lock:
            if self.registry.get(self.adapter.index) is self:
                del self.registry[self.adapter.index]

    def lost_error(self, what: str) -> DeviceLost:
        """The error for any use of a lost device."""
        return DeviceLost(
            f"{self.adapter.name} stopped answering ({what})",
            hint="reopen() the executable or model: a new device, the same params; state that was not saved is gone",
            cli_hint="run the command again, a training run with --resume",
        )

    def timeout_error(self, seconds: int) -> DeviceTimeout:
        """The error of a device that was waited for too long."""
        return DeviceTimeout(
            f"{self.adapter.name} did not answer within {seconds} s"
            + (", while kernels of packs ran" if self.pack_limits else ""),
            hint="reopen() the executable; if the work really takes that long, set PUMICE_TIMEOUT"
            + (", and try it without packs" if self.pack_limits else ""),
            cli_hint="run the command again; if the work really takes that long, set PUMICE_TIMEOUT",
            seconds=seconds,
        )

    @property
    def wait_limit(self) -> int:
        """Seconds to wait for results before the device counts as hung."""
        return min([config.timeout, *self.pack_limits.values()])

    def fault(self, point: str) -> bool:
        """Where an injected fault may strike; True if the caller is to see to it."""
        return self.faults is not None and self.faults.at(point)

    # -- memory -----------------------------------------------------------------------------------------------------
    def buffer_size(self, nbytes: int, label: str) -> int:
        """The bytes that a buffer of at least `nbytes` takes, within the device's limit."""
        size = max(GRAIN, rounded(nbytes))
        limit = self.adapter.limits["max-buffer-size"]
        if size > limit:
            raise LimitError(
                f"the buffer {label!r} takes {size} bytes, {self.adapter.name} allows {limit}",
                hint="use smaller maxima for symbolic dims",
                name=label,
                wanted=size,
                limit=limit,
            )
        return size

    def release_later(self, buffers: list[DeviceBuffer], sessions: int = 0) -> None:
        """Take the buffers of a session or a resident that was dropped; safe from a finaliser, which may run anywhere."""
        self._to_release.append((buffers, sessions))

    @abstractmethod
    def wait_recorded(self) -> None:
        """Wait until all that was recorded is submitted."""

    def settle(self) -> None:
        """Release what `release_later` took."""
        if self._to_release:
            self.wait_recorded()
        while self._to_release:
            buffers, sessions = self._to_release.popleft()
            self.ledger.sessions -= sessions
            while buffers:
                buffers.pop().release()

    # -- runs -------------------------------------------------------------------------------------------------------
    @abstractmethod
    def execute(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> list[Array]:
        """`before`, copies of `reads` to the host, then `after`; with something to read it waits for the end."""

    @property
    def watched(self) -> bool:
        """Whether a profiler times the phases of runs."""
        return self.mark is not no_mark

    def fetch(self, places: Sequence[BufferRange], nbytes: int) -> Array:
        """The first bytes of a value, in chunks that bound the staging memory."""
        out = np.empty(nbytes, np.uint8)
        for at, piece in self.pieces(places, nbytes):
            out[at : at + piece.nbytes] = self.execute([([piece], piece.nbytes)])[0]
        return out

    @staticmethod
    def pieces(places: Sequence[BufferRange], nbytes: int) -> Iterator[tuple[int, BufferRange]]:
        """The first bytes of a value as (byte of the value, where it is), none longer than the staging memory for it."""
        for place, start, size in spans(places, nbytes):
            for at in range(0, size, FETCH_CHUNK):
                yield start + at, BufferRange(place.buffer, place.offset + at, min(FETCH_CHUNK, size - at))


class GpuDevice(ABC):
    """A GPU as users hold it, perhaps one that promises less than it has (`caps`), as plans for smaller targets need."""

    volatile = True
    # How a device of the API is asked for.
    backend = ""

    def __init__(self, which: str = "", caps: Caps | None = None) -> None:
        self.gpu = gpu = self.find(which)
        self.caps = gpu.caps if caps is None else narrow(gpu.caps, caps)
        self.name = gpu.adapter.name

    @staticmethod
    @abstractmethod
    def find(which: str) -> Any:
        """The process-wide device of the adapter that a text picks."""

    def describe(self) -> dict[str, Any]:
        """Name, API, driver, features and limits, as data; the features that it has, and those it asked for."""
        about = self.gpu.adapter.describe()
        features = [f for f in about["features"] if f in self.gpu.features]
        known = {"features": features, "requested_features": about["features"], "subgroup_size": self.caps.subgroup_size}
        return {"backend": self.backend, **about, **known, "caps": self.caps.name}

    @property
    def multiplies_bytes(self) -> bool:
        """Whether matmuls are faster with activations of 8 bits than with floats."""
        return bool(self.caps.multiplies_bytes)

    def multiplies_matrices(self, kind: str) -> bool:
        """Whether there are matrix units for a kind of 16-bit floats."""
        return bool(getattr(self.caps, f"matrix_{kind}"))

    @property
    def lost(self) -> bool:
        """Whether it is known to have stopped working."""
        return bool(self.gpu.lost)

    def joins(self, other: Device) -> bool:
        """Whether the other is a handle of the same device."""
        return isinstance(other, GpuDevice) and other.gpu is self.gpu

    def renew(self) -> Self:
        """This device, or a new one on the same adapter with the same caps if it was lost."""
        return type(self)(str(self.gpu.adapter.index), self.narrowed) if self.gpu.lost else self

    @property
    def narrowed(self) -> Caps | None:
        """The caps that it was narrowed to; None if it promises all it has."""
        return None if self.caps == self.gpu.caps else self.caps

    def ledger(self) -> dict[str, int]:
        """Buffers, bytes and sessions alive on the device."""
        with self.gpu.lock:
            self.gpu.settle()
            found: dict[str, int] = self.gpu.ledger.snapshot()
            return found

    def allocate(self, pack: Sequence[ResidentSpec]) -> Sequence[Resident]:
        """Zeroed memory for a param or a state, or for all params of a pack."""
        from pumice.backends.gpu.resident import allocate

        return allocate(self.gpu, pack)

    def write_all(self, values: Iterable[tuple[Resident, Array | StreamedArray]]) -> None:
        """Set several residents, one after the other."""
        for resident, array in values:
            resident.write(array)

    def copy_within(self, residents: Sequence[Resident], moves: Sequence[ByteMove]) -> None:
        """Copy bytes inside each of some residents, all by the same moves, in one submit that nothing waits for."""
        from pumice.backends.gpu.resident import copy_within

        copy_within(self.gpu, residents, moves)

    @abstractmethod
    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> Any:
        """Allocate buffers, compile kernels, upload constants."""

    def prepare_kernels(self, plan: Plan, report: Callable[[int, int], None]) -> None:  # noqa: B027  nothing is left
        """Opening a plan has compiled them all."""

    def report_compilation(self, report: Callable[[int], None]) -> contextlib.AbstractContextManager[None]:
        """No run compiles anything."""
        return contextlib.nullcontext()
