"""Packed weights as the host keeps them: tiles of 32 rows, the bytes of a tile transposed, so that rows are side by side.

Byte j of all rows of a tile is one vector to load, which is what makes matmuls with packed weights fast; the last tile has
the rows that are left. The bytes are those of the rows, in another order: nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pumice.backends.host.memory.arrays import numel, row_blocks
from pumice.core.blocks import codec_of
from pumice.core.dtypes import DType
from pumice.ir.registry import Array, Packed

TILE_ROWS = 32
# Bytes that kernels may read past the end: a whole vector from the last byte of the last tile on.
SLACK = TILE_ROWS


@dataclass(frozen=True, slots=True)
class Tiles:
    """A quantised tensor in tiles; `data` are its bytes, flat, with SLACK bytes of memory behind them.

    >>> from pumice.core.dtypes import q8_0
    >>> rows = np.arange(40 * 34).astype(np.uint8).reshape(40, 34)
    >>> tiles = Tiles.of(q8_0, (40, 32), rows)
    >>> tiles.data[:3].tolist(), rows[:3, 0].tolist()
    ([0, 34, 68], [0, 34, 68])
    >>> np.array_equal(tiles.original(), rows), np.array_equal(tiles.take(np.array([39, 0])), rows[[39, 0]])
    (True, True)
    >>> np.array_equal(tiles.row(39), rows[39]), np.array_equal(tiles.row(31), rows[31])
    (True, True)
    """

    dtype: DType
    shape: tuple[int, ...]
    data: Array

    @classmethod
    def of(cls, dtype: DType, shape: tuple[int, ...], rows: Array) -> Tiles:
        """Rows in their own order, copied into tiles."""
        made = cls(dtype, shape, np.empty(rows.size + SLACK, np.uint8)[: rows.size])
        made.fill(rows)
        return made

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return numel(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.dtype.nbytes(self.shape[-1])

    def fill(self, rows: Array) -> None:
        """Overwrites all tiles with rows in their own order, [..., row bytes]."""
        for tile, source in self._pairs(rows.reshape(-1, self.row_bytes), 0):
            np.copyto(tile, source)

    def original(self) -> Array:
        """The rows in their own order, as an array of their own."""
        return self._rows(0, self.rows).reshape(*self.shape[:-1], self.row_bytes)

    def packed(self) -> Packed:
        """The same as the references of the ops take it."""
        return Packed(self.dtype, self.shape, self.original())

    def take(self, indices: Array) -> Array:
        """The bytes of some rows [n, row bytes]; `indices` must be in range."""
        size, whole = self.row_bytes, self.rows // TILE_ROWS
        tile, lane = np.divmod(indices, TILE_ROWS)
        width = np.where(tile < whole, TILE_ROWS, self.rows - whole * TILE_ROWS)
        starts = tile * (TILE_ROWS * size) + lane
        found: Array = self.data[starts[:, None] + width[:, None] * np.arange(size)]
        return found

    def row(self, index: int) -> Array:
        """The bytes of one row, as an array of its own; `index` must be in range."""
        size, (tile, lane) = self.row_bytes, divmod(index, TILE_ROWS)
        width = min(TILE_ROWS, self.rows - tile * TILE_ROWS)
        start = tile * TILE_ROWS * size + lane
        return self.data[start : start + width * (size - 1) + 1 : width].copy()

    def blocks(self, limit: int) -> Iterator[slice]:
        """Slices over whole tiles that each cover about `limit` elements."""
        return row_blocks(self.rows, self.columns, limit, TILE_ROWS)

    def unpack(self, part: slice, out: Array) -> None:
        """The values of the rows of whole tiles as float32 [n, columns], by NumPy alone."""
        found = self._rows(part.start, part.stop)
        codec_of(self.dtype).decode(found.reshape(-1, self.dtype.block_bytes), out.reshape(-1, self.dtype.block))

    def _rows(self, first: int, last: int) -> Array:
        out = np.empty((last - first, self.row_bytes), np.uint8)
        for tile, target in self._pairs(out, first):
            np.copyto(target, tile)
        return out

    def _pairs(self, rows: Array, start: int) -> Iterator[tuple[Array, Array]]:
        """Tiles next to the rows they hold, both [tiles, row bytes, rows of a tile]: the whole tiles, then the last one.

        `rows` are those from `start` on, where a tile begins.
        """
        size, stop = self.row_bytes, start + len(rows)
        whole = stop - stop % TILE_ROWS
        for first, last, count in ((start, whole, TILE_ROWS), (whole, stop, stop - whole)):
            if first < last:
                tile = self.data[first * size : last * size].reshape(-1, size, count)
                yield tile, rows[first - start : last - start].reshape(-1, count, size).swapaxes(1, 2)
