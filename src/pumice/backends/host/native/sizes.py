"""The sizes on which matmuls and those who call them agree."""

from __future__ import annotations

# Numbers of a vector: the rows that packed weights hold side by side, and the bytes of as many float32.
LANES = 32
VECTOR_BYTES = 4 * LANES
# Rows of a slab, numbers of a column that are packed together, and tiles of columns that a thread packs at once. Quantised
# columns are unpacked by whole blocks of up to 256; dense ones by as many as leave room for a slab in the first cache.
SLAB, DEEP, DENSE_DEEP, TILES_AT_ONCE = 14, 256, 384, 4
# Bytes of the factor of a row of x, before what else is known of it.
ROW_HEADER = 64


def bytes_known(k: int) -> int:
    """Bytes of what matmuls of few rows need to know of the k elements of one: digits.py has what is stored where.

    >>> bytes_known(32)
    320
    """
    return (ROW_HEADER + k // 4 + k // 8 + k // 2 + 4 * k + 3 * k + 63) // 64 * 64


# --- rows of x rounded to 8 bits: for each CHUNK of elements their bytes, a factor, their sum, and those of both halves. A row
# has DEEP elements together, then comes the next row. ---
CHUNK = 32
CHUNK_FACTOR, CHUNK_SUM, CHUNK_SUMS_16, CHUNK_PITCH = CHUNK, CHUNK + 4, CHUNK + 8, CHUNK + 16
ROW_PITCH = DEEP // CHUNK * CHUNK_PITCH
# Rows of zeros behind the last one: registers hold sums of at most one more. Rows, and tiles of columns, that a thread takes at
# once: it has their sums, side by side whatever the result's own columns are, and the panels of the tiles.
SPARE_ROWS, BYTE_ROWS, BYTE_TILES = 15, 512, 2
# Bytes of a panel for 32 elements, at most: two digits with four vectors behind each; two parts of 16 have no more.
_CHUNK_BYTES = 2 * (CHUNK // 4 + 4) * VECTOR_BYTES
PANEL_BYTES = DEEP // CHUNK * _CHUNK_BYTES


def byte_matmul_bytes(rows: int) -> int:
    """Work memory of matmuls of so many rows of bytes: panels, and the sums of the rows that pass over them.

    >>> byte_matmul_bytes(1)
    53248
    """
    return BYTE_TILES * (PANEL_BYTES + (min(rows, BYTE_ROWS) + SPARE_ROWS) * VECTOR_BYTES)


# --- work memory: what each thread that takes part in a task may write to. Kernels never ask the system for memory: it comes
# with the task, so that a system that has none left raises an error in Python. ---

# A slab of dense matmuls, and results of one that do not fill it.
SLAB_PITCH = 64
SLAB_BYTES, BLOCK_BYTES = DENSE_DEEP * SLAB_PITCH, SLAB * VECTOR_BYTES
# A tile of f16 or bf16 columns as float32.
WIDENED_BYTES = VECTOR_BYTES * DENSE_DEEP
# Unpacked tiles of quantised columns, and packed ones of dense columns.
UNPACKED_BYTES, PACKED_BYTES = TILES_AT_ONCE * DEEP * VECTOR_BYTES, TILES_AT_ONCE * DENSE_DEEP * VECTOR_BYTES
# Rows of scores of attention that are computed together, and queries whose scores exist at a time in its gradient.
ATTENTION_ROWS, GRADIENT_QUERIES = 6, 128


def padded_keys(keys: int) -> int:
    """Floats of a row of scores: whole vectors.

    >>> padded_keys(33)
    64
    """
    return (keys + 31) // 32 * 32


def attention_bytes(keys: int, depth: int, value_depth: int) -> int:
    """Work memory of attention of many queries: keys and values of a head, scores of some rows, and their sums.

    >>> attention_bytes(32, 64, 64)
    17216
    """
    return 4 * padded_keys(keys) * (depth + max(depth, value_depth) + ATTENTION_ROWS) + 4 * 16


def attention_gradient_bytes(queries: int, keys: int, depth: int, value_depth: int) -> int:
    """The same for its gradient.

    >>> attention_gradient_bytes(1, 32, 64, 64)
    25344
    """
    most = min(GRADIENT_QUERIES, queries)
    return 4 * padded_keys(keys) * (2 * depth + value_depth + 2 * most) + 4 * most * (depth + value_depth)
