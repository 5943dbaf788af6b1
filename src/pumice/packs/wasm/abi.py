"""The raw ABI of WASM kernels: the descriptor of 40 bytes, where the host puts its regions, and what the codes mean."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pumice.packs.errors import AllocationFailed, InvalidParameters, MemoryAccessViolation

ALIGNMENT = 16
# Bytes between and after regions that no kernel may change.
GUARD_BYTES = 64
_U32 = 1 << 32
_WORDS = struct.Struct("<10I")
DESCRIPTOR_BYTES = _WORDS.size

CODES = {
    1: "invalid input",
    2: "invalid output",
    3: "invalid parameters",
    4: "out of memory",
    5: "not implemented",
    6: "internal error",
}
INTERNAL = 6


class MemoryRegion(NamedTuple):
    """Some bytes of a kernel's memory."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.size

    def overlaps(self, other: MemoryRegion) -> bool:
        """Whether they share a byte."""
        return self.size > 0 and other.size > 0 and self.offset < other.end and other.offset < self.end


@dataclass(frozen=True)
class Descriptor:
    """What kernel_forward gets: ten little-endian words, offset and size of each region.

    >>> d = Descriptor(MemoryRegion(64, 16), MemoryRegion(0, 0), MemoryRegion(128, 16), MemoryRegion(0, 0), MemoryRegion(0, 0))
    >>> len(d.to_bytes()), d.total_memory_required, Descriptor.from_bytes(d.to_bytes()) == d
    (40, 144, True)
    """

    input_a: MemoryRegion
    input_b: MemoryRegion
    output: MemoryRegion
    scratch: MemoryRegion
    params: MemoryRegion

    @property
    def total_memory_required(self) -> int:
        """The end of the last region."""
        return max(region.end for region in self._regions().values())

    def to_bytes(self) -> bytes:
        """The forty bytes; AllocationFailed if an offset or size is no u32."""
        words = [word for region in self._regions().values() for word in region]
        if any(not 0 <= word < _U32 for word in words):
            raise _too_large(self.total_memory_required)
        return _WORDS.pack(*words)

    @classmethod
    def from_bytes(cls, data: bytes) -> Descriptor:
        """The descriptor in forty bytes."""
        words = _WORDS.unpack(data)
        return cls(*(MemoryRegion(*words[i : i + 2]) for i in range(0, 10, 2)))

    def check(self, memory_bytes: int) -> None:
        """Refuses regions outside the memory, beyond u32, or an output that overlaps an input.

        >>> Descriptor.from_bytes(bytes(32) + b"\\xf0\\xff\\xff\\xff\\x20\\0\\0\\0").check(1 << 20)
        Traceback (most recent call last):
        pumice.packs.errors.MemoryAccessViolation: [memory-access] params (32 bytes at 4294967280) is outside the memory of ...
        """
        for name, region in self._regions().items():
            if region.size and (min(region) < 0 or region.end > memory_bytes):
                raise MemoryAccessViolation(
                    f"{name} ({region.size} bytes at {region.offset}) is outside the memory of {memory_bytes} bytes",
                    region=name,
                    offset=region.offset,
                    size=region.size,
                )
        for name, region in (("input_a", self.input_a), ("input_b", self.input_b)):
            if self.output.overlaps(region):
                raise InvalidParameters(f"Output overlaps with {name}", region=name, offset=region.offset, size=region.size)

    def _regions(self) -> dict[str, MemoryRegion]:
        return {
            "input_a": self.input_a,
            "input_b": self.input_b,
            "output": self.output,
            "scratch": self.scratch,
            "params": self.params,
        }


class Allocator:
    """Hands out regions one after the other, each aligned and followed by a guard; no end goes beyond `limit`.

    >>> space = Allocator(65536, 1 << 20)
    >>> space.take(40), space.take(10)
    (MemoryRegion(offset=65536, size=40), MemoryRegion(offset=65648, size=10))
    """

    def __init__(self, start: int, limit: int) -> None:
        self.start, self.at, self.limit = start, start, min(limit, _U32)

    def take(self, size: int) -> MemoryRegion:
        """A region of its own; AllocationFailed if it does not fit."""
        if size < 0 or self.at + size + GUARD_BYTES > self.limit:
            raise _too_large(self.at - self.start + max(size, 0) + GUARD_BYTES, self.limit - self.start)
        region = MemoryRegion(self.at, size)
        self.at = aligned(region.end + GUARD_BYTES)
        return region


def aligned(offset: int) -> int:
    """The next multiple of 16."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def packed(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Offsets of arrays that share a region, each at the next multiple of 16, and the bytes of them all.

    >>> packed([4, 20, 8])
    ([0, 16, 48], 56)
    """
    offsets, end = [], 0
    for size in sizes:
        offsets.append(aligned(end))
        end = offsets[-1] + size
    return offsets, end


def _too_large(requested: int, available: int | None = None) -> AllocationFailed:
    room = "4 GiB" if available is None else f"the {available} bytes that its limits leave"
    return AllocationFailed(
        f"the kernel's regions take {requested} bytes, more than {room}",
        hint="raise max_memory_pages in the kernel's resource_limits and the module's own maximum, or pass less",
        requested_bytes=requested,
    )
