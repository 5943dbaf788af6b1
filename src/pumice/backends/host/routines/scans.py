"""Host routines of scans: NumPy's accumulate along a row, and linear recurrences over all rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.ops.reduce import least
from pumice.ir.ops.scan import in_order, linear_steps
from pumice.ir.registry import Array

_LONG = 1 << 10


def _bind_accumulate(ufunc: Any, first: Any) -> Binder:
    """`first(dtype)` is what an exclusive scan begins with."""

    def bind(call: NodeCall) -> HostRoutine:
        attrs, result = call.attrs, call.out.dtype.compute_np
        # A running float32 sum drifts with the number of additions, a float64 one rounded at the end does not.
        long = result.kind == "f" and ufunc in (np.add, np.logaddexp) and call.shape("x")[attrs["axis"]] > _LONG
        wide = np.dtype(np.float64) if long else result

        def run(operands: list[Any], out: Array) -> None:
            x, target = (np.moveaxis(in_order(a, attrs), 0, -1) for a in (operands[0], out))
            if attrs["exclusive"]:
                target[..., 0] = first(result)
                x, target = x[..., :-1], target[..., 1:]
            with np.errstate(all="ignore"):
                if wide == result:
                    ufunc.accumulate(x, axis=-1, dtype=result, out=target)
                else:
                    np.copyto(target, ufunc.accumulate(x, axis=-1, dtype=wide), casting="unsafe")

        return HostRoutine(run, result)

    return bind


def _bind_linear(call: NodeCall) -> HostRoutine:
    attrs = call.attrs

    def run(operands: list[Any], out: Array) -> None:
        a, b, initial = operands
        linear_steps(in_order(a, attrs), in_order(b, attrs), initial, in_order(out, attrs), exclusive=attrs["exclusive"])

    return HostRoutine(run, call.out.dtype.compute_np)


SCANS: dict[str, Binder] = {
    "cumsum": _bind_accumulate(np.add, lambda dtype: 0),
    "cumprod": _bind_accumulate(np.multiply, lambda dtype: 1),
    "cummax": _bind_accumulate(np.maximum, least),
    "cummin": _bind_accumulate(np.minimum, lambda dtype: least(dtype, greatest=True)),
    "logcumsumexp": _bind_accumulate(np.logaddexp, lambda dtype: -np.inf),
    "linear_scan": _bind_linear,
}
