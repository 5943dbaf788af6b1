"""What binding an op gives and takes: the call with everything static, and the routine that will run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.ir.registry import Array, Attrs, OpSpec
from pumice.ir.types import TensorType
from pumice.plan.plan import Part

if TYPE_CHECKING:
    from pumice.backends.host.native.dense import Copies
    from pumice.backends.host.native.kernel_tasks import Native, Task

NpDType = np.dtype[Any]
# Makes tasks as `Native` does, given packed copies of the last operand.
Keeping = Callable[[Sequence[Any], Array, "Copies"], "list[Task] | None"]
# Elements of one pass over a large tensor: a few float32 temporaries of this size stay in a core's second-level cache.
CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class Call:
    """One node with its symbols bound: static types, and the dtypes in which the operands will really arrive.

    `target` is the dtype that the result is stored in, None for a value that stays inside the step. `in_place` says that
    the first operand is the memory of the result.
    """

    spec: OpSpec
    attrs: Attrs
    ins: tuple[TensorType | None, ...]
    out: TensorType
    dtypes: tuple[NpDType | None, ...]
    target: NpDType | None = None
    in_place: bool = False

    def reference(self, operands: list[Any]) -> Array:
        """The op's own NumPy meaning."""
        return np.asarray(self.spec.reference(operands, self.attrs, self.out))


@dataclass(frozen=True, slots=True)
class Routine:
    """How a node runs: `run(operands, out)` fills `out` (dense, dtype `result`), or returns an array if `writes` is False.

    `raw` routines take f16 and bf16 arrays as they are stored; others get them as f32. `view` results share the memory of
    the first operand. `native` makes tasks for compiled kernels that do the same as `run`; `heavy` says that they are so much
    faster that it is worth to load them, and `work`, in multiplications, what they add to a program that may be worth it as a
    whole. `keeping` makes the same tasks where the last operand stays as it is between runs.
    """

    run: Callable[[list[Any], Any], Any]
    result: NpDType
    writes: bool = True
    raw: bool = False
    view: bool = False
    native: Native | None = None
    heavy: bool = False
    keeping: Keeping | None = None
    work: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """A call over slots, and what is needed to make it a native task once the slots have their arrays."""

    call: Callable[[], Any]
    native: Native
    args: tuple[int | None, ...]
    out: int
    heavy: bool = False
    keeping: Keeping | None = None
    work: int = 0


Binder = Callable[[Call], Routine | None]


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
    """The array itself if it is no half, else a new f32 array.

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
