"""Orthogonal factorisations of small matrices: qr, svd and eigh, batched over the leading axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.errors import ShapeError
from pumice.ir.gradients import linalg as gradients
from pumice.ir.ops.linalg import matrices, positive, regular
from pumice.ir.ops.linalg_errors import eigh_error, qr_error, svd_error
from pumice.ir.ops.shape import plain, sample
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

# Kernels keep a few words for each column in workgroup memory.
MOST_COLUMNS = 256


def _static(t: TensorType, *, square: bool = False) -> tuple[int, int]:
    matrices(t, square=square)
    rows, columns = t.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(f"takes matrices of static size, not {shape_text(t.shape)}", hint="leading dims may be symbolic")
    if columns > MOST_COLUMNS:
        raise ShapeError(f"takes matrices of up to {MOST_COLUMNS} columns, not {columns}", columns=columns)
    return rows, columns


def _finite(a: Array) -> Array:
    """Which matrices hold numbers only."""
    return np.asarray(np.isfinite(a).all(axis=(-2, -1)))


# --- qr ---


def _infer_qr(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (a,) = plain(types)
    rows, columns = _static(a)
    rank, lead = min(rows, columns), a.shape[:-2]
    return TensorType(dtypes.f32, (*lead, rows, rank)), TensorType(dtypes.f32, (*lead, rank, columns))


def _qr(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    (a,) = arrays
    q, r = np.linalg.qr(a)
    return np.asarray(q), np.asarray(r)


def _qr_samples() -> Iterator[Sample]:
    yield sample("square", [regular(4)])
    yield sample("tall", [regular(9, columns=4)])
    yield sample("wide", [regular(3, columns=5)])
    yield sample("batch", [regular(5, 2, 3, columns=3)])
    yield sample("one", [regular(1)])
    yield sample("many threads", [regular(37, columns=11)])
    yield sample("larger than workgroup memory", [regular(60, columns=18)])
    yield sample("clear already, where signs jump", [np.array([[-2, 1, 0], [0, 3, 1], [0, 0, -1]], np.float32)])
    yield sample("none", [regular(3, 0)])


# --- svd ---


def _infer_svd(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (a,) = plain(types)
    rows, columns = _static(a)
    if columns > rows:
        raise ShapeError(f"takes at least as many rows as columns, not {shape_text(a.shape)}", hint="transpose it first")
    lead = a.shape[:-2]
    u, s = (*lead, rows, columns), (*lead, columns)
    return TensorType(dtypes.f32, u), TensorType(dtypes.f32, s), TensorType(dtypes.f32, (*lead, columns, columns))


def _turned(vectors: Array) -> Array:
    """The sign, as [..., 1, n], that makes the greatest entry of each column positive; the first of equal ones."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]))
    place = np.argmax(np.abs(vectors), axis=-2, keepdims=True)
    return np.where(np.take_along_axis(vectors, place, axis=-2) < 0, -1.0, 1.0)


def _svd(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    (a,) = arrays
    finite = _finite(a)
    u, s, vh = np.linalg.svd(np.where(finite[..., None, None], a, 0), full_matrices=False)
    sign = _turned(np.swapaxes(vh, -1, -2))
    u, vh = u * sign, vh * np.swapaxes(sign, -1, -2)
    bad = ~finite
    return (
        np.where(bad[..., None, None], np.nan, u),
        np.where(bad[..., None], np.nan, s),
        np.where(bad[..., None, None], np.nan, vh),
    )


def _svd_samples() -> Iterator[Sample]:
    yield sample("square", [regular(3)])
    yield sample("tall", [regular(7, columns=4)])
    yield sample("batch", [regular(5, 2, 3, columns=3)])
    yield sample("one", [regular(1)])
    yield sample("one column", [regular(9, columns=1)])
    yield sample("many threads", [regular(21, columns=12)])
    yield sample("larger than workgroup memory", [regular(64, columns=25)])
    singular = np.array([[1, 2], [2, 4], [3, 6]], np.float32)
    odd = np.array([[1, np.nan], [0, 1], [1, 1]], np.float32)
    yield sample("singular, zero, NaN", [np.stack([singular, 0 * singular, odd])])
    yield sample("none", [regular(3, 0)])


# --- eigh ---


def _infer_eigh(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (a,) = plain(types)
    _static(a, square=True)
    return TensorType(dtypes.f32, a.shape[:-1]), a


def _eigh(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    lower = np.tril(arrays[0])
    finite = _finite(lower)
    w, v = np.linalg.eigh(np.where(finite[..., None, None], lower, 0))
    v = v * _turned(v)
    return np.where(finite[..., None], w, np.nan), np.where(finite[..., None, None], v, np.nan)


def _symmetric(n: int, *lead: int) -> Array:
    m = regular(n, *lead, seed=3)
    return np.asarray(m + np.swapaxes(m, -1, -2), np.float32)


def _eigh_samples() -> Iterator[Sample]:
    yield sample("three by three", [_symmetric(3)])
    yield sample("one", [_symmetric(1)])
    yield sample("batch", [_symmetric(4, 2, 3)])
    yield sample("positive", [positive(9)])
    yield sample("many threads", [_symmetric(21)])
    yield sample("larger than workgroup memory", [_symmetric(33)])
    yield sample(
        "diagonal, zero, NaN", [np.stack([np.diag([3.0, -1.0, 2.0]), np.zeros((3, 3)), np.full((3, 3), np.nan)]).astype("f4")]
    )
    yield sample("none", [_symmetric(3, 0)])


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    rows, columns = of["a"][-2:]
    return f"{int(np.prod(of['a'][:-2]))} matrices of {rows} × {columns}"


_LIMIT = f" Sizes are static, with up to {MOST_COLUMNS} columns; leading dims may be symbolic."
_SIGN = " The greatest entry of each {} vector is positive, the first of equal ones."
register(
    OpSpec(
        "qr",
        "linalg",
        "an orthogonal q and an upper triangular r with q r = a",
        ("a",),
        _infer_qr,
        _qr,
        Routine("qr"),
        _qr_samples,
        cost="compute",
        error=qr_error,
        results=("q", "r"),
        rules="f32 a [..., m, n] gives q [..., m, k] and r [..., k, n] with k = min(m, n), with LAPACK's signs: the diagonal of r"
        " is negative where the column had a positive entry to reflect." + _LIMIT,
        gradient=gradients.qr,
        traits=Traits(sizes=_sizes),
    )
)
register(
    OpSpec(
        "svd",
        "linalg",
        "orthogonal u and vh and the singular values s with u diag(s) vh = a",
        ("a",),
        _infer_svd,
        _svd,
        Routine("svd"),
        _svd_samples,
        cost="compute",
        error=svd_error,
        results=("u", "s", "vh"),
        rules="f32 a [..., m, n] with m ≥ n gives u [..., m, n], s [..., n] in descending order and vh [..., n, n]."
        + _SIGN.format("right")
        + " Columns of u for singular values of 0, or of its rounding, are arbitrary; a matrix with NaN or infinities gives NaN."
        " The gradient takes equal singular values for unconnected." + _LIMIT,
        gradient=gradients.svd,
        traits=Traits(sizes=_sizes),
    )
)
register(
    OpSpec(
        "eigh",
        "linalg",
        "the eigenvalues w and eigenvectors v of a symmetric matrix",
        ("a",),
        _infer_eigh,
        _eigh,
        Routine("eigh"),
        _eigh_samples,
        cost="compute",
        error=eigh_error,
        results=("values", "vectors"),
        rules="f32 a [..., n, n], of which the lower triangle is read; w [..., n] ascends, v [..., n, n] has vectors as columns."
        + _SIGN.format("eigen-")
        + " A matrix with NaN or infinities gives NaN. The gradient takes equal eigenvalues for unconnected."
        + _LIMIT,
        gradient=gradients.eigh,
        traits=Traits(sizes=_sizes),
    )
)
