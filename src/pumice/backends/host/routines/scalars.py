"""Elementwise kernels: each op as NumPy ufuncs that write into a given array, so that temporaries can be reused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import NpDType, as_f32, is_half
from pumice.backends.host.native.codegen.approximations import ERF_P, ERF_Q, ERFC, GELU_ZERO
from pumice.backends.host.native.kernel_tasks import MAPS, Native, elementwise
from pumice.backends.host.routines.calls import NodeCall
from pumice.core.dtypes import dtype as named_dtype
from pumice.ir.registry import Array

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`run(*operands, out)`; `in_place` says whether `out` may be one of the operands, `native` is as for routines."""

    run: Run
    result: NpDType
    in_place: bool = True
    raw: bool = False
    native: Native | None = None


def _maximum(a: Array, b: Array, out: Array) -> None:
    np.maximum(a, b, out=out)  # these two alone do not take `out` by position


def _minimum(a: Array, b: Array, out: Array) -> None:
    np.minimum(a, b, out=out)


# Ops that are one ufunc for every dtype the op takes.
_UFUNCS: dict[str, Run] = {
    "neg": np.negative,
    "abs": np.absolute,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sign": np.sign,
    "logical_not": np.logical_not,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": _maximum,
    "min": _minimum,
    "atan2": np.arctan2,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out)
    np.reciprocal(out, out)


def _sigmoid(x: Array, out: Array) -> None:
    # By exp(-|x|), which does not overflow: a factor of 0 is then 0, however large x is.
    below = np.less(x, 0)
    np.absolute(x, out)
    np.negative(out, out)
    np.exp(out, out)
    bottom = np.add(out, 1)
    np.copyto(out, 1, where=~below)
    np.divide(out, bottom, out)


def _silu(x: Array, out: Array) -> None:
    _sigmoid(x, out)
    np.multiply(x, out, out)


def _softplus(x: Array, out: Array) -> None:
    # log(1 + e^x) = max(x, 0) + log1p(e^-|x|), which neither overflows nor loses small results.
    np.absolute(x, out)
    np.negative(out, out)
    np.exp(out, out)
    np.log1p(out, out)
    np.add(out, np.maximum(x, 0), out)


def _polynomial(x: Array, coefficients: tuple[float, ...], out: Array) -> None:
    np.multiply(x, coefficients[0], out)
    for c in coefficients[1:-1]:
        np.add(out, c, out)
        np.multiply(out, x, out)
    np.add(out, coefficients[-1], out)


def _erf(x: Array, out: Array) -> None:
    clamped = np.clip(x, -4, 4)
    square = np.square(clamped)
    bottom = np.empty_like(square)
    _polynomial(square, ERF_Q, bottom)
    _polynomial(square, ERF_P, out)
    np.multiply(out, clamped, out)
    np.divide(out, bottom, out)


def _gelu(x: Array, out: Array) -> None:
    # x Φ(x), with Φ(-|x|) from the tail: unlike 1 + erf, it does not cancel to nothing for negative x.
    size, t = np.empty_like(out), np.empty_like(out)
    np.absolute(x, size)
    np.minimum(size, GELU_ZERO, out=size)
    np.multiply(size, 0.5 * math.sqrt(0.5), t)
    np.add(t, 1, t)
    np.reciprocal(t, t)
    _polynomial(t, ERFC, out)
    np.square(size, size)
    np.multiply(size, 0.5, size)
    np.subtract(out, size, out)
    np.exp(out, out)
    np.multiply(t, 0.5, t)
    np.multiply(out, t, out)
    np.subtract(1, out, out=out, where=np.greater_equal(x, 0))
    np.multiply(x, out, out)


def _gelu_tanh(x: Array, out: Array) -> None:
    # (1 + tanh u)/2 = sigmoid(2u), which does not cancel for negative x.
    scale = 2 * math.sqrt(2 / math.pi)
    inner = np.empty_like(out)
    np.square(x, inner)
    np.multiply(inner, 0.044715 * scale, inner)
    np.add(inner, scale, inner)
    np.multiply(inner, x, inner)
    _sigmoid(inner, out)
    np.multiply(x, out, out)


def _where(cond: Array, a: Array, b: Array, out: Array) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=cond)


# Name → kernel, whether it may write over its operand.
_FLOAT: dict[str, tuple[Run, bool]] = {
    "rsqrt": (_rsqrt, True),
    "sigmoid": (_sigmoid, True),
    "silu": (_silu, False),
    "softplus": (_softplus, False),
    "erf": (_erf, False),
    "gelu": (_gelu, False),
    "gelu_tanh": (_gelu_tanh, False),
}


def bind_scalar(call: NodeCall) -> Elementwise:
    """The kernel of an elementwise node; ops without one of their own run their reference."""
    name, result = call.spec.name, call.out.dtype.compute_np
    native = elementwise(name) if name in MAPS else None
    if name in _UFUNCS:
        return Elementwise(_UFUNCS[name], result, native=native)
    if name == "relu":
        return Elementwise(_relu, result)
    if name == "where":
        return Elementwise(_where, result, in_place=False)
    if name == "cast":
        return _bind_cast(call)
    first = call.ins[0]
    if first is not None and first.dtype.is_float:
        if name in _FLOAT:
            run, in_place = _FLOAT[name]
            return Elementwise(run, result, in_place, native=native)
        if name == "clamp":
            return Elementwise(_clamp(call.attrs["lo"], call.attrs["hi"]), result)

    def run_reference(*operands: Any) -> None:
        *given, out = operands
        np.copyto(out, call.reference(given), casting="unsafe")

    return Elementwise(run_reference, result)


def _clamp(lo: float | None, hi: float | None) -> Run:
    def run(x: Array, out: Array) -> None:
        if lo is not None:
            x = np.maximum(x, lo, out=out)
        if hi is not None:
            np.minimum(x, hi, out=out)
        elif lo is None:
            np.copyto(out, x)

    return run


def _bind_cast(call: NodeCall) -> Elementwise:
    source, target = call.ins[0], named_dtype(call.attrs["dtype"])
    assert source is not None
    # A cast to f16 or bf16 is the one place where a value is rounded inside a step, so its result has that dtype.
    result = target.np
    if target.kind == "bool":
        return Elementwise(lambda x, out: np.not_equal(x, 0, out), result, raw=False)
    if source.dtype.is_float and target.is_integer:

        def saturate(x: Array, out: Array) -> None:
            np.copyto(out, call.reference([x]), casting="unsafe")

        return Elementwise(saturate, result)

    if is_half(call.dtypes[0]) and is_half(result):

        def between_16_bit(x: Array, out: Array) -> None:
            np.copyto(out, as_f32(x), casting="unsafe")

        return Elementwise(between_16_bit, result, raw=True)

    def convert(x: Array, out: Array) -> None:
        np.copyto(out, x, casting="unsafe")

    return Elementwise(convert, result)
