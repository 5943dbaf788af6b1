"""grouped_qmatmul: rows that come in groups, each group times a quantised matrix of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.dims import shape_text
from pumice.core.dtypes import DType
from pumice.core.precisions import PRECISIONS, check_precision
from pumice.errors import ShapeError
from pumice.ir.gradient import Val
from pumice.ir.gradients import grouped as gradients
from pumice.ir.ops.eight_bits import compose_rounding, round_to_eight_bits, rounding_flips
from pumice.ir.ops.grouped import SIZES_RULE, check_sizes, group_bounds, sizes_text
from pumice.ir.ops.matmul import block_sizes, check_blocks, matrix_error
from pumice.ir.precision import DIVISION_ULPS, Evaluation, U, growth
from pumice.ir.registry import Array, Attrs, OpSpec, Packed, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng
from pumice.ir.traits import Traits
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x, w, sizes = given(types)
    check_precision(attrs["precision"])
    require_kind(x, "float")
    check_blocks(w)
    check_sizes(sizes)
    if x.rank != 2 or w.rank != 3 or x.shape[1] != w.shape[2] or w.shape[0] != sizes.shape[0]:
        raise ShapeError(
            "takes x [M, K], w [G, N, K] and sizes [G], the shapes are "
            f"{shape_text(x.shape)}, {shape_text(w.shape)} and {shape_text(sizes.shape)}",
            hint="rows are sorted by group; w holds for each group a row of K weights for each of the N outputs",
            x=x.shape,
            w=w.shape,
        )
    return TensorType(x.dtype, (x.shape[0], w.shape[1]))


def _each_group(x: Array, w: Packed, sizes: Array) -> Iterator[tuple[slice, Packed]]:
    """The rows of each group that has some, and its weight."""
    bounds = group_bounds(sizes, len(x))
    for g in np.flatnonzero(np.diff(bounds)):
        yield slice(bounds[g], bounds[g + 1]), Packed(w.dtype, w.shape[1:], w.data[g])


def _reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    from pumice.core.blocks import dequantize_rows

    x, w, sizes = arrays
    if attrs["precision"] == "fast":
        x = round_to_eight_bits(x)
    result = np.zeros(out.static_shape, x.dtype)
    for rows, weight in _each_group(x, w, sizes):
        result[rows] = x[rows] @ dequantize_rows(w.dtype, weight.data, w.shape[-1]).T
    return result


def _error(e: Evaluation) -> Array:
    x, w, sizes = e.arrays
    fast, roundings = e.attrs["precision"] == "fast", growth(w.shape[-1])
    rounded = round_to_eight_bits(x) if fast else x
    bound = np.zeros((len(x), w.shape[1]))
    for rows, weight in _each_group(x, w, sizes):
        largest = block_sizes(weight).T
        each = roundings + (2 * DIVISION_ULPS + 1 if fast else 0)
        bound[rows] = each * U * (np.abs(rounded[rows]) @ largest)
        if fast:
            bound[rows] += rounding_flips(x[rows]) @ largest
        off, off_w = (matrix_error(e.attrs["precision"], a) for a in (x[rows], largest))
        if off is not None and off_w is not None:
            bound[rows] += off @ largest + (np.abs(x[rows]) + off) @ off_w
    return bound


def _compose(attrs: Attrs, operands: Mapping[str, Val]) -> Val:
    x, w, sizes = operands["x"], operands["w"], operands["sizes"]
    rounded = compose_rounding(x) if attrs["precision"] == "fast" else x
    return rounded.op("grouped_qmatmul", w, sizes).cast(x.dtype)


# Labels, dtypes of w and x, rows, blocks of K, N and the groups' sizes.
_CASES: tuple[tuple[str, DType, DType, int, int, int, tuple[int, ...]], ...] = (
    ("three groups", dtypes.q4_0, dtypes.f32, 20, 2, 33, (5, 9, 6)),
    ("an empty group first, in between and last", dtypes.q8_0, dtypes.f32, 11, 1, 64, (0, 4, 0, 7, 0)),
    ("one row in some groups, few rows", dtypes.q4_k, dtypes.f32, 4, 1, 70, (1, 0, 1, 0, 2)),
    ("rows beyond the last group, few rows", dtypes.q4_1, dtypes.f32, 5, 3, 32, (1, 2)),
    ("rows beyond the last group", dtypes.q6_k, dtypes.f32, 40, 1, 18, (9, 26)),
    ("many rows", dtypes.mxfp4, dtypes.f32, 70, 2, 65, (33, 0, 37)),
    ("negative sizes, and more rows than there are", dtypes.q5_0, dtypes.f32, 10, 1, 7, (-3, 4, 2**31 - 1, 2)),
    ("a format of groups", dtypes.dtype("u4b_g64_bf16"), dtypes.f32, 9, 2, 40, (4, 5)),
    ("f16", dtypes.q8_0, dtypes.f16, 7, 2, 33, (3, 4)),
    ("no rows", dtypes.q4_0, dtypes.f32, 0, 1, 8, (0, 0)),
    ("no groups", dtypes.q4_0, dtypes.f32, 3, 1, 8, ()),
)


def _samples() -> Iterator[Sample]:
    def sample(label: str, q: DType, dtype: DType, m: int, blocks: int, n: int, sizes: tuple[int, ...], **attrs: Any) -> Sample:
        k, r = blocks * q.block, rng(m + n)
        x = r.standard_normal((m, k)).astype(dtype.np)
        shape = (len(sizes), n, k)
        w = Packed(q, shape, quantize_rows(q, r.standard_normal(shape)))
        return Sample(f"{label}, {q}", (x, w, np.array(sizes, np.int32)), attrs)

    for case in _CASES:
        yield sample(*case)
    yield sample("fast", dtypes.q4_0, dtypes.f32, 6, 2, 33, (1, 0, 5), precision="fast")


register(
    OpSpec(
        name="grouped_qmatmul",
        family="matmul",
        summary="rows sorted by group, each group times the transpose of its own quantised weight",
        operands=("x", "w", "sizes"),
        infer=_infer,
        reference=_reference,
        lowering=Routine("grouped_qmatmul"),
        samples=_samples,
        error=_error,
        gradient=gradients.grouped_qmatmul,
        composed=_compose,
        attrs={"precision": "exact"},
        implied=("precision",),
        cost="compute",
        traits=Traits(flops=lambda of, attrs, out: 2 * prod(out) * of["x"][-1], sizes=sizes_text, precisions=PRECISIONS),
        rules=(
            "x [M, K] by w [G, N, K] gives [M, N] in x's dtype. "
            + SIZES_RULE
            + "Rows of no group give zeros. w is quantised along K, "
            "which is static and a multiple of the block. Values of weights, sums and the precision are those of qmatmul."
        ),
    )
)
