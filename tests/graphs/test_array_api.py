"""The array API standard's names and parameters beside NumPy's own functions, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import DTypeError, IndexRangeError, InputError, ShapeError

rng = np.random.default_rng(0)
X = rng.standard_normal((3, 4)).astype(np.float32)
Y = rng.standard_normal((3, 4)).astype(np.float32)
N = rng.integers(-9, 9, (3, 4)).astype(np.int32)
CUBE = rng.standard_normal((2, 3, 4)).astype(np.float32)
SQUARE = rng.standard_normal((4, 4)).astype(np.float32)
V3 = rng.standard_normal((5, 3)).astype(np.float32)
ODD = np.array([0.0, -0.0, 1.5, -2.5, np.nan, np.inf, -np.inf], np.float32)
MASK = N > 0


def same(got: Any, want: Any, tol: float = 1e-6) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol)
    else:
        np.testing.assert_array_equal(got, want)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "log10": (pm.log10, np.log10, (np.abs(X),)),
    "asinh": (pm.asinh, np.arcsinh, (X * 100,)),
    "acosh": (pm.acosh, np.arccosh, (np.abs(X) + 1,)),
    "atanh": (pm.atanh, np.arctanh, (np.tanh(X),)),
    "isfinite": (pm.isfinite, np.isfinite, (ODD,)),
    "signbit": (pm.signbit, np.signbit, (ODD[[0, 1, 2, 3, 5, 6]],)),
    "signbit of ints": (pm.signbit, np.signbit, (N,)),
    "copysign": (pm.copysign, np.copysign, (ODD[:, None], ODD[[0, 1, 2, 3]])),
    "hypot": (pm.hypot, np.hypot, (ODD[:, None], ODD)),
    "hypot of large numbers": (pm.hypot, np.hypot, (np.float32([3e30, 1e-30]), np.float32([4e30, 1e-30]))),
    "logaddexp": (pm.logaddexp, np.logaddexp, (ODD[:, None], ODD)),
    "nextafter": (pm.nextafter, np.nextafter, (X, Y)),
    "nan_to_num": (pm.nan_to_num, np.nan_to_num, (ODD,)),
    "positive": (pm.positive, np.positive, (X,)),
    "remainder": (pm.remainder, np.remainder, (X, Y)),
    "pow": (pm.pow, np.power, (np.abs(X), Y)),
    "eye": (lambda x: pm.eye(3, 5, k=-1) + x[0, 0], lambda x: np.eye(3, 5, -1, np.float32) + x[0, 0], (X,)),
    "tril": (lambda x: pm.tril(x, 1), lambda x: np.tril(x, 1), (CUBE,)),
    "triu": (lambda x: pm.triu(x, -1), lambda x: np.triu(x, -1), (CUBE,)),
    "tril of bools": (pm.tril, np.tril, (MASK,)),
    "linspace": (lambda x: pm.linspace(-1, 2, 7) * x[0, 0], lambda x: np.linspace(-1, 2, 7, dtype=np.float32) * x[0, 0], (X,)),
    "linspace of vectors": (lambda a, b: pm.linspace(a, b, 5), lambda a, b: np.linspace(a, b, 5), (X, Y)),
    "linspace without its end": (
        lambda a, b: pm.linspace(a, b, 5, endpoint=False),
        lambda a, b: np.linspace(a, b, 5, endpoint=False),
        (X, Y),
    ),
    "meshgrid": (lambda a, b: pm.meshgrid(a, b)[0], lambda a, b: np.meshgrid(a, b)[0], (X[0], Y[:, 0])),
    "meshgrid ij": (
        lambda a, b: pm.meshgrid(a, b, indexing="ij")[1],
        lambda a, b: np.meshgrid(a, b, indexing="ij")[1],
        (X[0], Y[:, 0]),
    ),
    "diagonal": (lambda x: pm.diagonal(x, 1, 0, 2), lambda x: np.diagonal(x, 1, 0, 2), (CUBE,)),
    "diagonal below": (lambda x: pm.diagonal(x, -2, 1, 2), lambda x: np.diagonal(x, -2, 1, 2), (CUBE,)),
    "diagonal of nothing": (lambda x: pm.diagonal(x, 9), lambda x: np.diagonal(x, 9), (SQUARE,)),
    "diag": (lambda x: pm.diag(x, 2), lambda x: np.diag(x, 2), (X[0],)),
    "diag below": (lambda x: pm.diag(x, -1), lambda x: np.diag(x, -1), (X[0],)),
    "trace": (pm.linalg.trace, lambda x: np.trace(x, axis1=1, axis2=2), (CUBE,)),
    "unstack": (lambda x: pm.unstack(x, axis=1)[2], lambda x: x[:, 2], (X,)),
    "vstack": (lambda a, b: pm.vstack([a, b]), lambda a, b: np.vstack([a, b]), (X, Y[0])),
    "hstack": (lambda a, b: pm.hstack([a, b]), lambda a, b: np.hstack([a, b]), (X, Y)),
    "tensordot": (lambda a, b: pm.tensordot(a, b, ((1,), (1,))), lambda a, b: np.tensordot(a, b, ((1,), (1,))), (X, Y)),
    "tensordot of none": (lambda a, b: pm.tensordot(a, b, 0), lambda a, b: np.tensordot(a, b, 0), (X, Y)),
    "vecdot": (lambda a, b: pm.vecdot(a, b, axis=0), lambda a, b: (a * b).sum(0), (X, Y)),
    "cross": (pm.cross, np.cross, (V3, V3[0])),
    "outer": (pm.outer, np.outer, (X, Y)),
    "kron": (pm.kron, np.kron, (X, Y)),
    "kron of vectors": (pm.kron, np.kron, (X[0], Y[:, 0])),
    "kron of a vector and a matrix": (pm.kron, np.kron, (X[0], Y)),
    "kron of a number and stacks": (pm.kron, np.kron, (X[0, 0], np.stack([Y, -Y]))),
    "dot": (pm.dot, np.dot, (CUBE, SQUARE)),
    "einsum diagonal": (lambda a: pm.einsum("ii->i", a), lambda a: np.einsum("ii->i", a), (SQUARE,)),
    "einsum trace": (lambda a: pm.einsum("ii", a), lambda a: np.einsum("ii", a), (SQUARE,)),
    "einsum diagonals": (
        lambda a, b: pm.einsum("iij,jk->ik", a, b),
        lambda a, b: np.einsum("iij,jk->ik", a, b),
        (np.stack([X[:, :3]] * 3), X[:, :2]),
    ),
    "count_nonzero": (lambda x: pm.count_nonzero(x, axis=0), lambda x: np.count_nonzero(x, axis=0), (N,)),
    "cumulative_sum": (
        lambda x: pm.cumulative_sum(x, axis=1, include_initial=True),
        lambda x: np.concatenate([np.zeros((3, 1), np.float32), np.cumsum(x, 1)], 1),
        (X,),
    ),
    "cumulative_prod": (
        lambda x: pm.cumulative_prod(x, axis=0, include_initial=True, dtype="f32"),
        lambda x: np.concatenate([np.ones((1, 4), np.float32), np.cumprod(x.astype(np.float32), 0)]),
        (N,),
    ),
    "diff twice": (lambda x: pm.diff(x, n=2, axis=0), lambda x: np.diff(x, n=2, axis=0), (X,)),
    "diff with ends": (
        lambda x: pm.diff(x, prepend=0.0, append=[[1.0]] * 3),
        lambda x: np.diff(x, prepend=0, append=[[1.0]] * 3),
        (X,),
    ),
    "diff of bools": (pm.diff, np.diff, (MASK,)),
    "diff of too little": (lambda x: pm.diff(x, n=5), lambda x: np.diff(x, n=5), (X,)),
    "trapezoid": (lambda y: pm.trapezoid(y, dx=0.5), lambda y: np.trapezoid(y, dx=0.5), (X,)),
    "trapezoid at places": (lambda y, x: pm.trapezoid(y, x, axis=0), lambda y, x: np.trapezoid(y, x, axis=0), (X, Y[:, 0])),
    "isin": (pm.isin, np.isin, (N, np.int32([1, 2, -3]))),
    "isin inverted": (lambda a, b: pm.isin(a, b, invert=True), lambda a, b: np.isin(a, b, invert=True), (N, np.int32([1]))),
    "logsumexp": (lambda x: pm.logsumexp(x, axis=1), lambda x: np.log(np.exp(x).sum(1)), (X,)),
    "logsumexp of infinities": (
        lambda x: pm.logsumexp(x, axis=1),
        lambda x: np.float32([-np.inf, np.inf, np.nan]),
        (np.float32([[-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]]),),
    ),
    "quantile": (lambda x: pm.quantile(x, [0.1, 0.5, 0.99], axis=1), lambda x: np.quantile(x, [0.1, 0.5, 0.99], axis=1), (X,)),
    "quantile kept": (
        lambda x: pm.quantile(x, 0.3, axis=0, keepdims=True),
        lambda x: np.quantile(x, 0.3, axis=0, keepdims=True),
        (X,),
    ),
    "quantile of all, kept": (lambda x: pm.quantile(x, 0.3, keepdims=True), lambda x: np.quantile(x, 0.3, keepdims=True), (X,)),
    "median": (pm.median, np.median, (X,)),
    "median with NaN": (
        lambda x: pm.median(x, axis=1),
        lambda x: np.median(x, axis=1),
        (np.float32([[1, np.nan, 2], [3, 1, 2]]),),
    ),
    "sum where": (lambda x: pm.sum(x, axis=1, initial=2, where=MASK), lambda x: np.sum(x, axis=1, initial=2, where=MASK), (X,)),
    "sum in f32": (lambda x: pm.sum(x, dtype="f32"), lambda x: np.sum(x, dtype=np.float32), (N,)),
    "prod where": (lambda x: pm.prod(x, axis=0, where=MASK), lambda x: np.prod(x, axis=0, where=MASK), (X,)),
    "max where": (
        lambda x: pm.max(x, axis=0, initial=-1.0, where=MASK),
        lambda x: np.max(x, axis=0, initial=-1, where=MASK),
        (X,),
    ),
    "min of nothing": (lambda x: pm.min(x[:, :0], axis=1, initial=3.0), lambda x: np.min(x[:, :0], axis=1, initial=3), (X,)),
    "mean where": (lambda x: pm.mean(x, axis=1, where=MASK), lambda x: np.mean(x, axis=1, where=MASK), (X,)),
    "var where": (lambda x: pm.var(x, where=MASK, correction=1), lambda x: np.var(x, where=MASK, ddof=1), (X,)),
    "std with half a correction": (lambda x: pm.std(x, 1, correction=0.5), lambda x: np.std(x, 1, ddof=0.5), (X,)),
    "any where": (lambda x: pm.any(x, axis=1, where=MASK), lambda x: np.any(x, axis=1, where=MASK), (N,)),
    "all where": (lambda x: pm.all(x, axis=1, where=MASK), lambda x: np.all(x, axis=1, where=MASK), (N,)),
    "cumsum in f32": (lambda x: pm.cumsum(x, 1, dtype="f32"), lambda x: np.cumsum(x, 1, dtype=np.float32), (N,)),
    "round to decimals": (lambda x: pm.round(x, 2), lambda x: np.round(x, 2), (X,)),
    "round to tens": (lambda x: pm.round(x * 100, -1), lambda x: np.round(x * 100, -1), (X,)),
    "sort all": (lambda x: pm.sort(x, axis=None), lambda x: np.sort(x, axis=None), (X,)),
    "argsort all": (lambda x: pm.argsort(x, axis=None, stable=False), lambda x: np.argsort(x, axis=None), (X,)),
    "roll axes": (lambda x: pm.roll(x, (1, -2), (0, 1)), lambda x: np.roll(x, (1, -2), (0, 1)), (X,)),
    "roll all axes": (lambda x: pm.roll(x, 1, (0, 1)), lambda x: np.roll(x, 1, (0, 1)), (X,)),
    "repeat by a list": (lambda x: pm.repeat(x, [0, 2, 1], axis=0), lambda x: np.repeat(x, [0, 2, 1], axis=0), (X,)),
    "smallest k": (lambda x: pm.top_k(x, 2, largest=False)[0], lambda x: np.sort(x, -1)[:, :2], (X,)),
    "index tensors": (lambda x, i, j: x[i, j], lambda x, i, j: x[i, j], (X, np.int32([0, -1, 2]), np.int32([[1], [-4]]))),
    "index tensors after a slice": (
        lambda x, i, j: x[1:, i, j],
        lambda x, i, j: x[1:, i, j],
        (CUBE, np.int32([0, 2]), np.int32([3, 0])),
    ),
    "mask": (lambda x: x[MASK], lambda x: x[MASK], (X,)),
    "mask of rows": (lambda x: x[np.array([True, False, True])], lambda x: x[[0, 2]], (X,)),
    "mask of columns": (lambda x: x[:, np.array([True, False, True, False])], lambda x: x[:, [0, 2]], (X,)),
    "put_along_axis": (
        lambda x: pm.put_along_axis(x, np.int32([[1], [-1], [0]]), 9.0),
        lambda x: np.where(np.arange(4) == np.array([[1], [3], [0]]), np.float32(9), x),
        (X,),
    ),
    "broadcast_arrays": (lambda a, b: pm.broadcast_arrays(a, b)[1], lambda a, b: np.broadcast_arrays(a, b)[1], (X, Y[:, :1])),
    "elu": (pm.elu, lambda x: np.where(x > 0, x, np.expm1(x)), (X,)),
    "hardswish": (pm.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6, (X * 4,)),
    "prelu": (pm.prelu, lambda x, w: np.where(x > 0, x, x * w[:, None]), (CUBE, np.float32([0.1, 0.2, 0.3]))),
    "soft targets": (
        pm.cross_entropy,
        lambda x, p: -(p * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1),
        (X, np.exp(Y) / np.exp(Y).sum(-1, keepdims=True)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gives_what_numpy_gives(case: str) -> None:
    ours, theirs, arrays = CASES[case]
    with np.errstate(all="ignore"):
        same(pm.interpret(ours, *arrays), theirs(*arrays), 2e-6 if case != "trapezoid at places" else 1e-5)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", [(1, 2), (5, 0), ((2, 9), (0, 3))])
def test_pad_modes(mode: Any, width: Any) -> None:
    same(pm.interpret(lambda x: pm.pad(x, width, mode=mode), X), np.pad(X, width, mode=mode))
    same(pm.interpret(lambda x: pm.pad(x, 2, mode=mode), X[:1, :1]), np.pad(X[:1, :1], 2, mode=mode))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_pad_modes_of_symbolic_axes(mode: Any) -> None:
    exe = pm.compile(lambda x: pm.pad(x, (2, 3), mode=mode), x=pm.spec("N"), device="host", max={"N": 8})
    for n in (1, 2, 5):
        same(exe.run(x=X[0, :1].repeat(n) + np.arange(n)), np.pad(X[0, :1].repeat(n) + np.arange(n), (2, 3), mode=mode))


def test_diagonals_and_triangles_of_symbolic_matrices() -> None:
    exe = pm.compile(lambda x: (pm.diagonal(x), pm.tril(x), pm.eye(x.shape[0])), x=pm.spec("N", "N"), device="host", max={"N": 8})
    for n in (1, 3):
        x = rng.standard_normal((n, n)).astype(np.float32)
        for got, want in zip(exe.run(x=x), (np.diagonal(x), np.tril(x), np.eye(n)), strict=True):
            same(got, want)


def test_new_dtype_questions_agree_with_numpy() -> None:
    for name in ("float32", "float16"):
        ours, theirs = pm.finfo(name), np.finfo(name)
        assert (ours.bits, ours.max, ours.min, ours.eps) == (theirs.bits, theirs.max, theirs.min, theirs.eps)
        assert ours.smallest_normal == theirs.smallest_normal
    assert pm.finfo("bf16").eps == 2.0**-7 and pm.finfo("bf16").max > 3e38
    for name in ("int32", "uint32", "int8", "uint8"):
        assert (pm.iinfo(name).max, pm.iinfo(name).min) == (np.iinfo(name).max, np.iinfo(name).min)
    assert pm.isdtype(pm.uint8, ("bool", "integral")) and not pm.isdtype(pm.bool, "numeric")
    assert pm.result_type(pm.int8, X) == pm.float32 and pm.result_type(True, 2) == pm.int32
    assert pm.newaxis is None and np.isnan(pm.nan) and pm.inf == np.inf and (pm.pi, pm.e) == (np.pi, np.e)
    with pytest.raises(DTypeError, match="no float dtype"):
        pm.finfo("i32")
    with pytest.raises(InputError, match="no kind"):
        pm.isdtype("f32", "round")


def test_windows_as_columns_make_a_convolution() -> None:
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    w = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    columns = pm.interpret(lambda x: pm.im2col(x, (3, 2), **options), x)
    want = pm.interpret(lambda x, w: pm.conv2d(x, w, **options), x, w)
    same((w.reshape(4, -1) @ columns).reshape(want.shape), want, 1e-5)
    with pytest.raises(ShapeError, match="not one window"):
        pm.trace(lambda x: pm.im2col(x, 9), x=pm.spec(1, 1, 4, 4))


def test_dlpack_arrays_are_constants() -> None:
    same(pm.interpret(lambda x: x + pm.from_dlpack(Y), X), X + Y)


def test_padding_rows_of_an_embedding_have_no_gradient() -> None:
    def loss(table: Any, ids: Any) -> Any:
        return pm.sum(pm.embedding(table, ids, padding_idx=-1) ** 2)

    got = pm.interpret(pm.grad(loss), X, np.int32([2, 0, 2]))
    same(got, np.stack([2 * X[0], 0 * X[1], 0 * X[2]]))


def test_gradients_of_compositions_are_finite_where_functions_are_flat() -> None:
    zero = np.zeros(3, np.float32)
    same(pm.interpret(pm.grad(lambda x: pm.sum(pm.hypot(x, x))), zero), zero)
    same(pm.interpret(pm.grad(lambda x: pm.sum(pm.elu(x))), np.float32([200.0])), [1.0])
    same(pm.interpret(pm.grad(lambda x: pm.logsumexp(x)), np.float32([-np.inf, 0.0])), [0.0, 1.0])


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "pad of nothing": (lambda x: pm.pad(x[:, :0], 1, mode="edge"), ShapeError, "is empty"),
    "pad mode": (lambda x: pm.pad(x, 1, mode="mirror"), InputError, "no pad mode"),
    "repeats": (lambda x: pm.repeat(x, [1, 2], axis=0), ShapeError, "do not fit"),
    "shifts": (lambda x: pm.roll(x, (1, 2), 0), ShapeError, "2 shifts for 1 axes"),
    "smallest of too few": (lambda x: pm.top_k(x, 5, largest=False), ShapeError, "k = 5"),
    "traced mask": (lambda x: x[x > 0], DTypeError, "known only in a run"),
    "mask of another shape": (lambda x: x[np.ones(2, bool)], IndexRangeError, "a mask of shape"),
    "index tensors apart": (lambda x: x[None][np.int32([0]), :, np.int32([0])], ShapeError, "between them"),
    "max of a choice": (lambda x: pm.max(x, where=x > 0), InputError, "initial="),
    "quantile beyond 1": (lambda x: pm.quantile(x, 1.5), InputError, "in 0…1"),
    "quantile of nothing": (lambda x: pm.quantile(x[:0], 0.5), ShapeError, "no quantiles"),
    "einsum of unequal sides": (lambda x: pm.einsum("ii", x), ShapeError, "sizes 3 and 4"),
    "cross": (lambda x: pm.cross(x, x), ShapeError, "3 elements"),
    "triangle of a vector": (lambda x: pm.tril(x[0]), ShapeError, "matrices"),
    "unstack": (lambda x: pm.cumulative_sum(x), ShapeError, "needs an axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_rule(case: str) -> None:
    fn, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        pm.trace(fn, x=pm.spec(3, 4))
