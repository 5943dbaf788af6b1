"""What binding an op gives and takes: the call with everything static, and the routine that will run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pumice.backends.host.memory.arrays import NpDType
from pumice.backends.host.native.dense import Copies
from pumice.backends.host.native.kernel_tasks import Native, Task
from pumice.core.records import dataclass
from pumice.ir.registry import Array, Attrs, OpSpec
from pumice.ir.types import TensorType

# Makes tasks as `Native` does, given packed copies of the operand that is kept.
Keeping = Callable[[Sequence[Any], Array, Copies], list[Task] | None]


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One node with its symbols bound: static types, and the dtypes in which the operands will really arrive.

    `target` is the dtype that the result is stored in, None for a value that stays inside the step. `in_place` says that
    the first operand is the memory of the result. Where an op has several results, `out` is the type of the first, `further`
    those of the others, and `wanted` says which of all are used.
    """

    spec: OpSpec
    attrs: Attrs
    ins: tuple[TensorType | None, ...]
    out: TensorType
    dtypes: tuple[NpDType | None, ...]
    target: NpDType | None = None
    in_place: bool = False
    further: tuple[TensorType, ...] = ()
    wanted: tuple[bool, ...] = (True,)

    @property
    def outs(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        return (self.out, *self.further)

    def has(self, operand: str) -> bool:
        """Whether an optional operand is there."""
        return self.ins[self._position(operand)] is not None

    def type(self, operand: str) -> TensorType:
        """The static type of an operand that is there."""
        found = self.ins[self._position(operand)]
        assert found is not None
        return found

    def shape(self, operand: str) -> tuple[int, ...]:
        return self.type(operand).static_shape

    def dtype(self, operand: str) -> NpDType:
        """The dtype in which an operand arrives that is not packed."""
        found = self.dtypes[self._position(operand)]
        assert found is not None
        return found

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """The operands of a run by name, None for those that are not there."""
        return dict(zip(self.spec.operand_names, operands, strict=True))

    def _position(self, operand: str) -> int:
        return self.spec.operand_names.index(operand)

    def reference(self, operands: list[Any]) -> Array:
        """The op's own NumPy meaning; of several results the first."""
        return self.references(operands)[0]

    def references(self, operands: list[Any]) -> tuple[Array, ...]:
        """All results by the op's own NumPy meaning."""
        return self.spec.evaluate(operands, self.attrs, self.outs)


@dataclass(frozen=True, slots=True)
class HostRoutine:
    """How a node runs: `run(operands, out)` fills `out` (dense, dtype `result`), or returns an array if `writes` is False.

    Of an op with several results, `out` is a tuple: an array in the compute dtype of each result, or None for one that is not
    wanted, unless `needs_all` asks for memory for every one.

    `raw` routines take f16 and bf16 arrays as they are stored; others get them as f32. `view` results share the memory of the
    first operand. `native` makes tasks for compiled kernels that do the same as `run`; `heavy` says that they are so much faster
    that it is worth to load them, and `work`, in multiplications, what they add to a program that may be worth it as a whole.
    `keeping` makes the same tasks where the operand number `kept`, the last unless told, stays as it is between runs. `stored`:
    results are written in the dtypes that they are stored in. `ending(scales, low, high)` gives a routine with three more
    operands, each of which may be None: a factor and a summand of each channel, the first two if it `scales`, then a tensor to
    add; its results are kept between the limits. None: it cannot do that.
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
    needs_all: bool = False
    stored: bool = False
    kept: int = -1
    ending: Callable[[bool, float, float], HostRoutine | None] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A call over slots, and what is needed to make it a native task once the slots have their arrays.

    Of an op with several results, `out` is a tuple of slots, None for those that get no memory.
    """

    call: Callable[[], Any]
    native: Native
    args: tuple[int | None, ...]
    out: int | tuple[int | None, ...]
    heavy: bool = False
    keeping: Keeping | None = None
    work: int = 0
    kept: int = -1


Binder = Callable[[NodeCall], HostRoutine | None]
