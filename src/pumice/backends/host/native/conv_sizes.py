"""The sizes on which the kernels of convolution and those who make their tasks agree."""

from __future__ import annotations

from pumice.core.records import dataclass


@dataclass(frozen=True)
class ConvSizes:
    """What stays in registers and caches.

    `rows` × `lanes` results are summed in registers while `deep` numbers of each window pass by; a part has up to `tiles` tiles
    of as many positions as lanes. The gradient by weight takes `weights` weights of an output channel over `chunk` positions.
    `masks`: parts of vectors are read and written as fast as whole ones. Where all channels are brought into tiles first, a part
    has `columns` of them.
    """

    rows: int
    lanes: int
    deep: int
    tiles: int
    weights: int
    chunk: int
    masks: bool
    columns: int = 16

    @property
    def slab_bytes(self) -> int:
        """One number of a window for the rows of a slab."""
        return 4 * self.rows

    @property
    def tile_bytes(self) -> int:
        """One number of a window at the positions of a tile."""
        return 4 * self.lanes

    @property
    def table_bytes(self) -> int:
        """Where the positions of a tile are: four ints each, then where their results go, and four words on their neighbours."""
        return 4 * 4 * self.lanes + 8 * self.lanes + 64

    @property
    def work_bytes(self) -> int:
        """Work memory of a thread: packed tiles, their tables, results that are not stored at once."""
        return self.tiles * (self.deep * self.tile_bytes + self.table_bytes) + self.rows * self.tile_bytes

    @property
    def weight_work_bytes(self) -> int:
        """The same for the gradient by weight: windows by positions, a tile of them, its table, results."""
        tile = self.weights * self.tile_bytes
        return self.chunk // self.lanes * self.lanes * 4 * self.weights + tile + self.table_bytes + self.rows * self.tile_bytes

    def slabs(self, rows: int) -> int:
        return -(-rows // self.rows)


def conv_sizes(wide: bool) -> ConvSizes:
    """For processors with 32 registers of 512 bits, or others.

    >>> conv_sizes(False).work_bytes
    202368
    """
    if wide:
        return ConvSizes(14, 32, 192, 8, 160, 256, masks=True)
    return ConvSizes(6, 16, 256, 12, 144, 256, masks=False)
