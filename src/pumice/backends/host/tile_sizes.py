"""The sizes on which dense products and those who call them agree."""

from __future__ import annotations

# Rows of a slab, numbers of a column that are packed together, and tiles of columns that a thread packs at once.
SLAB, DEEP, TILES_AT_ONCE = 14, 256, 4
