"""The sizes on which products and those who call them agree."""

from __future__ import annotations

# Rows of a slab, numbers of a column that are packed together, and tiles of columns that a thread packs at once. Quantised
# columns are unpacked by whole blocks of up to 256; dense ones by as many as leave room for a slab in the first cache.
SLAB, DEEP, DENSE_DEEP, TILES_AT_ONCE = 14, 256, 384, 4
# Bytes of the factor of a row of x, before what else is known of it.
ROW_HEADER = 64


def bytes_known(k: int) -> int:
    """Bytes of what matmuls of one row need to know of its k elements: digits.py has what is stored where.

    >>> bytes_known(32)
    220
    """
    return ROW_HEADER + k // 4 + k // 8 + k // 2 + 4 * k
