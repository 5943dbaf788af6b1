"""Ways to damage a file, as data that a failing test can print and shrink."""

from __future__ import annotations

from hypothesis import strategies as st

NUMBERS = [0, 1, 2, 7, 8, 9, 31, 32, 255, 1 << 16, 1 << 20, 1 << 31, 1 << 32, 1 << 61, 1 << 63, (1 << 64) - 1]


def mutations(size: int) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    """A few changes of (kind, place, value) to a file of `size` bytes."""
    kinds = st.sampled_from(["byte", "u32", "u64", "cut", "insert", "delete", "swap"])
    values = st.one_of(st.integers(0, 255), st.sampled_from(NUMBERS))
    return st.lists(st.tuples(kinds, st.integers(0, size), values), min_size=1, max_size=4)


def mutated(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """The file with the changes made, one after the other."""
    found = bytearray(data)
    for kind, place, value in changes:
        if kind == "byte":
            found[place : place + 1] = bytes([value % 256])
        elif kind == "u32":
            found[place : place + 4] = (value % (1 << 32)).to_bytes(4, "little")
        elif kind == "u64":
            found[place : place + 8] = value.to_bytes(8, "little")
        elif kind == "cut":
            del found[place:]
        elif kind == "insert":
            found[place:place] = bytes([value % 256]) * (value % 40)
        elif kind == "delete":
            del found[place : place + value % 40]
        else:
            found[place : place + 8] = found[place : place + 8][::-1]
    return bytes(found)
