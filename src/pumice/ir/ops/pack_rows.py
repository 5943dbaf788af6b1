"""pack_rows: params adjacent in memory, as one weight. Planning creates it; no step computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.core.dims import shape_text
from pumice.errors import DTypeError, ShapeError
from pumice.ir.registry import Attrs, OpSpec, Packed, Source, Types, register
from pumice.ir.types import TensorType

# Rows of quantised weights that the host keeps in one tile: a param begins where a tile does.
TILE_ROWS = 32


def _infer(types: Types, attrs: Attrs) -> TensorType:
    found = [t for t in types if t is not None]
    first = found[0]
    if any(t.dtype != first.dtype for t in found):
        raise DTypeError(f"params of one dtype are packed, not {', '.join(t.dtype.name for t in found)}")
    if not first.rank or any(t.rank != first.rank or t.shape[1:] != first.shape[1:] for t in found):
        raise ShapeError(f"the rows of {', '.join(shape_text(t.shape) for t in found)} are not of one size")
    rows = [t.static_shape[0] for t in found]
    if first.dtype.is_quant and any(n % TILE_ROWS for n in rows[:-1]):
        raise ShapeError(f"quantised params are packed in multiples of {TILE_ROWS} rows, not {rows}")
    return TensorType(first.dtype, (sum(rows), *first.shape[1:]))


def _reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Any:
    if isinstance(arrays[0], Packed):
        return Packed(out.dtype, out.static_shape, np.concatenate([a.data for a in arrays]))
    return np.concatenate(arrays)


register(
    OpSpec(
        name="pack_rows",
        family="source",
        summary="params one after the other in memory, as one weight",
        operands=("param*",),
        infer=_infer,
        reference=_reference,
        lowering=Source(),
        samples=lambda: (),
        cost="free",
        no_gradient="planned graphs have it, and gradients are taken before planning",
    )
)
