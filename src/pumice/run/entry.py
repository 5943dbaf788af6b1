"""Entries: the params and states of a store by name, and what is known of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import ByteMove, Resident, ResidentSpec
from pumice.core.streamed import StreamedArray
from pumice.errors import DeviceLost, InputError, MissingName, UnknownName
from pumice.ir.types import TensorType
from pumice.run.convert import Array, check_stored, convert_stored, is_streamed

if TYPE_CHECKING:
    from pumice.run.store import Store

# Arrays up to this size are copied when they are kept, so that the caller may reuse them; larger ones are kept as they are.
_COPIED_BYTES = 64 << 10


class RunCount:
    """How often an executable began a run."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs = 0


class Entry:
    """One param or state of a store: `read()` it, `write()` it, or `reset()` it to its initial value."""

    def __init__(self, store: Store, spec: ResidentSpec) -> None:
        self._store, self._spec = store, spec
        # All entries in its buffer, itself included: either all of them have memory, or none.
        self._pack = [self]
        self._resident: Resident | None = None
        # Whether it has a value, what it was set to where the device may lose it, and how often it was set.
        self._ready = False
        self._source: Any = None
        self._writes = 0
        # The counts of runs of executables that update it.
        self._updates: list[RunCount] = []

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def kind(self) -> str:
        """ "param" or "state"."""
        return self._spec.kind

    @property
    def type(self) -> TensorType:
        return self._spec.type

    @property
    def nbytes(self) -> int:
        """What it takes on the device, with the host's packed copies; 0 once it is released."""
        return 0 if self._resident is None else self._resident.nbytes

    @property
    def ready(self) -> bool:
        """Whether it has a value: params must be set first, and again after they were released."""
        return self._ready

    @property
    def version(self) -> int:
        """A number that grows whenever the value may have changed: by a write, a swap, or a run that updates it."""
        return self._writes + sum(count.runs for count in self._updates)

    def read(self) -> Array:
        """The current value on the host."""
        return self._store._in_turn(self._read)

    def write(self, value: Any) -> None:
        """Replace the value."""
        array = self.convert(value)
        self._store._in_turn(lambda: self._store._write({self: array}))

    def reset(self) -> None:
        """Back to the initial value: for a state what the traced function gave, else zeros."""
        self.write(self._spec.initial())

    def check(self, value: Any) -> None:
        """Refuse a value of another shape or kind, without converting it."""
        check_stored(f"{self.kind} {self.name!r}", value, self.type)

    def convert(self, value: Any) -> Array:
        """`value` as it is stored, or a typed error."""
        return convert_stored(value, self.type, f"{self.kind} {self.name!r}")

    def row_moves(self, sources: Sequence[int], targets: Sequence[int], rows: int) -> tuple[ByteMove, ...]:
        """The bytes that blocks of rows are, or a typed error."""
        if len(sources) != len(targets) or set(sources) & set(targets):
            raise InputError(
                f"blocks {list(sources)} cannot be copied to {list(targets)}", hint="as many targets as sources, and none of them"
            )
        shape = self.type.stored_shape
        blocks = shape[0] // rows if shape and rows > 0 else 0
        wrong = next((b for b in (*sources, *targets) if not 0 <= b < blocks), None)
        if wrong is not None or blocks == 0:
            raise InputError(
                f"{self.kind} {self.name!r} has {blocks} blocks of {rows} rows, and no block {wrong}",
                hint="count from 0",
                name=self.name,
            )
        nbytes = math.prod(shape[1:]) * rows * self.type.dtype.np.itemsize
        return tuple((a * nbytes, b * nbytes, nbytes) for a, b in zip(sources, targets, strict=True))

    def writable(self, value: Any) -> Array | StreamedArray:
        """As `convert`, but an array that is read piece by piece is left to the device."""
        if is_streamed(value, self.type):
            self.check(value)
            return value
        return self.convert(value)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} {self.type}>"

    def _twin(self, name: str) -> Entry:
        """Another entry of the same store and type, which is not packed."""
        spec, nbytes = self._spec, self.type.max_nbytes({})
        parts = spec.parts if len(self._pack) == 1 else ((nbytes, 0, nbytes),)
        return Entry(self._store, ResidentSpec(spec.kind, name, spec.type, parts, (name,), spec.init))

    # -- for the store, under its lock ------------------------------------------------------------------------------
    def _read(self) -> Array:
        found = self._memory().read()
        self._store._moved["readback_bytes"] += found.nbytes
        return found

    def _memory(self) -> Resident:
        if self._resident is None:
            self._store._require_open()
            if self._store.device.lost:
                raise DeviceLost(f"{self._store.device.name} was lost and has no successor yet", hint="reopen() the store")
            raise self._missing()
        return self._resident

    def _missing(self) -> MissingName:
        if not self._writes:
            return MissingName(f"the {self.kind} {self.name!r} was never set", hint="call set_params first", names=[self.name])
        return MissingName(
            f"the {self.kind} {self.name!r} was released from its store", hint=f"set the {self.kind} again", names=[self.name]
        )

    def _note_write(self, value: Any, nbytes: int) -> None:
        """The device has taken a value."""
        self._ready = True
        self._writes += 1
        self._store._moved["uploads_bytes"] += nbytes
        if self.kind == "param" and self._store.device.volatile:
            self._keep(value)

    def _note_change(self) -> None:
        """The value on the device is another one now, and nothing on the host is."""
        self._writes += 1
        if self._source is not None:
            self._source = self._read()

    def _exchange(self, other: Entry) -> None:
        """Swap memory and value with another entry of equal layout."""
        self._resident, other._resident = other._resident, self._resident
        self._ready, other._ready = other._ready, self._ready
        self._source, other._source = other._source, self._source
        self._writes, other._writes = self._writes + 1, other._writes + 1

    def _keep(self, value: Any) -> None:
        """Remember what a param was set to: views of files and large arrays by reference, small ones by value."""
        small = getattr(value, "nbytes", 0) <= _COPIED_BYTES
        self._source = np.array(value) if isinstance(value, np.ndarray) and small and value.flags.writeable else value

    def _take(self, resident: Resident | None) -> None:
        """Other memory, or none; the old one is freed."""
        old, self._resident = self._resident, resident
        if old is not None:
            old.release()


class StateTable(Mapping[str, Entry]):
    """The states of an executable by name."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UnknownName(f"there is no state {name!r}", hint="there are: " + (" ".join(self._entries) or "none"))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def reset(self) -> None:
        """Reset every state."""
        for entry in self._entries.values():
            entry.reset()
