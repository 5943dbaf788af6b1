"""Error models of factorisations and triangular systems: first-order perturbation theory, element by element.

Each algorithm gives the exact result of slightly other matrices: the rounding errors of a computed factor add up to a matrix E
whose entries are bounded by the data (Higham, Accuracy and Stability of Numerical Algorithms, chapters 8–10 and 19). A result's
first-order error is linear in E, so each element of the result has a coefficient for each entry of E. These entries are
independent of each other: an element's error is beyond `_SPREAD` times the root of the sum of squares with a
probability of 2·exp(-_SPREAD²/2) at most (Hoeffding), and far less as no rounding reaches its bound each time.
"""

from __future__ import annotations

import numpy as np

from pumice.ir.precision import DIVISION_ULPS, Array, Evaluation, U, growth

_SPREAD = 3.0
# A quotient's error in units of U, and that of a reflection or rotation, relative to the vector that it turns: a root, two
# quotients and a few products make its coefficients.
_QUOTIENT = 2 * DIVISION_ULPS
_REFLECTION, _ROTATION = 4.0, 8.0
# A vector's entries are not known at all where its direction is not, and no two unit vectors are farther apart.
_UNKNOWN, _APART = 0.1, 2.0


def _transposed(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _numbers(a: Array) -> Array:
    """The matrix without NaN and infinities, whose elements have no bound."""
    return np.where(np.isfinite(a), a, 0.0)


def _inverse(triangular: Array, least: Array | float = 1.0) -> Array:
    """The inverse; zeros on the diagonal, where an elimination stops, count as `least`."""
    n = triangular.shape[-1]
    zero = (np.diagonal(triangular, axis1=-2, axis2=-1) == 0)[..., None] & np.eye(n, dtype=bool)
    return np.asarray(np.linalg.inv(np.where(zero, least, triangular)))


def _steps(n: int) -> Array:
    """For each entry of an n × n matrix, how many steps of an elimination change it, itself included."""
    return np.minimum(np.arange(n)[:, None], np.arange(n)[None, :]) + 1


def cholesky_error(e: Evaluation) -> Array:
    """L Lᵀ = a + E changes column c of L by L[:, c:] H L⁻¹[c:, :] E L⁻¹[c, :]ᵀ; H halves the diagonal, which changes L twice."""
    factor = _numbers(e.result)
    n = factor.shape[-1]
    inverse, bound = _inverse(factor), np.zeros(factor.shape)
    sizes = U * (growth(_steps(n)) + _QUOTIENT) * (np.abs(factor) @ np.abs(_transposed(factor)))
    # E is symmetric: two of its entries are the same error.
    squares = 2 * sizes**2
    for c in range(n):
        halved = np.where(np.arange(n - c) == 0, 0.5, 1.0)[:, None]
        left = factor[..., :, c:] @ (halved * inverse[..., c:, :])
        bound[..., :, c] = (left**2 @ squares @ inverse[..., c, :, None] ** 2)[..., 0]
    return np.tril(_SPREAD * np.sqrt(bound))


def lu_error(e: Evaluation) -> tuple[Array, ...]:
    """L U = a + E changes row c of U by L⁻¹[c, :] E U⁻¹[:, c:] U[c:, :].

    Column c of L changes by L[:, c + 1:] L⁻¹[c + 1:, :] E U⁻¹[:, c].
    """
    packed = _numbers(e.results[0])
    n = packed.shape[-1]
    lower, upper = np.tril(packed, -1) + np.eye(n), np.triu(packed)
    from_left, from_right = _inverse(lower), _inverse(upper)
    sizes = U * growth(_steps(n)) * (np.abs(lower) @ np.abs(upper))
    pivots = np.abs(np.diagonal(upper, axis1=-2, axis2=-1))[..., None, :]
    squares = (sizes + U * _QUOTIENT * np.abs(np.tril(packed, -1)) * pivots) ** 2
    bound = np.zeros(packed.shape)
    for c in range(n):
        right = from_right[..., :, c:] @ upper[..., c:, :]
        rows = from_left[..., c, None, :] ** 2 @ squares @ right**2
        bound[..., c, c:] = rows[..., 0, c:]
        left = lower[..., :, c + 1 :] @ from_left[..., c + 1 :, :]
        columns = left**2 @ squares @ from_right[..., :, c, None] ** 2
        bound[..., c + 1 :, c] = columns[..., c + 1 :, 0]
    return _SPREAD * np.sqrt(bound), np.zeros(e.results[1].shape), np.zeros(e.results[2].shape)


def solve_error(e: Evaluation, a: Array) -> Array:
    """(a + E) x = b with |E| ≤ growth · U · |a| changes x by a⁻¹ E x; `a` is the triangle that is solved with."""
    x = _numbers(e.result)
    diagonal = np.abs(np.diagonal(a, axis1=-2, axis2=-1))[..., None]
    terms = np.count_nonzero(a, axis=-1)[..., None]
    sizes = U * (growth(terms) * (np.abs(a) @ np.abs(x)) + _QUOTIENT * diagonal * np.abs(x))
    return np.asarray(_SPREAD * np.sqrt(_inverse(a) ** 2 @ sizes**2))


def qr_error(e: Evaluation) -> tuple[Array, ...]:
    """Q R = a + E, where a column of E is as large as the roundings of all reflections of that column of a.

    With F = Qᵀ E R⁻¹ and K = its part below the diagonal minus that part transposed, which is skew, R changes by
    Qᵀ E - K R and Q by Q K + (1 - Q Qᵀ) E R⁻¹. Of a matrix with more columns than rows, R⁻¹ is that of the first ones.
    """
    a, (q, r) = _numbers(e.arrays[0]), (_numbers(x) for x in e.results)
    rank, columns = r.shape[-2:]
    lengths = np.sqrt(np.sum(a * a, axis=-2, keepdims=True))
    off = _REFLECTION * growth(rank) * U
    least = U * np.max(lengths, axis=-1, keepdims=True, initial=0.0) + np.finfo(np.float64).tiny
    inverse = np.zeros((*r.shape[:-2], columns, rank))
    inverse[..., :rank, :] = _inverse(r[..., :, :rank], least)
    squares = (off * lengths) ** 2  # one row for all of Qᵀ E: reflections spread errors over a column
    of_r, of_q = np.zeros(r.shape), np.zeros(q.shape)
    outside = np.maximum(1.0 - np.sum(q * q, axis=-1), 0.0)
    for c in range(rank):
        # What a column of F may be off by, any row of it; of column c of R⁻¹ only.
        of_f = squares @ inverse[..., :, c, None] ** 2
        unchanged = np.eye(columns) - inverse[..., :, :c] @ r[..., :c, :]
        of_r[..., c, :] = (squares @ unchanged**2 + of_f * np.sum(r[..., c + 1 :, :] ** 2, axis=-2, keepdims=True))[..., 0, :]
        before = inverse[..., :, :c] @ _transposed(q[..., :, :c])
        after = of_f * (np.sum(q[..., :, c + 1 :] ** 2, axis=-1) + outside)[..., None, :]
        of_q[..., :, c] = (squares @ before**2 + after)[..., 0, :] + off**2
    return np.minimum(_SPREAD * np.sqrt(of_q), _APART), np.triu(_SPREAD * np.sqrt(of_r))


def _turned(vectors: Array, angles: Array) -> Array:
    """How far columns are off where vector j has that much of vector i in it, `angles[i, j]`, and has lost what it gave."""
    n = angles.shape[-1]
    angles = np.minimum(np.where(np.eye(n, dtype=bool), 0.0, angles), _APART)
    lost = np.minimum(np.sum(angles**2, axis=-2, keepdims=True) / 2, _APART)
    return np.asarray(vectors**2 @ angles**2 + (vectors * lost) ** 2)


def _directions(squares: Array) -> Array:
    """What columns are off by, given the squares of how far they turn."""
    return np.minimum(_SPREAD * np.sqrt(squares) + _ROTATION * U, _APART)


def _signs_tie(vectors: Array, off: Array) -> Array:
    """Which columns may have either sign, as [..., 1, n]: a negative entry may be as great as the greatest positive one."""
    greatest = np.max(vectors - off, axis=-2, keepdims=True, initial=0.0)
    return np.asarray(np.any(off - vectors >= greatest, axis=-2, keepdims=True))


def _of_rotations(values: Array, rows: int) -> Array:
    """What all rotations are off by, as [..., 1]: they also scale, each by a rounding that may have the same sign each time."""
    largest = np.abs(values).max(axis=-1, initial=0.0, keepdims=True)
    return np.asarray(U * (_ROTATION * growth(rows) + values.shape[-1]) * largest)


def svd_error(e: Evaluation) -> tuple[Array, ...]:
    """Values are off by the norm of E; a pair of vectors turns by E over how far the squares of their values are apart."""
    u, s, vh = (_numbers(r) for r in e.results)
    v, squares = _transposed(vh), s**2
    off = _of_rotations(s, u.shape[-2])
    with np.errstate(divide="ignore", invalid="ignore"):
        sums, apart = (f(squares[..., :, None], squares[..., None, :]) for f in (np.add, np.subtract))
        angles = np.nan_to_num(off[..., None] * np.sqrt(sums) / np.abs(apart), nan=_APART)
        out = np.nan_to_num(off / s, nan=_APART)[..., None, :]
    outside = np.maximum(1.0 - np.sum(u * u, axis=-1, keepdims=True), 0.0)
    # Values that are rounding errors themselves have left vectors of any direction.
    of_u = np.where(out > _UNKNOWN, _APART, _directions(_turned(u, angles) + outside * np.minimum(out, _APART) ** 2))
    of_v = _directions(_turned(v, angles))
    flipped = 2.0 * _signs_tie(v, of_v)
    return of_u + flipped * np.abs(u), np.broadcast_to(_SPREAD * off, s.shape), _transposed(of_v + flipped * np.abs(v))


def eigh_error(e: Evaluation) -> tuple[Array, ...]:
    """Values are off by the norm of E; a pair of vectors turns by E over how far their values are apart."""
    w, v = (_numbers(r) for r in e.results)
    off = _of_rotations(w, v.shape[-2])
    with np.errstate(divide="ignore", invalid="ignore"):
        angles = np.nan_to_num(off[..., None] / np.abs(w[..., :, None] - w[..., None, :]), nan=_APART)
    of_v = _directions(_turned(v, angles))
    return np.broadcast_to(_SPREAD * off, w.shape), of_v + 2.0 * _signs_tie(v, of_v) * np.abs(v)
