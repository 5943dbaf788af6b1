"""Solving, factoring and measuring matrices: what `pm.linalg` has beyond products; f32, batched over the leading axes."""

from __future__ import annotations

import math
from typing import Any

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.errors import InputError, ShapeError
from pumice.functions.binary import divide, greater, multiply, power, where
from pumice.functions.build import Axes, TensorLike, as_float, as_tensor, axes_of, axis_of, convert, emit, fail, further_result
from pumice.functions.create import diagonal, eye
from pumice.functions.index import take_along_axis
from pumice.functions.joins import broadcast_shapes, matrix_transpose
from pumice.functions.matmul import matmul
from pumice.functions.reduce import max as reduce_max
from pumice.functions.reduce import min as reduce_min
from pumice.functions.reduce import prod, sum
from pumice.functions.shape import broadcast_to, expand_dims, moveaxis, squeeze
from pumice.functions.unary import absolute, log, sign, sqrt, square
from pumice.tensor import Tensor


def _matrices(x: TensorLike, name: str, *, square: bool = False, near: Tensor | None = None) -> Tensor:
    t = convert(as_float(as_tensor(x, near=near)), dtypes.f32)
    if t.ndim < 2 or (square and t.shape[-1] != t.shape[-2]):
        wanted = "square matrices [..., n, n]" if square else "matrices [..., m, n]"
        raise fail(ShapeError, f"{name} takes {wanted}, not {shape_text(t.shape)}", shape=t.shape)
    return t


def cholesky(x: TensorLike, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᵀ = x, or with `upper` the U with Uᵀ U = x; only that triangle of x is read.

    A matrix that is not positive definite gives NaN: nothing raises while a graph runs.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.cholesky, [[4.0, 2.0], [2.0, 5.0]])
    array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    t = _matrices(x, "cholesky", square=True)
    return matrix_transpose(emit("cholesky", [matrix_transpose(t)])) if upper else emit("cholesky", [t])


def solve_triangular(
    a: TensorLike, b: TensorLike, *, lower: bool = False, trans: bool = False, unit_diagonal: bool = False
) -> Tensor:
    """The x with a x = b, or aᵀ x = b with `trans`, for a triangular a; the other triangle is not read.

    b is [..., n, m], or a vector [n]. Leading axes broadcast. A zero on the diagonal gives infinities and NaN.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.linalg.solve_triangular(a, b, lower=True), [[2.0, 0.0], [1.0, 4.0]], [2.0, 9.0])
    array([1., 2.], dtype=float32)
    """
    t, right, is_vector = _system(a, b, "solve_triangular")
    found = emit("triangular_solve", [t, right], lower=bool(lower), transpose=bool(trans), unit=bool(unit_diagonal))
    return squeeze(found, -1) if is_vector else found


def _system(a: TensorLike, b: TensorLike, name: str) -> tuple[Tensor, Tensor, bool]:
    """Both sides with the same leading axes, the right one as matrices, and whether it was one vector."""
    near = a if isinstance(a, Tensor) else b if isinstance(b, Tensor) else None
    t = _matrices(a, name, square=True, near=near)
    right = convert(as_float(as_tensor(b, near=t)), dtypes.f32)
    is_vector = right.ndim == 1
    if is_vector:
        right = expand_dims(right, -1)
    if right.ndim < 2 or right.shape[-2] != t.shape[-1]:
        raise fail(
            ShapeError,
            f"{name}: {shape_text(t.shape)} and {shape_text(right.shape)} do not fit",
            hint="b is [..., n, m] or one vector [n]",
        )
    lead = broadcast_shapes(t.shape[:-2], right.shape[:-2])
    return broadcast_to(t, (*lead, *t.shape[-2:])), broadcast_to(right, (*lead, *right.shape[-2:])), is_vector


def _lu(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors = emit("lu", [t])
    return factors, further_result(factors, 1), further_result(factors, 2)


def lu_factor(x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, the order of x's rows, and the sign of that order: x[order] = L U, L with ones on its diagonal.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.lu_factor(x)[1], [[0.0, 1.0], [2.0, 3.0]])
    array([1, 0], dtype=int32)
    """
    return _lu(_matrices(x, "lu_factor", square=True))


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """The x with a x = b; b is [..., n, m], or one vector [n], and leading axes broadcast.

    By elimination with exchanged rows. A singular matrix gives infinities and NaN.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.solve, [[0.0, 2.0], [1.0, 1.0]], [4.0, 3.0])
    array([1., 2.], dtype=float32)
    """
    t, right, is_vector = _system(a, b, "solve")
    factors, order, _ = _lu(t)
    places = broadcast_to(expand_dims(order, -1), right.shape)
    half = emit("triangular_solve", [factors, take_along_axis(right, places, -2)], lower=True, transpose=False, unit=True)
    found = emit("triangular_solve", [factors, half], lower=False, transpose=False, unit=False)
    return squeeze(found, -1) if is_vector else found


def inv(x: TensorLike) -> Tensor:
    """The inverse of square matrices; of singular ones infinities and NaN. To solve a system, `solve` is better.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.inv, [[2.0, 0.0], [0.0, 4.0]])
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    t = _matrices(x, "inv", square=True)
    return solve(t, broadcast_to(eye(t.shape[-1]), t.shape))


def det(x: TensorLike) -> Tensor:
    """The determinant of square matrices; 0 for singular ones. Its gradient is that of matrices that are not singular.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.det, [[1.0, 2.0], [3.0, 4.0]])
    array(-2., dtype=float32)
    """
    factors, _, turned = _lu(_matrices(x, "det", square=True))
    return multiply(prod(diagonal(factors, 0, -2, -1), -1), turned)


def slogdet(x: TensorLike) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its size; for singular matrices 0 and -inf.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.slogdet, [[1.0, 0.0], [0.0, -1.0]])
    (array(-1., dtype=float32), array(0., dtype=float32))
    """
    factors, _, turned = _lu(_matrices(x, "slogdet", square=True))
    pivots = diagonal(factors, 0, -2, -1)
    return multiply(prod(sign(pivots), -1), turned), sum(log(absolute(pivots)), -1)


def qr(x: TensorLike, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """An orthogonal q [..., m, k] and an upper triangular r [..., k, n] with q r = x, where k = min(m, n).

    By Householder reflections, with NumPy's signs; up to 256 columns of static size.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.qr(x)[1], [[3.0, 1.0], [4.0, 2.0]])
    array([[-5. , -2.2],
           [ 0. ,  0.4]], dtype=float32)
    """
    if mode != "reduced":
        raise fail(InputError, f"qr has the mode 'reduced', not {mode!r}", mode=mode)
    q = emit("qr", [_matrices(x, "qr")])
    return q, further_result(q, 1)


def svd(x: TensorLike, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Orthogonal u [..., m, k] and vh [..., k, n], and the singular values s [..., k], descending, with u diag(s) vh = x.

    By Jacobi rotations of the columns; static sizes, of which the smaller is at most 256. The greatest entry of each row of
    vh, or column of u where x is wide, is positive. Gradients are those of distinct singular values.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.svd(x)[1], [[3.0, 0.0], [0.0, -4.0]])
    array([4., 3.], dtype=float32)
    """
    if full_matrices:
        raise fail(InputError, "svd gives the reduced factors only", hint="full_matrices=False")
    t = _matrices(x, "svd")
    rows, columns = t.shape[-2:]
    wide = isinstance(rows, int) and isinstance(columns, int) and columns > rows
    u = emit("svd", [matrix_transpose(t) if wide else t])
    s, vh = further_result(u, 1), further_result(u, 2)
    return (matrix_transpose(vh), s, matrix_transpose(u)) if wide else (u, s, vh)


def svdvals(x: TensorLike) -> Tensor:
    """The singular values, descending.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.svdvals, [[3.0, 0.0], [0.0, -4.0]])
    array([4., 3.], dtype=float32)
    """
    return svd(x)[1]


def eigh(x: TensorLike) -> tuple[Tensor, Tensor]:
    """The eigenvalues, ascending, and eigenvectors, as columns, of symmetric matrices, of which the lower triangle is read.

    By Jacobi rotations; up to 256 columns of static size. The greatest entry of each vector is positive. Gradients are those of
    distinct eigenvalues.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.eigh(x)[0], [[2.0, 1.0], [1.0, 2.0]])
    array([1., 3.], dtype=float32)
    """
    w = emit("eigh", [_matrices(x, "eigh", square=True)])
    return w, further_result(w, 1)


def eigvalsh(x: TensorLike) -> Tensor:
    """The eigenvalues of symmetric matrices, ascending.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.eigvalsh, [[2.0, 1.0], [1.0, 2.0]])
    array([1., 3.], dtype=float32)
    """
    return eigh(x)[0]


def pinv(x: TensorLike, rtol: float | None = None) -> Tensor:
    """The pseudo-inverse: singular values up to rtol times the greatest count as 0; by default the larger size times eps.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.pinv, [[1.0, 0.0], [0.0, 0.0]])
    array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    u, s, vh = svd(x)
    kept = greater(s, _threshold(s, x, rtol))
    inverse = where(kept, divide(1.0, where(kept, s, 1.0)), 0.0)
    return matmul(multiply(matrix_transpose(vh), expand_dims(inverse, -2)), matrix_transpose(u))


def _threshold(s: Tensor, x: TensorLike, rtol: float | None) -> Tensor:
    size = max(int(d) for d in as_tensor(x).shape[-2:] if isinstance(d, int))
    return multiply(reduce_max(s, -1, keepdims=True, initial=0.0), size * 2.0**-23 if rtol is None else rtol)


def matrix_rank(x: TensorLike, rtol: float | None = None) -> Tensor:
    """How many singular values count as more than 0, in i32; see `pinv`.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.matrix_rank, [[1.0, 2.0], [2.0, 4.0]])
    array(1, dtype=int32)
    """
    s = svdvals(x)
    return sum(greater(s, _threshold(s, x, rtol)), -1)


def matrix_power(x: TensorLike, n: int) -> Tensor:
    """Square matrices multiplied with themselves n times; a negative n takes the inverse.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.matrix_power(x, 3), [[1.0, 1.0], [0.0, 1.0]])
    array([[1., 3.],
           [0., 1.]], dtype=float32)
    """
    t = _matrices(x, "matrix_power", square=True)
    if n < 0:
        t, n = inv(t), -n
    if n == 0:
        return broadcast_to(eye(t.shape[-1]), t.shape)
    found: Tensor | None = None
    while n:
        if n & 1:
            found = t if found is None else matmul(found, t)
        n >>= 1
        if n:
            t = matmul(t, t)
    assert found is not None
    return found


def vector_norm(x: TensorLike, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of vectors along axes, or of all elements: (Σ |x|^ord)^(1/ord), the greatest or least for infinities.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.vector_norm, [3.0, 4.0])
    array(5., dtype=float32)
    """
    t = as_float(x)
    axes = axes_of(axis, t.ndim)
    size = absolute(t)
    if ord == math.inf:
        return reduce_max(size, axes, keepdims, initial=0.0)
    if ord == -math.inf:
        return reduce_min(size, axes, keepdims)
    if ord == 0:
        return convert(sum(t != 0, axes, keepdims), t.dtype)
    if ord == 1:
        return sum(size, axes, keepdims)
    if ord == 2:
        # The root of 0 has no slope; without the choice the gradient would be NaN there.
        squares = sum(square(t), axes, keepdims)
        zero = squares == 0
        return where(zero, 0.0, sqrt(where(zero, 1.0, squares)))
    return power(sum(power(size, float(ord)), axes, keepdims), 1.0 / float(ord))


def matrix_norm(x: TensorLike, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norm of matrices: "fro", "nuc", 1 and inf (greatest sum of a column, of a row), -1, -inf, 2 and -2 (singular values).

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.linalg.matrix_norm(x, ord=1), [[1.0, -2.0], [3.0, 4.0]])
    array(6., dtype=float32)
    """
    t = _matrices(x, "matrix_norm")
    if ord == "fro":
        return vector_norm(t, (-2, -1), keepdims)
    if ord in ("nuc", 2, -2):
        s = svdvals(t)
        found = sum(s, -1) if ord == "nuc" else reduce_max(s, -1, initial=0.0) if ord == 2 else reduce_min(s, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = sum(absolute(t), -2 if abs(ord) == 1 else -1)
        found = reduce_max(sums, -1, initial=0.0) if ord > 0 else reduce_min(sums, -1)
    else:
        raise fail(InputError, f"there is no matrix norm {ord!r}", hint="'fro', 'nuc', 1, -1, 2, -2, inf or -inf", ord=str(ord))
    return expand_dims(found, (-2, -1)) if keepdims else found


def norm(x: TensorLike, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """NumPy's norm: of all elements, of vectors along one axis, or of matrices along two.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.norm(x, axis=1), [[3.0, 4.0], [0.0, 2.0]])
    array([5., 2.], dtype=float32)
    """
    t = as_float(x)
    if axis is None:
        if ord is None:
            return vector_norm(t, None, keepdims)
        axis = -1 if t.ndim == 1 else tuple(range(t.ndim))
    axes = axes_of(axis, t.ndim)
    if len(axes) == 1:
        return vector_norm(t, axes, keepdims, 2 if ord is None else ord)
    if len(axes) != 2:
        raise fail(ShapeError, f"a norm is of one axis or of two, not of {len(axes)}", hint="name them with axis=")
    found = matrix_norm(moveaxis(t, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(found, tuple(sorted(axis_of(a, t.ndim) for a in axes))) if keepdims else found


def cond(x: TensorLike) -> Tensor:
    """The condition of matrices: their greatest singular value over the least; infinite for singular ones.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.cond, [[4.0, 0.0], [0.0, 2.0]])
    array(2., dtype=float32)
    """
    s = svdvals(x)
    return divide(reduce_max(s, -1), reduce_min(s, -1))


def lstsq(a: TensorLike, b: TensorLike, rtol: float | None = None) -> Tensor:
    """The x of least length for which |a x - b| is least, by the pseudo-inverse; b is [..., m, k] or one vector [m].

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.lstsq, [[1.0], [1.0]], [1.0, 3.0])
    array([2.], dtype=float32)
    """
    right = convert(as_float(as_tensor(b)), dtypes.f32)
    inverse = pinv(a, rtol)
    return squeeze(matmul(inverse, expand_dims(right, -1)), -1) if right.ndim == 1 else matmul(inverse, right)
