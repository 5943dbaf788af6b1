"""Finds strings of a large array by their text, without a dict of them all, which for a vocabulary takes long to make."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RawStrings(Protocol):
    """An array of strings that gives the UTF-8 bytes of each."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str: ...
    def raw(self, index: int) -> bytes:
        """The bytes of one string."""


class StringIndex(Mapping[str, int]):
    """The number of each string: of equal ones that of the first, or of the `last`.

    It is an order of the strings by checksum, which `to_bytes` gives, for a file to keep.

    >>> class Words(list):
    ...     def raw(self, index):
    ...         return self[index].encode()
    >>> words = Words(["to", "be", "or", "to"])
    >>> index = StringIndex.of(words)
    >>> index["to"], index.get("not"), "be" in index, index.is_found(0), index.is_found(3)
    (0, None, True, True, False)
    >>> again = StringIndex.from_bytes(words, StringIndex.of(words, last=True).to_bytes(), last=True)
    >>> again["to"]
    3
    """

    def __init__(
        self, strings: RawStrings, sums: NDArray[np.uint32], order: NDArray[np.int32], hidden: NDArray[np.int32], last: bool
    ) -> None:
        self._strings, self._sums, self._order, self._last = strings, sums, order, last
        # Numbers of strings that are the same as another one's, which is found instead.
        self._hidden = frozenset(hidden.tolist())

    @classmethod
    def of(cls, strings: RawStrings, *, last: bool = False) -> StringIndex:
        """An index of all strings, made anew."""
        count = len(strings)
        unsorted = np.fromiter((zlib.crc32(strings.raw(i)) for i in range(count)), np.uint32, count)
        order = np.argsort(unsorted, kind="stable").astype(np.int32)
        sums = unsorted[order]
        found = cls(strings, sums, order, np.empty(0, np.int32), last)
        alike = np.flatnonzero(sums[1:] == sums[:-1])
        suspects = sorted({int(order[k]) for at in alike for k in (at, at + 1)})
        hidden = [i for i in suspects if found._find(strings.raw(i)) != i]
        return cls(strings, sums, order, np.array(hidden, np.int32), last)

    @classmethod
    def from_bytes(cls, strings: RawStrings, body: bytes, *, last: bool = False) -> StringIndex | None:
        """What `to_bytes` gave for these strings; None if it is something else."""
        count, words = len(strings), np.frombuffer(body[: len(body) // 4 * 4], "<u4")
        if len(words) < 2 + 2 * count or words[0] != count or len(words) != 2 + 2 * count + int(words[1]):
            return None
        sums, order, hidden = words[2 : 2 + count], words[2 + count : 2 + 2 * count], words[2 + 2 * count :]
        if count and (int(order.max()) >= count or (sums[1:] < sums[:-1]).any()):
            return None
        return cls(strings, sums, order.view(np.int32), hidden.view(np.int32), last)

    def to_bytes(self) -> bytes:
        """The index without the strings."""
        head = np.array([len(self._order), len(self._hidden)], "<u4")
        hidden = np.array(sorted(self._hidden), "<u4")
        return b"".join(a.astype("<u4").tobytes() for a in (head, self._sums, self._order, hidden))

    def is_found(self, number: int) -> bool:
        """Whether a string's text is found under its own number."""
        return number not in self._hidden

    def _find(self, raw: bytes) -> int | None:
        wanted = zlib.crc32(raw)
        at = int(np.searchsorted(self._sums, np.uint32(wanted)))
        found = None
        while at < len(self._sums) and self._sums[at] == wanted:
            number = int(self._order[at])
            if self._strings.raw(number) == raw:
                found = number
                if not self._last:
                    break
            at += 1
        return found

    def get(self, text: str, default: Any = None) -> Any:
        """The number of a text, or the default."""
        try:
            found = self._find(text.encode())
        except UnicodeEncodeError:  # no text of a file
            found = None
        return default if found is None else found

    def __getitem__(self, text: str) -> int:
        found = self.get(text)
        if found is None:
            raise KeyError(text)
        return int(found)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.get(text) is not None

    def __iter__(self) -> Iterator[str]:
        return (self._strings[i] for i in range(len(self._strings)) if self.is_found(i))

    def __len__(self) -> int:
        return len(self._strings) - len(self._hidden)
