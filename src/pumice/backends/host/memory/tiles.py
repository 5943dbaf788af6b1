"""Packed weights as the host keeps them: tiles of 32 rows, the bytes of a tile transposed, so that rows are side by side.

The same bytes of all rows of a tile are one vector to load, which is what makes matmuls with packed weights fast; tile_layout.py
says how many of a row stay together. The last tile has the rows that are left. Bytes are those of the rows in another order:
nothing is stored twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from pumice.backends.host.memory.arrays import numel, row_blocks
from pumice.backends.host.memory.tile_layout import BIT_BYTES, TileFormat, deal_bits, gather_bits, tile_format
from pumice.core.blocks import codec_of
from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.ir.registry import Array, Packed

TILE_ROWS = 32
# Bytes that kernels may read past the end: a whole vector from the last byte of the last tile on.
SLACK = 4 * TILE_ROWS


@dataclass(frozen=True, slots=True)
class Tiles:
    """A quantised tensor in tiles; `data` are its bytes, flat, with SLACK bytes of memory behind them.

    >>> from pumice.core.dtypes import q8_0
    >>> rows = np.arange(40 * 34).astype(np.uint8).reshape(40, 34)
    >>> tiles = Tiles.of(q8_0, (40, 32), rows)
    >>> tiles.data[:4].tolist(), rows[:2, :2].tolist()
    ([0, 1, 34, 35], [[0, 1], [34, 35]])
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

    def part(self, index: int) -> Tiles | None:
        """One of the first axis, in the same memory; None where it is no whole number of tiles."""
        rows = self.rows // max(1, self.shape[0])
        if rows % TILE_ROWS and self.shape[0] > 1:
            return None
        size = rows * self.row_bytes
        return Tiles(self.dtype, self.shape[1:], self.data[index * size : (index + 1) * size])

    def fill(self, rows: Array) -> None:
        """Overwrites all tiles with rows in their own order, [..., row bytes]."""
        rows = rows.reshape(-1, self.row_bytes)
        if self._format.bit_planes:
            rows = rows.copy()
            self._reorder_bits(rows, deal_bits)
        for tile, source in self._pairs(rows, 0):
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
        starts = tile * (TILE_ROWS * size)
        unit, unit_bytes, inside = _places(self.dtype, self.row_bytes)
        places = starts[:, None] + width[:, None] * unit + lane[:, None] * unit_bytes + inside
        found: Array = self.data[places]
        self._reorder_bits(found, gather_bits)
        return found

    def row(self, index: int) -> Array:
        """The bytes of one row, as an array of its own; `index` must be in range."""
        found: Array = self.take(np.array([index]))[0]
        return found

    def blocks(self, limit: int) -> Iterator[slice]:
        """Slices over whole tiles that each cover about `limit` elements."""
        return row_blocks(self.rows, self.columns, limit, TILE_ROWS)

    def unpack(self, part: slice, out: Array) -> None:
        """The values of the rows of whole tiles as float32 [n, columns], by NumPy alone."""
        found = self._rows(part.start, part.stop)
        codec_of(self.dtype).decode(found.reshape(-1, self.dtype.block_bytes), out.reshape(-1, self.dtype.block))

    @property
    def _format(self) -> TileFormat:
        return tile_format(self.dtype)

    def _reorder_bits(self, rows: Array, order: Callable[[Array], Array]) -> None:
        """Puts single bits of rows [n, row bytes] in another order."""
        if not len(rows):
            return
        groups = rows.reshape(len(rows), -1, self._format.nbytes)
        for start in self._format.bit_planes:
            part = groups[:, :, start : start + BIT_BYTES]
            part[:] = order(part)

    def _rows(self, first: int, last: int) -> Array:
        out = np.empty((last - first, self.row_bytes), np.uint8)
        for tile, target in self._pairs(out, first):
            np.copyto(target, tile)
        self._reorder_bits(out, gather_bits)
        return out

    def _pairs(self, rows: Array, start: int) -> Iterator[tuple[Array, Array]]:
        """Sections of tiles next to those of the rows they hold, both [tiles, groups, units, rows of a tile, unit].

        `rows` are those from `start` on, where a tile begins; the whole tiles come first, then the last one.
        """
        size, group, stop = self.row_bytes, self._format.nbytes, start + len(rows)
        whole = stop - stop % TILE_ROWS
        for first, last, count in ((start, whole, TILE_ROWS), (whole, stop, stop - whole)):
            if first == last:
                continue
            tile = self.data[first * size : last * size].reshape(-1, size // group, group * count)
            source = rows[first - start : last - start].reshape(-1, count, size // group, group)
            for s in self._format.group_sections():
                units, kept = (s.stop - s.start) // s.unit, (len(tile), size // group)
                part = tile[:, :, s.start * count : s.stop * count].reshape(*kept, units, count, s.unit)
                yield part, source[..., s.start : s.stop].reshape(len(tile), count, -1, units, s.unit).transpose(0, 2, 3, 1, 4)


@functools.lru_cache(64)
def _places(dtype: DType, row_bytes: int) -> tuple[Array, Array, Array]:
    """For each byte of a row: the byte at which what it stays together with starts, the bytes of that, its place in it.

    Kept, as each token that is generated reads a row of the embeddings.
    """
    form = tile_format(dtype)
    groups, sections = row_bytes // form.nbytes, list(form.group_sections())
    size = np.concatenate([np.full(s.stop - s.start, s.unit) for s in sections])
    inside = np.concatenate([np.arange(s.stop - s.start) % s.unit for s in sections])
    places = np.arange(row_bytes)
    size, inside = np.tile(size, groups), np.tile(inside, groups)
    return places - inside, size, inside
