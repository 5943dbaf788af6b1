"""What sessions need of a GPU API: a device with its lock, memory and queue, recorded commands and prepared dispatches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pumice.backends.base import Array
from pumice.backends.gpu.adapter import Adapter
from pumice.backends.gpu.memory import BufferRange, DeviceBuffer, Ledger
from pumice.core.caps import Caps
from pumice.core.streamed import StreamedArray
from pumice.errors import DeviceLost
from pumice.plan.plan import Kernel

# (pipeline or None when the previous one stays, bind group, x, y, z); the handles' owners must outlive the submit. Where z is 0,
# the grid comes from the device and x is an IndirectGrid; such a dispatch always names its pipeline.
Dispatch = tuple[Any, Any, Any, int, int]
# Timestamps of a pass: a query set's handle, and the number in it for either end.
PassStamps = tuple[Any, int | None, int | None]
Read = tuple[Sequence[BufferRange], int]
# A buffer, an offset and the bytes to put there.
Write = tuple[DeviceBuffer, int, bytes]


@dataclass(frozen=True, slots=True)
class IndirectGrid:
    """A grid that the device computes: one workgroup of `pipeline`, bound to `group`, writes it to `buffer` at `offset`."""

    pipeline: Any
    group: Any
    buffer: Any
    offset: int


class AnyPipeline(Protocol):
    """A compiled kernel; `handle` is what dispatches name."""

    @property
    def handle(self) -> Any: ...


class BindGroup(Protocol):
    """The memory that a dispatch binds; `handle` is what dispatches name and lives as long as this object."""

    @property
    def handle(self) -> Any: ...


class PipelineStore(Protocol):
    """The compiled kernels of a device."""

    def compile(self, kernels: Sequence[Kernel], *, trial: bool = False) -> Sequence[Any]:
        """The kernels' pipelines, from the cache or compiled side by side; with `trial` foreign ones in a child process first."""

    def bind(self, pipeline: Any, ranges: Sequence[tuple[DeviceBuffer, int, int]], label: str) -> Any:
        """A bind group over (buffer, offset, size) ranges in binding order."""


class AnyCommands(Protocol):
    """What one submit is to do, recorded in order. The objects behind all handles must outlive the submit."""

    def begin_pass(self, stamps: PassStamps | None = None) -> Any:
        """The handle of a new compute pass, which is open until `end_pass`."""

    def end_pass(self, pass_handle: Any) -> None: ...

    def steps(self, prepared: Iterable[Dispatch], stamps: PassStamps | None = None) -> None:
        """A pass of these steps; the first of them names its pipeline."""

    def more_steps(self, pass_handle: Any, prepared: Iterable[Dispatch]) -> None:
        """Steps in an open pass."""

    def copy(self, source: Any, source_at: int, target: Any, target_at: int, nbytes: int) -> None:
        """A copy from buffer to buffer, given by handles; all numbers are multiples of four."""


# Adds to the commands of a submit.
Record = Callable[[Any], None]


class AnyReadback(Protocol):
    """Results in flight."""

    def wait(self) -> list[Array]:
        """The bytes of each read, as new arrays; call it once."""

    def abandon(self) -> None:
        """A current or later `wait` ends with a ClosedError."""


class TimestampQueries(Protocol):
    """Numbered timestamps of one submit."""

    count: int

    @property
    def place(self) -> BufferRange:
        """Where the numbers are once they are resolved."""

    def writes(self, begin: int | None, end: int | None) -> PassStamps:
        """The timestamp argument of a pass."""

    def write(self, commands: Any, pass_handle: Any, index: int) -> None:
        """A timestamp inside an open pass, when all earlier work in it is done."""

    def resolve(self, commands: Any) -> None:
        """Move the numbers to where they can be read from."""

    def seconds(self, zero: int) -> list[float]:
        """All timestamps, once the submit that wrote them is done, counted from number `zero`."""

    def close(self) -> None:
        """Free the memory."""


class Gpu(Protocol):
    """A device and everything that sessions on it share. `lock` is held over recording and submits, not over waits."""

    adapter: Adapter
    caps: Caps
    lock: threading.RLock
    lost: bool
    ledger: Ledger
    submits: int
    faults: Any
    pack_limits: weakref.WeakKeyDictionary[Any, int]
    overheads: dict[str, float]
    mark: Callable[[str], None]

    @property
    def pipelines(self) -> Any: ...

    @property
    def timestamp_period(self) -> float:
        """Nanoseconds per tick of the device's clock."""

    @property
    def stamps_between_steps(self) -> bool:
        """Whether timestamps can be taken inside a pass."""

    def guard(self, what: str) -> AbstractContextManager[None]:
        """Turn the API's errors into ours, naming what was going on."""

    def lost_error(self, what: str) -> DeviceLost: ...

    def fault(self, point: str) -> bool:
        """Where an injected fault may strike; True if the caller is to see to it."""

    def lose(self) -> None:
        """For injected faults: the device is gone from now on."""

    def refuse_memory(self) -> None:
        """For injected faults: raise what the API raises where there is no memory."""

    def create_buffer(self, nbytes: int, label: str, use: str = "storage") -> DeviceBuffer:
        """A zeroed buffer of at least `nbytes`."""

    def queries(self, count: int) -> TimestampQueries: ...

    def release_later(self, buffers: list[DeviceBuffer], sessions: int = 0) -> None:
        """Take the buffers of a session or a resident that was dropped; safe from a finaliser, which may run anywhere."""

    def settle(self) -> None:
        """Release what `release_later` took."""

    def wait_recorded(self) -> None:
        """Wait until all that was recorded is submitted: from then on buffers that it names may be released."""

    def upload(self, places: Sequence[BufferRange], array: Array | StreamedArray) -> int:
        """Write an array to its parts piece by piece; returns the bytes written."""

    def write_sizes(self, buffer: DeviceBuffer, data: Array) -> None:
        """Put uniform words into a buffer of the use "uniform" before the next submit."""

    def flush(self) -> None:
        """Submit uploads that wait for a submit."""

    def execute(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> list[Array]:
        """`before`, copies of `reads` to the host, then `after`; with something to read it waits for the end."""

    def begin(self, reads: Sequence[Read] = (), before: Sequence[Record] = (), after: Record | None = None) -> Any:
        """As `execute`, without the wait."""

    def run_alone(self, dispatches: Sequence[Dispatch]) -> Callable[[], None]:
        """Record dispatches; the call that comes back submits them and waits."""

    def wait_idle(self) -> None:
        """Block until all submitted work is done."""

    def fetch(self, places: Sequence[BufferRange], nbytes: int) -> Array:
        """The first bytes of a value."""

    def pieces(self, places: Sequence[BufferRange], nbytes: int) -> Iterator[tuple[int, BufferRange]]:
        """The first bytes of a value as (byte of the value, where it is), none longer than the staging memory for it."""
