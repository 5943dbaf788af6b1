"""Dense matmuls of float32, or with a right operand of f16 or bf16, as tasks for the kernels of matmul.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.native.kernel_tasks import Task, address
from pumice.backends.host.native.sizes import BLOCK_BYTES, DENSE_DEEP, PACKED_BYTES, SLAB, SLAB_BYTES, WIDENED_BYTES
from pumice.core import dtypes
from pumice.core.records import dataclass
from pumice.ir.registry import Array

_LANES, _SLAB_FLOATS = 32, 16
# Below so many multiplications of one matmul BLAS is as good, and for few rows there is something better than both.
_LEAST, _LEAST_ROWS = 1 << 16, 5
# Multiplications in the time that packing a number takes.
_PACKING = 8
# Floats of a right operand that are packed at a time.
_MOST_PACKED = 1 << 21
# Rows from which on a packed copy makes a matmul of many rows the better way.
_LEAST_KEEPING = 2
# Rows beyond which packing is so little of a matmul that no packed copy is worth its memory.
_MOST_KEEPING = 1024


class PackedCopy(Protocol):
    """A right operand that stays packed from run to run."""

    @property
    def memory(self) -> Array: ...


@dataclass(frozen=True)
class Packing:
    """How an operand is packed by others than matmuls: a name for the order, its bytes, and what makes memory and the task."""

    layout: tuple[object, ...]
    nbytes: int
    make: Callable[[], tuple[Array, Task]]


class Copies(Protocol):
    """The packed copy of an operand, as matmuls have it on their right unless a packing says otherwise, if there is room."""

    def __call__(self, operand: Array, packing: Packing | None = None) -> PackedCopy | None: ...


def is_worth_loading(multiplications: int) -> bool:
    """Whether a matmul is so large that loading the kernels for it pays.

    >>> is_worth_loading(1 << 20)
    False
    """
    return multiplications >= 1 << 26


def matmul(x: Array, y: Array, out: Array, copies: Copies | None = None) -> list[Task] | None:
    """The tasks of out = x @ y, or None if another way is better, or these arrays need one. `copies` are for a lasting y.

    >>> x, y = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    >>> [task.kernel for task in matmul(x, y, np.empty((64, 64), np.float32))]
    ['pack_f32', 'matmul_f32']
    """
    kind = dtypes.dtype(y.dtype).name
    if x.ndim < 2 or y.ndim < 2 or x.dtype != np.float32 or out.dtype != np.float32 or kind not in ("f32", "f16", "bf16"):
        return None
    (rows, depth), columns = x.shape[-2:], y.shape[-1]
    if (
        rows < (_LEAST_ROWS if copies is None else _LEAST_KEEPING)
        or min(depth, columns) < 8
        or rows * depth * columns < _LEAST
        or out.strides[-1] != 4
    ):
        return None
    found = flat(x, y, out)
    if found is None:
        return None
    keeps = copies is not None and y.ndim == 2 and kind == "f32" and len(found[0]) * rows <= _MOST_KEEPING
    copy = copies(y) if copies is not None and keeps else None
    if copy is None and rows < _LEAST_ROWS:
        return None
    x, y, out = found
    if len(out) == 1 and rows < columns:
        return _by_columns(kind, x, y, out, copy)
    if copy is not None:
        return [_by_rows(x, y, out, copy)]
    own = len(y) if y.strides[0] else 1
    return [t for part in _parts(own, depth, columns, len(out)) for t in _packed_by_rows(kind, x, y, out, *part)]


def flat(x: Array, y: Array, out: Array) -> tuple[Array, Array, Array] | None:
    """All three with one batch axis; a step of no bytes stands for an operand that is repeated. None if that needs a copy.

    >>> [a.shape for a in flat(np.ones((2, 1, 3, 4)), np.ones((4, 5)), np.ones((2, 1, 3, 5))) or ()]
    [(2, 3, 4), (2, 4, 5), (2, 3, 5)]
    """
    batch, size = out.shape[:-2], math.prod(out.shape[:-2])
    found = []
    for a in (x, y, out):
        if a.shape[:-2] == batch:
            made = a.reshape(size, *a.shape[-2:])
            if not np.shares_memory(made, a):
                return None
        elif math.prod(a.shape[:-2]) == 1:
            made = np.broadcast_to(a.reshape(a.shape[-2:]), (size, *a.shape[-2:]))
        else:
            return None
        found.append(made)
    return found[0], found[1], found[2]


def _parts(own: int, depth: int, columns: int, entries: int) -> Iterator[tuple[slice, slice]]:
    """Entries and columns of matmuls whose right operands, `own` in all, are packed at a time."""
    step = max(_LANES, _MOST_PACKED // depth // _LANES * _LANES)
    if own == 1 or step < columns:
        some = 1 if own > 1 else entries
    else:
        some = max(1, _MOST_PACKED // (depth * columns))
    for first in range(0, entries, some):
        for begin in range(0, columns, step):
            yield slice(first, min(entries, first + some)), slice(begin, min(columns, begin + step))


def _words(x: Array, y: Array, out: Array, kept: int = 0, packed: int = 0) -> tuple[int, ...]:
    """The words that the kernels read, as matmul.py lists them; the place for what is packed is filled in later."""
    entries = [a.strides[0] if len(a) > 1 else 0 for a in (x, y, out)]
    sizes = (*x.shape[1:2], y.shape[2], x.shape[2])
    places = (address(x), *x.strides[1:], address(y), *y.strides[1:], address(out), out.strides[1])
    return (*places, *sizes, *entries, kept, packed)


def _tiles_bytes(depth: int, columns: int) -> int:
    """Of a right operand in tiles."""
    return 4 * _LANES * (depth + depth % 2) * -(-columns // _LANES)


def _packed_by_rows(kind: str, x: Array, y: Array, out: Array, entries: slice, part: slice) -> list[Task]:
    x, y, out = x[entries], y[entries, :, part], out[entries, :, part]
    depth, columns = y.shape[1:]
    words, packs = _words(x, y, out), len(y) if y.strides[0] and len(y) > 1 else 1
    size = packs * _tiles_bytes(depth, columns)
    parts, work, each = packs * -(-depth // DENSE_DEEP), _PACKING * packs * depth * columns, 0 if kind == "f32" else WIDENED_BYTES
    pack = Task(f"pack_{kind}", words, parts, work, (x, y, out), scratch=size, each=each)
    return [pack, _by_rows(x, y, out, size)]


def _by_rows(x: Array, y: Array, out: Array, packed: int | PackedCopy) -> Task:
    """The matmul with a right operand that is packed in scratch memory of so many bytes, or in a copy."""
    (count, rows, depth), columns = x.shape, y.shape[2]
    slabs, work = count * -(-rows // SLAB), count * rows * depth * columns
    each = SLAB_BYTES + BLOCK_BYTES
    if isinstance(packed, int):
        return Task("matmul_f32", _words(x, y, out), slabs, work, (x, y, out), scratch=packed, each=each)
    return Task("matmul_f32", _words(x, y, out, packed=address(packed.memory)), slabs, work, (x, y, out, packed), each=each)


def _by_columns(kind: str, x: Array, y: Array, out: Array, copy: PackedCopy | None) -> list[Task]:
    (_, rows, depth), columns = x.shape, y.shape[2]
    slabs, keep = -(-rows // SLAB), (x, y, out, copy)
    words = _words(x, y, out, 0 if copy is None else address(copy.memory))
    size = 4 * _SLAB_FLOATS * (depth + depth % 2) * slabs
    pack = Task("pack_left_f32", words, slabs, _PACKING * rows * depth, keep, scratch=size)
    each, work = PACKED_BYTES + BLOCK_BYTES + WIDENED_BYTES, rows * depth * columns
    return [pack, Task(f"columns_{kind}", words, -(-columns // _LANES), work, keep, scratch=size, each=each)]


def packed_bytes(y: Array) -> int:
    """What a packed copy of a float32 matrix takes.

    >>> packed_bytes(np.empty((3, 33), np.float32))
    1024
    """
    return _tiles_bytes(*y.shape)


def packing(y: Array) -> tuple[Array, Task]:
    """Memory for a packed copy of a float32 matrix, and the task that fills it.

    >>> memory, task = packing(np.ones((2, 32), np.float32))
    >>> memory.nbytes, task.kernel
    (256, 'pack_f32')
    """
    depth, columns = y.shape
    memory = aligned_bytes(packed_bytes(y))
    words = _words(np.empty((1, 0, depth), np.float32), y[None], np.empty((1, 0, columns), np.float32), packed=address(memory))
    return memory, Task("pack_f32", words, -(-depth // DENSE_DEEP), _PACKING * y.size, (memory, y))
