"""Gradients of factorisations: the perturbation of each factor, solved for the matrix (Giles 2008; Seeger et al. 2017)."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients, Val


def _above(x: Val) -> Val:
    """How far each place of the last two axes is above the main diagonal."""
    rows, columns = x.shape[-2:]
    return x.arange(0, columns) - x.arange(0, rows).reshape((rows, 1))


def tril(x: Val, k: int = 0) -> Val:
    return _above(x).le(k).choose(x, 0.0)


def triu(x: Val, k: int = 0) -> Val:
    return _above(x).ge(k).choose(x, 0.0)


def _half_diagonal(x: Val) -> Val:
    """The lower triangle with half of the diagonal."""
    return _above(x).eq(0).choose(x * 0.5, tril(x))


def _folded(x: Val) -> Val:
    """A symmetric gradient as that of the lower triangle alone, which stands for both."""
    both = x + x.swap_last()
    return _above(x).eq(0).choose(x, tril(both))


def _solve(a: Val, b: Val, *, lower: bool = True, transpose: bool = False, unit: bool = False) -> Val:
    return a.op("triangular_solve", b, lower=lower, transpose=transpose, unit=unit)


def cholesky(c: Backward) -> Gradients:
    factor, dy = c.out, tril(c.dy)
    inner = _half_diagonal(factor.swap_last() @ dy)
    # L⁻ᵀ inner L⁻¹
    left = _solve(factor, inner, transpose=True)
    whole = _solve(factor, left.swap_last(), transpose=True).swap_last()
    return {"a": _folded(whole)}


def triangular_solve(c: Backward) -> Gradients:
    a, x = c.operands["a"], c.out
    lower, transpose, unit = c.attrs["lower"], c.attrs["transpose"], c.attrs["unit"]
    back = _solve(a, c.dy, lower=lower, transpose=not transpose, unit=unit)

    def of_matrix() -> Val:
        whole = -(x @ back.swap_last()) if transpose else -(back @ x.swap_last())
        inside = 1 if unit else 0
        return tril(whole, -inside) if lower else triu(whole, inside)

    return c.each(a=of_matrix, b=lambda: back)


def lu(c: Backward) -> Gradients:
    dy = c.dys[0]
    if dy is None:
        return {"a": None}
    factors, order, _ = c.out.results
    # The unit diagonal of L has no gradient: what is on and above it belongs to U.
    lower = _above(factors).eq(0).choose(1.0, tril(factors))
    upper = triu(factors)
    inner = tril(lower.swap_last() @ tril(dy, -1), -1) + triu(triu(dy) @ upper.swap_last())
    left = _solve(factors, inner, transpose=True, unit=True)
    whole = _solve(factors, left.swap_last(), lower=False).swap_last()
    # Row k of the product is row order[k] of a.
    places = order.reshape((*order.shape, 1)).expand(whole.shape)
    return {"a": whole.full(0.0).op("scatter_along_axis_add", places, whole, axis=whole.rank - 2)}


def _copied(x: Val) -> Val:
    """The lower triangle and its mirror image."""
    return tril(x) + tril(x, -1).swap_last()


def qr(c: Backward) -> Gradients:
    a = c.operands["a"]
    q, r = c.out.results
    dq, dr = (found if found is not None else of.full(0.0) for found, of in zip(c.dys, (q, r), strict=True))
    rows, columns = a.shape[-2:]
    last = a.rank - 1
    wide = isinstance(rows, int) and isinstance(columns, int) and columns > rows
    square_r, square_dr = r, dr
    if wide:
        # The first columns are factored; q turns the others, which do not change it.
        square_r, square_dr = r.slice_axis(last, 0, rows), dr.slice_axis(last, 0, rows)
        others, d_others = a.slice_axis(last, rows, columns), dr.slice_axis(last, rows, columns)
        dq = dq + others @ d_others.swap_last()
    square_dr = triu(square_dr)
    middle = square_r @ square_dr.swap_last() - dq.swap_last() @ q
    whole = dq + q @ _copied(middle)
    found = _solve(square_r, whole.swap_last(), lower=False).swap_last()
    if not wide:
        return {"a": found}
    return {"a": found.op("concat", q @ d_others, axis=last)}


def _differences(s: Val) -> Val:
    """1 / (s_j - s_i) off the diagonal, 0 on it and between equal ones."""
    row, column = s.reshape((*s.shape[:-1], 1, s.shape[-1])), s.reshape((*s.shape, 1))
    apart = row - column
    same = apart.eq(0.0)
    return same.choose(0.0, 1.0 / same.choose(1.0, apart))


def _scaled(x: Val, s: Val) -> Val:
    """Columns times the entries of a vector."""
    return x * s.reshape((*s.shape[:-1], 1, s.shape[-1]))


def svd(c: Backward) -> Gradients:
    u, s, vh = c.out.results
    du, ds, dvh = (found if found is not None else of.full(0.0) for found, of in zip(c.dys, (u, s, vh), strict=True))
    v, dv = vh.swap_last(), dvh.swap_last()
    apart = _differences(s * s)
    left = apart * (u.swap_last() @ du)
    right = apart * (v.swap_last() @ dv)
    diagonal = _above(left).eq(0).choose(ds.reshape((*ds.shape, 1)), 0.0)
    rows = s.reshape((*s.shape, 1))
    core = _scaled(left + left.swap_last(), s) + rows * (right + right.swap_last()) + diagonal
    # A singular value of 0 has no direction of its own: what is outside the vectors' span gets no gradient from it.
    zero = s.eq(0.0)
    inverse = zero.choose(0.0, 1.0 / zero.choose(1.0, s))
    outside = _scaled(du, inverse) - u @ (u.swap_last() @ _scaled(du, inverse))
    whole = (u @ core + outside) @ vh
    across = _scaled(dv, inverse) - v @ (v.swap_last() @ _scaled(dv, inverse))
    return {"a": whole + u @ across.swap_last()}


def eigh(c: Backward) -> Gradients:
    w, v = c.out.results
    dw, dv = (found if found is not None else of.full(0.0) for found, of in zip(c.dys, (w, v), strict=True))
    core = _differences(w) * (v.swap_last() @ dv)
    core = _above(core).eq(0).choose(dw.reshape((*dw.shape, 1)), core)
    whole = v @ core @ v.swap_last()
    return {"a": _folded((whole + whole.swap_last()) * 0.5)}
