"""How functions build nodes: call sites, constants, dtype promotion, one `emit`."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, Union

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, Shape
from pumice.core.dtypes import DType
from pumice.core.own_sources import PACKAGE_FOLDER
from pumice.errors import DTypeError, GraphError, PumiceError, ShapeError
from pumice.ir.rules import axis_index
from pumice.tensor import Tensor, Tracer, active_tracer

Array = np.ndarray[Any, Any]
# What functions take for a tensor: Python numbers and dims are weakly typed, arrays become constants.
TensorLike = Union[Tensor, Array, "np.generic[Any]", bool, int, float, Expr, Sequence[Any]]
Axes = int | Sequence[int] | None
ShapeLike = Dim | Sequence[Dim]
ErrorT = TypeVar("ErrorT", bound=PumiceError)

# What is traced when a cached property is first read is between the package and the user's line.
_FUNCTOOLS = cache.__code__.co_filename
# Paths inside the package whose lines count as the user's: errors in our models point at the model's lines.
shown_code: ContextVar[tuple[str, ...]] = ContextVar("shown_code", default=())


def call_site() -> str:
    """The user's line: the first frame outside this package, its path cut to two parts so that graphs name no machine.

    >>> call_site().endswith(" in <module>")
    True
    """
    frame = sys._getframe(1)
    hidden = _hidden(shown_code.get())
    while hidden[(code := frame.f_code).co_filename]:
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{_last_two(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


class _Hidden(dict[str, bool]):
    """Whether frames of a file are passed over, by its path: every traced op looks at several."""

    def __init__(self, shown: tuple[str, ...]) -> None:
        self.shown = shown

    def __missing__(self, path: str) -> bool:
        found = self[path] = (path.startswith(PACKAGE_FOLDER) or path == _FUNCTOOLS) and not path.startswith(self.shown)
        return found


_hidden = cache(_Hidden)


@cache
def _last_two(path: str) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def fail(error: type[ErrorT], message: str, *, hint: str = "", **fields: Any) -> ErrorT:
    """An error that carries the user's call site, for the caller to raise."""
    return error(message, hint=hint, where=call_site(), **fields)


def tracer_for(*values: Any) -> Tracer:
    """The one trace that the tensors among `values` belong to, or the active one if there are none."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    tracer = tensors[0].tracer if tensors else active_tracer.get()
    if tracer is None:
        raise fail(
            GraphError, "there is no trace in progress", hint="call this inside a function that pm.trace or pm.compile traces"
        )
    for t in tensors:
        if t.tracer is not tracer:
            raise fail(
                GraphError,
                f"{t!r} and {tensors[0]!r} belong to two traces",
                hint="pass values between traces as inputs and outputs",
            )
    if not tracer.open:
        raise fail(
            GraphError,
            f"{tensors[0]!r} is used after its trace ended",
            hint="return it from the traced function instead of storing it",
        )
    return tracer


def emit(op: str, inputs: Sequence[Tensor | None], **attrs: Any) -> Tensor:
    """Append one op to the trace of its operands; operands are not converted."""
    tracer = tracer_for(*inputs)
    ids = [None if t is None else t.id for t in inputs]
    return Tensor(tracer, tracer.builder.add(op, ids, attrs, where=call_site()))


def further_result(first: Tensor, index: int) -> Tensor:
    """A further result of the op that a tensor is the first result of."""
    return Tensor(first.tracer, first.tracer.builder.result(first.id, index, where=call_site()))


def checked(values: Any) -> tuple[Array, DType]:
    """An array in one of Pumice's dtypes: 64-bit values narrow to 32 bits if they fit, floats round.

    >>> checked([1, 2])[1].name, checked(np.float64(0.5))[1].name
    ('i32', 'f32')
    """
    if _holds_tensor(values):
        raise fail(DTypeError, "a list with tensors in it is no array", hint="join tensors with pm.stack or pm.concatenate")
    try:
        array = np.asarray(values)
        dtype = dtypes.dtype(array.dtype)
    except (PumiceError, ValueError) as e:
        raise fail(
            DTypeError, f"{values!r:.60} is no tensor, number or array of a known dtype", hint=getattr(e, "hint", str(e))
        ) from None
    if array.dtype == np.int64 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise fail(
            DTypeError,
            f"integers up to {np.abs(array).max()} do not fit i32",
            hint="Pumice has no 64-bit integers; for u32 pass a uint32 array",
        )
    return array.astype(dtype.np, copy=False), dtype


def _holds_tensor(values: Any) -> bool:
    return isinstance(values, Tensor) or (isinstance(values, list | tuple) and any(map(_holds_tensor, values)))


def constant(tracer: Tracer, values: Any) -> Tensor:
    """Values known while tracing, as a constant of the graph."""
    array, dtype = checked(values)
    return Tensor(tracer, tracer.builder.constant(array, dtype, where=call_site()))


def _is_weak(value: Any) -> bool:
    # NumPy's 64-bit scalars are what its own functions return (np.sqrt(2)); Pumice has no such dtypes, so they bind no one.
    return isinstance(value, bool | int | float | Expr | np.int64 | np.float64)


def _weak_dtype(value: Any) -> DType:
    if isinstance(value, bool):
        return dtypes.bool_
    return dtypes.f32 if isinstance(value, float) else dtypes.i32


def _weak_scalar(tracer: Tracer, value: Any, dtype: DType) -> Tensor:
    if isinstance(value, Expr):
        # The value of a dim is a range of length one that starts at it; one that does not fit is refused when the graph runs.
        counted = dtype if dtype.is_integer else dtypes.i32
        attrs = {"start": value, "stop": value + 1, "step": 1, "dtype": counted.name}
        scalar = emit("reshape", [Tensor(tracer, tracer.builder.add("arange", [], attrs, where=call_site()))], shape=())
        return convert(scalar, dtype)
    if dtype.is_integer:
        info = np.iinfo(dtype.np)
        if not info.min <= value <= info.max:
            raise fail(DTypeError, f"{value} does not fit {dtype}", hint="cast the tensor to a wider dtype first", value=value)
    return Tensor(tracer, tracer.builder.constant(np.asarray(value).astype(dtype.np), dtype, where=call_site()))


def as_tensor(value: TensorLike, dtype: DType | None = None, *, near: Tensor | None = None) -> Tensor:
    """`value` as a tensor of the trace of `near`, or of the active one; Python numbers take `dtype` if it is given."""
    if isinstance(value, Tensor):
        tracer_for(value, near)
        return value
    tracer = tracer_for(near)
    if _is_weak(value):
        return _weak_scalar(tracer, value, _join_weak(dtype, value) if dtype else _weak_dtype(value))
    return constant(tracer, value)


# Each dtype's direct successors in the promotion lattice; two dtypes promote to their least common upper bound:
#   bool → u8 → u32 → i32 → f16, bf16 → f32   and   bool → i8 → i32
# so i8 with u8 and i32 with u32 give i32 (there is no i64; u32 values from 2³¹ on wrap), an integer with a float gives
# that float, f16 with bf16 gives f32. NumPy would go to 64 bits in some of these places.
_ABOVE: dict[str, set[str]] = {
    "bool": {"bool", "u8", "i8", "u32", "i32", "f16", "bf16", "f32"},
    "u8": {"u8", "u32", "i32", "f16", "bf16", "f32"},
    "i8": {"i8", "i32", "f16", "bf16", "f32"},
    "u32": {"u32", "i32", "f16", "bf16", "f32"},
    "i32": {"i32", "f16", "bf16", "f32"},
    "f16": {"f16", "f32"},
    "bf16": {"bf16", "f32"},
    "f32": {"f32"},
}


def promote_dtypes(a: DType, b: DType) -> DType:
    """The common dtype of two dtypes; docs/dtypes.md has the table.

    >>> promote_dtypes(dtypes.i8, dtypes.u8).name, promote_dtypes(dtypes.i32, dtypes.f16).name
    ('i32', 'f16')
    """
    if a == b:
        return a
    if a.is_quant or b.is_quant:
        raise fail(DTypeError, f"{a} and {b} do not mix", hint="use pm.qmatmul or pm.embedding, or pm.dequantize first")
    common = _ABOVE[a.name] & _ABOVE[b.name]
    return dtypes.dtype(max(common, key=lambda name: len(_ABOVE[name])))


def _join_weak(dtype: DType, value: Any) -> DType:
    """The dtype of a tensor after it met a weakly typed scalar: only a change of kind widens it."""
    if isinstance(value, float):
        return dtype if dtype.is_float else dtypes.f32
    if isinstance(value, bool) or dtype.kind != "bool":
        return dtype
    return dtypes.i32


def weak_result(dtype: DType | None, value: Any) -> DType:
    """The dtype after a Python number joined: its own where there was none.

    >>> weak_result(dtypes.f16, 1.5).name, weak_result(None, 1).name
    ('f16', 'i32')
    """
    return _weak_dtype(value) if dtype is None else _join_weak(dtype, value)


def promote(*values: TensorLike, near: Tensor | None = None) -> list[Tensor]:
    """The values as tensors of one common dtype."""
    tracer = tracer_for(*values, near)
    strong = [v if isinstance(v, Tensor) else None if _is_weak(v) else constant(tracer, v) for v in values]
    dtype: DType | None = None
    for t in strong:
        if t is not None:
            dtype = t.dtype if dtype is None else promote_dtypes(dtype, t.dtype)
    for v, t in zip(values, strong, strict=True):
        if t is None:
            dtype = weak_result(dtype, v)
    if dtype is None:
        raise fail(ShapeError, "needs at least one operand")
    if dtype.is_quant and len(values) > 1:
        promote_dtypes(dtype, dtypes.f32)
    return [_weak_scalar(tracer, v, dtype) if t is None else convert(t, dtype) for v, t in zip(values, strong, strict=True)]


def convert(x: Tensor, dtype: DType) -> Tensor:
    """`x` in that dtype; itself if it has it."""
    return x if x.dtype == dtype else emit("cast", [x], dtype=dtype.name)


def fitted(value: TensorLike, dtype: DType, what: str, *, near: Tensor | None = None) -> Tensor:
    """`value` in a dtype that something else decides, such as that of the tensor it is put into.

    Floats may round; a cast that could change a value otherwise (a fraction to an integer, i32 to i8) is refused.
    """
    if dtype == dtypes.bool_ and isinstance(value, int) and value in (0, 1):
        value = bool(value)
    x = as_tensor(value, dtype, near=near)
    both_float = x.dtype.is_float and dtype.is_float
    if x.dtype != dtype and not both_float and promote_dtypes(x.dtype, dtype) != dtype:
        raise fail(
            DTypeError,
            f"{what} {x.dtype} do not fit {dtype}",
            hint=f"cast them with .astype('{dtype}'), or the other operand to a wider dtype",
            dtype=x.dtype.name,
            wanted=dtype.name,
        )
    return convert(x, dtype)


# Sums and products of narrow types are counted in 32 bits.
_WIDE = {"bool": dtypes.i32, "i8": dtypes.i32, "u8": dtypes.u32}


def widened(x: Tensor) -> Tensor:
    """`x` in the dtype in which sums over it are kept: 32 bits for bools and bytes, else its own."""
    return convert(x, _WIDE.get(x.dtype.name, x.dtype))


def as_float(value: TensorLike) -> Tensor:
    """`value` as a float tensor; integers and bools become f32."""
    x = as_tensor(value)
    return convert(x, dtypes.f32) if x.dtype.is_integer or x.dtype == dtypes.bool_ else x


def as_indices(value: TensorLike, near: Tensor | None = None) -> Tensor:
    """`value` as an integer tensor; bools and floats select nothing and are refused."""
    indices = as_tensor(value, near=near)
    if not indices.dtype.is_integer:
        raise fail(
            DTypeError,
            f"indices must be integers, not {indices.dtype}",
            hint="cast with .astype('i32'); select by a mask with pm.where",
        )
    return indices


def as_dim(value: Any) -> Dim:
    """`value` as a dim: a Python int or an expression over symbols."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool | Tensor):
        raise fail(
            ShapeError,
            f"{value!r} is no dim",
            hint="dims are ints or come from .shape, divided with //; the values of tensors are not known while tracing",
        )
    try:
        return operator.index(value)
    except TypeError:
        raise fail(ShapeError, f"{value!r} is no dim", hint="dims are ints or come from .shape") from None


def as_shape(shape: ShapeLike) -> Shape:
    """A shape from a tuple or list of dims, or from one dim."""
    return tuple(as_dim(d) for d in shape) if isinstance(shape, tuple | list) else (as_dim(shape),)


def axis_of(axis: Any, rank: int) -> int:
    """An axis as 0…rank-1, refused with the call site where it is no int or out of range."""
    try:
        return axis_index(operator.index(axis), rank)
    except TypeError:
        raise fail(ShapeError, f"{axis!r} is no axis", hint="axes are ints") from None
    except PumiceError as e:
        raise fail(type(e), e.message, hint=e.hint) from None


def axes_of(axes: Axes, rank: int) -> tuple[int, ...]:
    """Axes in the order given, each 0…rank-1 and named once; None means all."""
    if axes is None:
        return tuple(range(rank))
    listed = axes if isinstance(axes, tuple | list) else (axes,)
    found = tuple(axis_of(a, rank) for a in listed)
    if len(set(found)) != len(found):
        raise fail(ShapeError, f"axes {tuple(listed)} name an axis twice")
    return found
