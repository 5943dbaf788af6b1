"""Arrays that are read piece by piece, by what puts them somewhere; nothing holds all of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class StreamedArray:
    """An array in C order whose bytes come in pieces: `source` gives those of a range, as uint8 arrays one after the other.

    Every piece but the last has a multiple of four bytes. A piece is nobody else's: it stays as it is.

    >>> words = np.arange(6, dtype=np.uint8)
    >>> a = StreamedArray(np.dtype(np.uint8), (2, 3), lambda start, stop: iter([words[start:4], words[4:stop]]))
    >>> a.nbytes, [p.tolist() for p in a.pieces()], np.asarray(a).tolist()
    (6, [[0, 1, 2, 3], [4, 5]], [[0, 1, 2], [3, 4, 5]])
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: Callable[[int, int], Iterator[NDArray[np.uint8]]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.uint8]]:
        """The bytes from `start` to `stop`."""
        return self.source(start, self.nbytes if stop is None else stop)

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """The bytes from `start` to `stop` in one array; they are copied only where they come in several pieces."""
        size, at = (self.nbytes if stop is None else stop) - start, 0
        out: NDArray[np.uint8] | None = None
        for piece in self.pieces(start, stop):
            if piece.size == size:
                return piece
            out = np.empty(size, np.uint8) if out is None else out
            out[at : at + piece.size] = piece
            at += piece.size
        return np.empty(0, np.uint8) if out is None else out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.read().view(self.dtype).reshape(self.shape)
        return array.astype(array.dtype if dtype is None else dtype, copy=bool(copy))
