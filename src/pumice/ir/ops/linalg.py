"""Factorisations and triangular systems of small matrices, batched over the leading axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import linalg as gradients
from pumice.ir.ops.linalg_errors import cholesky_error, lu_error, solve_error
from pumice.ir.ops.shape import plain, sample
from pumice.ir.precision import Evaluation
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import broadcast, rng
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType


def matrices(t: TensorType, *, square: bool = False) -> TensorType:
    """Refuses what is no f32[..., n, m], or not square where it must be."""
    if t.dtype != dtypes.f32:
        raise DTypeError(f"takes f32 matrices, not {t.dtype}", hint="cast with .astype('f32')", dtype=t.dtype.name)
    if t.rank < 2 or (square and t.shape[-1] != t.shape[-2]):
        kind = "square matrices [..., n, n]" if square else "matrices [..., n, m]"
        raise ShapeError(f"takes {kind}, not {shape_text(t.shape)}", shape=t.shape)
    return t


# --- cholesky ---


def _infer_cholesky(types: Types, attrs: Attrs) -> TensorType:
    (a,) = plain(types)
    return matrices(a, square=True)


def _cholesky(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    a = np.tril(arrays[0])
    try:
        return np.asarray(np.linalg.cholesky(a))
    except np.linalg.LinAlgError:
        pass
    with np.errstate(all="ignore"):
        for k in range(a.shape[-1]):
            pivot = a[..., k, k]
            root = np.where(pivot > 0, np.sqrt(np.abs(pivot)), np.nan)
            a[..., k, k] = root
            a[..., k + 1 :, k] /= root[..., None]
            column = a[..., k + 1 :, k]
            a[..., k + 1 :, k + 1 :] -= np.tril(column[..., :, None] * column[..., None, :])
    return np.tril(a)


def positive(n: int, *lead: int, seed: int = 0) -> Array:
    """Positive definite matrices that are well conditioned."""
    m = rng(seed + n).standard_normal((*lead, n, n))
    return np.asarray(m @ np.swapaxes(m, -1, -2) / max(n, 1) + np.eye(n), np.float32)


def _cholesky_samples() -> Iterator[Sample]:
    yield sample("one", [positive(1)])
    yield sample("three by three", [positive(3)])
    yield sample("batch", [positive(5, 2, 3)])
    yield sample("many threads", [positive(17)])
    yield sample("many", [positive(4, 70)])
    yield sample("larger than workgroup memory", [positive(46)])
    singular = np.array([[4, 2, 0], [2, 1, 0], [0, 0, 1]], np.float32)
    yield sample("singular and not definite", [np.stack([singular, -singular, np.eye(3, dtype=np.float32)])])
    yield sample("none", [positive(3, 0)])
    yield sample("empty", [np.zeros((2, 0, 0), np.float32)])


# --- lu ---


def _infer_lu(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (a,) = plain(types)
    matrices(a, square=True)
    return a, TensorType(dtypes.i32, a.shape[:-1]), TensorType(dtypes.f32, a.shape[:-2])


def _lu(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    a = np.array(arrays[0])
    n, lead = a.shape[-1], a.shape[:-2]
    order = np.broadcast_to(np.arange(n, dtype=np.int32), (*lead, n)).copy()
    sign = np.ones(lead, a.dtype)
    for at in np.ndindex(lead):
        m, rows = a[at], order[at]
        with np.errstate(all="ignore"):
            for k in range(n):
                sizes = np.abs(m[k:, k])
                found = k + int(np.argmax(np.where(np.isnan(sizes), -1.0, sizes)))
                if found != k:
                    m[[k, found]], rows[[k, found]] = m[[found, k]], rows[[found, k]]
                    sign[at] = -sign[at]
                if m[k, k] != 0:
                    m[k + 1 :, k] /= m[k, k]
                m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return a, order, sign


def regular(n: int, *lead: int, seed: int = 0, columns: int | None = None) -> Array:
    """Matrices far from singular, with exchanges to make."""
    gen = rng(seed + 7 * n)
    return np.asarray(gen.standard_normal((*lead, n, n if columns is None else columns)), np.float32)


def _lu_samples() -> Iterator[Sample]:
    yield sample("one", [regular(1)])
    yield sample("three by three", [regular(3)])
    yield sample("batch", [regular(5, 2, 3)])
    yield sample("many threads", [regular(17)])
    yield sample("many", [regular(4, 70)])
    yield sample("larger than workgroup memory", [regular(46) + 8 * np.eye(46, dtype=np.float32)])
    # Their pivots are zero without a rounding: one that is only zero where quotients are exact would be none on some devices.
    singular = np.array([[[1, 2, 3], [0, 0, 5], [0, 0, 7]], [[0, 0, 0], [0, 1, 2], [0, 0, 4]]], np.float32)
    yield sample("singular", [np.concatenate([singular, 0 * singular[:1]])])
    yield sample("none", [regular(3, 0)])
    yield sample("empty", [np.zeros((2, 0, 0), np.float32)])


# --- triangular systems ---


def _infer_solve(types: Types, attrs: Attrs) -> TensorType:
    a, b = plain(types)
    matrices(a, square=True)
    matrices(b)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"takes a [..., n, n] and b [..., n, m], the shapes are {shape_text(a.shape)} and {shape_text(b.shape)}",
            hint="leading dims are equal",
            a=a.shape,
            b=b.shape,
        )
    assert broadcast(a.shape[:-2], b.shape[:-2]) == b.shape[:-2]
    return b


def triangle(a: Array, attrs: Attrs) -> Array:
    """The matrix that a triangular solve is about."""
    t = np.tril(a) if attrs["lower"] else np.triu(a)
    if attrs["unit"]:
        t = t - t * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    return np.swapaxes(t, -1, -2) if attrs["transpose"] else t


def _solve(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    a, b = triangle(arrays[0], attrs), np.array(arrays[1])
    n = a.shape[-1]
    down = attrs["lower"] != attrs["transpose"]
    with np.errstate(all="ignore"):
        for k in range(n) if down else range(n - 1, -1, -1):
            b[..., k, :] /= a[..., k, k, None]
            rest = slice(k + 1, n) if down else slice(0, k)
            b[..., rest, :] -= a[..., rest, k, None] * b[..., k, None, :]
    return b


def _solve_error(e: Evaluation) -> Array:
    return solve_error(e, triangle(e.arrays[0], e.attrs))


def _solve_samples() -> Iterator[Sample]:
    def case(label: str, n: int, m: int, *lead: int, **attrs: Any) -> Sample:
        a = regular(n, *lead) / max(n, 1) + np.eye(n, dtype=np.float32) * 2
        return sample(label, [a.astype(np.float32), regular(n, *lead, seed=1, columns=m)], **attrs)

    yield case("lower", 5, 3)
    yield case("upper", 5, 3, lower=False)
    yield case("lower, transposed", 5, 3, transpose=True)
    yield case("upper, transposed", 6, 1, lower=False, transpose=True)
    yield case("unit diagonal", 4, 7, unit=True)
    yield case("batch", 3, 2, 2, 5)
    yield case("many columns", 9, 70)
    yield case("many rows", 70, 3, lower=False)
    yield case("one", 1, 1)
    zero = np.array([[2, 0, 0], [1, 0, 0], [1, 1, 1]], np.float32)
    yield sample("a zero on the diagonal", [zero, np.array([[2.0], [3.0], [1.0]], np.float32)])
    yield case("no columns", 3, 0)
    yield case("no matrices", 3, 2, 0)


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    rows, columns = of["a"][-2:]
    return f"{int(np.prod(of['a'][:-2]))} matrices of {rows} × {columns}"


register(
    OpSpec(
        "cholesky",
        "linalg",
        "the lower triangular factor L of a = L Lᵀ",
        ("a",),
        _infer_cholesky,
        _cholesky,
        Routine("cholesky"),
        _cholesky_samples,
        cost="compute",
        error=cholesky_error,
        rules="f32 [..., n, n], of which the lower triangle is read. A matrix that is not positive definite gives NaN from the"
        " first column on whose pivot is not positive.",
        gradient=gradients.cholesky,
        traits=Traits(sizes=_sizes),
    )
)
register(
    OpSpec(
        "lu",
        "linalg",
        "the factors of a with exchanged rows, the order of its rows, and the order's sign",
        ("a",),
        _infer_lu,
        _lu,
        Routine("lu"),
        _lu_samples,
        cost="compute",
        error=lu_error,
        results=("factors", "order", "sign"),
        rules="f32 [..., n, n]. factors has U in its upper triangle and L, whose diagonal is 1, below; a[order] = L U. The"
        " greatest pivot is taken, of equal ones the upper. Singular matrices have a 0 on the diagonal of U, and no NaN for it.",
        gradient=gradients.lu,
        traits=Traits(sizes=_sizes),
    )
)
register(
    OpSpec(
        "triangular_solve",
        "linalg",
        "the solution x of a x = b for a triangular matrix a",
        ("a", "b"),
        _infer_solve,
        _solve,
        Routine("triangular_solve"),
        _solve_samples,
        {"lower": True, "transpose": False, "unit": False},
        cost="compute",
        error=_solve_error,
        rules="f32 a [..., n, n], b [..., n, m]. The other triangle of a is not read, nor its diagonal where `unit` takes it as"
        " 1; `transpose` solves aᵀ x = b. A zero on the diagonal divides: infinities and NaN.",
        gradient=gradients.triangular_solve,
        traits=Traits(sizes=_sizes),
    )
)
