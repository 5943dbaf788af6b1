"""Matmuls of rows that come in groups, each group with a matrix of its own: how many rows a group has is data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.core.dtypes import DType
from pumice.core.precisions import FLOAT_PRECISIONS, check_precision
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import grouped as gradients
from pumice.ir.ops.matmul import rounding_error
from pumice.ir.precision import Evaluation, U, growth, summed
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng, same_dtype
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

SIZES_RULE = (
    "sizes [G] (i32) says how many rows each group has: group 0 has the first rows, group 1 those after them, and so on. A "
    "negative size counts as 0, and rows beyond the last one do not exist. "
)


def _float_dtype(a: TensorType, b: TensorType) -> DType:
    for t in (a, b):
        require_kind(t, "float")
    return dtypes.f32 if a.dtype != b.dtype else same_dtype([a, b])


def check_sizes(sizes: TensorType) -> None:
    if sizes.dtype != dtypes.i32 or sizes.rank != 1:
        raise DTypeError(
            f"sizes must be i32 [G], they are {sizes.describe()}",
            hint="one number of rows for each group; cast with .astype('i32')",
            dtype=sizes.dtype.name,
        )


def _infer_grouped(types: Types, attrs: Attrs) -> TensorType:
    check_precision(attrs["precision"], FLOAT_PRECISIONS)
    x, w, sizes = given(types)
    dtype = _float_dtype(x, w)
    check_sizes(sizes)
    if x.rank != 2 or w.rank != 3 or x.shape[1] != w.shape[1] or w.shape[0] != sizes.shape[0]:
        raise ShapeError(
            "takes x [M, K], w [G, K, N] and sizes [G], the shapes are "
            f"{shape_text(x.shape)}, {shape_text(w.shape)} and {shape_text(sizes.shape)}",
            hint="rows are sorted by group; w has one [K, N] matrix for each group",
            x=x.shape,
            w=w.shape,
        )
    return TensorType(dtype, (x.shape[0], w.shape[2]))


def _infer_grad_weight(types: Types, attrs: Attrs) -> TensorType:
    check_precision(attrs["precision"], FLOAT_PRECISIONS)
    x, dy, sizes = given(types)
    dtype = _float_dtype(x, dy)
    check_sizes(sizes)
    if x.rank != 2 or dy.rank != 2 or x.shape[0] != dy.shape[0]:
        raise ShapeError(
            f"takes x [M, K] and dy [M, N], the shapes are {shape_text(x.shape)} and {shape_text(dy.shape)}",
            x=x.shape,
            dy=dy.shape,
        )
    return TensorType(dtype, (sizes.shape[0], x.shape[1], dy.shape[1]))


def group_bounds(sizes: Array, rows: int) -> Array:
    """The first row of each group, and the end of the last one: G + 1 numbers.

    >>> group_bounds(np.int32([2, -1, 3, 9]), 7).tolist()
    [0, 2, 2, 5, 7]
    """
    ends = np.minimum(np.cumsum(np.maximum(sizes.astype(np.int64), 0)), rows)
    return np.concatenate([np.zeros(1, np.int64), ends])


def _grouped_matmul(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, w, sizes = arrays
    bounds = group_bounds(sizes, len(x))
    result = np.zeros(out.static_shape, np.result_type(x, w))
    with np.errstate(invalid="ignore", over="ignore"):
        for g in np.flatnonzero(np.diff(bounds)):
            rows = slice(bounds[g], bounds[g + 1])
            np.matmul(x[rows], w[g], out=result[rows])
    return result


def _grad_weight(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, dy, sizes = arrays
    bounds = group_bounds(sizes, len(x))
    result = np.zeros(out.static_shape, np.result_type(x, dy))
    with np.errstate(invalid="ignore", over="ignore"):
        for g in np.flatnonzero(np.diff(bounds)):
            rows = slice(bounds[g], bounds[g + 1])
            np.matmul(x[rows].T, dy[rows], out=result[g])
    return result


_sums_error = summed(lambda e: e.arrays[0].shape[-1])


def _grouped_error(e: Evaluation) -> Array:
    return np.asarray(_sums_error(e) + rounding_error(e, e.arrays[2]))


def _grad_weight_error(e: Evaluation) -> Array:
    x, dy, sizes = e.arrays
    terms = np.diff(group_bounds(sizes, len(x)))[:, None, None]
    return np.asarray(growth(terms) * U * e.again([np.abs(x), np.abs(dy), sizes]) + rounding_error(e, sizes))


# Labels, rows, K, N and the groups' sizes.
_CASES: tuple[tuple[str, int, int, int, tuple[int, ...]], ...] = (
    ("three groups", 20, 12, 7, (5, 9, 6)),
    ("an empty group first, in between and last", 11, 5, 9, (0, 4, 0, 7, 0)),
    ("rows beyond the last group", 33, 20, 18, (3, 8)),
    ("no rows in any group", 9, 8, 8, (0, 0, 0)),
    ("one group of all rows", 70, 33, 40, (70,)),
    ("one row in each group", 6, 40, 33, (1, 1, 1, 1, 1, 1)),
    ("whole tiles", 128, 32, 64, (64, 32, 32)),
    ("long K", 9, 300, 5, (4, 5)),
    ("negative sizes, and more rows than there are", 10, 6, 5, (-3, 4, -(2**31), 2**31 - 1, 2**31 - 1, 2)),
    ("more groups than a workgroup has threads", 40, 3, 5, tuple(int(i % 9 == 0) for i in range(300))),
    ("1x1x1", 1, 1, 1, (1,)),
    ("no groups", 4, 3, 5, ()),
    ("no rows", 0, 5, 4, (0, 0)),
    ("K=0 gives zeros", 3, 0, 4, (2, 1)),
    ("N=0", 3, 5, 0, (2, 1)),
)
_DTYPES = ((dtypes.f16, dtypes.f16), (dtypes.bf16, dtypes.bf16), (dtypes.f32, dtypes.f16), (dtypes.bf16, dtypes.f32))


def _samples(weight: bool) -> Iterator[Sample]:
    """x and sizes with w, or with what has a row for each of x."""

    def sample(
        label: str, m: int, k: int, n: int, sizes: tuple[int, ...], a: DType = dtypes.f32, b: DType = dtypes.f32
    ) -> Sample:
        r = rng(m + n)
        x, other = r.standard_normal((m, k)), r.standard_normal((len(sizes), k, n) if weight else (m, n))
        return Sample(label, (x.astype(a.np), other.astype(b.np), np.array(sizes, np.int32)), {})

    for case in _CASES:
        yield sample(*case)
    for a, b in _DTYPES:
        yield sample(f"{a} by {b}", 21, 34, 18, (6, 0, 11), a, b)
        yield sample(f"{a} by {b}, odd", 10, 7, 5, (3, 6), a, b)


def sizes_text(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    rows, depth = of["x"]
    return f"{of['sizes'][0]} groups, M {rows}, N {out[-1]}, K {depth}"


register(
    OpSpec(
        name="grouped_matmul",
        family="matmul",
        summary="rows sorted by group, each group times its own matrix",
        operands=("x", "w", "sizes"),
        infer=_infer_grouped,
        reference=_grouped_matmul,
        lowering=Routine("grouped_matmul"),
        samples=lambda: _samples(weight=True),
        error=_grouped_error,
        gradient=gradients.grouped_matmul,
        attrs={"precision": "exact"},
        implied=("precision",),
        cost="compute",
        traits=Traits(flops=lambda of, attrs, out: 2 * prod(out) * of["x"][-1], sizes=sizes_text, precisions=FLOAT_PRECISIONS),
        rules=(
            "x [M, K] by w [G, K, N] gives [M, N]. "
            + SIZES_RULE
            + "Rows of no group give zeros. Operands are f32, f16 or bf16; two "
            "that differ give f32. Products sum in f32 and round once at the end. The precisions f16 and bf16 are those "
            "of matmul."
        ),
    )
)

register(
    OpSpec(
        name="grouped_matmul_grad_weight",
        family="matmul",
        summary="for each group, the transpose of its rows of x times its rows of dy",
        operands=("x", "dy", "sizes"),
        infer=_infer_grad_weight,
        reference=_grad_weight,
        lowering=Routine("grouped_matmul_grad_weight"),
        samples=lambda: _samples(weight=False),
        error=_grad_weight_error,
        gradient=gradients.grad_weight,
        attrs={"precision": "exact"},
        implied=("precision",),
        cost="compute",
        traits=Traits(
            flops=lambda of, attrs, out: 2 * prod(of["x"]) * of["dy"][1], sizes=sizes_text, precisions=FLOAT_PRECISIONS
        ),
        rules=(
            "x [M, K] and dy [M, N] give [G, K, N]. "
            + SIZES_RULE
            + "A group without rows gives zeros. Dtypes, sums and precisions are "
            "those of grouped_matmul."
        ),
    )
)
