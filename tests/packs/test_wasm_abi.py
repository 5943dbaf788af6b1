"""The descriptor of 40 bytes, the regions behind it, and descriptors that must be refused."""

# ruff: noqa: E501  one kernel a line

from __future__ import annotations

from itertools import pairwise

import pytest

from pumice.packs import errors
from pumice.packs.wasm.abi import GUARD_BYTES, Allocator, Descriptor, MemoryRegion, packed
from pumice.packs.wasm.call import lay_out

NONE = MemoryRegion(0, 0)
MEMORY = 1 << 20


def test_ten_little_endian_words() -> None:
    d = Descriptor(MemoryRegion(1, 2), MemoryRegion(3, 4), MemoryRegion(5, 6), MemoryRegion(7, 8), MemoryRegion(9, 10))
    assert d.to_bytes() == b"".join(i.to_bytes(4, "little") for i in range(1, 11))
    assert Descriptor.from_bytes(d.to_bytes()) == d
    assert d.total_memory_required == 19


REFUSED = {
    "input a outside": (Descriptor(MemoryRegion(MEMORY - 8, 16), NONE, NONE, NONE, NONE), errors.MemoryAccessViolation, "input_a"),
    "input b outside": (Descriptor(NONE, MemoryRegion(MEMORY, 1), NONE, NONE, NONE), errors.MemoryAccessViolation, "input_b"),
    "output outside": (Descriptor(NONE, NONE, MemoryRegion(MEMORY * 2, 1), NONE, NONE), errors.MemoryAccessViolation, "output"),
    "scratch outside": (Descriptor(NONE, NONE, NONE, MemoryRegion(0, MEMORY + 1), NONE), errors.MemoryAccessViolation, "scratch"),
    "params beyond u32": (Descriptor(NONE, NONE, NONE, NONE, MemoryRegion(0xFFFF_FFF0, 0x20)), errors.MemoryAccessViolation, "params"),
    "size of the whole u32": (Descriptor(MemoryRegion(1, 0xFFFF_FFFF), NONE, NONE, NONE, NONE), errors.MemoryAccessViolation, "input_a"),
    "negative": (Descriptor(MemoryRegion(-16, 32), NONE, NONE, NONE, NONE), errors.MemoryAccessViolation, "input_a"),
    "output on input a": (Descriptor(MemoryRegion(64, 64), NONE, MemoryRegion(127, 8), NONE, NONE), errors.InvalidParameters, "Output overlaps with input_a"),
    "output on input b": (Descriptor(NONE, MemoryRegion(64, 64), MemoryRegion(0, 65), NONE, NONE), errors.InvalidParameters, "Output overlaps with input_b"),
    "output around input a": (Descriptor(MemoryRegion(64, 4), NONE, MemoryRegion(0, 640), NONE, NONE), errors.InvalidParameters, "Output overlaps with input_a"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_descriptor_is_refused(what: str) -> None:
    descriptor, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message) as caught:
        descriptor.check(MEMORY)
    assert "size" in caught.value.fields


def test_neighbours_and_empty_regions_do_not_overlap() -> None:
    Descriptor(MemoryRegion(0, 64), MemoryRegion(128, 64), MemoryRegion(64, 64), NONE, NONE).check(MEMORY)
    Descriptor(MemoryRegion(32, 0), MemoryRegion(MEMORY * 4, 0), MemoryRegion(0, 64), NONE, NONE).check(MEMORY)


def test_words_that_are_no_u32() -> None:
    with pytest.raises(errors.AllocationFailed):
        Descriptor(MemoryRegion(1 << 32, 1), NONE, NONE, NONE, NONE).to_bytes()


def test_the_allocator_ends_at_its_limit() -> None:
    space = Allocator(100 << 10, 200 << 10)
    first = space.take(50 << 10)
    assert first.offset % 16 == 0
    with pytest.raises(errors.AllocationFailed) as caught:
        space.take(50 << 10)
    assert caught.value.fields["requested_bytes"] == (100 << 10) + 2 * GUARD_BYTES
    for size in (1 << 32, (1 << 32) - 1, 1 << 80, -1):
        with pytest.raises(errors.AllocationFailed):
            Allocator(0, 1 << 40).take(size)


def test_regions_are_apart_and_aligned() -> None:
    found = lay_out(2, 64, [100, 33, 1, 0], [7, 70], params=12, scratch=50)
    d = found.descriptor
    regions = sorted([d.params, d.input_a, d.input_b, d.output, d.scratch])
    assert all(region.offset % 16 == 0 and region.size for region in regions)
    assert regions[0].offset >= 2 << 16, "the module's own memory is before them"
    assert all(b.offset - a.end >= GUARD_BYTES for a, b in pairwise(regions))
    assert found.inputs[1:] == tuple(d.input_b.offset + at for at in packed([33, 1, 0])[0])
    assert found.pages == 3
