"""LLVM vectors that NumPy's functions take: an op's own definition, called with them, emits its machine code.

So every scalar function is defined once, in the op table: with arrays it computes, with vectors it generates code. NumPy's ufuncs
stand for instructions; vector_math.py has those that no processor has, exp and tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.lib.mixins import NDArrayOperatorsMixin

from pumice.backends.host.native.codegen import vector_math as vm
from pumice.ir.registry import Scalar, get_op

_BIT, _FLOAT = ir.IntType(1), ir.FloatType()


class Vector(NDArrayOperatorsMixin):
    """Lanes of float32, int32 or bits, as the builder of a kernel knows them."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @property
    def dtype(self) -> np.dtype[Any]:
        element = self.value.type.element
        return np.dtype(np.float32 if element == _FLOAT else np.bool_ if element == _BIT else np.int32)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # In-place operators pass `out`; a vector is a value, so that they give another one.
        if method != "__call__" or options.keys() - {"out"} or ufunc not in _UFUNCS:
            return NotImplemented
        return self._emitted(_UFUNCS[ufunc], inputs)

    def __array_function__(self, function: Any, types: Any, args: Sequence[Any], options: Any) -> Any:
        if function is np.where:
            return self._emitted(lambda b, condition, x, y: b.select(condition, x, y), args)
        return NotImplemented

    def _emitted(self, emit: Callable[..., Any], operands: Sequence[Any]) -> Vector:
        """Numbers among the operands become constants of the type of the other ones."""
        vectors = [o.value for o in operands if isinstance(o, Vector)]
        like = next((v for v in vectors if v.type.element != _BIT), vectors[0])
        return Vector(self.builder, emit(self.builder, *(_lanes(o, like) for o in operands)))


def emit_op(op: str) -> Callable[..., Any]:
    """What emits an elementwise op without attributes: `emit(builder, *values)` for LLVM vectors of one length."""
    lowering = get_op(op).lowering
    assert isinstance(lowering, Scalar) and lowering.function is not None
    function = lowering.function

    def emit(builder: Any, *values: Any) -> Any:
        return function(*(Vector(builder, v) for v in values)).value

    return emit


def _lanes(operand: Any, like: Any) -> Any:
    return operand.value if isinstance(operand, Vector) else vm.constant(like, operand)


def _by_type(floats: str, ints: str) -> Callable[..., Any]:
    """The builder's method for floats, whose results may be fused with others, or that for ints."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        return getattr(builder, floats)(a, b, flags=vm.FUSED) if a.type.element == _FLOAT else getattr(builder, ints)(a, b)

    return emit


def _compare(order: str) -> Callable[..., Any]:
    def emit(builder: Any, a: Any, b: Any) -> Any:
        if a.type.element != _FLOAT:
            return builder.icmp_signed(order, a, b)
        return builder.fcmp_unordered(order, a, b) if order == "!=" else builder.fcmp_ordered(order, a, b)

    return emit


_times = _by_type("fmul", "mul")
_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.negative: lambda b, x: b.fneg(x),
    np.absolute: vm.absolute,
    np.sqrt: vm.sqrt,
    np.square: lambda b, x: _times(b, x, x),
    np.reciprocal: lambda b, x: b.fdiv(vm.constant(x, 1.0), x),
    np.exp: vm.exp,
    np.tanh: vm.tanh,
    np.add: _by_type("fadd", "add"),
    np.subtract: _by_type("fsub", "sub"),
    np.multiply: _times,
    np.divide: lambda b, x, y: b.fdiv(x, y),
    np.copysign: lambda b, x, y: vm.call(b, "copysign", x, y),
    np.maximum: vm.maximum,
    np.minimum: vm.minimum,
    np.equal: _compare("=="),
    np.not_equal: _compare("!="),
    np.less: _compare("<"),
    np.less_equal: _compare("<="),
    np.greater: _compare(">"),
    np.greater_equal: _compare(">="),
    np.logical_and: lambda b, x, y: b.and_(x, y),
    np.logical_or: lambda b, x, y: b.or_(x, y),
    np.logical_xor: lambda b, x, y: b.xor(x, y),
    np.logical_not: lambda b, x: b.not_(x),
}
