"""Arrays as the host reads them: their dtypes, their sizes, and passes over them that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pumice.ir.registry import Array
from pumice.plan.plan import Part

NpDType = np.dtype[Any]
# Elements of one pass over a large tensor: a few float32 temporaries of this size stay in a core's second-level cache.
CHUNK = 1 << 15


def is_half(dtype: NpDType | None) -> bool:
    """Whether arrays of this dtype are widened to f32 before computing: f16 and bf16.

    >>> is_half(np.dtype("f2")), is_half(np.dtype("f4")), is_half(np.dtype("i2"))
    (True, False, False)
    """
    return dtype is not None and dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16")


def widen(x: Array, out: Array) -> Array:
    """f16 or bf16 as f32, written to `out`.

    >>> widen(np.float16([1.5, -2]), np.empty(2, np.float32))
    array([ 1.5, -2. ], dtype=float32)
    """
    if x.dtype.name == "bfloat16":
        # A bfloat16 is the upper half of a float32; shifting is several times faster than the registered cast.
        bits = out.view(np.uint32)
        np.copyto(bits, x.view(np.uint16))
        np.left_shift(bits, 16, bits)
    else:
        np.copyto(out, x)
    return out


def as_f32(x: Array) -> Array:
    """f16 and bf16 as a new f32 array; any other array itself.

    >>> as_f32(np.float16([0.5])).dtype
    dtype('float32')
    """
    return widen(x, np.empty(x.shape, np.float32)) if is_half(x.dtype) else x


def row_blocks(rows: int, columns: int, limit: int = CHUNK, multiple: int = 1) -> Iterator[slice]:
    """Slices over rows that each cover about `limit` elements, in multiples of `multiple` rows, at least that many.

    >>> list(row_blocks(5, 4, limit=8))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, limit // max(1, columns * multiple)) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements of a static shape.

    >>> numel((2, 3)), numel(())
    (6, 1)
    """
    return math.prod(shape)


def overlap(a: Part, b: Part) -> bool:
    """Whether two parts share bytes.

    >>> overlap(Part(0, 0, 8), Part(0, 4, 8)), overlap(Part(0, 0, 8), Part(1, 0, 8))
    (True, False)
    """
    return a.buffer == b.buffer and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
