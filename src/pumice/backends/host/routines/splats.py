"""Rasterised splats and their gradient on the host: by compiled kernels over tiles, or as the ops mean it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Native, Task, address, bits, is_dense
from pumice.backends.host.routines.calls import Binder, HostRoutine, NodeCall
from pumice.ir.ops.rasterize import GEOMETRY
from pumice.ir.ops.splat import tile_grid
from pumice.ir.registry import Array

# Multiplications in the time that a splat takes at a pixel.
_WORK = 8


def _tasks(call: NodeCall) -> Native:
    attrs = call.attrs
    down, across = tile_grid(attrs)
    count, numbers = call.shape("splats")
    listed = call.shape("pairs")[0]
    sizes = (count, listed, numbers - GEOMETRY, attrs["width"], attrs["height"], attrs["tile"])
    words = (*sizes, *(bits(attrs[name]) for name in ("clip", "cutoff", "stop")), bits(math.log(attrs["cutoff"]) - 1e-3))
    work = _WORK * max(1, listed) * attrs["tile"] ** 2

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        of = call.named(operands)
        floats = [of[n] for n in ("splats", "image", "dy") if n in of]
        ints = [of[n] for n in ("pairs", "bounds", "rows")]
        if not all(is_dense(a) for a in (*floats, out)) or not all(is_dense(a, np.int32) for a in ints):
            return None
        lists = tuple(map(address, (of["splats"], of["pairs"], of["bounds"])))
        if "dy" not in of:
            return [Task("rasterize_f32", (*lists, address(out), 0, 0, 0, *words), down * across, work, (floats, ints, out))]
        parts = np.empty((listed, numbers), np.float32)
        places = (0, address(of["image"]), address(of["dy"]), address(parts))
        keep = (floats, ints, out, parts)
        sums = (address(parts), address(of["rows"]), address(out), numbers, listed)
        return [
            Task("rasterize_parts_f32", (*lists, *places, *words), down * across, 3 * work, keep),
            Task("sum_splat_rows", sums, count, listed * numbers, keep),
        ]

    return make


def _bind(call: NodeCall) -> HostRoutine:
    make = _tasks(call)

    def run(operands: list[Any], out: Array) -> None:
        kernels = jit.kernels()
        tasks = None if kernels is None else make([np.ascontiguousarray(a) for a in operands], out)
        if kernels is None or tasks is None:
            np.copyto(out, call.reference(operands))
        else:
            kernels.run(tasks)

    return HostRoutine(run, call.out.dtype.compute_np, native=make, heavy=True)


SPLATS: dict[str, Binder] = {"rasterize": _bind, "rasterize_gradient": _bind}
