"""The sizes on which products and those who call them agree."""

from __future__ import annotations

# Rows of a slab, numbers of a column that are packed together, and tiles of columns that a thread packs at once. Quantised
# columns are unpacked by whole blocks of up to 256; dense ones by as many as leave room for a slab in the first cache.
SLAB, DEEP, DENSE_DEEP, TILES_AT_ONCE = 14, 256, 384, 4
