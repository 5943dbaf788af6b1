"""Tensor: a value of the graph being traced, with NumPy's operators and methods; it has a type and no data."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

from pumice.ad import CustomGradient
from pumice.core import dims
from pumice.core.dims import Dim, Shape
from pumice.core.dtypes import DType
from pumice.errors import GraphError, ShapeError
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType


class Tracer:
    """One trace in progress: the graph so far, its states and captures; closed when the traced function returns."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.open = True
        self.states: dict[str, int] = {}
        self.updates: dict[int, int] = {}
        self.captures: dict[str, int] = {}
        self.custom_gradients: dict[int, CustomGradient] = {}


# The innermost trace of this thread or task; functions without tensor operands (arange, zeros, …) build into it.
active_tracer: ContextVar[Tracer | None] = ContextVar("pumice_tracer", default=None)


class Tensor:
    """A traced value. Operators and methods add nodes to the graph that is being traced.

    >>> from pumice.tracing import spec, trace
    >>> g = trace(lambda x: (x.T + 1).sum(axis=0), x=spec("B", 3))
    >>> [n.op for n in g], str(g.nodes[-1].type)
    (['input', 'transpose', 'constant', 'add', 'reduce_sum'], 'f32[B]')
    """

    __slots__ = ("id", "tracer", "type")

    # NumPy must hand `array + tensor` over to Tensor instead of looping over it.
    __array_ufunc__ = None

    def __init__(self, tracer: Tracer, id: int) -> None:
        self.tracer = tracer
        self.id = id
        self.type: TensorType = tracer.builder.type(id)

    @property
    def shape(self) -> Shape:
        """Dims: ints, or expressions over symbols, with which one can calculate."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.rank

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return self.type.numel

    @property
    def T(self) -> Tensor:
        """All axes reversed."""
        return F.transpose(self)

    def __repr__(self) -> str:
        return f"Tensor(%{self.id}: {self.type})"

    # Values exist only when the graph runs, so asking for one while tracing raises an error.

    def _no_value(self, wanted: str) -> NoReturn:
        raise F.fail(
            GraphError,
            f"{self!r} has no {wanted} while tracing",
            hint="choose by value with pm.where, branch on static dims of .shape, or return the tensor and read it after the run",
        )

    def __bool__(self) -> bool:
        self._no_value("truth value")

    def __int__(self) -> int:
        self._no_value("int value")

    def __float__(self) -> float:
        self._no_value("float value")

    def __index__(self) -> int:
        self._no_value("int value")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._no_value("array value")

    def __len__(self) -> int:
        if not self.shape:
            raise F.fail(ShapeError, f"{self!r} is a scalar, it has no length")
        first = self.shape[0]
        if not isinstance(first, int):
            raise F.fail(ShapeError, f"the length of {self!r} is the symbol expression {first}", hint="use .shape[0]")
        return first

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # `==` compares elements, as in NumPy, so the hash is that of the object.
    __hash__ = object.__hash__

    def __add__(self, other: F.TensorLike) -> Tensor:
        return F.add(self, other)

    def __radd__(self, other: F.TensorLike) -> Tensor:
        return F.add(other, self)

    def __sub__(self, other: F.TensorLike) -> Tensor:
        return F.subtract(self, other)

    def __rsub__(self, other: F.TensorLike) -> Tensor:
        return F.subtract(other, self)

    def __mul__(self, other: F.TensorLike) -> Tensor:
        return F.multiply(self, other)

    def __rmul__(self, other: F.TensorLike) -> Tensor:
        return F.multiply(other, self)

    def __truediv__(self, other: F.TensorLike) -> Tensor:
        return F.divide(self, other)

    def __rtruediv__(self, other: F.TensorLike) -> Tensor:
        return F.divide(other, self)

    def __floordiv__(self, other: F.TensorLike) -> Tensor:
        return F.floor_divide(self, other)

    def __rfloordiv__(self, other: F.TensorLike) -> Tensor:
        return F.floor_divide(other, self)

    def __mod__(self, other: F.TensorLike) -> Tensor:
        return F.mod(self, other)

    def __rmod__(self, other: F.TensorLike) -> Tensor:
        return F.mod(other, self)

    def __pow__(self, other: F.TensorLike) -> Tensor:
        return F.power(self, other)

    def __rpow__(self, other: F.TensorLike) -> Tensor:
        return F.power(other, self)

    def __matmul__(self, other: F.TensorLike) -> Tensor:
        return F.matmul(self, other)

    def __rmatmul__(self, other: F.TensorLike) -> Tensor:
        return F.matmul(other, self)

    def __and__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_and(self, other)

    def __rand__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_and(other, self)

    def __or__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_or(self, other)

    def __ror__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_or(other, self)

    def __xor__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_xor(self, other)

    def __rxor__(self, other: F.TensorLike) -> Tensor:
        return F.bitwise_xor(other, self)

    def __lshift__(self, other: F.TensorLike) -> Tensor:
        return F.left_shift(self, other)

    def __rlshift__(self, other: F.TensorLike) -> Tensor:
        return F.left_shift(other, self)

    def __rshift__(self, other: F.TensorLike) -> Tensor:
        return F.right_shift(self, other)

    def __rrshift__(self, other: F.TensorLike) -> Tensor:
        return F.right_shift(other, self)

    def __invert__(self) -> Tensor:
        return F.invert(self)

    def __neg__(self) -> Tensor:
        return F.negative(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return F.absolute(self)

    def __eq__(self, other: F.TensorLike) -> Tensor:  # type: ignore[override]
        return F.equal(self, other)

    def __ne__(self, other: F.TensorLike) -> Tensor:  # type: ignore[override]
        return F.not_equal(self, other)

    def __lt__(self, other: F.TensorLike) -> Tensor:
        return F.less(self, other)

    def __le__(self, other: F.TensorLike) -> Tensor:
        return F.less_equal(self, other)

    def __gt__(self, other: F.TensorLike) -> Tensor:
        return F.greater(self, other)

    def __ge__(self, other: F.TensorLike) -> Tensor:
        return F.greater_equal(self, other)

    def __getitem__(self, index: Any) -> Tensor:
        return F.getitem(self, index)

    def astype(self, dtype: Any) -> Tensor:
        """`pumice.astype`."""
        return F.astype(self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """`pumice.reshape`; the shape as one tuple or as arguments."""
        return F.reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """`pumice.transpose`; the axes as one tuple, as arguments, or none for all reversed."""
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)):
            return F.transpose(self, axes[0])
        return F.transpose(self, axes or None)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """`pumice.swapaxes`."""
        return F.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: F.Axes = None) -> Tensor:
        """`pumice.squeeze`."""
        return F.squeeze(self, axis)

    def ravel(self) -> Tensor:
        """`pumice.ravel`."""
        return F.ravel(self)

    def flatten(self) -> Tensor:
        """`pumice.ravel`."""
        return F.ravel(self)

    def sum(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.sum`."""
        return F.sum(self, axis, keepdims)

    def mean(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.mean`."""
        return F.mean(self, axis, keepdims)

    def max(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.max`."""
        return F.max(self, axis, keepdims)

    def min(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.min`."""
        return F.min(self, axis, keepdims)

    def prod(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.prod`."""
        return F.prod(self, axis, keepdims)

    def any(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.any`."""
        return F.any(self, axis, keepdims)

    def all(self, axis: F.Axes = None, keepdims: bool = False) -> Tensor:
        """`pumice.all`."""
        return F.all(self, axis, keepdims)

    def var(self, axis: F.Axes = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
        """`pumice.var`."""
        return F.var(self, axis, ddof, keepdims)

    def std(self, axis: F.Axes = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
        """`pumice.std`."""
        return F.std(self, axis, ddof, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """`pumice.argmax`."""
        return F.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """`pumice.argmin`."""
        return F.argmin(self, axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """`pumice.cumsum`."""
        return F.cumsum(self, axis)

    def clip(self, min: F.TensorLike | None = None, max: F.TensorLike | None = None) -> Tensor:
        """`pumice.clip`."""
        return F.clip(self, min, max)

    def take(self, indices: F.TensorLike, axis: int | None = None) -> Tensor:
        """`pumice.take`."""
        return F.take(self, indices, axis)


# Methods call the functions and functions make Tensors; only the names are needed now, so the import comes last.
from pumice import functions as F  # noqa: E402


def _dim_arithmetic(name: str, a: F.TensorLike, b: F.TensorLike) -> Tensor:
    """Arithmetic of a dim that gives no dim: that of its value as a traced scalar."""
    if name == "power" and all(isinstance(v, int | dims.Expr) for v in (a, b)):
        # i32 would cut T ** -1 to 0 and wrap 2 ** T.
        a, b = F.asarray(a, "f32"), F.asarray(b, "f32")
    result: Tensor = getattr(F, name)(a, b)
    return result


dims.traced_arithmetic = _dim_arithmetic
