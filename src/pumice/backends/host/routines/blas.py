"""Float matmuls through NumPy's BLAS, within the thread budget of the host backend.

BLAS never has threads of its own while ours work: OpenBLAS's spin for a tenth of a second after each call, and a step that
alternates between both then mostly waits. Where the thread pool is loaded, it shares out large matmuls by blocks, and BLAS
computes each on one thread. Where it is not, nothing competes with BLAS's threads, and they are as many as the budget says.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pumice.backends.host.native import dense, jit
from pumice.backends.host.native.kernel_tasks import Task, address
from pumice.core.records import dataclass
from pumice.core.threads import thread_count
from pumice.ir.registry import Array

# Multiplications below which sharing out saves less than waiting costs.
_SMALL = 1 << 22
# Multiplications of a block at least, and what its sides are multiples of: BLAS's own tiles. Blocks depend on the sizes alone, so
# results do not depend on the number of threads.
_LEAST_BLOCK, _BLOCK_SIDE = 1 << 21, 32
_MOST_BLOCKS = 16
_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")


def matmul(x: Array, y: Array, out: Array | None = None) -> Array:
    """np.matmul within the thread budget.

    >>> matmul(np.ones((2, 3)), np.ones((3, 4)))[1, 3].item()
    3.0
    """
    library = _library()
    if library is None:
        return np.matmul(x, y, out=out)
    pool = jit.loaded()
    large = _multiplications(x, y) >= _SMALL
    if large and out is None:
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1]) if min(x.ndim, y.ndim) > 1 else None
        out = None if shape is None else np.empty(shape, np.result_type(x, y))
    task = gemm(x, y, out, library.sgemm) if large and out is not None and pool is not None else None
    with library.limited(thread_count() if large and pool is None else 1):
        if pool is None or task is None or out is None:
            return np.matmul(x, y, out=out)
        pool.run([task])
        return out


def _multiplications(x: Array, y: Array) -> int:
    """Of all matmuls of a batch."""
    matrix = math.prod(x.shape[-2:]) * (y.shape[-1] if y.ndim > 1 else 1)
    return int(matrix * max(math.prod(x.shape[:-2]), math.prod(y.shape[:-2])))


def gemm(x: Array, y: Array, out: Array, sgemm: int) -> Task | None:
    """The task of out = x @ y for BLAS's function at an address, 0 if there is none; None if these arrays need another way.

    >>> task = gemm(np.ones((96, 512), "f4"), np.ones((100, 512), "f4").T, np.empty((96, 100), "f4"), 1)
    >>> task.kernel, task.parts, task.work
    ('gemm_f32', 2, 4915200)
    """
    if not sgemm or any(a.dtype != np.float32 or a.ndim < 2 for a in (x, y, out)):
        return None
    flat = dense.flat(x, y, out)
    if flat is None:
        return None
    x, y, out = flat
    left, right, target = (_leading(a) for a in flat)
    (count, rows, depth), columns = x.shape, y.shape[2]
    if left is None or right is None or target is None or target[0] or 0 in (count, rows, depth, columns):
        return None
    high, wide = _block(rows, columns, depth)
    words = (
        *(sgemm, address(x), address(y), address(out)),
        *(a.strides[0] if count > 1 else 0 for a in flat),
        *(int(left[0]), int(right[0]), left[1], right[1], target[1]),
        *(rows, columns, depth, high, wide),
    )
    parts = count * -(-rows // high) * -(-columns // wide)
    return Task("gemm_f32", words, parts, count * rows * columns * depth, flat)


def _leading(a: Array) -> tuple[bool, int] | None:
    """Whether matrices are transposed in memory, and their leading dimension; None if BLAS cannot read them."""
    (rows, columns), (down, right) = a.shape[1:], a.strides[1:]
    if (right == 4 or columns == 1) and down % 4 == 0 and (rows == 1 or down >= 4 * columns):
        return False, max(columns, down // 4)
    if (down == 4 or rows == 1) and right % 4 == 0 and right >= 4 * rows:
        return True, right // 4
    return None


def _block(rows: int, columns: int, depth: int) -> tuple[int, int]:
    """Rows and columns of a block: nearly square, as BLAS packs the rows and the columns of each block anew.

    >>> _block(768, 768, 768), _block(64, 256, 784)
    ((192, 192), (64, 64))
    """
    blocks = max(1, min(_MOST_BLOCKS, rows * columns * depth // _LEAST_BLOCK))
    down = min(_powers(blocks), key=lambda d: abs(math.log(rows / d) - math.log(columns * d / blocks)))

    def side(length: int, parts: int) -> int:
        return min(length, -(-length // (parts * _BLOCK_SIDE)) * _BLOCK_SIDE)

    return side(rows, down), side(columns, blocks // down)


def _powers(most: int) -> Iterator[int]:
    """Powers of two up to a number."""
    return itertools.takewhile(lambda n: n <= most, (1 << i for i in itertools.count()))


@dataclass
class _Library:
    """NumPy's OpenBLAS: how to set its number of threads, how many it has outside our calls, and where its cblas_sgemm is."""

    set_threads: Callable[[int], None]
    usual: int
    sgemm: int

    def __post_init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0

    @contextmanager
    def limited(self, threads: int) -> Iterator[None]:
        """Meanwhile BLAS has at most so many threads; afterwards as many as before, for the user's own calls of NumPy."""
        with self._lock:
            self._calls += 1
            self.set_threads(min(threads, self.usual))
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self.set_threads(self.usual)


@functools.cache
def _library() -> _Library | None:
    """None if NumPy has another BLAS than OpenBLAS."""
    folder = Path(np.__file__).parent
    for path in [*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")]:
        try:
            library = ctypes.PyDLL(str(path))  # these calls are too short to let other threads run meanwhile
        except OSError:
            continue
        for prefix, suffix in ((p, s) for p in _PREFIXES for s in _SUFFIXES):
            setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            if setter is not None and getter is not None:
                # The kernel passes sizes as 64-bit words, which is what this build takes.
                name = f"{prefix.replace('openblas', 'cblas')}_sgemm64_"
                found = getattr(library, name, None) if suffix else None
                address = 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0
                return _Library(setter, int(getter()), address)
    return None
