"""What kernels of attention share: keys and values through page tables, and caches of f32, f16, bf16 and i8.

Without a table an entry of queries reads the entry of keys of its own number; with one, key j is in the page that the table has
at j // page size. A table of one page per entry is an index of caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.native.codegen.lanes import int_at, load_i8, to_floats
from pumice.backends.host.native.numba_text import inlined


@inlined
def load_bytes(at: int) -> Any:
    """Signed bytes as floats."""
    return to_floats(load_i8(at))


@inlined
def entry_of(table: int, pages: int, caches: int, b: int, page: int) -> Any:
    """The entry of keys and values that holds a page of batch entry b: negative counts from the end, out of range is an end."""
    if table == 0:
        return np.int64(b)
    entry = np.int64(int_at(table + 4 * (b * pages + page)))
    return min(max(entry + caches if entry < 0 else entry, 0), caches - 1)
