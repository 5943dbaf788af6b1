"""Elementwise ops over NumPy arrays, writing into a given one where the op is a ufunc, so that temporaries can be reused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import NpDType, as_f32, is_half
from pumice.backends.host.native.kernel_tasks import MAPS, Native, elementwise
from pumice.backends.host.routines.calls import NodeCall
from pumice.core.dtypes import dtype as named_dtype
from pumice.core.records import dataclass
from pumice.ir.registry import Array, Scalar

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


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _where(cond: Array, a: Array, b: Array, out: Array) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=cond)


# NumPy's own calls where they can write into `out`.
_INTO: dict[str, Run] = {"max": _maximum, "min": _minimum, "relu": _relu, "where": _where}


def bind_scalar(call: NodeCall) -> Elementwise:
    """How an elementwise node runs: by the ufunc that the op is, else by its reference."""
    name, result, lowering = call.spec.name, call.out.dtype.compute_np, call.spec.lowering
    native = elementwise(name) if name in MAPS else None
    if name in _INTO:
        return Elementwise(_INTO[name], result, in_place=name != "where")
    if isinstance(lowering, Scalar) and isinstance(lowering.function, np.ufunc):
        return Elementwise(lowering.function, result, native=native)
    if name == "cast":
        return _bind_cast(call)
    if name == "clamp" and call.out.dtype.is_float:
        return Elementwise(_clamp(call.attrs["lo"], call.attrs["hi"]), result)

    def run_reference(*operands: Any) -> None:
        *given, out = operands
        np.copyto(out, call.reference(given), casting="unsafe")

    return Elementwise(run_reference, result, native=native)


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
