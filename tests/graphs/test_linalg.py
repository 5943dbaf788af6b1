"""pm.linalg beside NumPy's linear algebra, on the host and on WebGPU; singular matrices, and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError, ShapeError

rng = np.random.default_rng(4)
SQUARE = rng.standard_normal((2, 5, 5)).astype(np.float32)
TALL = rng.standard_normal((7, 4)).astype(np.float32)
POSITIVE = (SQUARE @ SQUARE.swapaxes(-1, -2) / 5 + np.eye(5)).astype(np.float32)
RIGHT = rng.standard_normal((2, 5, 3)).astype(np.float32)
SINGULAR = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (pm.linalg.cholesky, np.linalg.cholesky, (POSITIVE,)),
    "cholesky upper": (
        lambda x: pm.linalg.cholesky(x, upper=True),
        lambda x: np.linalg.cholesky(x).swapaxes(-1, -2),
        (POSITIVE,),
    ),
    "solve": (pm.linalg.solve, np.linalg.solve, (SQUARE, RIGHT)),
    "solve for a vector": (pm.linalg.solve, np.linalg.solve, (SQUARE[0], RIGHT[0, :, 0])),
    "solve with a shared matrix": (pm.linalg.solve, lambda a, b: np.linalg.inv(a) @ b, (SQUARE[0], RIGHT)),
    "inv": (pm.linalg.inv, np.linalg.inv, (SQUARE,)),
    "det": (pm.linalg.det, np.linalg.det, (SQUARE,)),
    "slogdet": (lambda x: pm.linalg.slogdet(x)[1], lambda x: np.linalg.slogdet(x)[1], (SQUARE,)),
    "sign of slogdet": (lambda x: pm.linalg.slogdet(x)[0], lambda x: np.linalg.slogdet(x)[0], (SQUARE,)),
    "qr": (lambda x: pm.linalg.qr(x)[1], lambda x: np.linalg.qr(x)[1], (TALL,)),
    "q": (lambda x: pm.linalg.qr(x)[0], lambda x: np.linalg.qr(x)[0], (TALL,)),
    "svdvals": (pm.linalg.svdvals, lambda x: np.linalg.svd(x, compute_uv=False), (SQUARE,)),
    "svd of wide": (lambda x: _product(*pm.linalg.svd(x.T)), lambda x: x.T, (TALL,)),
    "eigvalsh": (pm.linalg.eigvalsh, np.linalg.eigvalsh, (POSITIVE,)),
    "pinv": (pm.linalg.pinv, np.linalg.pinv, (TALL,)),
    "pinv of singular": (pm.linalg.pinv, lambda x: np.linalg.pinv(x.astype(np.float64), rcond=1e-6), (SINGULAR,)),
    "matrix_rank": (pm.linalg.matrix_rank, np.linalg.matrix_rank, (SINGULAR,)),
    "matrix_power": (lambda x: pm.linalg.matrix_power(x, -5), lambda x: np.linalg.matrix_power(x, -5), (POSITIVE,)),
    "lstsq": (pm.linalg.lstsq, lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0], (TALL, RIGHT.ravel()[:7])),
    "cond": (pm.linalg.cond, np.linalg.cond, (SQUARE,)),
    "norm": (pm.norm, np.linalg.norm, (TALL,)),
    "norm of rows": (lambda x: pm.norm(x, axis=1, keepdims=True), lambda x: np.linalg.norm(x, axis=1, keepdims=True), (TALL,)),
    "vector norm 3": (lambda x: pm.norm(x, 3, axis=0), lambda x: np.linalg.norm(x, 3, axis=0), (TALL,)),
    "vector norm inf": (lambda x: pm.norm(x, np.inf, axis=0), lambda x: np.linalg.norm(x, np.inf, axis=0), (TALL,)),
}
for _ord in (1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"):
    CASES[f"matrix norm {_ord}"] = (
        lambda x, o=_ord: pm.linalg.matrix_norm(x, ord=o),
        lambda x, o=_ord: np.linalg.norm(x, o),
        (TALL,),
    )


def _product(u: Any, s: Any, vh: Any) -> Any:
    return pm.matmul(u * s, vh)


@pytest.mark.parametrize("case", CASES)
def test_gives_what_numpy_gives(case: str) -> None:
    ours, theirs, arrays = CASES[case]
    got, want = pm.interpret(ours, *arrays), np.asarray(theirs(*arrays))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.gpu
def test_a_system_is_solved_on_webgpu() -> None:
    def fn(a: Any, b: Any) -> Any:
        u, s, vh = pm.linalg.svd(a)
        return pm.linalg.solve(a, b), pm.linalg.det(a), pm.matmul(u * s[..., None, :], vh)

    exe = pm.compile(fn, a=pm.spec(2, 5, 5), b=pm.spec(2, 5, 3), device="webgpu")
    x, det, back = exe.run(a=SQUARE, b=RIGHT)
    np.testing.assert_allclose(SQUARE @ x, RIGHT, atol=1e-3)
    np.testing.assert_allclose(det, np.linalg.det(SQUARE), rtol=1e-3)
    np.testing.assert_allclose(back, SQUARE, atol=1e-4)


def test_matrices_of_symbolic_size_are_solved() -> None:
    exe = pm.compile(pm.linalg.solve, a=pm.spec("N", "N"), b=pm.spec("N", 2), device="host", max={"N": 9})
    for n in (1, 4):
        a, b = rng.standard_normal((n, n)).astype(np.float32), rng.standard_normal((n, 2)).astype(np.float32)
        np.testing.assert_allclose(exe.run(a=a, b=b), np.linalg.solve(a, b), rtol=1e-3, atol=1e-4)


def test_singular_matrices_give_what_the_docs_say() -> None:
    assert pm.interpret(pm.linalg.det, SINGULAR * 0) == 0
    rank_one = np.array([[1, 2], [2, 4]], np.float32)
    assert pm.interpret(pm.linalg.det, rank_one) == 0
    sign, size = pm.interpret(pm.linalg.slogdet, rank_one)
    assert sign == 0 and size == -np.inf
    assert not np.isfinite(pm.interpret(pm.linalg.solve, rank_one, np.float32([1, 1]))).any()
    assert not np.isfinite(pm.interpret(pm.linalg.inv, rank_one)).all()
    broken = pm.interpret(pm.linalg.cholesky, np.array([[1, 0], [0, -1]], np.float32))
    assert broken[0, 0] == 1 and np.isnan(broken[1, 1])
    assert pm.interpret(pm.linalg.cond, rank_one) > 1e6
    assert np.isnan(pm.interpret(pm.linalg.svdvals, rank_one * np.nan)).all()


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "det": lambda x: pm.sum(pm.linalg.det(x)),
    "slogdet": lambda x: pm.sum(pm.linalg.slogdet(x)[1]),
    "inv": lambda x: pm.sum(pm.linalg.inv(x) * RIGHT[..., :1]),
    "solve": lambda x: pm.sum(pm.linalg.solve(x, RIGHT) ** 2),
    "norm": lambda x: pm.sum(pm.linalg.matrix_norm(x)),
    "nuclear norm": lambda x: pm.sum(pm.linalg.matrix_norm(x, ord="nuc")),
    "cholesky": lambda x: pm.sum(pm.linalg.cholesky(x) * RIGHT[..., :1]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree_with_differences(name: str) -> None:
    fn, x = GRADIENTS[name], POSITIVE
    got = pm.interpret(pm.grad(fn), x)
    direction = rng.standard_normal(x.shape).astype(np.float32)
    step = np.float32(2e-3)
    up, down = (float(pm.interpret(fn, (x + s * step * direction).astype(np.float32))) for s in (1, -1))
    want = (up - down) / (2 * float(step))
    assert abs(float((got * direction).sum()) - want) < 0.01 * (1 + abs(want))


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "cholesky": (pm.linalg.cholesky, ShapeError, "square"),
    "vector": (lambda x: pm.linalg.inv(x[0]), ShapeError, "square"),
    "right side": (lambda x: pm.linalg.solve(x @ x.T, x.T), ShapeError, "do not fit"),
    "full svd": (lambda x: pm.linalg.svd(x, full_matrices=True), InputError, "reduced"),
    "qr mode": (lambda x: pm.linalg.qr(x, "complete"), InputError, "reduced"),
    "norm": (lambda x: pm.linalg.matrix_norm(x, ord=3), InputError, "no matrix norm"),
    "norm of three axes": (lambda x: pm.norm(x[None], 2), ShapeError, "one axis or of two"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_rule(case: str) -> None:
    fn, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        pm.trace(fn, x=pm.spec(3, 4))


def test_symbolic_sizes_are_refused_where_kernels_need_numbers() -> None:
    with pytest.raises(ShapeError, match="static size"):
        pm.trace(lambda x: pm.linalg.svd(x)[1], x=pm.spec("N", 3))
    with pytest.raises(ShapeError, match="up to 256 columns"):
        pm.trace(lambda x: pm.linalg.qr(x)[1], x=pm.spec(300, 300))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3), (3, 0)])
def test_matrices_without_elements_have_norm_and_rank_0(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for ord in (1, 2, np.inf) if shape[-1] == shape[-2] else ():
        got = pm.interpret(lambda a, ord=ord: pm.linalg.matrix_norm(a, ord=ord), x)
        np.testing.assert_array_equal(got, np.zeros(shape[:-2]))
    np.testing.assert_array_equal(pm.interpret(pm.linalg.matrix_rank, x), np.linalg.matrix_rank(x))
    np.testing.assert_array_equal(pm.interpret(pm.linalg.pinv, x), np.linalg.pinv(x))
